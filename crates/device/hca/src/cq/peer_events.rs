//! Completion events for another process, in one system call: an initiator that completes a receive on an armed CQ
//! writes into the pipe of the CQ's channel itself. It asks for the pipe when it first needs it; until that is there,
//! and whenever the pipe does not take the event, the owner's progress thread is asked to raise it.

use crate::arena::layout::CqShared;
use crate::cq::channel::CompChannel;
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::process::peer::PeerProcess;
pub(crate) use crate::process::peer_channels::write_event;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Channels of this process by their numbers, which are never used again.
static OWN: OwnerLock<Vec<(u32, Weak<CompChannel>)>> = OwnerLock::new(Vec::new());
static LAST: AtomicU32 = AtomicU32::new(0);

/// A number for a new channel.
pub(crate) fn new_number() -> u32 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

pub(crate) fn enter(channel: &Arc<CompChannel>) {
    OWN.lock().push((channel.number, Arc::downgrade(channel)));
}

/// The channel is gone: peers that have its pipe may let it go.
pub(crate) fn leave(number: u32, handed_out: bool) {
    OWN.lock().retain(|(n, _)| *n != number);
    if handed_out && let Some(process) = Process::current() {
        process.rendezvous.channel_gone(number);
    }
}

/// The channel with that number, for a peer that asks for its pipe. Called by the link.
pub fn own_channel(number: u32) -> Option<Arc<CompChannel>> {
    OWN.lock().iter().find(|(n, _)| *n == number).and_then(|(_, c)| c.upgrade())
}

/// Raises the event of a CQ of `space`, whose process has the slot `slot`.
pub(crate) fn raise(space: &PeerProcess, cq: &CqShared, slot: u32) {
    let (channel, event) = (cq.channel.load(Ordering::Relaxed), cq.event.load(Ordering::Relaxed));
    if channel == 0 {
        return;
    }
    if space.is_own() {
        if let Some(channel) = own_channel(channel) {
            channel.post(event);
        }
        return;
    }
    let ask = || Process::current().is_some_and(|p| p.rendezvous.ask_channel(slot, channel));
    if let Some(pipe) = space.channels.pipe(channel, ask)
        && write_event(pipe.write.as_raw_fd(), event)
    {
        return;
    }
    cq.notify.store(1, Ordering::SeqCst);
    space.raise(cq.attention.load(Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::peer_channels::{MOST, PeerChannels};
    use std::os::fd::{OwnedFd, RawFd};

    fn ends(channel: &CompChannel) -> [OwnedFd; 2] {
        channel.ends().map(|fd| fd.try_clone_to_owned().unwrap())
    }

    fn known(peers: &PeerChannels, number: u32) -> bool {
        peers.pipe(number, || false).is_some()
    }

    #[test]
    fn a_peer_writes_the_event_that_the_program_reads() {
        let channel = CompChannel::new().unwrap();
        let peers = PeerChannels::default();
        peers.learn(channel.number, Some(ends(&channel)));
        let pipe = peers.pipe(channel.number, || panic!("it is known")).unwrap();
        assert!(write_event(pipe.write.as_raw_fd(), 7));
        let mut message = [0u8; 8];
        assert_eq!(read(channel.fd(), &mut message), 8);
        assert_eq!(u64::from_ne_bytes(message), 7);
    }

    fn read(fd: RawFd, to: &mut [u8]) -> isize {
        // SAFETY: reads at most as many bytes as the slice has.
        unsafe { libc::read(fd, to.as_mut_ptr().cast(), to.len()) }
    }

    #[test]
    fn the_channel_is_asked_for_once_and_not_beyond_the_limit() {
        let peers = PeerChannels::default();
        let asked = AtomicU32::new(0);
        let ask = || asked.fetch_add(1, Ordering::Relaxed) < 1000;
        (0..3).for_each(|_| assert!(peers.pipe(1, ask).is_none()));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        (0..200).for_each(|n| assert!(peers.pipe(n, ask).is_none()));
        assert_eq!(asked.load(Ordering::Relaxed), MOST as u32);
        peers.forget(1);
        assert!(peers.pipe(1, ask).is_none());
        assert_eq!(asked.load(Ordering::Relaxed), MOST as u32 + 1);
    }

    #[test]
    fn a_destroyed_channel_takes_events_without_harm_and_a_full_pipe_refuses_them() {
        let channel = CompChannel::new().unwrap();
        let (peers, number) = (PeerChannels::default(), channel.number);
        peers.learn(number, Some(ends(&channel)));
        let pipe = peers.pipe(number, || false).unwrap();
        drop(channel);
        assert!(own_channel(number).is_none());
        let mut written = 0;
        while write_event(pipe.write.as_raw_fd(), 1) {
            written += 1;
            assert!(written < 10_000_000, "a pipe takes events without end");
        }
        assert!(written > 100);
        peers.forget(number);
        assert!(!known(&peers, number));
    }

    #[test]
    fn only_the_two_ends_of_one_pipe_are_taken() {
        let (a, b) = (CompChannel::new().unwrap(), CompChannel::new().unwrap());
        let peers = PeerChannels::default();
        let [read, write] = ends(&a);
        let [_, other] = ends(&b);
        peers.learn(1, Some([write.try_clone().unwrap(), write.try_clone().unwrap()]));
        peers.learn(2, Some([read.try_clone().unwrap(), other]));
        peers.learn(3, Some([write.try_clone().unwrap(), read.try_clone().unwrap()]));
        peers.learn(4, None);
        peers.learn(5, Some([read, write]));
        assert_eq!([1, 2, 3, 4, 5].map(|n| known(&peers, n)), [false, false, false, false, true]);
    }
}
