//! One measurement: an operation at a size, the way it is driven, and the stream that runs beside it. A plan unfolds
//! into a list of these, workers carry them out, results name them.

use std::fmt;
use std::str::FromStr;

use arrayvec::ArrayString;
use serde::{Deserialize, Serialize};

/// An enum whose values have one word each: in plans, in results, on the terminal.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub enum $name {
            $($(#[$value_doc])* #[serde(rename = $word)] $value,)+
        }

        impl $name {
            /// All values, in the order in which tables show them.
            pub const ALL: &[$name] = &[$($name::$value),+];

            /// The word in plans and results.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.word())
            }
        }
    };
}

pub(crate) use words;

words! {
    /// The interface that is measured: the programming interface, and for MPI the carrier of its messages.
    Interface {
        /// The public verbs API.
        Verbs = "verbs",
        /// ACP, on starter memory.
        Acp = "acp",
        /// PM: messages, and memory of the other node.
        Pm = "pm",
        /// Open MPI, over this device alone.
        OpenMpi = "openmpi",
        /// Open MPI, over what it chooses itself: shared memory inside a host.
        OpenMpiOwn = "openmpi-own",
        /// MPICH, over this device alone.
        Mpich = "mpich",
        /// MPICH, over what it chooses itself.
        MpichOwn = "mpich-own",
        /// The window that the environment names, by itself: puts into it, below verbs.
        Window = "window",
    }
}

words! {
    /// The operation that is posted, or called.
    Operation {
        /// Send into a receive of the peer; of PM a message, one after the other.
        Send = "send",
        /// Send with immediate data.
        SendImm = "send+imm",
        /// RDMA Write; of PM `pmWrite`.
        Write = "write",
        /// RDMA Write with immediate data, which takes a receive of the peer.
        WriteImm = "write+imm",
        /// RDMA Read; of PM `pmRead`.
        Read = "read",
        /// Atomic fetch and add of 8 bytes.
        FetchAdd = "faa",
        /// Atomic compare and swap of 8 bytes.
        CompareSwap = "cas",
        /// ACP: a copy from the caller's memory to another rank's, to its completion.
        Put = "put",
        /// ACP: a copy from another rank's memory to the caller's, to its completion.
        Get = "get",
        /// ACP: a copy from a second rank's memory to a third one's, to its completion.
        Copy = "copy",
        /// MPI and PM: a message and its answer, which is its like.
        PingPong = "ping-pong",
        /// A put into a window, and its answer, which is its like.
        RawPut = "raw-put",
        /// MPI: a step of a Jacobi kernel, on a grid of ranks that have a block each.
        Jacobi = "jacobi",
        /// Part of such a step: the calculation.
        JacobiCalculation = "jacobi-calculation",
        /// Part of such a step: the exchange of halos with the neighbours.
        JacobiExchange = "jacobi-exchange",
        /// Part of such a step: the sum of the residuals of all ranks (MPI_Allreduce).
        JacobiAllreduce = "jacobi-allreduce",
    }
}

words! {
    /// The service of the QPs.
    Service {
        /// Reliable connection: all operations.
        Rc = "rc",
        /// Unreliable connection: Send and Write.
        Uc = "uc",
        /// Unreliable datagram: Send, up to an MTU.
        Ud = "ud",
    }
}

words! {
    /// The quantity that is measured.
    Measure {
        /// The time of one message at a time: half the round trip for Send, Write, ping-pong and raw put, whose answer
        /// is the same operation the other way; the whole for Read and atomics, as perftest and P1 have it, and for
        /// ACP's copies.
        Latency = "latency",
        /// Bytes and messages per second with [`Case::depth`] requests under way; of PM as many as it has room for,
        /// until all are done.
        Bandwidth = "bandwidth",
    }
}

words! {
    /// The place of the responder.
    Placement {
        /// In another process of the same host.
        Loopback = "loopback",
        /// On another host.
        Peer = "peer",
    }
}

