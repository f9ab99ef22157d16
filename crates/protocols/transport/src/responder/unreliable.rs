//! UC (IBA 9.8.2): messages that come whole are executed, all others are dropped without an answer.

use vervain_wire::{Packet, opcode};

use crate::host::ResponderHost;
use crate::psn;

use super::{Responder, Stop, Then};

/// A packet that is behind by this much at most is late or a copy. A fabric delivers in order and once, so IBA has no
/// rule; UDP does neither. Not half of all PSNs, as for RC: a sender goes on while the link is down and would not be
/// heard after.
const LATE: u32 = 1 << 16;

impl Responder {
    /// A gap drops the message that is coming in; the next one may begin anywhere (IBA 9.8.2.2).
    pub(super) fn unreliable<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) {
        let bth = &packet.headers.bth;
        if bth.psn != self.expected {
            if psn::distance(bth.psn, self.expected) <= LATE {
                self.counters.duplicates += 1;
                return;
            }
            self.counters.out_of_sequence += 1;
            self.drop_message(host);
        }
        self.expected = psn::add(bth.psn, self.packets(packet));
        if opcode::starts(bth.opcode) {
            // The one before was not finished.
            if self.message.is_some() {
                self.drop_message(host);
            }
        } else if self.message.is_none() {
            self.counters.dropped += 1;
            return;
        }
        match self.execute(packet, host) {
            Ok(_) => {}
            // IBA 9.9.3, class D: the message is dropped.
            Err(Stop::Nak(_) | Stop::TooEarly) => {
                self.counters.dropped += 1;
                self.drop_message(host);
            }
            Err(Stop::Spoil { srqn, receive, received, status, nak }) => {
                self.finish(Then::Spoil { srqn, receive, received, status, nak }, host);
            }
        }
    }
}
