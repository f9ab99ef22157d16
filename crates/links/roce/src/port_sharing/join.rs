//! Requests to join: a process gets the descriptor store from whichever member answers first. So one that runs is
//! enough, though others may be stopped.

use super::deadline::Deadline;
use super::mailbox::{Caller, HEAD, Word};
use super::{Doors, Names, os_error, udp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use vervain_hca::arena::layout::SLOTS;
use vervain_hca::host::cancel::nap;
use vervain_hca::{Error, Result};
use vervain_names::Other;
use vervain_names::process::can_run;
use vervain_sockets::socket::Socket;
use vervain_sockets::unix::{self, Private};

/// Time to wait for one member, and time for which members are asked one by one. A member that has a CPU answers at
/// once.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const ONE_BY_ONE: Duration = Duration::from_millis(500);
/// Time for the whole request if no member is known to be able to answer. One that only lacks a CPU is waited for
/// longer ([`Deadline`]).
const WHOLE_WAIT: Duration = Duration::from_millis(2500);
/// Most members asked, as each request takes a descriptor.
const MOST_ASKED: usize = 256;
/// Interval of requests to members whose queues were full.
const NAP: Duration = Duration::from_millis(10);

/// Gets the descriptor store from a member. None: there is no member. A mailbox of another user is not asked.
pub fn ask_members(names: &Names, uid: u32, doors: &Doors) -> Result<Option<[OwnedFd; 2]>> {
    ask_members_by(names, uid, doors, &Instant::now)
}

/// [`ask_members`] by another clock.
fn ask_members_by(names: &Names, uid: u32, doors: &Doors, clock: &dyn Fn() -> Instant) -> Result<Option<[OwnedFd; 2]>> {
    let begin = clock();
    let mut deadline = Deadline::new(names.at, begin, WHOLE_WAIT);
    let caller = Caller::default();
    let mut asked = Asked::default();
    let mut seen = BTreeSet::new();
    let mut to_ask = doors.listed.clone();
    let mut tried_all = false;
    loop {
        asked.full.clear();
        for slot in to_ask {
            if asked.unanswered.len() == MOST_ASKED {
                seen.insert(slot);
                continue;
            }
            match caller.ask(names, uid, slot) {
                Ok(None) => continue,
                Ok(Some(socket)) => asked.unanswered.push((slot, socket)),
                // Its owner has too many unread messages.
                Err(Errno::AGAIN) => _ = asked.full.insert(slot),
                Err(e) => return Err(os_error(names, e)),
            }
            seen.insert(slot);
            // Members are asked one by one only at the beginning.
            let wait = if clock() < begin + ONE_BY_ONE { FIRST_WAIT } else { Duration::ZERO };
            if let Some(fd_store) = asked.wait_for_answer(names, uid, wait)? {
                return Ok(Some(fd_store));
            }
        }
        // Members that live but could not receive the request, which also needs a free descriptor on either side.
        to_ask = seen.clone();
        to_ask.retain(|slot| !asked.is_unanswered(*slot) && caller.finds(names, *slot));
        let nobody_is_there = asked.unanswered.is_empty() && to_ask.is_empty();
        // While a member lives the port is taken, even if its mailbox is not in the list.
        if nobody_is_there && (tried_all || udp::is_vacant(names)) {
            return Ok(None);
        }
        let now = clock();
        if !tried_all && (nobody_is_there || now >= begin + ONE_BY_ONE) {
            tried_all = true;
            to_ask = (1..SLOTS).filter(|slot| !doors.strange.contains(slot)).collect();
            to_ask.retain(|slot| !asked.is_unanswered(*slot));
            continue;
        }
        let left = deadline.left(now, || asked.able_to_answer(uid));
        let wait = match left {
            Some(left) if to_ask.is_empty() && tried_all => left,
            Some(left) => left.min(FIRST_WAIT),
            // This process itself may have had no CPU.
            None => Duration::ZERO,
        };
        if let Some(fd_store) = asked.wait_for_answer(names, uid, wait)? {
            return Ok(Some(fd_store));
        }
        if left.is_none() {
            return Err(no_answer(names, deadline.unanswered(now)));
        }
        if asked.unanswered.is_empty() {
            nap(NAP);
        }
    }
}

/// The error if no member answers. `after`: time for which members were waited for that can run.
fn no_answer(names: &Names, after: Option<Duration>) -> Error {
    let why = "the processes that share the port do not answer";
    let why = match after {
        Some(after) => format!("{why}, not even after {} s, and not all of them are stopped", after.as_secs()),
        None => format!("{why} (are all of them stopped, out of descriptors, or of another user?)"),
    };
    names.error(libc::EBUSY, &why)
}

/// The requests of a process that joins.
#[derive(Default)]
struct Asked {
    /// Members that have one, with the socket that the answer comes by.
    unanswered: Vec<(u32, Private)>,
    /// Members whose queues were full in the last round.
    full: BTreeSet<u32>,
    /// Members that have dropped one without an answer: they have no free descriptor, or have ended.
    dropped: BTreeSet<u32>,
    /// Process ids of members that were looked up; 0: unknown.
    processes: BTreeMap<u32, i32>,
}

impl Asked {
    fn is_unanswered(&self, slot: u32) -> bool {
        self.unanswered.iter().any(|(other, _)| *other == slot)
    }

    /// The process of a member that will answer once it gets a CPU.
    fn able_to_answer(&mut self, uid: u32) -> Option<i32> {
        let Asked { unanswered, full, dropped, processes } = self;
        let slots = unanswered.iter().map(|(slot, _)| slot).chain(full.iter()).filter(|slot| !dropped.contains(slot));
        let mut pids = slots.filter_map(|slot| match processes.get(slot) {
            Some(pid) => Some(*pid),
            None => process_of(uid, *slot).inspect(|pid| _ = processes.insert(*slot, *pid)),
        });
        pids.find(|pid| can_run(*pid))
    }

    /// Waits for the first answer; forgets members that have dropped the request.
    fn wait_for_answer(&mut self, names: &Names, uid: u32, at_most: Duration) -> Result<Option<[OwnedFd; 2]>> {
        let until = Instant::now() + at_most;
        while !self.unanswered.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds: Vec<_> =
                self.unanswered.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)).collect();
            let ready = poll(&mut fds, Some(&timeout));
            let ready: Vec<bool> = fds.iter().map(|fd| ready.is_ok() && !fd.revents().is_empty()).collect();
            if !ready.contains(&true) && left.is_zero() {
                return Ok(None);
            }
            for i in (0..self.unanswered.len()).rev().filter(|i| ready[*i]) {
                let (slot, socket) = self.unanswered.swap_remove(i);
                if let Some(fd_store) = read_answer(names, uid, &socket)? {
                    return Ok(Some(fd_store));
                }
                self.dropped.insert(slot);
            }
        }
        Ok(None)
    }
}