words! {
    /// The owner of the memory in which messages lie, at both ends.
    Memory {
        /// The host's.
        Host = "host",
        /// A GPU's.
        Gpu = "gpu",
    }
}

impl Interface {
    /// Returns true if ranks of a job carry it out, which a launcher starts, and not a pair of processes with a QP
    /// each.
    pub fn has_ranks(self) -> bool {
        !matches!(self, Self::Verbs | Self::Window)
    }

    /// Its name in figures and sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Acp => "ACP",
            Self::Pm => "PM",
            Self::OpenMpi => "Open MPI over this device",
            Self::OpenMpiOwn => "Open MPI by its own choice",
            Self::Mpich => "MPICH over this device",
            Self::MpichOwn => "MPICH by its own choice",
            Self::Window => "the window itself",
        }
    }
}

impl Default for Interface {
    /// The interface of runs of earlier versions, whose files do not name one.
    fn default() -> Self {
        Self::Verbs
    }
}

impl Operation {
    /// Those that an interface has.
    pub fn of(interface: Interface) -> &'static [Operation] {
        use Operation::*;
        match interface {
            Interface::Verbs => &[Send, SendImm, Write, WriteImm, Read, FetchAdd, CompareSwap],
            Interface::Acp => &[Put, Get, Copy],
            Interface::Pm => &[PingPong, Send, Write, Read],
            Interface::Window => &[RawPut],
            _ => &[PingPong, Jacobi, JacobiCalculation, JacobiExchange, JacobiAllreduce],
        }
    }

    /// Returns true if it is of 8 bytes always.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Returns true if it is a step of the Jacobi kernel, or part of one.
    pub fn is_jacobi(self) -> bool {
        matches!(self, Self::Jacobi | Self::JacobiCalculation | Self::JacobiExchange | Self::JacobiAllreduce)
    }

    /// Returns true if it is what ranks of a kernel do with each other, which one alone does not.
    pub fn is_between_ranks(self) -> bool {
        matches!(self, Self::JacobiExchange | Self::JacobiAllreduce)
    }

    /// The quantity that is measured through PM: the time of a message and its answer, else the bandwidth.
    pub fn measure_of_pm(self) -> Measure {
        if self == Self::PingPong { Measure::Latency } else { Measure::Bandwidth }
    }

    /// Returns true if each message takes a receive of the peer.
    pub fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Returns true if its latency is half a round trip: the answer is the same operation the other way.
    pub fn is_answered(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::Write | Self::WriteImm | Self::PingPong | Self::RawPut)
    }

    /// Returns true if QPs of this service carry it; IBA volume 1, table 38 (9.4.1). An operation that is none of verbs
    /// goes over RC if it goes over QPs.
    pub fn is_of(self, service: Service) -> bool {
        match service {
            Service::Rc => true,
            Service::Uc => matches!(self, Self::Send | Self::SendImm | Self::Write | Self::WriteImm),
            Service::Ud => matches!(self, Self::Send | Self::SendImm),
        }
    }
}

/// The name of an environment of the plan. At most so long, so that a case is a value that is copied.
pub type EnvironmentName = ArrayString<40>;

/// A grid of ranks, by its two dimensions. In plans and results "2x4".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Grid(pub u8, pub u8);

impl Grid {
    /// Ranks of one dimension at most.
    pub const MOST: u8 = 16;

    /// The number of ranks.
    pub fn ranks(self) -> u32 {
        u32::from(self.0) * u32::from(self.1)
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}x{}", self.0, self.1))
    }
}

impl From<Grid> for String {
    fn from(grid: Grid) -> String {
        grid.to_string()
    }
}

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Grid, String> {
        let number = |text: &str| text.parse().ok().filter(|n| (1..=Self::MOST).contains(n));
        let grid = text.split_once('x').and_then(|(i, j)| Some(Grid(number(i)?, number(j)?)));
        grid.ok_or_else(|| {
            format!("\"{text}\" is no grid of ranks as \"2x4\", of up to {} by {}", Self::MOST, Self::MOST)
        })
    }
}

impl TryFrom<String> for Grid {
    type Error = String;

