//! A rank as a node of PM: messages to the other one, and copies between memory that both have locked.
//!
//! What is unsafe in this crate is here. It stands on two things: memory is locked in one place, [`Node::provide`],
//! nobody but devices reads or writes it, and it is not freed before it is unlocked and no request uses it; a buffer of
//! PM's is looked at only while PM says that it is the caller's.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use vervain_pm::{AddrHandle, Context, Device, Direction, Received, Settings, Whom};

use super::wait::{Stop, Wait};

/// The longest message in bytes: PM's MTU, unless PM_MTU sets another.
pub const MOST_MESSAGE: u64 = 8 << 10;
/// The longest copy in bytes: more are no request that all devices take.
pub const MOST_COPY: u64 = 1 << 30;

/// Time for which PM may have no room, or no news.
const LIMIT: Duration = Duration::from_secs(30);
/// Locked memory begins on a page, as that of verbs does, and has one at least for small copies to go round in.
const PAGE: usize = 4096;
/// Bytes of a message with a handle.
const HANDLE: usize = size_of::<u64>();

/// This rank among two.
pub struct Node {
    context: Context,
    device: Arc<Device>,
    memory: Option<Locked>,
    /// Ranks are not stopped: what they do ends by itself.
    never: Stop,
}

/// Memory that the other node reaches.
struct Locked {
    /// The bytes, to which no reference is made while they are locked. Freed by [`Node::give_back`] alone: a node that
    /// is dropped does not know if the device still uses them.
    bytes: ManuallyDrop<Vec<u8>>,
    start: *mut c_void,
    len: usize,
    handle: AddrHandle,
}

impl Node {
    /// Joins the job that this process was started in, as the environment says.
    pub fn join() -> Result<Self> {
        let device = Device::open(Settings::from_environment(&[])?)?;
        let context = Context::open(&device)?;
        ensure!(context.nodes() == 2, "{} ranks of PM: two are needed", context.nodes());
        Ok(Self { context, device, memory: None, never: Stop::new(false) })
    }

    /// The rank's number, and how many there are.
    pub fn place(&self) -> (u32, u32) {
        (self.context.node(), self.context.nodes())
    }

    /// Leaves the job, once the other one does.
    pub fn leave(mut self) -> Result<()> {
        self.give_back()?;
        let Self { context, device, .. } = self;
        context.close()?;
        Ok(device.close()?)
    }

    /// The longest message in bytes.
    pub fn mtu(&self) -> u64 {
        self.context.mtu() as u64
    }

    fn peer(&self) -> u32 {
        1 - self.context.node()
    }

    /// The result of a call of PM's, once it does not say "later" any more.
    #[inline]
    fn until<T>(&self, mut call: impl FnMut() -> vervain_pm::Result<T>) -> Result<T> {
        let mut wait = Wait::new(&self.never, LIMIT);
        loop {
            match call() {
                Err(error) if error.is_temporary() => wait.again()?,
                result => return Ok(result?),
            };
        }
    }

    /// Sends a message of `len` bytes: what its buffer holds.
    #[inline]
    pub fn send(&self, len: usize) -> Result<()> {
        self.until(|| self.context.send_buffer(self.peer(), len))?;
        Ok(self.context.send()?)
    }

    /// Waits for a message, which must be of `len` bytes.
    #[inline]
    pub fn receive(&self, len: usize) -> Result<()> {
        self.next(len)?;
        Ok(self.context.release_receive_buffer()?)
    }

    #[inline]
    fn next(&self, len: usize) -> Result<Received> {
        let message = self.until(|| self.context.receive())?;
        ensure!(message.len == len, "a message of {} bytes came in place of one of {len}", message.len);
        Ok(message)
    }

    /// Tells the other node where this one's memory is.
    pub fn send_handle(&self) -> Result<()> {
        let bytes = self.memory()?.handle.0.to_le_bytes();
        let buffer = self.until(|| self.context.send_buffer(self.peer(), HANDLE))?;
        // SAFETY: the buffer is of so many bytes, and this rank's until it is sent.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, HANDLE) };
        Ok(self.context.send()?)
    }

    /// Waits until the other node has told where its memory is.
    pub fn receive_handle(&self) -> Result<AddrHandle> {
        let message = self.next(HANDLE)?;
        let mut bytes = [0; HANDLE];
        // SAFETY: the message is of so many bytes, and this rank's until it is released.
        unsafe { ptr::copy_nonoverlapping(message.at, bytes.as_mut_ptr(), HANDLE) };
        self.context.release_receive_buffer()?;
        Ok(AddrHandle(u64::from_le_bytes(bytes)))
    }

    /// Begins to copy `len` bytes between the other node's memory and this one's, at the same place of both.
    #[inline]
    pub fn copy(&self, direction: Direction, remote: AddrHandle, at: usize, len: usize) -> Result<()> {
        let local = self.memory()?.handle;
        let at = at as u64;
        let [remote, local] = [remote, local].map(|handle| AddrHandle(handle.0 + at));
        self.until(|| self.context.copy(direction, self.peer(), remote, local, len))
    }

    /// Waits until all copies this way are done.
    pub fn finish(&self, direction: Direction) -> Result<()> {
        self.until(|| self.context.is_copied(direction))
    }

    fn memory(&self) -> Result<&Locked> {
        self.memory.as_ref().context("no memory is locked")
    }

    /// Has memory of at least so many bytes locked for the other node.
    pub fn provide(&mut self, len: usize) -> Result<()> {
        let len = len.max(PAGE);
        if self.memory.as_ref().is_some_and(|memory| memory.len >= len) {
            return Ok(());
        }
        // The old one first: there may not be room for both.
        self.give_back()?;
        // Touched, so that no page is made while it is measured.
        let mut bytes = ManuallyDrop::new(vec![1; len + PAGE]);
        let start = bytes.as_mut_ptr();
        let start = start.wrapping_add(start.align_offset(PAGE)).cast();
        let whom = Whom::Node(self.peer());
        // SAFETY: the bytes lie in the vector, of which no reference is made any more, and which is freed by
        // `give_back` only, after it has found no copy under way and unlocked them.
        let handle = unsafe { self.context.lock(whom, start, len) }?;
        self.memory = Some(Locked { bytes, start, len, handle });
        Ok(())
    }

    /// Unlocks and frees the memory if it is more than a rank may keep.
    pub fn keep(&mut self, most: usize) -> Result<()> {
        if self.memory.as_ref().is_some_and(|memory| memory.len > most) { self.give_back() } else { Ok(()) }
    }

    /// Unlocks and frees the memory. If it cannot be said that no request uses it, it stays for good.
    fn give_back(&mut self) -> Result<()> {
        let Some(Locked { bytes, start, len, .. }) = self.memory.take() else { return Ok(()) };
        self.finish(Direction::Write)?;
        self.finish(Direction::Read)?;
        self.context.unlock(Whom::Node(self.peer()), start, len)?;
        drop(ManuallyDrop::into_inner(bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_message_is_that_of_pm() {
        assert_eq!(Settings::default().mtu as u64, MOST_MESSAGE);
    }
}
