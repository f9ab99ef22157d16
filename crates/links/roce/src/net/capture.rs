//! The packets of this process in a file (`VERVAIN_PCAP`), as they are on the wire: IP and UDP headers are added again,
//! from the data that the sockets provide. Wireshark, tshark, tcpdump and scapy can read it, without privileges.

use etherparse::{IpDscp, IpEcn, IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, PacketBuilder};
use pcap_parser::{LegacyPcapBlock, Linktype, PcapHeader, ToVec};
use rustix::fs::Access;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use vervain_config::{Config, PCAP};
use vervain_hca::host::cancel::Uncancelled;
use vervain_hca::host::lock::{OwnerGuard, OwnerLock};
use vervain_hca::{Error, Result};
use vervain_share::sys::without_sigxfsz;
use vervain_wire::icrc::Untold;

/// The magic number of files whose times are in nanoseconds.
const NANOSECONDS: u32 = 0xa1b2_3c4d;

/// The file, which all ports of the process write.
pub struct Capture(OwnerLock<File>);

/// A packet with its addresses and header fields.
pub struct Captured<'a> {
    /// Sender.
    pub from: SocketAddr,
    /// Receiver.
    pub to: SocketAddr,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub tos: u8,
    /// Flow label of IPv6; 0 if the kernel has chosen it.
    pub label: u32,
    /// IPv4 identification, and DF.
    pub untold: Untold,
    /// UDP payload.
    pub bytes: &'a [u8],
}

impl Capture {
    /// The capture that the environment asks for; None: it asks for none. The error is a sentence about the file.
    pub fn from_environment() -> Result<Option<&'static Capture>> {
        static CAPTURE: OnceLock<Result<Option<Capture>>> = OnceLock::new();
        let name = Config::of_process()?.pcap.as_deref();
        let opened = CAPTURE.get_or_init(|| name.map(Capture::create).transpose());
        opened.as_ref().map(Option::as_ref).map_err(Clone::clone)
    }

    /// Checks that the capture which the environment asks for can be made. An existing file is taken at once, so that
    /// an old one is not mistaken for this process's; a new one is made with the first port, as most processes send no
    /// packets.
    pub fn check() -> Result<()> {
        let Some(name) = Config::of_process()?.pcap.as_deref().map(file_name) else { return Ok(()) };
        let path = Path::new(&name);
        if path.symlink_metadata().is_ok() {
            return Capture::from_environment().map(drop);
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let access = rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK);
        access.map_err(|e| refusal(&name, &e.into()))
    }

    /// Begins the file `name`; `%p` in it stands for the process id.
    pub fn create(name: &str) -> Result<Capture> {
        let name = file_name(name);
        let opened = File::options().write(true).create(true).truncate(false).open(&name);
        let file = opened.map_err(|e| refusal(&name, &e))?;
        // The lock lasts as long as the process. A file of an earlier process is overwritten.
        file.try_lock().map_err(|_| {
            Error::new(
                libc::EBUSY,
                format!("{}: another process writes {name}; %p in a name is the process id", PCAP.name()),
            )
        })?;
        let capture = Capture(OwnerLock::new(file));
        let mut header = PcapHeader { magic_number: NANOSECONDS, network: Linktype::RAW, ..PcapHeader::new() };
        let begin = header.to_vec().map_err(io::Error::other).and_then(|header| capture.begin(&header));
        begin.map(|()| capture).map_err(|e| refusal(&name, &e))
    }

    fn begin(&self, header: &[u8]) -> io::Result<()> {
        let mut file = self.0.lock();
        file.set_len(0)?;
        without_sigxfsz(|| file.write_all(header))
    }

    /// The next place in the file, with the present time. A sender takes it before the send, and a receiver before it
    /// hands the packet on. So an answer, which another thread may receive or send meanwhile, never stands before its
    /// request, nor has an earlier time.
    pub fn turn(&self) -> Turn<'_> {
        let file = self.0.lock();
        Turn { file, now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }
}

/// A place in the file, for which all other threads wait. Its thread must not take a second one meanwhile.
pub struct Turn<'a> {
    file: OwnerGuard<'a, File>,
    now: Duration,
}

impl Turn<'_> {
    /// Writes packets, all with the same time.
    pub fn write<'a>(&mut self, packets: impl Iterator<Item = Captured<'a>>) {
        let records = packets.filter_map(|packet| packet.record(self.now)).flatten().collect::<Vec<u8>>();
        // A full disk, or a limit on the size of files, ends the capture, not the program.
        let _whole = Uncancelled::begin();
        let _ = without_sigxfsz(|| self.file.write_all(&records));
    }
}

impl Captured<'_> {
    /// The packet as a record of the file.
    fn record(&self, now: Duration) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        let builder = PacketBuilder::ip(self.ip()?).udp(self.from.port(), self.to.port());
        builder.write(&mut data, self.bytes).ok()?;
        let (caplen, origlen) = (data.len() as u32, data.len() as u32);
        let (ts_sec, ts_usec) = (now.as_secs() as u32, now.subsec_nanos());
        LegacyPcapBlock { ts_sec, ts_usec, caplen, origlen, data: &data }.to_vec().ok()
    }

    /// The IP header but for lengths and checksums, which are computed when it is written.
    fn ip(&self) -> Option<IpHeaders> {
        match (self.from, self.to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                let mut ip =
                    Ipv4Header::new(0, self.hop_limit, IpNumber::UDP, from.ip().octets(), to.ip().octets()).ok()?;
                ip.identification = self.untold.id;
                ip.dont_fragment = self.untold.dont_fragment;
                ip.dscp = IpDscp::try_new(self.tos >> 2).ok()?;
                ip.ecn = IpEcn::try_new(self.tos & 3).ok()?;
                Some(IpHeaders::Ipv4(ip, Default::default()))
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                let ip = Ipv6Header {
                    traffic_class: self.tos,
                    flow_label: Ipv6FlowLabel::try_new(self.label).ok()?,
                    payload_length: 0,
                    next_header: IpNumber::UDP,
                    hop_limit: self.hop_limit,
                    source: from.ip().octets(),
                    destination: to.ip().octets(),
                };
                Some(IpHeaders::Ipv6(ip, Default::default()))
            }
            _ => None,
        }
    }
}

/// The name of this process's file.
fn file_name(name: &str) -> String {
    name.replace("%p", &std::process::id().to_string())
}

/// The error of a capture file `name` that cannot be written.
fn refusal(name: &str, e: &io::Error) -> Error {
    Error::new(e.raw_os_error().unwrap_or(libc::EIO), format!("{}: {name}: {e}", PCAP.name()))
}
