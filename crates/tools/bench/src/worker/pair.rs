//! The QPs of one case at one end, and how its requests look.
//!
//! Each QP has two areas of the worker's memory: what it sends from and reads into, and behind it what its peer may
//! use. Small messages go round in the first page of an area, a cache line further each time, as perftest does it.

use anyhow::{Context as _, Result, bail, ensure};
use vervain_rdma::*;

use super::memory::Memory;
use crate::case::{Case, Interface, Measure, Operation, Service};
use crate::protocol::{Side, Spec};

/// The Q_Key of all datagrams.
const QKEY: u32 = 0x1111_1111;
/// Receives that are posted ahead on each QP, as perftest has it.
const RECEIVES: u32 = 512;
/// The part of an area in which small messages go round.
const CYCLE: usize = 4096;
const CACHE_LINE: usize = 64;

/// Bytes of memory that a case needs at each end.
pub fn needs(size: u64, qps: u32) -> u64 {
    area(size).saturating_mul(2 * u64::from(qps))
}

/// Bytes of one area: the message with a datagram's GRH, in whole pages, and one page for small messages to go round
/// in.
fn area(size: u64) -> u64 {
    // A size that another host orders may be anything; more than all memory is as good as that.
    size.saturating_add(GRH_BYTES as u64).max(CYCLE as u64).checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}

/// How messages of a case go round in the first page of an area: how far it is from one to the next, and how many there
/// are, less one.
pub fn going_round(case: &Case) -> (usize, u64) {
    // perftest's rule: messages of half a page and more stay where they are. Latency is measured in one place.
    if case.measure == Measure::Latency || case.size > CYCLE as u64 / 2 {
        return (0, 0);
    }
    let stride = (case.size as usize).next_multiple_of(CACHE_LINE);
    // A power of two, so that no message costs a division.
    (stride, (1 << (CYCLE / stride).ilog2()) - 1)
}

/// Bytes up to which perftest posts inline when it measures latency of the host's memory.
fn customary_inline(spec: &Spec) -> u32 {
    match (spec.case.measure, spec.case.operation, spec.case.service) {
        (Measure::Bandwidth, ..) => 0,
        (_, Operation::Write | Operation::WriteImm, _) => 220,
        (_, Operation::Send | Operation::SendImm, Service::Ud) => 188,
        (_, Operation::Send | Operation::SendImm, _) => 236,
        _ => 0,
    }
}

/// Bytes up to which to post inline. The CPU copies what is.
fn wanted_inline(spec: &Spec, of_cpu: bool) -> u32 {
    if of_cpu { spec.inline.unwrap_or_else(|| customary_inline(spec)) } else { 0 }
}

/// The QPs of a case at one end.
pub struct Pair {
    /// Their purpose.
    pub spec: Spec,
    /// The CQ of requests.
    pub send_cq: Cq,
    /// The CQ of receives.
    pub recv_cq: Cq,
    qps: Vec<Qp>,
    peers: Vec<Peer>,
    path: PathOptions,
    /// True if messages are posted inline.
    inline: bool,
    /// Receives that each QP has room for.
    receives: u32,
    size: usize,
    area: usize,
    /// Small messages go round: so far from one to the next, after this number (one less than a power of two) again
    /// from the first.
    stride: usize,
    round: u64,
}

/// The other end of a QP.
struct Peer {
    memory: RemoteMemory,
    qpn: u32,
    ah: Option<Ah>,
}

