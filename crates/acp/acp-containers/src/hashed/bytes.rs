//! Keys and values as a program gives and takes them: bytes of this process, or in the memory of any rank.

use vervain_acp::{Batch, Error, GlobalAddress, GlobalPtr, Order, Place, Result, World};

/// Bytes that are read of an element at first, at most.
pub(super) const FIRST: usize = 1024;
/// Bytes of a key that are compared at a time.
pub(super) const PIECE: usize = 64 << 10;

/// Bytes to read: a key or a value.
#[derive(Debug, Clone, Copy)]
pub enum Bytes<'b> {
    /// Bytes of this process.
    Here(&'b [u8]),
    /// In global memory, of any rank: where, and how many.
    At(GlobalAddress, usize),
}

impl Bytes<'_> {
    /// Their number.
    pub fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::At(_, len) => *len,
        }
    }

    /// Returns true if they are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `f` with them.
    pub(super) fn with<T>(self, world: &World, f: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        let (at, len) = match self {
            Bytes::Here(bytes) => return f(bytes),
            Bytes::At(at, len) => (at, len),
        };
        let mut short = [0; 256];
        if let Some(short) = short.get_mut(..len) {
            fetch(world, at, short)?;
            return f(short);
        }
        f(&self.to_vec(world)?)
    }

    /// A copy of them.
    pub(super) fn to_vec(self, world: &World) -> Result<Vec<u8>> {
        let (at, len) = match self {
            Bytes::Here(bytes) => return Ok(bytes.to_vec()),
            Bytes::At(at, len) => (at, len),
        };
        if len > 16 * PIECE {
            // If they end outside of their region, that ends the job before room for them is allocated.
            fetch(world, at.add(len as u64 - 1), &mut [0])?;
        }
        let mut bytes = vec![];
        bytes.try_reserve_exact(len).map_err(|_| Error::refused(format!("there is no memory for {len} bytes")))?;
        bytes.resize(len, 0);
        if len > 0 {
            fetch(world, at, &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// Room for a value.
#[derive(Debug)]
pub enum Room<'b> {
    /// Bytes of this process.
    Here(&'b mut [u8]),
    /// In global memory, of any rank: where, and how many bytes.
    At(GlobalAddress, usize),
}

impl Room<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::At(_, len) => *len,
        }
    }

    /// Puts there what was read of a value.
    pub(super) fn fill(&mut self, world: &World, batch: &mut Batch<'_>, value: Place) -> Result<()> {
        match self {
            Self::Here(bytes) => batch.read(value, &mut bytes[..value.len()]),
            Self::At(to, _) => {
                let bytes = batch.bytes(value);
                if world.rank_of(*to) == Some(world.rank()) {
                    return world.write(GlobalPtr::new(*to), &bytes);
                }
                batch.put(*to, &bytes, Order::Now)?;
                batch.wait()?;
            }
        }
        Ok(())
    }
}

/// Reads global memory: at once where it is this rank's, else one round trip.
fn fetch(world: &World, at: GlobalAddress, to: &mut [u8]) -> Result<()> {
    if world.rank_of(at) == Some(world.rank()) {
        return world.read(GlobalPtr::new(at), to);
    }
    let mut batch = world.batch();
    let (mut most, mut done) = (16 * PIECE, 0);
    while done < to.len() {
        let len = most.min(to.len() - done);
        let place = match batch.get(at.add(done as u64), len, Order::Now) {
            // If there is no room for as much, in small parts: an element that is moved has to get to a slot.
            Err(error) if error.is_refused() && len > FIRST => {
                most = FIRST;
                continue;
            }
            place => place?,
        };
        batch.wait()?;
        batch.read(place, &mut to[done..done + len]);
        batch.clear()?;
        done += len;
    }
    Ok(())
}
