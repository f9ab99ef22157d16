//! Duties of the progress thread beside the process's own memory, and the polling of carriers: packets are taken in by
//! threads of the program that poll, by those that sleep for a completion event, and by the progress thread while there
//! are neither.

use crate::error::Result;
use crate::process::Process;
use std::os::fd::RawFd;

/// A part of the process that hears by descriptors and by the clock, in the progress thread.
pub trait EventHandler: Send + Sync {
    /// A descriptor that is readable when [`EventHandler::handle_events`] has something to do.
    fn events_fd(&self) -> Option<RawFd> {
        None
    }

    /// Time at which [`EventHandler::handle_events`] has something to do besides (CLOCK_MONOTONIC, ns; 0: at once). A
    /// change to an earlier time must wake the progress thread.
    fn deadline(&self) -> Option<u64> {
        None
    }

    /// Does what came in there. Only the progress thread calls it.
    fn handle_events(&self, _process: &'static Process) {}

    /// A QP has become ready to send. Any thread calls it.
    fn qp_is_ready(&self, _process: &Process) {}

    /// Gives up what no image of the process can have, and keeps what had come; the process is stopped. An error leaves
    /// all as it was.
    fn leave(&self) -> Result<()> {
        Ok(())
    }

    /// Has again what was given up by [`EventHandler::leave`], here or where the process is restored.
    fn rejoin(&self) -> Result<()> {
        Ok(())
    }
}

/// The receiving side of a carrier, of any kind; the descriptors of [`EventHandler`] are besides its packets.
pub trait Poller: EventHandler {
    /// The process has slot `slot` from now on; called before a QP has a number in it.
    fn expect_slot(&self, _slot: u32) -> Result<()> {
        Ok(())
    }

    /// Takes in what has come, in a thread that polls; whether there was any. Never waits. Called only after
    /// [`Process::expect_packets`].
    fn poll(&self, process: &'static Process) -> bool;

    /// Takes in what comes, in a thread that sleeps until `fd` is readable; or returns at once, and the progress thread
    /// takes it in meanwhile. EINTR as `man 2 poll` says.
    fn wait_for(&self, _process: &'static Process, _fd: RawFd) -> Result<()> {
        Ok(())
    }

    /// The progress thread's look: takes in packets that no other thread does, and keeps the time. Says whether
    /// [`Poller::packet_fd`] is to be watched, and when it wants to be called again (CLOCK_MONOTONIC, ns).
    fn attend(&self, process: &'static Process) -> (bool, Option<u64>);

    /// A descriptor that is readable when something has come; none before there is a port.
    fn packet_fd(&self) -> Option<RawFd> {
        None
    }

    /// Takes in all packets that have come until now, in the progress thread; false if another thread does it at this
    /// time. Of an endless stream it takes a part.
    fn take_in(&self, _process: &'static Process) -> bool {
        true
    }

    /// Sends the packets that are still due before the process ends: what a program has received is acknowledged, even
    /// if it ends at once. False while another thread has something of that in hand, or is to say it; then it is called
    /// again. Waits for no lock: the calling thread may have been interrupted in the midst of a call. Called only after
    /// [`Process::expect_packets`].
    fn shutdown(&self) -> bool {
        true
    }
}
