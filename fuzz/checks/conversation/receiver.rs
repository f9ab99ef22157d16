//! The memory and the receive queue that a responder works on. A receive is filled and ended once, within its room, by one
//! message at a time; after an error nothing is touched, and nothing is sent but one NAK.

use vervain_transport::{Nak, Payload, Received, Refused, ResponderHost, Right, Status, Transmit};
use vervain_wire::aeth::{NakCode, Syndrome};
use vervain_wire::{gaps, opcode};

use super::assert_well_formed;

/// Where the region lies.
pub const BASE: u64 = 0x7000_0000_0000;
/// Its key, until it is invalidated.
pub const RKEY: u32 = 0x1234_5678;
const LEN: u64 = 1 << 16;

pub struct Receiver {
    mtu: u32,
    tells_credits: bool,
    is_invalidated: bool,
    posted: u32,
    /// Bytes that each posted receive has room for.
    size: u32,
    taken: u32,
    /// The receive that a message is filling, and its room.
    claimed: Option<(u32, u64)>,
    /// Packets that are taken.
    pub room: u32,
    pub sent: u64,
    pub has_failed: bool,
    /// The NAK has been sent that says so.
    has_refused: bool,
}

impl Receiver {
    pub fn new(mtu: u32, tells_credits: bool) -> Receiver {
        Receiver {
            mtu,
            tells_credits,
            is_invalidated: false,
            posted: 0,
            size: 0,
            taken: 0,
            claimed: None,
            room: u32::MAX,
            sent: 0,
            has_failed: false,
            has_refused: false,
        }
    }

    /// Posts receives of this size, and makes all that are posted so.
    pub fn post(&mut self, receives: u8, size: u32) {
        self.posted += u32::from(receives);
        self.size = size;
    }

    #[track_caller]
    fn assert_alive(&self) {
        assert!(!self.has_failed, "after an error");
    }

    #[track_caller]
    fn range(&self, rkey: u32, addr: u64, len: u64) -> Result<(), Nak> {
        self.assert_alive();
        let offset = addr.checked_sub(BASE).ok_or(Nak::RemoteAccess)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= LEN);
        if rkey == RKEY && inside && !self.is_invalidated { Ok(()) } else { Err(Nak::RemoteAccess) }
    }

    #[track_caller]
    fn claimed(&mut self, receive: u32) -> u64 {
        self.assert_alive();
        let (claimed, room) = self.claimed.unwrap();
        assert_eq!(claimed, receive);
        room
    }
}

impl ResponderHost for Receiver {
    type Data = [u8];

    fn check(&mut self, _: u32, rkey: u32, addr: u64, len: u64, _: Right) -> Result<(), Nak> {
        self.assert_alive();
        if len == 0 { Ok(()) } else { self.range(rkey, addr, len) }
    }

    fn write(&mut self, _: u32, rkey: u32, addr: u64, data: &[u8], _: bool) -> Result<(), Nak> {
        assert!(data.len() <= self.mtu as usize);
        self.range(rkey, addr, data.len() as u64)
    }

    fn atomic(&mut self, _: u32, rkey: u32, addr: u64, _: Option<u64>, _: u64) -> Result<u64, Nak> {
        assert_eq!(addr % 8, 0);
        self.range(rkey, addr, 8).map(|()| 7)
    }

    fn atomic_write(&mut self, _: u32, rkey: u32, addr: u64, _: u64) -> Result<(), Nak> {
        assert_eq!(addr % 8, 0);
        self.range(rkey, addr, 8)
    }

    fn claim(&mut self, _: u32) -> Result<(u32, u64), Nak> {
        self.assert_alive();
        assert!(self.claimed.is_none(), "two receives for one message");
        self.posted = self.posted.checked_sub(1).ok_or(Nak::ReceiverNotReady(1))?;
        self.taken += 1;
        let claimed = (self.taken, self.size.into());
        self.claimed = Some(claimed);
        Ok(claimed)
    }

    fn fill(&mut self, _: u32, receive: u32, offset: u64, data: &[u8], _: bool) -> Result<(), Nak> {
        let room = self.claimed(receive);
        assert!(offset + data.len() as u64 <= room && data.len() <= self.mtu as usize);
        Ok(())
    }

    fn invalidate(&mut self, _: u32, rkey: u32) -> Result<(), Nak> {
        self.range(rkey, BASE, 0)?;
        self.is_invalidated = true;
        Ok(())
    }

    fn complete(&mut self, _: u32, receive: u32, received: &Received) {
        let room = self.claimed(receive);
        assert!(received.write || u64::from(received.length) <= room);
        self.claimed = None;
    }

    fn spoil(&mut self, _: u32, receive: u32, _: &Received, status: Status, _: Nak) {
        self.claimed(receive);
        assert_ne!(status, Status::Success);
        self.claimed = None;
        self.has_failed = true;
    }

    fn unclaim(&mut self, _: u32, receive: u32) {
        self.claimed(receive);
        self.claimed = None;
        self.posted += 1;
    }

    fn fail(&mut self, _: Nak) {
        self.assert_alive();
        self.has_failed = true;
    }

    fn credits(&mut self) -> Option<u32> {
        self.tells_credits.then_some(self.posted)
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        if self.has_failed {
            let syndrome = packet.headers.aeth.and_then(|aeth| Syndrome::decode(aeth.syndrome));
            let refuses = matches!(syndrome, Some(Syndrome::Nak(code)) if code != NakCode::Sequence);
            assert!(refuses && !self.has_refused, "{syndrome:?} after an error");
        }
        let len = match packet.payload {
            Payload::None => 0,
            Payload::Memory { rkey, addr, len, .. } => {
                self.range(rkey, addr, len.into()).map_err(|_| Refused::Memory)?;
                len
            }
            Payload::Bytes(bytes) => {
                assert!(gaps::parse(bytes).is_some(), "a report of {bytes:?}");
                assert_eq!(packet.headers.bth.opcode, opcode::GAPS);
                0
            }
            Payload::Request { .. } => panic!("a responder sends data of a requester"),
        };
        if packet.headers.bth.opcode != opcode::GAPS {
            assert_well_formed(packet.headers, len, self.mtu);
        }
        self.room = self.room.checked_sub(1).ok_or(Refused::Full)?;
        self.sent += 1;
        self.has_refused = self.has_failed;
        Ok(())
    }
}
