//! Requests to join: a process gets the descriptor store from whichever member answers first. So one that runs is
//! enough, though others may be stopped.

use super::mailbox::{Caller, HEAD, Word};
use super::{Doors, Names, os_error, udp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use vervain_hca::arena::layout::SLOTS;
use vervain_hca::host::cancel::nap;
use vervain_hca::{Error, Result};
use vervain_names::Other;
use vervain_sockets::unix::{self, Private};

/// Time to wait for one member, time for which members are asked one by one, and time for the whole request. A member
/// answers at once, unless it is stopped or has no CPU.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const ONE_BY_ONE: Duration = Duration::from_millis(500);
const WHOLE_WAIT: Duration = Duration::from_millis(2500);
/// Most members asked, as each request takes a descriptor.
const MOST_ASKED: usize = 256;
/// Interval of requests to members whose queues were full.
const NAP: Duration = Duration::from_millis(10);

/// Gets the descriptor store from a member. None: there is no member. A mailbox of another user is not asked.
pub fn ask_members(names: &Names, uid: u32, doors: &Doors) -> Result<Option<[OwnedFd; 2]>> {
    let begin = Instant::now();
    let caller = Caller::default();
    let mut asked: Vec<(u32, Private)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut to_ask = doors.listed.clone();
    let mut tried_all = false;
    loop {
        for slot in to_ask {
            if asked.len() == MOST_ASKED {
                seen.insert(slot);
                continue;
            }
            match caller.ask(names, uid, slot) {
                Ok(None) => continue,
                Ok(Some(socket)) => asked.push((slot, socket)),
                // Its owner has too many unread messages.
                Err(Errno::AGAIN) => {}
                Err(e) => return Err(os_error(names, e)),
            }
            seen.insert(slot);
            // Members are asked one by one only at the beginning.
            let wait = if begin.elapsed() < ONE_BY_ONE { FIRST_WAIT } else { Duration::ZERO };
            if let Some(fd_store) = wait_for_answer(names, uid, &mut asked, wait)? {
                return Ok(Some(fd_store));
            }
        }
        // Members that live but could not receive the request, which also needs a free descriptor on either side.
        to_ask = seen.clone();
        to_ask.retain(|slot| asked.iter().all(|(other, _)| other != slot) && caller.finds(names, *slot));
        let nobody_is_there = asked.is_empty() && to_ask.is_empty();
        // While a member lives the port is taken, even if its mailbox is not in the list.
        if nobody_is_there && (tried_all || udp::is_vacant(names)) {
            return Ok(None);
        }
        if !tried_all && (nobody_is_there || begin.elapsed() >= ONE_BY_ONE) {
            tried_all = true;
            to_ask = (1..SLOTS).filter(|slot| !doors.strange.contains(slot)).collect();
            to_ask.retain(|slot| asked.iter().all(|(other, _)| other != slot));
            continue;
        }
        let left = WHOLE_WAIT.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Err(no_answer(names));
        }
        let wait = if to_ask.is_empty() && tried_all { left } else { left.min(FIRST_WAIT) };
        if let Some(fd_store) = wait_for_answer(names, uid, &mut asked, wait)? {
            return Ok(Some(fd_store));
        }
        if asked.is_empty() {
            nap(NAP);
        }
    }
}

fn no_answer(names: &Names) -> Error {
    let why = "the processes that share the port do not answer (are all of them stopped, out of descriptors, or of another \
               user?)";
    names.error(libc::EBUSY, why)
}

/// Waits for the first answer; forgets members that have ended without one.
fn wait_for_answer(
    names: &Names,
    uid: u32,
    asked: &mut Vec<(u32, Private)>,
    at_most: Duration,
) -> Result<Option<[OwnedFd; 2]>> {
    let until = Instant::now() + at_most;
    while !asked.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds: Vec<_> = asked.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)).collect();
        let ready = poll(&mut fds, Some(&timeout));
        let ready: Vec<bool> = fds.iter().map(|fd| ready.is_ok() && !fd.revents().is_empty()).collect();
        if !ready.contains(&true) && left.is_zero() {
            return Ok(None);
        }
        for i in (0..asked.len()).rev().filter(|i| ready[*i]) {
            let (_, socket) = asked.swap_remove(i);
            if let Some(fd_store) = read_answer(names, uid, &socket)? {
                return Ok(Some(fd_store));
            }
        }
    }
    Ok(None)
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
    use super::super::mailbox::{Mailbox, answer};
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_member_that_the_list_lacks_is_found() {
        let names = Names { at: ([127, 8, 1, std::process::id() as u8], 4791).into() };
        let uid = rustix::process::geteuid().as_raw();
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
