//! Faults made on purpose (`VERVAIN_FAULTS`): lines of `vervain-fault` before the sockets, one for each direction that has
//! any. They are asked about each packet of a train. What they let pass goes on in trains, parted where one is lost; those that
//! are late, changed or sent twice leave one by one, from the line.

use super::Datagram;
use super::train::FlowKey;
use std::net::{IpAddr, SocketAddr};
use vervain_config::{Config, FAULTS};
use vervain_fault::{Direction, Faults, Line, Nanos};
use vervain_hca::host::lock::{OwnerGuard, OwnerLock};
use vervain_hca::now_ns;
use vervain_hca::{Error, Result};

/// What is known of a received packet but its bytes.
#[derive(Clone, Copy)]
pub struct Arrival {
    from: SocketAddr,
    to: IpAddr,
    hop_limit: u8,
    tos: u8,
    label: u32,
    index: u16,
}

impl Arrival {
    /// Of this packet.
    pub fn of(packet: &Datagram<'_>) -> Arrival {
        let Datagram { from, to, hop_limit, tos, label, index, .. } = *packet;
        Arrival { from, to, hop_limit, tos, label, index }
    }

    /// The packet again.
    pub fn with(self, bytes: &[u8]) -> Datagram<'_> {
        let Arrival { from, to, hop_limit, tos, label, index } = self;
        Datagram { from, to, hop_limit, tos, label, index, bytes }
    }
}

/// The lines of a port.
pub struct Lines {
    transmit: Option<OwnerLock<Line<FlowKey>>>,
    receive: Option<OwnerLock<Line<Arrival>>>,
}

impl Lines {
    /// As the environment asks for them; None for no faults. The error is a sentence on what is wrong with the variable.
    pub fn from_environment() -> Result<Option<Lines>> {
        Config::of_process()?.faults.as_deref().map_or(Ok(None), Lines::new)
    }

    /// With the faults of `text`.
    pub fn new(text: &str) -> Result<Option<Lines>> {
        let faults: Faults = text.parse().map_err(|e| Error::invalid(format!("{}: {e}", FAULTS.name())))?;
        let lines = Lines { transmit: line(&faults, Direction::Transmit), receive: line(&faults, Direction::Receive) };
        Ok((lines.transmit.is_some() || lines.receive.is_some()).then_some(lines))
    }

    /// The line for sending, for a whole train.
    pub fn transmit(&self) -> Option<OwnerGuard<'_, Line<FlowKey>>> {
        self.transmit.as_ref().map(OwnerLock::lock)
    }

    /// The next packet to send.
    pub fn next_to_send(&self) -> Option<(FlowKey, Vec<u8>)> {
        self.transmit.as_ref()?.lock().pop(now_ns())
    }

    /// Whether packets that are received pass a line.
    pub fn receives(&self) -> bool {
        self.receive.is_some()
    }

    /// Puts a received packet into its line.
    pub fn arrived(&self, packet: &Datagram<'_>) {
        if let Some(line) = &self.receive {
            line.lock().push(now_ns(), Arrival::of(packet), packet.bytes);
        }
    }

    /// The next packet to deliver.
    pub fn next_to_deliver(&self) -> Option<(Arrival, Vec<u8>)> {
        self.receive.as_ref()?.lock().pop(now_ns())
    }

    /// When the next packet comes out of either.
    pub fn next_release(&self) -> Option<Nanos> {
        let transmit = self.transmit.as_ref().and_then(|line| line.lock().next_timeout());
        let receive = self.receive.as_ref().and_then(|line| line.lock().next_timeout());
        transmit.into_iter().chain(receive).min()
    }
}

/// A line, if there are faults of this direction. The two ends of a connection have the same faults; the process id makes
/// them meet different ones.
fn line<M: Clone>(faults: &Faults, direction: Direction) -> Option<OwnerLock<Line<M>>> {
    let salt = u64::from(std::process::id());
    faults.any(direction).then(|| OwnerLock::new(Line::new(faults, direction, salt, now_ns())))
}
