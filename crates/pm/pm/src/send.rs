//! Send buffers: slots of an MTU, which the program fills and which go by the lane for commands, into a receive that
//! all senders share. Where the node has none, the device waits and tries again.

use vervain_mesh::{Link, Mesh};
use vervain_rdma::{Qp, Region, SendRequest};

use crate::error::Result;
use crate::image::SavedMessage;
use crate::nodes::NO_LINK;

/// A send buffer that is with the device.
#[derive(Clone, Copy)]
struct Slot {
    link: Link,
    len: u32,
    /// Which of all messages it was.
    order: u64,
}

/// The send buffer that the program fills.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    pub slot: u32,
    pub len: u32,
    pub node: u32,
    pub link: Link,
}

pub(crate) struct SendBuffers {
    mtu: usize,
    /// The longest message that goes inside its work request.
    inline: usize,
    memory: Region,
    slots: Vec<Slot>,
    /// Those that are free; the one that was used last is the next, since it is in the cache.
    free: Vec<u32>,
    /// Messages that were given to the device.
    posted: u64,
    /// The buffer that the program fills.
    out: Option<Out>,
}

impl SendBuffers {
    /// So many slots of `mtu` bytes in this memory.
    pub fn new(memory: Region, count: usize, mtu: usize, inline: usize) -> SendBuffers {
        SendBuffers {
            mtu,
            inline,
            memory,
            slots: vec![Slot { link: NO_LINK, len: 0, order: 0 }; count],
            free: (0..count as u32).rev().collect(),
            posted: 0,
            out: None,
        }
    }

    #[inline]
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// The longest message that goes inside its work request.
    pub fn inline(&self) -> usize {
        self.inline
    }

    /// Messages that are with the device.
    #[inline]
    pub fn under_way(&self) -> bool {
        self.free.len() + usize::from(self.out.is_some()) < self.slots.len()
    }

    #[inline]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a slot.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives a slot back that was taken and not posted.
    #[inline]
    pub fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Gives a slot that was taken to the program, to be filled: its address.
    #[inline]
    pub fn give_out(&mut self, out: Out) -> *mut u8 {
        self.out = Some(out);
        self.memory.as_ptr().wrapping_add(out.slot as usize * self.mtu)
    }

    /// The buffer that the program fills.
    #[inline]
    pub fn out(&self) -> Option<Out> {
        self.out
    }

    /// Takes that buffer back.
    #[inline]
    pub fn take_out(&mut self) -> Option<Out> {
        self.out.take()
    }

    /// Fills a slot that was taken.
    pub fn write(&self, slot: u32, bytes: &[u8]) {
        self.memory.write(slot as usize * self.mtu, bytes);
    }

    /// Gives the first bytes of a slot to the device.
    #[inline]
    pub fn post(&self, slot: u32, len: u32, qp: &Qp) -> Result<()> {
        let start = slot as usize * self.mtu;
        let sges = [self.memory.slice(start..start + len as usize)];
        let request = SendRequest::send(&sges).id(u64::from(slot)).signaled();
        let request = if len as usize <= self.inline { request.inline() } else { request };
        Ok(qp.post(request)?)
    }

    /// A slot was posted.
    #[inline]
    pub fn posted(&mut self, slot: u32, len: u32, link: Link) {
        self.posted += 1;
        self.slots[slot as usize] = Slot { link, len, order: self.posted };
    }

    /// The device has done with a slot: by which connection.
    #[inline]
    pub fn over(&mut self, slot: u32) -> Link {
        self.free.push(slot);
        self.slots[slot as usize].link
    }

    /// Messages that the device has and that are not known to be with their nodes, in order.
    pub fn posted_messages(&self, mesh: &Mesh) -> Vec<SavedMessage> {
        let mut is_used = vec![true; self.slots.len()];
        self.free.iter().for_each(|slot| is_used[*slot as usize] = false);
        let mut used: Vec<usize> = (0..self.slots.len()).filter(|slot| is_used[*slot]).collect();
        used.sort_unstable_by_key(|slot| self.slots[*slot].order);
        let saved = |slot: usize| {
            let mut bytes = vec![0; self.slots[slot].len as usize];
            self.memory.read(slot * self.mtu, &mut bytes);
            SavedMessage { node: mesh.peer(self.slots[slot].link).0, bytes }
        };
        used.into_iter().map(saved).collect()
    }
}
