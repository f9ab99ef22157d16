//! The datagrams between doors: a header of fixed layout, which all versions share, then the message by postcard.

use serde::{Deserialize, Serialize};

use crate::address::{Door, Doors, Lanes};
use crate::options::MAX_HELLO;

/// The longest datagram, in bytes: every MTU has room for it.
pub const MAX_DATAGRAM: usize = 256;

/// The version of header and messages, and of what is in the job's store; all ranks of a job have the same.
pub const VERSION: u16 = 3;

/// The key that distinguishes the job's datagrams from others: random, known to its ranks only.
pub type Key = [u8; 16];

const MAGIC: [u8; 4] = *b"VvMs";
const HEADER: usize = 4 + 2 + 16 + 4;

/// An attempt to connect, and the connection that it becomes. No other has it, in all of the epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Id {
    /// The rank that asks for the connection.
    pub initiator: u32,
    /// Which pair of devices.
    pub color: u32,
    /// The initiator counts its attempts.
    pub nonce: u64,
}

/// A message between ranks.
#[allow(missing_docs, reason = "each message says what is in it")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message<'a> {
    /// To the leader of the own block: here I am.
    Register { doors: Doors },
    /// The leader has it.
    Registered,
    /// Another process has said that it is this rank.
    Refused,
    /// To the leader of the rank's block. Not answered before the rank has registered.
    Lookup { rank: u32 },
    /// The answer.
    Found { rank: u32, doors: Doors },
    /// To the leader of the own block: where is the process with this job rank, a leader too? It fetches the answer
    /// where it does not know it.
    SeekLeader { leader: u32 },
    /// The answer.
    LeaderFound { leader: u32, doors: Doors },
    /// Asks `to` for a connection.
    Connect { id: Id, to: u32, lanes: Lanes, hello: &'a [u8] },
    /// The other end is made, and takes messages. It sends none until it knows that this was heard.
    Accept { id: Id, lanes: Lanes, hello: &'a [u8] },
    /// The Accept was heard.
    Ready { id: Id },
    /// No place for the Connect, and none that will be free soon.
    Busy { id: Id },
    /// The Connect or Disconnect is not forgotten. For the latter: nothing is under way any more from this side for the
    /// `round`-th time, and counts from before are not valid.
    Wait { id: Id, round: u32 },
    /// There is no attempt that this Accept belongs to.
    Stale { id: Id },
    /// Closes the connection: nothing is under way any more from this side, which has sent so many messages that take a
    /// receive. It has heard of this round of the peer.
    Disconnect { id: Id, sent: u32, round: u32 },
    /// It is closed; this side had sent so many.
    Disconnected { id: Id, sent: u32 },
}

/// The sender of a message, and the door for the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope<'a> {
    /// The sender's rank.
    pub from: u32,
    /// The door that it was sent from.
    pub door: Door,
    /// Its message.
    #[serde(borrow)]
    pub message: Message<'a>,
}

/// The result of decoding a datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A datagram of this job and epoch.
    Ours(Envelope<'a>),
    /// A datagram of this job, by another version of this crate.
    OtherVersion(u16),
    /// Anything else.
    Foreign,
}

/// Writes a datagram into `room`, and says its part that was filled.
pub fn encode<'r>(room: &'r mut [u8; MAX_DATAGRAM], key: &Key, epoch: u32, envelope: &Envelope<'_>) -> &'r [u8] {
    let (header, body) = room.split_at_mut(HEADER);
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header[6..22].copy_from_slice(key);
    header[22..].copy_from_slice(&epoch.to_le_bytes());
    let length = postcard::to_slice(envelope, body).expect("every message fits").len();
    &room[..HEADER + length]
}

/// Reads a datagram; what is in it may be anything.
pub fn decode<'b>(bytes: &'b [u8], key: &Key, epoch: u32) -> Decoded<'b> {
    let Some((header, body)) = bytes.split_at_checked(HEADER) else { return Decoded::Foreign };
    if header[..4] != MAGIC || header[6..22] != *key {
        return Decoded::Foreign;
    }
    let version = u16::from_le_bytes([header[4], header[5]]);
    if version != VERSION {
        return Decoded::OtherVersion(version);
    }
    match postcard::take_from_bytes::<Envelope<'_>>(body) {
        Ok((envelope, [])) if header[22..] == epoch.to_le_bytes() && is_possible(&envelope) => Decoded::Ours(envelope),
        _ => Decoded::Foreign,
    }
}

