//! Channels of values.

use std::marker::PhantomData;

use bytemuck::Pod;
use vervain_acp::{Error, Result};

use crate::{Channels, Id};

/// The sending end of a channel of `T`s; of bytes, for `u8`. It is freed on drop, without waiting for the other end.
pub struct Sender<'c, 'w, T> {
    end: End<'c, 'w>,
    of: PhantomData<fn(T)>,
}

/// The receiving end of a channel of `T`s; as [`Sender`].
pub struct Receiver<'c, 'w, T> {
    end: End<'c, 'w>,
    of: PhantomData<fn() -> T>,
}

struct End<'c, 'w> {
    channels: &'c Channels<'w>,
    id: Id,
}

impl End<'_, '_> {
    /// The result of a request whose memory is not in use any more. In a broken job it may be in use: there is no way
    /// back.
    fn over<U>(&self, outcome: Result<U>) -> Result<U> {
        if let Err(error) = &outcome
            && !error.is_refused()
        {
            self.channels.world().abort(&error.to_string());
        }
        outcome
    }

    fn free(self) -> Result<()> {
        let outcome = self.channels.begin_free(self.id).and_then(|request| self.channels.wait(request));
        std::mem::forget(self);
        outcome.map(drop)
    }
}

impl Drop for End<'_, '_> {
    fn drop(&mut self) {
        // A failure here breaks the next call too.
        let _ = self.channels.free_later(self.id);
    }
}

fn has_size<T>() -> Result<()> {
    if size_of::<T>() == 0 {
        return Err(Error::refused("values without bytes are not counted in messages"));
    }
    Ok(())
}

impl<'w> Channels<'w> {
    /// This rank's end of a channel to rank `to`; as [`create`](Channels::create).
    ///
    /// # Errors
    /// Those of [`create`](Channels::create); a type without bytes.
    pub fn sender<T: Pod>(&self, to: u32) -> Result<Sender<'_, 'w, T>> {
        has_size::<T>()?;
        let id = self.create(self.world().rank(), to)?;
        Ok(Sender { end: End { channels: self, id }, of: PhantomData })
    }

    /// This rank's end of a channel from rank `from`; as [`create`](Channels::create).
    ///
    /// # Errors
    /// Those of [`create`](Channels::create); a type without bytes.
    pub fn receiver<T: Pod>(&self, from: u32) -> Result<Receiver<'_, 'w, T>> {
        has_size::<T>()?;
        let id = self.create(from, self.world().rank())?;
        Ok(Receiver { end: End { channels: self, id }, of: PhantomData })
    }
}

impl<T: Pod> Sender<'_, '_, T> {
    /// Sends a message of these values, and waits until they may be used again. A broken job ends.
    ///
    /// # Errors
    /// None so far.
    pub fn send(&self, values: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        // SAFETY: the bytes are borrowed until the request is over; nobody stores to them.
        self.end.over(unsafe { self.end.channels.send(self.end.id, bytes.as_ptr(), bytes.len()) })
    }

    /// Frees this end, and waits for the other one.
    ///
    /// # Errors
    /// The job is broken.
    pub fn free(self) -> Result<()> {
        self.end.free()
    }
}

impl<T: Pod> Receiver<'_, '_, T> {
    /// Waits for a message and returns how many values of it are stored: those that do not fit are lost. A broken job
    /// ends.
    ///
    /// # Errors
    /// Refused: the sender has freed the channel; the message ends within a value.
    pub fn receive(&self, values: &mut [T]) -> Result<usize> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        // SAFETY: the bytes are borrowed, by this function alone, until the request is over.
        let received = unsafe { self.end.channels.receive(self.end.id, bytes.as_mut_ptr(), bytes.len()) };
        let received = self.end.over(received)?;
        if !received.is_multiple_of(size_of::<T>()) {
            return Err(Error::refused(format!("a message of {received} B ends within a value of {}", size_of::<T>())));
        }
        Ok(received / size_of::<T>())
    }

    /// Frees this end, and waits for the other one.
    ///
    /// # Errors
    /// The job is broken.
    pub fn free(self) -> Result<()> {
        self.end.free()
    }
}