impl Pair {
    /// Makes the QPs, in INIT (UD: in RTS), with receives posted where the peer's messages take some.
    pub fn new(spec: Spec, pd: &Pd, memory: &Memory, path: PathOptions) -> Result<Self> {
        let context = pd.context();
        let attr = context.attr()?;
        ensure!(
            spec.case.qps > 0 && spec.case.depth > 0 && spec.case.size > 0 && spec.signal_every > 0,
            "a case of nothing"
        );
        ensure!(
            Operation::of(Interface::Verbs).contains(&spec.case.operation),
            "{} is no operation of the verbs API",
            spec.case.operation
        );
        ensure!(
            needs(spec.case.size, spec.case.qps) <= memory.remote().len,
            "the case needs more memory than was made"
        );
        if spec.case.service == Service::Ud && spec.case.size > u64::from(spec.mtu) {
            bail!("a datagram has at most {} bytes on this path", spec.mtu);
        }
        if spec.case.operation.is_atomic() && attr.atomics == AtomicCap::None {
            bail!("{} has no atomic operations", context.name());
        }
        let path = PathOptions { mtu: Mtu::try_from(spec.mtu).map_err(anyhow::Error::msg)?, ..path };

        let sends = if spec.case.measure == Measure::Latency { 1 } else { spec.case.depth };
        let receives = if spec.case.operation.takes_receive() { RECEIVES.min(attr.max_queue.max(1)) } else { 1 };
        let entries = |per_qp: u32| spec.case.qps.saturating_mul(per_qp).min(attr.max_cqe.max(1));
        let send_cq = Cq::new(context, entries(sends), None, 0)?;
        let recv_cq = Cq::new(context, entries(receives), None, 0)?;

        let service = match spec.case.service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            Service::Ud => Transport::Ud,
        };
        let builder = Qp::builder(service, pd, &send_cq, &recv_cq).max_send(sends).max_receive(receives);
        let mut qps: Vec<Qp> = Vec::new();
        let wanted = wanted_inline(&spec, memory.of_cpu().is_ok());
        let mut inline = if u64::from(wanted) >= spec.case.size { u32::try_from(spec.case.size)? } else { 0 };
        while qps.len() < spec.case.qps as usize {
            match builder.clone().max_inline(inline).build() {
                Ok(qp) => qps.push(qp),
                // Devices do not report their limit, so it is found by trying. A number that the plan names must work.
                Err(_) if inline > 0 && spec.inline.is_none() && qps.is_empty() => inline = 0,
                Err(e) => return Err(e.into()),
            }
        }
        for qp in &qps {
            match spec.case.service {
                Service::Ud => qp.activate(&path, QKEY)?,
                _ => qp.init(&path, Access::REMOTE)?,
            }
        }
        let (size, area) = (usize::try_from(spec.case.size)?, usize::try_from(area(spec.case.size))?);
        let inline = inline > 0;
        let (stride, round) = going_round(&spec.case);
        Ok(Self { spec, send_cq, recv_cq, qps, peers: vec![], path, inline, receives, size, area, stride, round })
    }

    /// The addresses that the other end needs.
    pub fn endpoints(&self, memory: &Memory) -> Result<Vec<Endpoint>> {
        let all = self.qps.iter().enumerate().map(|(i, qp)| {
            let (all, at) = (memory.remote(), self.remote_area(i) as u64);
            let memory = RemoteMemory { addr: all.addr + at, len: self.area as u64, ..all };
            Ok(Endpoint { memory: Some(memory), ..qp.endpoint(&self.path)? })
        });
        all.collect()
    }

    /// Brings the QPs to RTS.
    pub fn connect(&mut self, pd: &Pd, peers: &[Endpoint]) -> Result<()> {
        ensure!(peers.len() == self.qps.len(), "{} QPs here, {} there", self.qps.len(), peers.len());
        for (qp, peer) in self.qps.iter().zip(peers) {
            let ah = match self.spec.case.service {
                Service::Ud => Some(Ah::new(pd, peer, &self.path)?),
                _ => {
                    qp.connect(peer, &self.path)?;
                    None
                }
            };
            let memory = peer.memory.context("the peer gave no memory")?;
            ensure!(memory.len >= self.area as u64, "the peer gave {} bytes of {}", memory.len, self.area);
            self.peers.push(Peer { memory, qpn: peer.qpn, ah });
        }
        Ok(())
    }

    /// The number of QPs.
    pub fn qps(&self) -> usize {
        self.qps.len()
    }

    /// Receives that each QP has room for.
    pub fn receives(&self) -> u32 {
        self.receives
    }

    /// Offset of the area of QP `qp` that it sends from.
    fn own_area(&self, qp: usize) -> usize {
        2 * qp * self.area
    }

    /// Offset of the area of QP `qp` that its peer uses.
    fn remote_area(&self, qp: usize) -> usize {
        (2 * qp + 1) * self.area
    }

    /// Offsets of the last byte of an outgoing message of the first QP, and of an incoming one: the peer polls the one,
    /// and this end the other.
    pub fn last_bytes(&self) -> (usize, usize) {
        (self.own_area(0) + self.size - 1, self.remote_area(0) + self.size - 1)
    }

    /// The offset of message number `n` in an area.
    #[inline]
    fn step(&self, n: u64) -> usize {
        (n & self.round) as usize * self.stride
    }

    /// Posts message number `n` on QP `qp`, the number of which its completion has.
    #[inline]
    pub fn post(&self, memory: &Memory, qp: usize, n: u64, signaled: bool) -> Result<(), PostError> {
        let step = self.step(n);
        let here = self.own_area(qp) + step;
        let sge = [memory.slice(here..here + self.size)];
        let peer = &self.peers[qp];
        let there = peer.memory.at(step as u64);
        let request = match (self.spec.case.operation, &peer.ah) {
            (Operation::Send, None) => SendRequest::send(&sge),
            (Operation::SendImm, None) => SendRequest::send_imm(&sge, n as u32),
            (Operation::SendImm, Some(ah)) => SendRequest::datagram_imm(&sge, ah, peer.qpn, QKEY, n as u32),
            (_, Some(ah)) => SendRequest::datagram(&sge, ah, peer.qpn, QKEY),
            (Operation::Write, None) => SendRequest::write(&sge, there),
            (Operation::WriteImm, None) => SendRequest::write_imm(&sge, there, n as u32),
            (Operation::Read, None) => SendRequest::read(&sge, there),
            (Operation::FetchAdd, None) => SendRequest::fetch_add(&sge, there, 1),
            (Operation::CompareSwap, None) => SendRequest::compare_swap(&sge, there, 0, 0),
            (_, None) => unreachable!("refused by Pair::new"),
        };
        let request = if signaled { request.signaled() } else { request };
        let request = if self.inline { request.inline() } else { request };
        self.qps[qp].post(request.id(qp as u64))
    }

    /// Posts receive number `n` on QP `qp`.
    #[inline]
    pub fn receive(&self, memory: &Memory, qp: usize, n: u64) -> Result<(), PostError> {
        let grh = if self.spec.case.service == Service::Ud { GRH_BYTES } else { 0 };
        // Datagrams stay in one place: with their GRH they are no cache lines.
        let start = self.remote_area(qp) + if grh == 0 { self.step(n) } else { 0 };
        let sge = [memory.slice(start..start + grh + self.size)];
        self.qps[qp].receive(RecvRequest::new(&sge).id(qp as u64))
    }

    /// Returns true if this end has receives to post before the other one may begin.
    pub fn is_received_from(&self) -> bool {
        let answers = self.spec.case.measure == Measure::Latency;
        self.spec.case.operation.takes_receive() && (self.spec.side == Side::Responder || answers)
    }
}

