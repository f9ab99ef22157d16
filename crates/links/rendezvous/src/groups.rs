//! Members of multicast groups on this host. A process that enters a group announces that to all others and waits for
//! their acknowledgements, so that a sender that learns of it by other means finds the member there. A process that
//! first sends to a group asks all others once.

use super::Local;
use super::kind;
use rustix::net::SocketType;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vervain_hca::Gid;
use vervain_hca::arena::layout::slot_of;
use vervain_hca::host::cancel::nap;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::Process;
use vervain_hca::process::rendezvous::{Member, Peer, Rendezvous};
use vervain_sockets::socket::Message;

/// Time that the acknowledgements are waited for; a stopped process receives the announcement when it goes on.
const PATIENCE: Duration = Duration::from_millis(200);

#[derive(Default)]
pub(super) struct Groups {
    state: OwnerLock<State>,
    learned: AtomicBool,
    sequence: AtomicU32,
    acknowledged: OwnerLock<HashMap<u32, u32>>,
}

#[derive(Default)]
struct State {
    members: HashMap<Gid, BTreeSet<Member>>,
    own: BTreeSet<(Gid, Member)>,
}

/// A group as words of a message.
pub(super) fn words(group: &Gid) -> [u64; 2] {
    let half = |at: usize| u64::from_ne_bytes(group[at..at + 8].try_into().unwrap_or_default());
    [half(0), half(8)]
}

fn group_of(message: &Message) -> Gid {
    let mut gid = [0u8; 16];
    gid[..8].copy_from_slice(&message.wide[0].to_ne_bytes());
    gid[8..].copy_from_slice(&message.wide[1].to_ne_bytes());
    gid
}

impl Groups {
    pub(super) fn add(&self, group: &Gid, qpn: Member) {
        let mut state = self.state.lock();
        state.own.insert((*group, qpn));
        state.members.entry(*group).or_default().insert(qpn);
    }

    pub(super) fn remove(&self, group: &Gid, qpn: Member) {
        let mut state = self.state.lock();
        state.own.remove(&(*group, qpn));
        if let Some(members) = state.members.get_mut(group) {
            members.remove(&qpn);
        }
    }

    pub(super) fn members(&self, group: &Gid) -> Vec<Member> {
        self.state.lock().members.get(group).into_iter().flatten().copied().collect()
    }

    /// This process's answer to [`kind::MEMBERS`].
    pub(super) fn own_members(&self) -> Vec<Message> {
        self.state.lock().own.iter().map(|(g, qpn)| Message::new(kind::JOIN, &[*qpn], &words(g))).collect()
    }

    /// Notes that a peer's QP entered or left.
    pub(super) fn note(&self, message: &Message, entered: bool) {
        let mut state = self.state.lock();
        let members = state.members.entry(group_of(message)).or_default();
        if entered {
            members.insert(message.args[0]);
        } else {
            members.remove(&message.args[0]);
        }
    }

    pub(super) fn acknowledged(&self, sequence: u32) {
        if let Some(left) = self.acknowledged.lock().get_mut(&sequence) {
            *left = left.saturating_sub(1);
        }
    }

    /// Removes the members of `slots`, whose processes have ended.
    pub(super) fn forget(&self, slots: &[u32]) {
        for members in self.state.lock().members.values_mut() {
            members.retain(|qpn| !slots.contains(&slot_of(*qpn)));
        }
    }

    /// Asks all processes for their memberships, at the first call only.
    pub(super) fn learn_once(&self, link: &Local, process: &'static Process) {
        if !self.learned.swap(true, Ordering::AcqRel) {
            self.tell_all(link, process, Message::new(kind::MEMBERS, &[], &[]));
        }
    }

    /// Sends `message` to every process of this user on this host, and waits for their acknowledgements.
    pub(super) fn tell_all(&self, link: &Local, process: &'static Process, mut message: Message) {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        // MEMBERS carries the sequence number first, JOIN and LEAVE after the QP number.
        message.args[usize::from(message.kind != kind::MEMBERS)] = sequence;
        let others: Vec<u32> =
            live_slots(link.identity.user.uid).into_iter().filter(|s| !process.owns_slot(*s)).collect();
        self.acknowledged.lock().insert(sequence, 0);
        let deadline = Instant::now() + PATIENCE;
        let mut waiting = others;
        while !waiting.is_empty() && Instant::now() < deadline {
            waiting.retain(|slot| match link.peer(process, *slot) {
                Peer::Absent | Peer::Suspended => false,
                Peer::Connecting => true,
                Peer::Ready(_) => {
                    // Counted before the send, as the answer may be quick.
                    *self.acknowledged.lock().entry(sequence).or_default() += 1;
                    if !link.outgoing.send(*slot, &message) {
                        self.acknowledged(sequence);
                    }
                    false
                }
            });
            nap(Duration::from_micros(50));
        }
        while self.acknowledged.lock().get(&sequence).is_some_and(|left| *left > 0) && Instant::now() < deadline {
            nap(Duration::from_micros(50));
        }
        self.acknowledged.lock().remove(&sequence);
    }
}

/// Slots of this user with a listener in this network namespace, except names that another user has taken. A process
/// that has become another user may have taken its slots as either.
fn live_slots(uid: u32) -> Vec<u32> {
    let prefix = vervain_names::slots(uid);
    let mut holders = vervain_names::holders(SocketType::SEQPACKET, &prefix).unwrap_or_default();
    let now = rustix::process::geteuid().as_raw();
    holders.retain(|holder| holder.uid.is_none_or(|of| of == uid || of == now));
    let slots = holders.iter().filter_map(|holder| holder.name.strip_prefix(&prefix)?.parse().ok());
    let mut slots: Vec<u32> = slots.collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}
