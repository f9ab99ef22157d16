//! Faults made on purpose (`VERVAIN_FAULTS`): lines of `vervain-fault` before the sockets, one for each direction that
//! has any. They judge each packet of a train. Packets that pass go on in trains, parted where one is lost; those that
//! are late, changed or sent twice leave one by one, from the line.

use super::receive::Datagram;
use super::train::FlowKey;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use vervain_config::{Config, FAULTS, LogLevel};
use vervain_fault::{Counts, Direction, Faults, Line, Nanos};
use vervain_hca::host::lock::{OwnerGuard, OwnerLock};
use vervain_hca::now_ns;
use vervain_hca::{Error, Result};

/// Properties of a received packet apart from its bytes.
#[derive(Clone, Copy)]
pub struct Arrival {
    from: SocketAddr,
    to: IpAddr,
    hop_limit: u8,
    tos: u8,
    overflowed: bool,
    label: u32,
    index: u16,
}

impl Arrival {
    /// The properties of this packet.
    pub fn of(packet: &Datagram<'_>) -> Arrival {
        let Datagram { from, to, hop_limit, tos, overflowed, label, index, .. } = *packet;
        Arrival { from, to, hop_limit, tos, overflowed, label, index }
    }

    /// The packet again.
    pub fn with(self, bytes: &[u8]) -> Datagram<'_> {
        let Arrival { from, to, hop_limit, tos, overflowed, label, index } = self;
        Datagram { from, to, hop_limit, tos, overflowed, label, index, bytes }
    }
}

/// The lines of this process's ports, reported at its end. Ports are few, so those of closed ones stay.
static MADE: OwnerLock<Vec<Made>> = OwnerLock::new(Vec::new());

/// The lines of a port, and the process that has opened it: a forked child has ports of its own.
struct Made {
    pid: u32,
    lines: Arc<Lines>,
}

/// The lines of a port.
pub struct Lines {
    seed: u64,
    transmit: Option<OwnerLock<Line<FlowKey>>>,
    receive: Option<OwnerLock<Line<Arrival>>>,
}

impl Lines {
    /// The error is a sentence on what is wrong with the variable.
    pub fn check_environment() -> Result<()> {
        Config::of_process()?.faults.as_deref().map_or(Ok(()), |text| Lines::new(text).map(drop))
    }

    /// The faults that the environment asks for; None: none. They are reported at the end of the process.
    pub fn from_environment() -> Result<Option<Arc<Lines>>> {
        let lines = Config::of_process()?.faults.as_deref().map_or(Ok(None), Lines::new)?.map(Arc::new);
        if let Some(lines) = &lines {
            tell_at_exit(lines);
        }
        Ok(lines)
    }

    /// With the faults of `text`.
    pub fn new(text: &str) -> Result<Option<Lines>> {
        let faults: Faults = text.parse().map_err(|e| Error::invalid(format!("{}: {e}", FAULTS.name())))?;
        let seed = faults.seed().unwrap_or_else(own_seed);
        let faults = faults.with_seed(seed);
        let lines =
            Lines { seed, transmit: line(&faults, Direction::Transmit), receive: line(&faults, Direction::Receive) };
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

    /// Returns true if received packets pass a line.
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

    /// Time at which the next packet leaves either line.
    pub fn next_release(&self) -> Option<Nanos> {
        let transmit = self.transmit.as_ref().and_then(|line| line.lock().next_timeout());
        let receive = self.receive.as_ref().and_then(|line| line.lock().next_timeout());
        transmit.into_iter().chain(receive).min()
    }
}

/// A line, if there are faults of this direction. Without a salt, so that the seed alone repeats what was decided.
fn line<M: Clone>(faults: &Faults, direction: Direction) -> Option<OwnerLock<Line<M>>> {
    faults.any(direction).then(|| OwnerLock::new(Line::new(faults, direction, 0, now_ns())))
}

/// The seed of a process that was given none. The two ends of a connection have the same faults; the process id makes
/// them meet different ones, also those of a forked child. Few digits, for it may have to be typed.
fn own_seed() -> u64 {
    static RANDOM: OnceLock<u32> = OnceLock::new();
    let random = *RANDOM.get_or_init(|| getrandom::u32().unwrap_or_default());
    u64::from(random ^ std::process::id().wrapping_mul(0x9e37_79b1))
}

fn tell_at_exit(lines: &Arc<Lines>) {
    let mut made = MADE.lock();
    if made.is_empty() {
        // SAFETY: a function of this library, which takes nothing and returns.
        unsafe { libc::atexit(tell) };
    }
    made.push(Made { pid: std::process::id(), lines: Arc::clone(lines) });
}

/// At the end of the program: what the faults have done, and the seed that repeats it. Who asks for silence gets it.
extern "C" fn tell() {
    if vervain_config::log_level() == LogLevel::Off {
        return;
    }
    let Some(made) = MADE.try_lock() else { return };
    let own = made.iter().filter(|made| made.pid == std::process::id()).map(|made| &*made.lines);
    if let Some(line) = summary(own) {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Summary of the faults of some ports of a process; None: no packet has met them.
fn summary<'a>(all: impl Iterator<Item = &'a Lines>) -> Option<String> {
    let (mut seed, mut sent, mut received) = (0, Counts::default(), Counts::default());
    for lines in all {
        seed = lines.seed;
        // A thread that was ended may have had a lock for good.
        if let Some(line) = lines.transmit.as_ref().and_then(OwnerLock::try_lock) {
            sent.add(line.counts());
        }
        if let Some(line) = lines.receive.as_ref().and_then(OwnerLock::try_lock) {
            received.add(line.counts());
        }
    }
    let parts = [("sent", sent), ("received", received)].into_iter().filter(|(_, counts)| counts.packets > 0);
    let parts: Vec<_> = parts.map(|(which, counts)| format!("{which}: {counts}")).collect();
    let name = FAULTS.name();
    (!parts.is_empty()).then(|| format!("vervain: {name}: {}; seed={seed} repeats these decisions\n", parts.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each of `packets` packets, true if it is lost.
    fn lost(lines: &Lines, packets: usize) -> Vec<bool> {
        let packet = [0x04; 16];
        let mut line = lines.transmit().expect("faults of what is sent");
        (0..packets).map(|_| line.judge(now_ns(), &packet).is_none()).collect()
    }

    #[test]
    fn the_seed_that_is_told_repeats_what_was_lost() {
        let with = |text: &str| Lines::new(text).unwrap().expect("faults");
        let first = with("drop=30%");
        assert_eq!(summary([&first].into_iter()), None, "no packet, no line");
        let wanted = lost(&first, 200);
        let told = summary([&first].into_iter()).unwrap();
        let count = wanted.iter().filter(|lost| **lost).count();
        assert!(
            told.starts_with(&format!("vervain: VERVAIN_FAULTS: sent: {count} of 200 packets dropped; seed=")),
            "{told}"
        );
        let seed = told.split_once("seed=").unwrap().1.split_once(' ').unwrap().0;
        assert_eq!(lost(&with(&format!("drop=30%,seed={seed}")), 200), wanted);
        assert_ne!(lost(&with("drop=30%,seed=5"), 200), lost(&with("drop=30%,seed=6"), 200));
    }
}
