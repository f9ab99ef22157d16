//! Where a QP's packets leave: the batch of its port, with the addresses filled in.

use super::net::{self, SendBatch};
use std::net::IpAddr;
use vervain_hca::layout::slot_of;
use vervain_hca::memory::Pieces;
use vervain_hca::tally::{Tally, Word};
use vervain_transport::Refused;
use vervain_wire::{Headers, ICRC_LEN, MAX_HEADERS};

/// The addresses of one peer.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    pub remote: IpAddr,
    pub hop_limit: u8,
    pub tos: u8,
}

/// A batch that is being filled for one peer.
pub(super) struct WayOut<'a> {
    pub batch: &'a mut SendBatch,
    pub to: Destination,
    /// Whose packets they are.
    pub tally: &'a Tally,
    /// Packets added.
    pub pushed: u32,
}

impl WayOut<'_> {
    /// Adds a packet; `from`, which is copied, is only read during this call.
    #[inline]
    pub(super) fn push(&mut self, headers: &Headers, from: &Pieces) -> Result<(), Refused> {
        let mut bytes = [0; MAX_HEADERS];
        let n = headers.emit(&mut bytes);
        let slot = slot_of(headers.bth.dest_qpn);
        let packet = net::Outgoing {
            to: self.to.remote,
            slot,
            // A network card merges packets of one flow on arrival; those for two processes had to be parted again.
            flow: slot,
            hop_limit: self.to.hop_limit,
            tos: self.to.tos,
            headers: &bytes[..n],
            payload: from,
        };
        // SAFETY: local memory that was checked against its key; whoever revokes that key waits until the mark ends under
        // which this call is made.
        unsafe { self.batch.push(&packet) }.map_err(|_| Refused::Memory)?;
        self.pushed += 1;
        let bytes = n as u64 + from.len().next_multiple_of(4) + ICRC_LEN as u64;
        self.tally.add(Word::SentPackets, 1);
        self.tally.add(Word::SentBytes, bytes);
        Ok(())
    }
}
