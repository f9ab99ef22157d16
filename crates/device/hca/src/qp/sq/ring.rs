//! The ring of WQEs of a send queue: posted requests that are not done, with their data.

use crate::error::{Error, Result};
use crate::qp::sq::wqe::{Data, Queued, SendRequest, UdAddress, UdDest, Wqe};
use std::ops::{Index, IndexMut};
use vervain_iba::{QpCap, Sge, send_flags};

/// WQEs by their place in the ring. Posted ones are counted for ever, and the counts wrap.
pub(crate) struct WqeRing {
    wqes: Vec<Wqe>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// Destinations, one per place; empty unless it is a UD QP.
    ud_addresses: Vec<UdAddress>,
    mask: u32,
    cap: QpCap,
    /// First WQE not done, and one past the last posted.
    head: u32,
    tail: u32,
    /// The tail before the current batch, and true if no request waited then.
    batch: u32,
    was_empty: bool,
}

impl Index<usize> for WqeRing {
    type Output = Wqe;

    #[inline(always)]
    fn index(&self, i: usize) -> &Wqe {
        &self.wqes[i]
    }
}

impl IndexMut<usize> for WqeRing {
    #[inline(always)]
    fn index_mut(&mut self, i: usize) -> &mut Wqe {
        &mut self.wqes[i]
    }
}

impl WqeRing {
    /// A ring for the send queue of a QP of these sizes. `is_ud`: it has room for destinations.
    pub(crate) fn new(cap: QpCap, is_ud: bool) -> WqeRing {
        let slots = cap.max_send_wr.max(1).next_power_of_two();
        let mut wqes = Vec::new();
        wqes.resize_with(slots as usize, Wqe::default);
        WqeRing {
            wqes,
            sges: vec![Sge::default(); (slots * cap.max_send_sge) as usize],
            inline: vec![0; slots as usize * cap.max_inline_data as usize],
            ud_addresses: if is_ud { vec![UdAddress::default(); slots as usize] } else { Vec::new() },
            mask: slots - 1,
            cap,
            head: 0,
            tail: 0,
            batch: 0,
            was_empty: true,
        }
    }

    /// Places in the ring, a power of two.
    pub(crate) fn slots(&self) -> u32 {
        self.mask + 1
    }

    /// The place of WQE `n`.
    #[inline]
    pub(crate) fn place(&self, n: u32) -> usize {
        (n & self.mask) as usize
    }

    /// The first WQE that is not done.
    #[inline(always)]
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// One past the last WQE that was posted.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    /// The number of WQEs that wait.
    pub(crate) fn waiting(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Returns true if none waits.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// WQE `n`, if it waits.
    #[inline]
    pub(crate) fn get(&self, n: u32) -> Option<&Wqe> {
        (n.wrapping_sub(self.head) < self.waiting()).then(|| &self.wqes[self.place(n)])
    }

    /// The number of WQEs that may be posted when the program has polled the completions of `freed` WQEs.
    #[inline]
    pub(crate) fn room(&self, freed: u32) -> u32 {
        self.cap.max_send_wr.saturating_sub(self.tail.wrapping_sub(freed))
    }

    /// The number of requests that it can hold.
    pub(crate) fn max_wr(&self) -> u32 {
        self.cap.max_send_wr
    }

    /// The number of scatter/gather elements that a request may have.
    pub(crate) fn max_sge(&self) -> u32 {
        self.cap.max_send_sge
    }

    /// Bytes of inline data that a request may have.
    #[inline]
    pub(crate) fn max_inline(&self) -> u32 {
        self.cap.max_inline_data
    }

    // ---- posting ---------------------------------------------------------------------------------------------------

    /// Counts the WQE at the tail as posted.
    #[inline(always)]
    pub(crate) fn posted(&mut self) {
        self.tail = self.tail.wrapping_add(1);
    }

    /// Counts a request that was carried out without becoming a WQE as posted and done. Returns the new tail.
    #[inline(always)]
    pub(crate) fn pass(&mut self) -> u32 {
        let tail = self.tail.wrapping_add(1);
        (self.head, self.tail) = (tail, tail);
        tail
    }

    /// Counts the WQE at the head as done.
    #[inline(always)]
    pub(crate) fn done(&mut self) {
        self.head = self.head.wrapping_add(1);
    }

    /// Returns to the state after creation.
    pub(crate) fn reset(&mut self) {
        self.wqes.iter_mut().for_each(|w| w.bind = None);
        (self.head, self.tail) = (0, 0);
    }

    /// Remembers the beginning of a batch.
    pub(crate) fn begin_batch(&mut self) {
        self.batch = self.tail;
        self.was_empty = self.is_empty();
    }

    /// Returns true if the batch is still empty.
    #[inline]
    pub(crate) fn nothing_pushed(&self) -> bool {
        self.batch == self.tail
    }

    /// Returns true if no request waited before the batch: only then is it begun at once (DESIGN decision 1).
    #[inline]
    pub(crate) fn batch_is_first(&self) -> bool {
        self.was_empty
    }

    /// Drops the requests pushed since the batch began.
    pub(crate) fn abort_batch(&mut self) {
        self.tail = self.batch;
    }

    #[inline(never)]
    pub(crate) fn address(&mut self, i: usize, ud: &UdDest<'_>) {
        if let Some(a) = self.ud_addresses.get_mut(i) {
            *a = UdAddress { ah: *ud.ah.attr(), route: ud.ah.route(), qpn: ud.qpn, qkey: ud.qkey };
        }
    }

    /// The destination of the datagram at place `i`.
    pub(crate) fn ud_address(&self, i: usize) -> UdAddress {
        self.ud_addresses[i]
    }

    /// WQE `i` for the fast path, if it has at most one piece of data.
    #[inline]
    pub(crate) fn queued(&self, i: usize) -> Option<Queued<'_>> {
        let wqe = &self.wqes[i];
        let (data, inline) = match wqe.num_sge {
            _ if wqe.is_inline => {
                let at = &self.inline[i * self.cap.max_inline_data as usize..];
                (Sge { addr: at.as_ptr() as u64, length: wqe.request.length as u32, lkey: 0 }, send_flags::INLINE)
            }
            0 => (Sge::default(), 0),
            1 => (self.sges[i * self.cap.max_send_sge as usize], 0),
            _ => return None,
        };
        Some(Queued { wqe, flags: wqe.request.flags & !send_flags::INLINE | inline, data })
    }