    fn try_from(text: String) -> Result<Grid, String> {
        text.parse()
    }
}

/// A stream that runs beside the measured one, on the same device and port, from a process of its own: RC, bandwidth,
/// from before the measurement begins until after it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Interference {
    /// The operation that it posts.
    pub operation: Operation,
    /// Bytes of each message; 8 for atomics.
    pub size: u64,
}

impl fmt::Display for Interference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", bytes(self.size), self.operation)
    }
}

/// One point of a plan. Two that are equal are one measurement, whichever blocks of the plan ask for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Case {
    /// The quantity that is measured.
    pub measure: Measure,
    /// The operation that is posted.
    pub operation: Operation,
    /// The service of the QPs; RC for ranks of jobs, whose libraries choose for themselves, and for windows.
    pub service: Service,
    /// Bytes of each message; 8 for atomics.
    pub size: u64,
    /// Requests under way on each QP; 1 for latency, and for PM, which decides by itself.
    pub depth: u32,
    /// QPs that post in turn, from one thread; 1 for latency and for PM.
    pub qps: u32,
    /// The place of the responder.
    pub placement: Placement,
    /// The stream that runs beside; its memory is the host's.
    pub interference: Option<Interference>,
    /// The owner of the memory in which messages lie.
    pub memory: Memory,
    /// The interface that is measured.
    #[serde(default)]
    pub interface: Interface,
    /// The environment of the plan that its processes run in; None: the usual one.
    #[serde(default)]
    pub environment: Option<EnvironmentName>,
    /// The ranks of a Jacobi kernel; None for any other operation.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub grid: Option<Grid>,
}

impl Case {
    /// The number of ranks that carry it out, for operations of the ranks of a job: at least two, of which one may have
    /// nothing to do; a third one for copies of ACP between two others.
    pub fn ranks(&self) -> u32 {
        match (self.interface, self.grid) {
            (interface, _) if !interface.has_ranks() => 0,
            (Interface::Acp, _) => 3,
            (_, Some(grid)) => grid.ranks().max(2),
            (_, None) => 2,
        }
    }

    /// The case with nothing beside it.
    pub fn alone(self) -> Case {
        Case { interference: None, ..self }
    }
}

impl fmt::Display for Case {
    /// "64 KiB write RC bandwidth, depth 128, loopback, beside 8 B read"; "8 B put latency by ACP, loopback"; either in
    /// an environment: "8 B send RC latency, loopback, in board".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_environment = self.environment.map_or_else(String::new, |name| format!(", in {name}"));
        if self.interface != Interface::Verbs {
            let Self { size, operation, measure, placement, interface, .. } = self;
            let (size, by) = (bytes(*size), interface.name());
            let on = self.grid.map_or_else(String::new, |grid| format!(" on {grid} ranks"));
            return write!(f, "{size} {operation} {measure} by {by}{on}, {placement}{in_environment}");
        }
        let service = self.service.word().to_uppercase();
        write!(f, "{} {} {service} {}", bytes(self.size), self.operation, self.measure)?;
        if self.measure == Measure::Bandwidth {
            write!(f, ", depth {}", self.depth)?;
            if self.qps > 1 {
                write!(f, ", {} QPs", self.qps)?;
            }
        }
        write!(f, ", {}", self.placement)?;
        if self.memory == Memory::Gpu {
            write!(f, ", GPU memory")?;
        }
        f.write_str(&in_environment)?;
        self.interference.map_or(Ok(()), |beside| write!(f, ", beside {beside}"))
    }
}

