//! Messages of this process to its peers when it is saved, and when it takes a saved one's place.

use super::kind;
use super::suspense::DEFAULT_S;
use super::{Local, Token, random_word, slots_in};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vervain_hca::host::cancel::nap;
use vervain_hca::process::Process;
use vervain_hca::process::peer::name_of;
use vervain_hca::process::rendezvous::{Acquaintance, Credentials, Peer};
use vervain_hca::{Error, Result, now_ns};
use vervain_sockets::socket::{Message, Socket};

/// Time that peers have to receive the announcement of a save, or to accept this process in a saved one's place.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time that a peer has to give up the name of a saved process, which cannot be restored without it.
const NAMES_PATIENCE: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_micros(200);
/// Interval of the requests, each of which is a connection that the holder has to handle.
const BETWEEN_CLAIMS: Duration = Duration::from_millis(2);

impl Local {
    /// The processes connected to this one, in either direction.
    pub(super) fn known(&self) -> Vec<Acquaintance> {
        let mut known = BTreeMap::new();
        for (slots, incarnation, proof) in self.incoming.known().into_iter().chain(self.outgoing.known()) {
            known.insert(incarnation, Acquaintance { slots, incarnation, proof });
        }
        known.into_values().collect()
    }

    /// Number of the save of this process itself that is still good.
    fn own_save(&self) -> Option<u64> {
        let save = self.save.load(Ordering::SeqCst);
        (save != 0 && self.pasts.lock().iter().all(|(_, of)| of.save != save)).then_some(save)
    }

    /// Announces the save of this process to all of them. Returns the credentials for its restoration. A process saved
    /// again before it goes on, or saved for another context, keeps the number of its first save: all of these are
    /// good, or none.
    pub(super) fn tell_of_save(&self, suspense: u32) -> Result<Credentials> {
        let suspense = if suspense == 0 { DEFAULT_S } else { suspense };
        let before = self.own_save();
        let save = before.map_or_else(|| random_word().map(|word| word | 1), Ok)?;
        let message = Message::new(kind::SAVED, &[suspense], &[save]);
        let until = Instant::now() + PATIENCE;
        // Set first, so that processes which connect from now on get the announcement too (`past`), and wait like those
        // that the image knows.
        self.suspense_s.store(suspense, Ordering::Relaxed);
        self.save.store(save, Ordering::SeqCst);
        loop {
            let told = self.known();
            // A process that gets the announcement twice ignores the second.
            while !(self.incoming.try_tell_all(&message) && self.outgoing.try_tell_all(&message)) {
                if Instant::now() > until {
                    if before.is_none() {
                        self.tell_of_the_end_of_a_save();
                    }
                    return Err(Error::new(libc::ETIMEDOUT, "not saved: a peer does not take what it is told"));
                }
                nap(NAP);
            }
            if told == self.known() {
                break;
            }
        }
        Ok(Credentials { secret: self.identity.secret, save, suspense })
    }

    /// The past of this process, for peers that connect only now: its save, or the saved processes whose places it
    /// takes.
    pub(super) fn past(&self) -> Vec<Message> {
        let mut past = Vec::new();
        let save = self.save.load(Ordering::SeqCst);
        let pasts = self.pasts.lock();
        for (slots, of) in &*pasts {
            past.push(claim(kind::RESTORED, slots, of));
            if of.save != save {
                past.push(Message::new(kind::SAVE_IS_OVER, &[], &[of.save]));
            }
        }
        drop(pasts);
        if let Some(save) = self.own_save() {
            past.push(Message::new(kind::SAVED, &[self.suspense_s.load(Ordering::Relaxed)], &[save]));
        }
        past
    }

    /// Returns true if this process keeps the name of `slot` for one that may be restored.
    pub(super) fn keeps_name(&self, slot: u32) -> bool {
        self.kept.lock().iter().any(|(kept, ..)| *kept == slot)
    }

    /// Announces to all peers that this process goes on.
    pub(super) fn tell_of_the_end_of_a_save(&self) {
        let save = self.save.swap(0, Ordering::Relaxed);
        if save != 0 {
            self.tell_all(&Message::new(kind::SAVE_IS_OVER, &[], &[save]));
        }
    }

    fn tell_all(&self, message: &Message) {
        self.incoming.tell_all(message);
        self.outgoing.try_tell_all(message);
    }

    /// Shows the processes that a saved one knew that this one, which has its `slots`, is in its place.
    pub(super) fn introduce(
        &self,
        process: &'static Process,
        slots: &[u32],
        of: &Credentials,
        known: &[Acquaintance],
    ) -> Result<()> {
        let message = claim(kind::RESTORED, slots, of);
        // Ends when this process goes on.
        self.save.store(of.save, Ordering::SeqCst);
        self.pasts.lock().push((slots.to_vec(), of.clone()));
        let shown = self.show_all(process, &message, of, known);
        if shown.is_err() {
            self.pasts.lock().pop();
        }
        shown
    }