    /// Keeps the data of `request` at place `i`. Returns the number of scatter/gather elements, true if it is inline,
    /// and its bytes.
    #[inline(always)]
    pub(crate) fn take_data(&mut self, i: usize, request: &SendRequest<'_>) -> Result<(u32, bool, u64)> {
        match &request.data {
            Data::None => Ok((0, false, 0)),
            Data::Sges(sges) if request.flags & send_flags::INLINE == 0 => {
                let room = self.cap.max_send_sge as usize;
                if sges.len() > room {
                    return Err(too_many_sges(sges.len(), room));
                }
                let mut length = 0;
                for (to, sge) in self.sges[i * room..][..room].iter_mut().zip(*sges) {
                    *to = *sge;
                    length += u64::from(sge.length);
                }
                Ok((sges.len() as u32, false, length))
            }
            Data::Sges(sges) => {
                if sges.len() > self.cap.max_send_sge as usize {
                    return Err(Error::invalid("too many SGEs"));
                }
                let mut at = 0;
                for sge in *sges {
                    let data = match sge.length {
                        0 => &[][..],
                        // SAFETY: inline data is read from the program's memory now; the program vouches for its
                        // address, as for any buffer that it passes to a C function (`man ibv_post_send`,
                        // IBV_SEND_INLINE).
                        n => unsafe { std::slice::from_raw_parts(sge.addr as *const u8, n as usize) },
                    };
                    at = self.take_inline(i, at, data)?;
                }
                Ok((0, true, at as u64))
            }
            Data::Inline(buffers) => {
                let mut at = 0;
                for data in *buffers {
                    at = self.take_inline(i, at, data)?;
                }
                Ok((0, true, at as u64))
            }
        }
    }

    #[inline]
    fn take_inline(&mut self, i: usize, at: usize, data: &[u8]) -> Result<usize> {
        let room = self.cap.max_inline_data as usize;
        let end = at + data.len();
        if end > room {
            return Err(Error::invalid(format!("inline data of {end} bytes or more, the QP allows {room}")));
        }
        self.inline[i * room + at..i * room + end].copy_from_slice(data);
        Ok(end)
    }

    // ---- local memory ----------------------------------------------------------------------------------------------

    /// The inline data of the WQE at place `i`; None if its data is registered memory.
    #[inline(always)]
    pub(crate) fn inline_data(&self, i: usize) -> Option<&[u8]> {
        let start = i * self.cap.max_inline_data as usize;
        self.wqes[i].is_inline.then(|| &self.inline[start..start + self.wqes[i].request.length as usize])
    }

    /// The SGEs of the WQE at place `i`.
    #[inline(always)]
    pub(crate) fn sges(&self, i: usize) -> &[Sge] {
        let start = i * self.cap.max_send_sge as usize;
        &self.sges[start..start + self.wqes[i].num_sge as usize]
    }
}

#[cold]
#[inline(never)]
fn too_many_sges(n: usize, room: usize) -> Error {
    Error::invalid(format!("a send has {n} SGEs, the QP allows {room}"))
}