/// A size as people say it: "8 B", "64 KiB", "8 MiB"; in bytes where it is no whole number of the larger unit.
pub fn bytes(size: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| size > 0 && size.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", size / unit),
        None => format!("{size} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_reads_as_a_sentence() {
        let case = Case {
            measure: Measure::Bandwidth,
            operation: Operation::Write,
            service: Service::Rc,
            size: 65536,
            depth: 128,
            qps: 4,
            placement: Placement::Loopback,
            interference: Some(Interference { operation: Operation::FetchAdd, size: 8 }),
            memory: Memory::Host,
            interface: Interface::Verbs,
            environment: None,
            grid: None,
        };
        assert_eq!(case.to_string(), "64 KiB write RC bandwidth, depth 128, 4 QPs, loopback, beside 8 B faa");
        let alone = Case { measure: Measure::Latency, size: 1500, ..case }.alone();
        assert_eq!(alone.to_string(), "1500 B write RC latency, loopback");
        let of_gpu = Case { memory: Memory::Gpu, ..case }.to_string();
        assert_eq!(of_gpu, "64 KiB write RC bandwidth, depth 128, 4 QPs, loopback, GPU memory, beside 8 B faa");
        let by_acp = Case { operation: Operation::Put, interface: Interface::Acp, size: 8192, ..alone };
        assert_eq!(by_acp.to_string(), "8 KiB put latency by ACP, loopback");
        let by_pm =
            Case { operation: Operation::Send, interface: Interface::Pm, interference: None, qps: 1, depth: 1, ..case };
        assert_eq!((by_pm.to_string().as_str(), by_pm.ranks()), ("64 KiB send bandwidth by PM, loopback", 2));
        let environment = EnvironmentName::from("board").ok();
        let [in_board, by_acp] = [case, by_acp].map(|case| Case { environment, ..case }.to_string());
        assert_eq!(in_board, "64 KiB write RC bandwidth, depth 128, 4 QPs, loopback, in board, beside 8 B faa");
        assert_eq!(by_acp, "8 KiB put latency by ACP, loopback, in board");
        let (operation, interface) = (Operation::JacobiExchange, Interface::Mpich);
        let of_grid = Case { operation, interface, size: 2 << 20, grid: Some(Grid(2, 4)), ..alone };
        let by = "by MPICH over this device on 2x4 ranks, loopback";
        assert_eq!(of_grid.to_string(), format!("2 MiB jacobi-exchange latency {by}"));
        assert_eq!((of_grid.ranks(), alone.ranks()), (8, 0));
    }

    #[test]
    fn a_grid_reads_as_it_is_written() {
        for grid in [Grid(1, 1), Grid(2, 4), Grid(16, 16)] {
            assert_eq!(grid.to_string().parse(), Ok(grid));
        }
        for wrong in ["", "2", "2x", "x2", "0x1", "2x17", "2x2x2", "-1x2", "2X2"] {
            assert!(wrong.parse::<Grid>().is_err_and(|why| why.contains("as \"2x4\"")), "{wrong}");
        }
    }

    #[test]
    fn a_case_survives_json() {
        let text = r#"{"measure":"latency","operation":"send+imm","service":"ud","size":8,"depth":1,"qps":1,
            "placement":"peer","interference":null,"memory":"gpu"}"#;
        let case: Case = serde_json::from_str(text).expect("a case");
        assert_eq!((case.operation, case.service, case.memory), (Operation::SendImm, Service::Ud, Memory::Gpu));
        let younger = (case.interface, case.environment);
        assert_eq!(younger, (Interface::Verbs, None), "a file of a version that had no other");
        assert_eq!(serde_json::from_str::<Case>(&serde_json::to_string(&case).expect("text")).expect("same"), case);
    }

    #[test]
    fn datagrams_carry_sends_only() {
        let verbs = Operation::of(Interface::Verbs);
        let of = |service| verbs.iter().filter(|o| o.is_of(service)).count();
        assert_eq!([of(Service::Rc), of(Service::Uc), of(Service::Ud)], [7, 4, 2]);
    }

    #[test]
    fn each_operation_is_of_one_kind_of_interface_but_those_of_pm() {
        for operation in Operation::ALL {
            let of =
                |interface: &&Interface| **interface != Interface::Pm && Operation::of(**interface).contains(operation);
            let mut kinds: Vec<&[Operation]> = Interface::ALL.iter().filter(of).map(|i| Operation::of(*i)).collect();
            kinds.dedup();
            assert_eq!(kinds.len(), 1, "{operation}");
        }
    }
}
