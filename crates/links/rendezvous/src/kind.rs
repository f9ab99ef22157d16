//! Kinds of the rendezvous's messages.

/// First message of an initiator: version, slots; identity.
pub const HELLO: u32 = 1;
/// The answer: the same of the owner, with its arena and the descriptor that wakes it.
pub const WELCOME: u32 = 2;
/// The initiator's slots have grown.
pub const SLOTS: u32 = 3;
/// Asks for a lane: initiator, QPN, SRQN.
pub const LANE: u32 = 4;
/// The answer: the same, 1 if granted; offset.
pub const LANE_REPLY: u32 = 5;
/// An initiating QP is gone: its number.
pub const FORGET: u32 = 6;
/// A QP entered a multicast group: QPN, sequence number for the acknowledgement; group.
pub const JOIN: u32 = 7;
/// A QP left it.
pub const LEAVE: u32 = 8;
/// Asks for all memberships: sequence number.
pub const MEMBERS: u32 = 9;
/// Done with the JOIN or MEMBERS of this sequence number.
pub const ACK: u32 = 10;
/// The owner has another version: its version.
pub const REFUSED: u32 = 11;
/// Asks for a shared object: number, generation, window.
pub const OBJECT: u32 = 12;
/// The answer: the same, 1 if granted; the descriptor of a memfd, nothing for a segment.
pub const OBJECT_REPLY: u32 = 13;
/// An object is withdrawn: number, generation.
pub const OBJECT_GONE: u32 = 14;
/// Asks for the pipe of a completion channel: its number.
pub const CHANNEL: u32 = 20;
/// The answer: the same, with both ends of the pipe, or none when there is no such channel.
pub const CHANNEL_REPLY: u32 = 21;
/// A completion channel is gone: its number.
pub const CHANNEL_GONE: u32 = 22;
/// Stopped work of the owner goes on. The message only makes waiting peers look again, as every message does.
pub const GO: u32 = 32;
/// The sender was saved while it stood still: seconds for which it is waited for after its end; number of the save.
pub const SAVED: u32 = 33;
/// The save is void, as the sender goes on: number of the save.
pub const SAVE_IS_OVER: u32 = 34;
/// The sender takes the place of a saved process: its slots, then the number of the save in two words; its secret.
pub const RESTORED: u32 = 35;
/// The answer: 1 if the receiver accepts it.
pub const RESTORED_REPLY: u32 = 36;
/// The sender is about to take the place of a saved process, with arguments like RESTORED, and asks for the names
/// of its slots, which the owner keeps.
pub const YIELD: u32 = 37;
/// The answer: 1 if it does not keep them any more.
pub const YIELD_REPLY: u32 = 38;
