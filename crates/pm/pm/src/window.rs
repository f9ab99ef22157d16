//! The choice of receives that are posted. A shared receive queue hands them out in the order of posting, so if all
//! were posted, messages would be written to all receive buffers in turn, megabytes that no cache keeps. So few are
//! posted while the program keeps up, those that were given back last. If it does not, the device reports that few are
//! left (the limit of the queue), and twice as many are posted as before, up to all.

use vervain_mesh::Mesh;

use crate::error::Result;
use crate::nodes::PORT;

/// Receives that are posted while the program keeps up: with 8 KiB each, half of a second-level cache of 1 MiB. They
/// last for some 15 µs of such messages, longer than an interrupt takes.
const FEW: u32 = 64;
/// Receives that one call posts.
const BATCH: u32 = 8;

/// The receives of a context, by their numbers.
pub(crate) struct Window {
    /// Those that are not posted; the one that was given back last is the next, since it is in the cache.
    free: Vec<u32>,
    /// The number that are posted, or filled by messages that were not polled.
    posted: u32,
    /// The number that are to be posted.
    wanted: u32,
    all: u32,
    few: u32,
    batch: u32,
    /// The device will tell when few are left.
    armed: bool,
    /// Connections share them; else each has its own, which are posted all the time.
    shared: bool,
}

impl Window {
    /// A window on `all` receives, of which the first [`few`](Window::few) are posted.
    pub fn new(all: u32, shared: bool) -> Self {
        let few = Self::few(all);
        let free = (few..all).rev().collect();
        Self { free, posted: few, wanted: few, all, few, batch: (few / 4).clamp(1, BATCH), armed: false, shared }
    }

    /// The number, of `all` receives, that are posted from the start.
    pub fn few(all: u32) -> u32 {
        if all >= 2 * FEW { FEW } else { all }
    }

    /// A message was polled that has taken one.
    #[inline]
    pub fn taken(&mut self) {
        self.posted = self.posted.wrapping_sub(1);
    }

    /// The receives that all senders share, or that each has.
    pub fn all(&self) -> usize {
        self.all as usize
    }

    /// Returns true if senders may wait for a receive, where so many are with messages that the program has not
    /// received.
    pub fn is_used_up(&self, filled: usize) -> bool {
        // A batch that is free is going to be posted: the device has told that few are left.
        if self.shared { self.posted == 0 && self.free.len() < self.batch as usize } else { filled >= self.all() }
    }

    /// The device is to tell when fewer are left: so few that an interrupt's time does not take the others.
    fn limit(&self) -> u32 {
        self.few / 4
    }

    /// A receive is the device's again.
    #[inline]
    pub fn give_back(&mut self, buffer: u32, mesh: &mut Mesh) -> Result<()> {
        if !self.shared {
            return Ok(mesh.post_commands(PORT, &[buffer])?);
        }
        self.free.push(buffer);
        if self.posted + self.batch > self.wanted { Ok(()) } else { self.post(mesh) }
    }

    /// Posts as many receives as are wanted, if there are as many.
    #[inline(never)]
    fn post(&mut self, mesh: &mut Mesh) -> Result<()> {
        let more = self.wanted.saturating_sub(self.posted).min(self.free.len() as u32);
        let kept = self.free.len() - more as usize;
        mesh.post_commands(PORT, &self.free[kept..])?;
        self.free.truncate(kept);
        self.posted += more;
        if self.armed { Ok(()) } else { self.arm_limit(mesh) }
    }

    /// Has the device tell when few receives are left. Where it cannot, all are posted for good.
    #[cold]
    pub fn arm_limit(&mut self, mesh: &mut Mesh) -> Result<()> {
        // A limit above what is posted is reached at once.
        if !self.shared || self.few == self.all || self.posted <= self.limit() {
            return Ok(());
        }
        let limit = self.limit();
        self.armed = mesh.ports()[PORT].srq.as_ref().is_some_and(|srq| srq.arm_limit(limit).is_ok());
        if !self.armed {
            (self.few, self.wanted) = (self.all, self.all);
            return self.post(mesh);
        }
        Ok(())
    }

    /// The device says that few receives are left: the program is busy with something else. All messages that have come
    /// were polled: receives of others do not count as posted.
    #[cold]
    pub fn few_left(&mut self, mesh: &mut Mesh) -> Result<()> {
        self.extend();
        self.post(mesh)
    }

    /// More are wanted. Twice as many, not all: messages that go on coming are written to what is posted before they
    /// come to the receives that are in the cache, and most absences are short, a moment without a processor.
    fn extend(&mut self) {
        (self.armed, self.wanted) = (false, self.wanted.saturating_mul(2).min(self.all));
    }

    /// The program has taken all that has come.
    #[inline]
    pub fn keeps_up(&mut self) {
        self.wanted = self.few;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_many_are_wanted_with_each_absence_until_the_program_keeps_up() {
        let mut window = Window::new(1024, true);
        let wanted = [(); 5].map(|()| {
            window.extend();
            window.wanted
        });
        assert_eq!(wanted, [128, 256, 512, 1024, 1024]);
        window.keeps_up();
        assert_eq!(window.wanted, FEW);
    }

    #[test]
    fn each_receive_is_posted_or_free() {
        for all in [4, 64, 127, 128, 1024] {
            let window = Window::new(all, true);
            assert_eq!(window.posted as usize + window.free.len(), all as usize);
            // One is posted whatever was given back and not posted yet.
            assert!((1..=window.posted / 2).contains(&window.batch), "{all}");
            assert!(window.limit() < window.posted);
        }
    }
}
