//! What is polled for a carrier: its packets, by the threads of the program that poll, by those that sleep for a completion
//! event, and by the progress thread while neither does.

use crate::error::Result;
use crate::process::Process;
use std::os::fd::RawFd;

/// The receiving side of a carrier, whatever it carries.
pub trait Poller: Send + Sync {
    /// The process has slot `slot` from now on; called before a QP has a number in it.
    fn expect_slot(&self, _slot: u32) -> Result<()> {
        Ok(())
    }

    /// Takes in what has come, in a thread that polls; whether there was any. Never waits. Called only after
    /// [`Process::expect_packets`].
    fn poll(&self, process: &'static Process) -> bool;

    /// Takes in what comes, in a thread that sleeps until `fd` is readable. EINTR as `man 2 poll` says.
    fn wait_for(&self, process: &'static Process, fd: RawFd) -> Result<()>;

    /// The progress thread's look: takes in what nobody else does, and keeps the time. Says whether [`Poller::packet_fd`] is
    /// to be watched, and when it wants to be called again (CLOCK_MONOTONIC, ns).
    fn attend(&self, process: &'static Process) -> (bool, Option<u64>);

    /// A descriptor that is readable when something has come; none before there is a port.
    fn packet_fd(&self) -> Option<RawFd>;

    /// A descriptor that is readable when [`Poller::handle_events`] has something to do, besides packets.
    fn events_fd(&self) -> Option<RawFd> {
        None
    }

    /// Does what came in there. Only the progress thread calls it.
    fn handle_events(&self, _process: &'static Process) {}

    /// Says what is left to be said before the process ends: what a program has received is acknowledged, even if it ends
    /// at once.
    fn shutdown(&self) {}
}
