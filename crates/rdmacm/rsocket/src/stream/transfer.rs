//! Sending and receiving: each moves as much as it may, and waits where the caller does.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::{State, StreamSocket};
use crate::calls::Flags;
use crate::fabric::{Errno, Result};
use crate::link::{Link, Stop};
use crate::memory::Vectors;
use crate::waiting::{Waitable, lock};

impl StreamSocket {
    /// The stream, once it is open.
    pub(super) fn stream(&self, flags: Flags, timeout: Option<Duration>) -> Result<&Link> {
        if self.state() != State::Open {
            self.wait(flags, timeout, |_| self.opened())??;
        }
        self.link.get().ok_or(Errno(libc::ENOTCONN))
    }

    /// The error of a send that finds the stream ended.
    fn ended(&self) -> Errno {
        self.note_broken();
        let error = lock(&self.inner).error.take();
        let own = self.shut.load(Ordering::Acquire);
        error.unwrap_or(Errno(if own { libc::EPIPE } else { libc::ECONNRESET }))
    }

    /// Locks the side of those who send, or read: one at a time. EAGAIN where that would mean to wait.
    fn side<'a, T>(&self, side: &'a Mutex<T>, flags: Flags) -> Result<MutexGuard<'a, T>> {
        if self.calls.may_wait(flags) {
            return Ok(lock(side));
        }
        match side.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno(libc::EAGAIN)),
        }
    }

    /// send(2), and its kin: how many bytes.
    ///
    /// # Errors
    /// EAGAIN, ENOTCONN; ECONNRESET: the peer takes no more; EPIPE: this end has shut down.
    pub fn send(&self, data: &mut Vectors<'_>, flags: Flags) -> Result<usize> {
        let total = data.left();
        let writable = |link: &Link| link.readiness().1;
        self.transfer(flags, total, writable, |link, before, scratch| Some(link.write(data, before, scratch)))
    }

    /// riowrite: how many bytes, fewer than all where no buffer of the peer's has the next offset.
    ///
    /// # Errors
    /// As of [`StreamSocket::send`].
    pub fn io_write(&self, data: &mut Vectors<'_>, offset: u64, flags: Flags) -> Result<usize> {
        let total = data.left();
        self.transfer(flags, total, Link::is_io_writable, |link, before, scratch| {
            let at = offset.checked_add(before as u64)?;
            link.io_write(data, before, at, scratch).ok()
        })
    }

    /// Moves `total` bytes by steps, each of which gets the number of bytes moved before; None from a step: there is no
    /// destination for more.
    fn transfer(
        &self,
        flags: Flags,
        total: usize,
        is_ready: impl Fn(&Link) -> bool,
        mut step: impl FnMut(&Link, usize, &mut Vec<u8>) -> Option<std::result::Result<usize, Stop>>,
    ) -> Result<usize> {
        let timeout = self.calls.with_options(|options| options.send_timeout);
        let link = self.stream(flags, timeout)?;
        let mut scratch = self.side(&self.sender, flags)?;
        self.progress();
        let (mut done, mut told) = (0, false);
        while done < total {
            let moved = if told {
                match step(link, done, &mut scratch) {
                    Some(moved) => moved,
                    None => break,
                }
            } else {
                link.tell_maps(&mut scratch).map(|()| {
                    told = true;
                    0
                })
            };
            let error = match moved {
                Ok(moved) => {
                    done += moved;
                    continue;
                }
                Err(Stop::Ended) => self.ended(),
                Err(Stop::Wait) => {
                    let ready = |_: &mut [libc::pollfd]| (!link.is_sending() || is_ready(link)).then_some(());
                    match self.wait(flags, timeout, ready) {
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
            };
            return if done > 0 { Ok(done) } else { Err(error) };
        }
        Ok(done)
    }

    /// recv(2), and its kin: how many bytes; 0: there will be no more.
    ///
    /// # Errors
    /// EAGAIN, ENOTCONN, and once why the stream is broken.
    pub fn receive(&self, into: &mut Vectors<'_>, flags: Flags) -> Result<usize> {
        let timeout = self.calls.with_options(|options| options.receive_timeout);
        let link = self.stream(flags, timeout)?;
        let _side = self.side(&self.receiver, flags)?;
        let (total, mut done) = (into.left(), 0);
        while done < total {
            let error = match link.read(into, flags.peek) {
                Ok(length) => {
                    done += length;
                    if flags.peek || !flags.wait_all {
                        break;
                    }
                    continue;
                }
                Err(Stop::Ended) if done > 0 => break,
                Err(Stop::Ended) => {
                    self.note_broken();
                    return lock(&self.inner).error.take().map_or(Ok(0), Err);
                }
                Err(Stop::Wait) => match self.wait(flags, timeout, |_| link.readiness().0.then_some(())) {
                    Ok(()) => continue,
                    Err(error) => error,
                },
            };
            return if done > 0 { Ok(done) } else { Err(error) };
        }
        Ok(done)
    }
}