/// The process that has `slot` of this user, as the kernel reports it for the listener of its rendezvous; 0 if this pid
/// namespace does not show it, or another user has the name. None: nobody listens, or its queue is full.
fn process_of(uid: u32, slot: u32) -> Option<i32> {
    let listener = Socket::connect(&vervain_names::slot(uid, slot)).ok()?;
    let (pid, of) = listener.peer()?;
    Some(if of == uid { pid } else { 0 })
}

/// The descriptor store, if that is the answer; None: there is none, and there will be none.
fn read_answer(names: &Names, uid: u32, socket: &Private) -> Result<Option<[OwnedFd; 2]>> {
    let mut head = [0; HEAD];
    let Ok(message) = unix::receive(socket.as_fd(), &mut head, 0) else { return Ok(None) };
    if message.length != HEAD {
        return Ok(None);
    }
    // An answer without a user cannot be trusted.
    let Some(sender) = message.uid else { return Ok(None) };
    if sender != uid {
        return Err(names.other_user(&Other { uid: sender, names: 1, process: None }));
    }
    match Word::of(&head) {
        (Some(Word::Welcome), _) => Ok(<[OwnedFd; 2]>::try_from(message.fds).ok()),
        (Some(Word::Refused { uid: theirs }), _) => Err(names.other_view(theirs, uid)),
        (None, version) => Err(names.other_version(version)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::Group;
    use super::super::listener_process::ListenerProcess;
    use super::super::mailbox::{Mailbox, answer};
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Each of the tests has an address of its own.
    fn names(of: u8) -> Names {
        Names { at: ([127, 8, of, std::process::id() as u8], 4791).into() }
    }

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// A slot that no process has, with what `listen` makes under the name of its rendezvous.
    fn free_slot<T>(listen: impl Fn(&str) -> Option<T>) -> (u32, T) {
        let mut slots = (1..SLOTS).rev();
        slots.find_map(|slot| Some(slot).zip(listen(&vervain_names::slot(own_uid(), slot)))).unwrap()
    }

    /// Asks the one member, at `mailbox`, by a clock on which each look takes `step`. `meanwhile` gets the time that
    /// has passed. Returns the answer, and the time at the end.
    fn ask_by_steps(
        names: &Names,
        mailbox: &Mailbox,
        step: Duration,
        meanwhile: &dyn Fn(&Mailbox, Duration),
    ) -> (Result<Option<[OwnedFd; 2]>>, Duration) {
        let (begin, passed) = (Instant::now(), Cell::new(Duration::ZERO));
        let clock = || {
            meanwhile(mailbox, passed.get());
            begin + passed.replace(passed.get() + step)
        };
        let doors = Doors { listed: [mailbox.slot].into(), ..Doors::default() };
        (ask_members_by(names, own_uid(), &doors, &clock), passed.get())
    }

    #[test]
    fn a_member_that_can_run_is_waited_for_until_it_answers() {
        let names = names(4);
        let group = Group::create(&names).unwrap();
        let (slot, _listener) = free_slot(|name| Socket::listen(name).ok());
        let mailbox = Mailbox::open(&names, own_uid(), slot).unwrap();
        let late = Duration::from_secs(40);
        let answers_late = |mailbox: &Mailbox, passed| {
            while passed >= late
                && let Ok(message) = mailbox.receive(&mut [0; HEAD])
            {
                answer(&message.fds[0], Word::Welcome, &group.fd_store());
            }
        };
        let (answer, passed) = ask_by_steps(&names, &mailbox, Duration::from_secs(2), &answers_late);
        assert!(answer.unwrap().is_some() && passed >= late, "{passed:?}");
    }

    #[test]
    fn a_member_that_is_stopped_is_waited_for_a_short_time() {
        let names = names(5);
        let (slot, process) = free_slot(ListenerProcess::start);
        let mailbox = Mailbox::open(&names, own_uid(), slot).unwrap();
        process.stop();
        let step = Duration::from_millis(500);
        let (answer, passed) = ask_by_steps(&names, &mailbox, step, &|_, _| ());
        let error = answer.unwrap_err();
        assert!(error.errno() == libc::EBUSY && error.to_string().contains("are all of them stopped"), "{error}");
        assert!(passed <= WHOLE_WAIT + 2 * step, "{passed:?}");
        // It goes on, and does not answer all the same.
        process.go_on();
        let (answer, _) = ask_by_steps(&names, &mailbox, Duration::from_secs(2), &|_, _| ());
        let error = answer.unwrap_err();
        assert!(error.errno() == libc::EBUSY && error.to_string().contains("not even after 60 s"), "{error}");
    }

    #[test]
    fn a_member_without_descriptors_is_waited_for_a_short_time() {
        let names = names(6);
        let (slot, _listener) = free_slot(|name| Socket::listen(name).ok());
        let mailbox = Mailbox::open(&names, own_uid(), slot).unwrap();
        // What the kernel does with the descriptor of a request if its receiver has no place for it; here late, so that
        // the request looks unanswered meanwhile.
        let received = RefCell::new(None);
        let drops = |mailbox: &Mailbox, _| _ = received.replace(mailbox.receive(&mut [0; HEAD]).ok());
        let step = Duration::from_millis(500);
        let (answer, passed) = ask_by_steps(&names, &mailbox, step, &drops);
        let error = answer.unwrap_err();
        assert!(error.errno() == libc::EBUSY && error.to_string().contains("out of descriptors"), "{error}");
        assert!(passed <= 2 * WHOLE_WAIT + 2 * step, "{passed:?}");
    }

    #[test]
    fn a_member_that_the_list_lacks_is_found() {
        let (names, uid) = (names(1), own_uid());
        assert!(ask_members(&names, uid, &Doors::default()).unwrap().is_none());
        let group = Group::create(&names).unwrap();
        let mailbox = Mailbox::open(&names, uid, 700).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match mailbox.receive(&mut [0; HEAD]) {
                        Ok(message) => answer(&message.fds[0], Word::Welcome, &group.fd_store()),
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
            let asked = [Doors::default(), names.doors(uid)].map(|doors| ask_members(&names, uid, &doors));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(asked.map(|found| found.map(|found| found.is_some())), [const { Ok(true) }; 2]);
        });
        // A list may also have a member that has ended since.
        let doors = names.doors(uid);
        drop((mailbox, group));
        assert_eq!(doors.listed, BTreeSet::from([700]));
        assert!(ask_members(&names, uid, &doors).unwrap().is_none());
    }
}