    fn show_all(
        &self,
        process: &'static Process,
        message: &Message,
        of: &Credentials,
        known: &[Acquaintance],
    ) -> Result<()> {
        let mut asked = Vec::new();
        for peer in known.iter().filter(|peer| !peer.slots.iter().any(|slot| process.owns_slot(*slot))) {
            let Some(&slot) = peer.slots.first() else { continue };
            self.suspense.may_come(&peer.slots, peer.incarnation, peer.proof, of.suspense);
            if self.reach(slot) && self.outgoing.ask_to_be_taken(slot, message) {
                asked.push((slot, peer));
            }
        }
        let until = Instant::now() + PATIENCE;
        for (slot, peer) in asked {
            let answer = loop {
                match self.outgoing.takes_us(slot) {
                    None if Instant::now() < until => nap(NAP),
                    answer => break answer,
                }
            };
            match answer {
                Some((true, _)) => self.suspense.is_there(&peer.slots),
                // Not the process that the saved one knew: that one may be restored too.
                Some((false, incarnation)) if incarnation != peer.incarnation => {}
                Some((false, _)) => {
                    let why = format!(
                        "the process of slot {slot} has gone on without what was saved, or it was restored before"
                    );
                    return Err(Error::new(libc::ESTALE, why));
                }
                None => log::info!("the process of slot {slot} does not say whether it knows what was saved"),
            }
        }
        Ok(())
    }

    /// Connects to the process of `slot`, if there is one.
    fn reach(&self, slot: u32) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            let watch = |socket: &Socket| self.watch(socket, Token::Outgoing(slot)).is_ok();
            match self.outgoing.peer(slot, &self.identity, watch, || false, || false) {
                Peer::Absent | Peer::Suspended => return false,
                Peer::Ready(_) => return true,
                Peer::Connecting if Instant::now() > until => return false,
                Peer::Connecting => nap(NAP),
            }
        }
    }

    /// Claims `slot`, one of the `slots` of a saved process, from a peer that keeps the name, if one does.
    pub(super) fn claim_from_peers(&self, slot: u32, slots: &[u32], of: &Credentials) -> Result<()> {
        let until = Instant::now() + NAMES_PATIENCE;
        while !self.listen(slot)? {
            let holder = Socket::connect(&self.identity.name(slot)).ok();
            let is_ours = holder.as_ref().is_none_or(|holder| self.identity.trust(holder).is_some());
            let yields = is_ours && holder.as_ref().is_none_or(|holder| ask_for_names(holder, slots, of, until));
            if !yields || Instant::now() > until {
                let pid = holder.and_then(|holder| holder.peer());
                let who = pid.map_or_else(|| "another process".into(), |(pid, _)| name_of(pid));
                let why = format!("{who} has the numbers of slot {slot}, which are those of the QPs that were saved");
                return Err(Error::new(libc::EADDRINUSE, why));
            }
            holder.iter().for_each(|holder| _ = holder.send(&claim(kind::YIELD, slots, of), &[]));
            nap(BETWEEN_CLAIMS);
        }
        Ok(())
    }

    /// Keeps the names of `slots`, whose processes have ended and may be restored, so that nobody else gets their
    /// numbers.
    pub(super) fn keep_names(&self, slots: &[u32]) {
        let mut kept = self.kept.lock();
        for slot in
            slots.iter().filter(|slot| !kept.iter().any(|(known, ..)| known == *slot)).copied().collect::<Vec<_>>()
        {
            let until = now_ns().saturating_add(self.suspense.left(slot));
            // Another peer, or a stranger, may have been faster.
            if let Ok(listener) = Socket::listen(&self.identity.name(slot))
                && self.watch(&listener, Token::Listener(slot)).is_ok()
            {
                kept.push((slot, listener, until));
            }
        }
    }

    /// Gives up the names that a restored process had before. Returns true if it may have them.
    pub(super) fn yield_names(&self, message: &Message) -> bool {
        let (slots, save) = (slots_in(message), save_in(message));
        let knows = self.suspense.knows(&slots, &message.wide, save);
        if knows {
            self.kept.lock().retain(|(slot, ..)| !slots.contains(slot));
        }
        knows
    }

    /// Frees the names of processes that are not waited for any more.
    pub(super) fn let_names_go(&self) {
        let mut kept = self.kept.lock();
        if !kept.is_empty() {
            kept.retain(|(slot, _, until)| now_ns() < *until && self.suspense.was_saved(&[*slot]));
        }
    }
}

/// Asks the holder of a slot's name to give up those of all `slots`, and waits for the answer until `until`. Returns
/// true if it does, or is gone.
fn ask_for_names(holder: &Socket, slots: &[u32], of: &Credentials, until: Instant) -> bool {
    if holder.send(&claim(kind::YIELD, slots, of), &[]).is_err() {
        return true;
    }
    loop {
        match holder.receive() {
            Ok(Some((answer, _))) if answer.kind == kind::YIELD_REPLY => return answer.args[0] != 0,
            Ok(Some(_)) => {}
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < until => nap(NAP),
            Ok(None) | Err(_) => return true,
        }
    }
}

/// The message by which a process takes a saved one's place.
fn claim(kind: u32, slots: &[u32], of: &Credentials) -> Message {
    let mut args = [0; 7];
    args[1..5].iter_mut().zip(slots).for_each(|(to, slot)| *to = *slot);
    (args[5], args[6]) = (of.save as u32, (of.save >> 32) as u32);
    Message::new(kind, &args, &of.secret)
}

/// The number of the save in such a message.
pub(super) fn save_in(message: &Message) -> u64 {
    u64::from(message.args[5]) | u64::from(message.args[6]) << 32
}
