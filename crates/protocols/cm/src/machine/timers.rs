//! Messages that are not answered, and ends that are waited for.

use vervain_wire::cm::reason;

use super::conn::State;
use super::{Machine, guid_as_ari};
use crate::{CommId, Event, Nanos};

impl Machine {
    /// Time has come.
    pub fn tick(&mut self, now: Nanos) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.arm(id, None);
            self.expire(now, id);
        }
    }

    /// When [`Machine::tick`] is to be called next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Sets the one deadline of an identifier, or takes it away.
    pub(super) fn arm(&mut self, id: CommId, deadline: Option<Nanos>) {
        let old = std::mem::replace(&mut self.conn(id).deadline, deadline);
        if let Some(old) = old {
            self.deadlines.remove(&(old, id));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, id));
        }
    }

    fn expire(&mut self, now: Nanos, id: CommId) {
        let conn = self.conn(id);
        match conn.state {
            State::ReqSent | State::RepSent | State::DreqSent | State::SidrReqSent => {
                let Some(deadline) = conn.repetition.next(now) else { return self.give_up(now, id) };
                self.arm(id, Some(deadline));
                self.answer_again(id);
            }
            State::Timewait => {
                self.tell(Event::TimewaitExit { conn: id });
                self.idle(id);
            }
            _ => self.idle(id),
        }
    }

    /// The last try was not answered.
    fn give_up(&mut self, now: Nanos, id: CommId) {
        let conn = self.conn(id);
        let guid = conn.local_guid;
        match conn.state {
            State::ReqSent | State::RepSent => {
                self.tell(Event::Unreachable { conn: id });
                self.refuse(now, id, reason::TIMEOUT, guid_as_ari(guid), [0; 148]);
            }
            State::DreqSent => self.disconnected(now, id, [0; 224], false),
            _ => {
                self.tell(Event::Unreachable { conn: id });
                self.idle(id);
            }
        }
    }

    /// The connection has ended; packets may be under way.
    pub(super) fn disconnected(&mut self, now: Nanos, id: CommId, private_data: [u8; 224], is_certain: bool) {
        self.tell(Event::Disconnected { conn: id, private_data, is_certain });
        self.rest(now, id, State::Timewait, None);
    }
}
