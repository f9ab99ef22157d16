//! The receives that messages take at the peer, and its credits for them (IBA 9.7.7.2).

use vervain_iba::Opcode;
use vervain_wire::aeth;

use super::flight::{Flight, takes_receive};
use super::flights::Flights;

/// Messages that take a receive. Both numbers are counted modulo 2^32.
#[derive(Debug, Default)]
pub(super) struct Receives {
    /// Those begun.
    pub used: u32,
    /// How many there may be by the peer's credits; None: no limit.
    pub granted: Option<u32>,
}

/// A message's state by the peer's credits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Credit {
    /// There is a receive for it, or it needs none.
    Enough,
    /// Its first packet may go, to learn of credits.
    Probe,
    /// An acknowledgement has to come first.
    Awaited,
}

impl Receives {
    /// Counts a message that is begun. Returns how many there are with it.
    #[inline(always)]
    pub fn begin(&mut self, operation: Opcode) -> u32 {
        self.used = self.used.wrapping_add(u32::from(takes_receive(operation)));
        self.used
    }

    /// Credits that come with everything before `unacknowledged`. The count is of receives that are left behind those
    /// messages, so that messages which take none need no credit.
    #[inline]
    pub fn grant(&mut self, code: u8, flights: &Flights) {
        self.granted = aeth::credits(code).map(|receives| self.taken(flights).wrapping_add(receives));
    }

    /// Messages that have taken a receive at the peer by `unacknowledged`: a SEND does with its first packet.
    fn taken(&self, flights: &Flights) -> u32 {
        let Some(oldest) = flights.oldest() else { return self.used };
        let operation = oldest.request.opcode;
        let begun = oldest.first_psn != flights.unacknowledged && operation != Opcode::WriteImm;
        oldest.receives.wrapping_sub(u32::from(takes_receive(operation) && !begun))
    }

    /// Compares a message, of which `packet` is to be sent next, with the credits. Beyond them one message may begin,
    /// with a packet that asks for an acknowledgement: either that brings credits, or an RNR NAK names the time to try
    /// again.
    #[inline]
    pub fn credit(&self, flight: &Flight, packet: u32, is_last: bool) -> Credit {
        let Some(granted) = self.granted else { return Credit::Enough };
        // A SEND takes its receive with the first packet, a WRITE with immediate with the last.
        let takes_now = match flight.request.opcode {
            Opcode::WriteImm => is_last,
            _ => packet == 0,
        };
        if !flight.takes_receive() {
            return Credit::Enough;
        }
        match flight.receives.wrapping_sub(granted) as i32 {
            ..=0 => Credit::Enough,
            1 if takes_now => Credit::Probe,
            _ if flight.request.opcode == Opcode::WriteImm && !is_last => Credit::Enough,
            _ => Credit::Awaited,
        }
    }
}