/// A completion's QP, or why it failed.
#[inline]
pub fn succeeded(done: &Completion, what: Operation) -> Result<usize> {
    if done.is_success() {
        return Ok(done.id() as usize);
    }
    failed(done, what)
}

#[cold]
fn failed(done: &Completion, what: Operation) -> Result<usize> {
    bail!("{what} completed as {}, vendor error {:#x}", done.status(), done.vendor_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::synthetic;

    #[test]
    fn an_area_holds_the_message_its_grh_and_a_page() {
        assert_eq!([area(1), area(4096), area(4056), area(8 << 20)], [4096, 8192, 4096, (8 << 20) + 4096]);
        assert_eq!(needs(8, 3), 6 * 4096);
        assert_eq!([needs(u64::MAX, 1), needs(u64::MAX - 100, u32::MAX), needs(1 << 62, 4)], [u64::MAX; 3]);
    }

    #[test]
    fn small_messages_go_round_within_a_page_and_latency_stays_where_it_is() {
        for (size, found) in
            [(1, (64, 63)), (64, (64, 63)), (65, (128, 31)), (200, (256, 15)), (300, (320, 7)), (2048, (2048, 1))]
        {
            assert_eq!(going_round(&synthetic::bandwidth(size)), found);
        }
        assert_eq!(going_round(&synthetic::bandwidth(2049)), (0, 0));
        assert_eq!(going_round(&synthetic::latency()), (0, 0));
    }

    #[test]
    fn nothing_is_inline_that_the_cpu_cannot_read() {
        let case = Case { operation: Operation::WriteImm, ..synthetic::latency() };
        let spec =
            Spec { side: Side::Requester, case, mtu: 1024, inline: None, signal_every: 1, endless: false, warm_up: 0 };
        let asked = Spec { inline: Some(64), ..spec };
        assert_eq!([wanted_inline(&spec, true), wanted_inline(&asked, true)], [220, 64]);
        assert_eq!([wanted_inline(&spec, false), wanted_inline(&asked, false)], [0, 0]);
    }
}