/// Returns true if numbers are in the ranges that verbs gives them.
fn is_possible(envelope: &Envelope<'_>) -> bool {
    envelope.door.is_possible()
        && match envelope.message {
            Message::Register { doors } | Message::Found { doors, .. } | Message::LeaderFound { doors, .. } => {
                doors.is_possible()
            }
            Message::Connect { lanes, hello, .. } | Message::Accept { lanes, hello, .. } => {
                lanes.is_possible() && hello.len() <= MAX_HELLO
            }
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Site;

    const KEY: Key = [7; 16];
    const DOOR: Door = Door { site: Site::Gid([0xff; 16], u16::MAX), qpn: 0xff_ffff, qkey: 0x7fff_ffff };
    const LANES: Lanes =
        Lanes { data: (0xff_ffff, 0xff_ffff), commands: (0xff_ffff, 0xff_ffff), mtu: 4096, reads: 255 };

    fn longest(hello: &[u8]) -> Envelope<'_> {
        let id = Id { initiator: u32::MAX, color: u32::MAX, nonce: u64::MAX };
        Envelope { from: u32::MAX, door: DOOR, message: Message::Connect { id, to: u32::MAX, lanes: LANES, hello } }
    }

    #[test]
    fn the_longest_messages_fit_and_come_back() {
        let mut room = [0; MAX_DATAGRAM];
        let envelope = longest(&[9; MAX_HELLO]);
        let bytes = encode(&mut room, &KEY, 3, &envelope);
        assert_eq!(decode(bytes, &KEY, 3), Decoded::Ours(envelope));
        let found = Message::Found { rank: u32::MAX, doors: Doors::new(&[DOOR, DOOR]) };
        let envelope = Envelope { message: found, ..envelope };
        let mut room = [0; MAX_DATAGRAM];
        assert_eq!(decode(encode(&mut room, &KEY, 3, &envelope), &KEY, 3), Decoded::Ours(envelope));
    }

    #[test]
    fn what_is_not_whole_or_not_ours_is_foreign() {
        let mut room = [0; MAX_DATAGRAM];
        let bytes = encode(&mut room, &KEY, 3, &longest(b"hello")).to_vec();
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length], &KEY, 3), Decoded::Foreign, "{length} bytes");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat(), &KEY, 3), Decoded::Foreign, "a byte too many");
        assert_eq!((decode(&bytes, &[8; 16], 3), decode(&bytes, &KEY, 4)), (Decoded::Foreign, Decoded::Foreign));
        let mut newer = bytes.clone();
        newer[4] = 9;
        assert_eq!(decode(&newer, &KEY, 3), Decoded::OtherVersion(9));
        assert_eq!(decode(&newer, &[8; 16], 3), Decoded::Foreign, "another version with another key");
    }

    #[test]
    fn numbers_out_of_range_are_foreign() {
        let bad_door = Door { qpn: 1 << 24, ..DOOR };
        let bad_key = Door { qkey: 1 << 31, ..DOOR };
        let id = Id::default();
        for envelope in [
            Envelope { door: bad_door, ..longest(b"") },
            Envelope { door: bad_key, ..longest(b"") },
            Envelope { message: Message::Register { doors: Doors::new(&[DOOR, bad_door]) }, ..longest(b"") },
            Envelope {
                message: Message::Accept { id, lanes: Lanes { mtu: 1000, ..LANES }, hello: b"" },
                ..longest(b"")
            },
            Envelope {
                message: Message::Accept { id, lanes: Lanes { data: (1 << 24, 0), ..LANES }, hello: b"" },
                ..longest(b"")
            },
            longest(&[0; MAX_HELLO + 1]),
        ] {
            let mut room = [0; MAX_DATAGRAM];
            let bytes = encode(&mut room, &KEY, 3, &envelope);
            assert_eq!(decode(bytes, &KEY, 3), Decoded::Foreign, "{envelope:?}");
        }
    }
}
