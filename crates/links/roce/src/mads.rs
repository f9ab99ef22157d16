//! QP 1 over RoCE: a management datagram is a UD SEND of one packet between the QPs 1 of two hosts, as the kernel's
//! (IBA 13.5.1, 9.8.3).

use super::net::{Datagram, HOP_LIMIT};
use super::packet_sink::{Destination, PacketSink};
use super::ports::LocalPort;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vervain_carrier::PacketOut;
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::qp::carrier::Mad;
use vervain_hca::{Error, Result};
use vervain_qp1::mad::{QKEY, QPN};
use vervain_qp1::{Gsi, Message, Origin, gid_of};
use vervain_wire::{Bth, Deth, Headers, opcode, parse};

/// Bytes of stack of the thread that opens a port for the progress thread.
const STACK: usize = 256 << 10;

/// MADs in packets.
pub(super) struct Mads {
    /// Takes those that come for QP 1.
    gsi: Arc<Gsi>,
    /// PSN of the next packet.
    psn: AtomicU32,
    /// A thread opens a port for what the progress thread has sent from there.
    is_opening_port: AtomicBool,
}

impl Mads {
    /// None so far.
    pub(super) fn new(gsi: Arc<Gsi>) -> Mads {
        Mads { gsi, psn: AtomicU32::new(0), is_opening_port: AtomicBool::new(false) }
    }

    /// Sends a MAD from the port that `open` opens, in another thread: opening may take long, and the progress thread
    /// must not wait.
    pub(super) fn send_when_open(
        self: &Arc<Self>,
        open: impl FnOnce() -> Result<Arc<LocalPort>> + Send + 'static,
        to: Destination,
        mad: &Mad,
    ) -> Result<()> {
        // One at a time: opening may fail each time, while MADs are sent again and again.
        if self.is_opening_port.swap(true, Ordering::AcqRel) {
            return Err(Error::new(libc::EAGAIN, "a port is being opened already"));
        }
        let (me, mad) = (Arc::clone(self), *mad);
        let run = move || {
            match open() {
                Ok(port) => me.send(&port, to, &mad),
                Err(e) => log::info!("a MAD is dropped: {e}"),
            }
            me.is_opening_port.store(false, Ordering::Release);
        };
        let spawned = vervain_scheduler::spawn("vervain-port", STACK, run);
        spawned.map(drop).map_err(|e| {
            self.is_opening_port.store(false, Ordering::Release);
            Error::new(libc::EAGAIN, format!("cannot start a thread: {e}"))
        })
    }

    /// Sends a MAD from `port`.
    pub(super) fn send(&self, port: &LocalPort, to: Destination, mad: &Mad) {
        let headers = Headers {
            bth: Bth {
                opcode: opcode::UD | opcode::SEND_ONLY,
                pkey: vervain_carrier::terms::PKEY,
                dest_qpn: QPN,
                // Set like the kernel's; datagrams are not acknowledged.
                ack_request: true,
                psn: self.psn.fetch_add(1, Ordering::Relaxed) & 0x00ff_ffff,
                ..Bth::default()
            },
            deth: Some(Deth { qkey: QKEY, source_qpn: QPN }),
            ..Headers::default()
        };
        let mut batch = port.batch();
        // Memory of this call's, which can be read.
        let _ = PacketSink::new(&mut batch, to, &FIRST).push(&headers, &Pieces::of(mad));
        port.flush_batch(&mut batch);
    }

    /// A packet for QP 1 has come: its MAD goes to the process that it is for, which may be another.
    pub(super) fn receive(&self, port: &LocalPort, datagram: &Datagram<'_>) {
        if !port.is_intact(datagram) {
            return;
        }
        let counters = port.port.counters();
        let Ok(packet) = parse(datagram.bytes) else {
            counters.malformed.add(1);
            FIRST.add(Word::Malformed, 1);
            return;
        };
        let headers = &packet.headers;
        let is_datagram = headers.bth.opcode == opcode::UD | opcode::SEND_ONLY;
        let Some(mad) =
            Mad::try_from(packet.payload).ok().filter(|_| is_datagram && headers.bth.pkey & 0x7fff == 0x7fff)
        else {
            counters.unwanted.add(1);
            return;
        };
        if headers.deth.is_none_or(|deth| deth.qkey != QKEY) {
            counters.bad_qkey.add(1);
            return;
        }
        FIRST.add(Word::ReceivedPackets, 1);
        FIRST.add(Word::ReceivedBytes, datagram.bytes.len() as u64);
        let message = Message {
            origin: Origin::Carrier,
            from: gid_of(datagram.from.ip()),
            to: gid_of(datagram.to),
            flow_label: datagram.label,
            traffic_class: datagram.tos,
            // The likely value, if the socket does not provide one.
            hop_limit: if datagram.hop_limit == 0 { HOP_LIMIT } else { datagram.hop_limit },
            mad,
        };
        if !self.gsi.arrived(message) {
            counters.unwanted.add(1);
        }
    }
}
