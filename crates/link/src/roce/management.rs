//! QP 1 over RoCE: a management datagram is a UD SEND of one packet between the QPs 1 of two hosts, as the kernel's (IBA 13.5.1, 9.8.3).

use super::Engine;
use super::address::{Address, gid_of, ip_of};
use super::net::{Datagram, HOP_LIMIT};
use super::packet_sink::{Destination, PacketSink};
use super::ports::LocalPort;
use crate::endpoint::PacketOut;
use crate::gsi::mad::{QKEY, QPN};
use crate::gsi::{Message, Origin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::process::Process;
use vervain_hca::qp::carrier::{Mad, ServiceClaim};
use vervain_hca::{AhAttr, Error, Result};
use vervain_wire::{Bth, Deth, Headers, opcode, parse};

/// Bytes of stack of the thread that opens a port for the progress thread.
const STACK: usize = 256 << 10;

/// Sends a MAD. A port that is not open yet is opened before; what the progress thread sends, which must not wait for that, leaves
/// when it is open.
pub(super) fn send(engine: &Arc<Engine>, process: &'static Process, device: u32, ah: &AhAttr, mad: &Mad) -> Result<()> {
    let (local, remote) = engine.addresses(device, ah)?;
    let to = Destination::new(remote, &ah.grh);
    if let Some(port) = engine.ports.find(local) {
        engine.send_mad(&port, to, mad);
        return Ok(());
    }
    if !process.is_progress_thread() {
        let port = engine.ports.open_for_datagram(process, local)?;
        engine.send_mad(&port, to, mad);
        return Ok(());
    }
    // One at a time: opening may take long, or fail each time, while MADs are sent again and again.
    if engine.is_opening_port.swap(true, Ordering::AcqRel) {
        return Err(Error::new(libc::EAGAIN, "a port is being opened already"));
    }
    let (opener, mad) = (Arc::clone(engine), *mad);
    let open = move || {
        match opener.ports.open_for_datagram(process, local) {
            Ok(port) => opener.send_mad(&port, to, &mad),
            Err(e) => log::info!("a MAD is dropped: {e}"),
        }
        opener.is_opening_port.store(false, Ordering::Release);
    };
    let spawned = vervain_scheduler::spawn("vervain-port", STACK, open);
    spawned.map(drop).map_err(|e| {
        engine.is_opening_port.store(false, Ordering::Release);
        Error::new(libc::EAGAIN, format!("cannot start a thread: {e}"))
    })
}

impl Engine {
    fn send_mad(&self, port: &LocalPort, to: Destination, mad: &Mad) {
        let headers = Headers {
            bth: Bth {
                opcode: opcode::UD | opcode::SEND_ONLY,
                pkey: super::packet_sink::PKEY,
                dest_qpn: QPN,
                // As the kernel does; nobody acknowledges datagrams.
                ack_request: true,
                psn: self.management_psn.fetch_add(1, Ordering::Relaxed) & 0x00ff_ffff,
                ..Bth::default()
            },
            deth: Some(Deth { qkey: QKEY, source_qpn: QPN }),
            ..Headers::default()
        };
        let mut batch = port.batch();
        // Memory of this call's, which can be read.
        let _ = PacketSink { batch: &mut batch, to, tally: &FIRST, pushed: 0 }.push(&headers, &Pieces::of(mad));
        port.flush_batch(&mut batch);
    }

    /// A packet for QP 1 has come: its MAD goes to the process that it is for, which may be another.
    pub(super) fn management(&self, port: &LocalPort, datagram: &Datagram<'_>) {
        if !self.is_intact(port, datagram) {
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
            // Where the socket does not tell, the likely.
            hop_limit: if datagram.hop_limit == 0 { HOP_LIMIT } else { datagram.hop_limit },
            mad,
        };
        if !self.gsi.arrived(message) {
            counters.unwanted.add(1);
        }
    }

    /// Has what is for QP 1 led to this process, at the addresses of its services, which are opened. An error where none of a service is
    /// to be had.
    pub(super) fn serve(&self, process: &'static Process, slot: u32, services: &[ServiceClaim]) -> Result<()> {
        self.ports.serve(slot, services)?;
        let own = || self.devices.iter().flat_map(|device| device.gids(1));
        for claim in services {
            let (mut opened, mut refused) = (false, None);
            for entry in own().filter(|entry| claim.address.is_none_or(|address| address == entry.gid)) {
                let address = Address { ip: ip_of(&entry.gid), interface: entry.ifindex };
                match self.ports.open_for_datagram(process, address) {
                    Ok(_) => opened = true,
                    Err(e) => {
                        log::info!("no MADs come by packets at {}: {e}", address.ip);
                        refused.get_or_insert(e);
                    }
                }
            }
            refused.filter(|_| !opened).map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}
