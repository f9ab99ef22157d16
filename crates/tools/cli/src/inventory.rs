//! The verbs library's answers about its devices. A child process asks it, since the library reads its configuration
//! from the environment and must leave no trace in a command that is about to become another program. The child answers
//! in JSON.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use vervain_config::{LOG, LogLevel, Unknown};
use vervain_rdma::abi::{IBV_LINK_LAYER_ETHERNET, ibv_port_attr};
use vervain_rdma::{GidEntry, GidType, Library};

use crate::cli::InventoryArgs;
use crate::environment::Variables;
use crate::{output, settings};

/// Opening a device takes milliseconds; a library that does nothing for so long never answers. Under valgrind it takes
/// seconds.
fn patience() -> Duration {
    Duration::from_secs(if vervain_share::checkers::valgrind() { 120 } else { 5 })
}

/// A library that works is waited for, but for no more than this many times [`patience`]: it may spin for ever.
const MOST_PATIENCE: u32 = 12;
/// How often is looked whether it works.
const LOOK: Duration = Duration::from_millis(100);

/// A device as a program sees it. GUIDs are in the `0000:0000:0000:0000` form of sysfs.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Device {
    pub name: String,
    pub uverbs: String,
    pub node_type: i32,
    pub fw_ver: String,
    pub node_guid: String,
    pub sys_image_guid: String,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub ports: Vec<Port>,
}

/// A port; numbers as in `struct ibv_port_attr`.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Port {
    pub number: u8,
    pub state: u32,
    pub phys_state: u8,
    pub link_layer: String,
    pub active_mtu: u32,
    pub max_mtu: u32,
    pub active_width: u8,
    pub active_speed: u8,
    pub lid: u16,
    pub sm_lid: u16,
    pub sm_sl: u8,
    pub lmc: u8,
    pub cap_mask: u32,
    pub gid_tbl_len: u32,
    pub gids: Vec<Gid>,
    pub pkeys: Vec<u16>,
}

/// A valid entry of a port's GID table.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Gid {
    pub index: u32,
    /// Eight groups of four digits, as sysfs has it.
    pub gid: String,
    #[serde(rename = "type")]
    pub gid_type: String,
    /// Interface that the GID comes from, if any.
    pub netdev: Option<String>,
    /// Node of the window that has it; none for a GID of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_node: Option<u32>,
}

/// Asks `library` in a child process with `variables` set. The library's messages on standard error are passed on
/// unless `quiet`; if it fails, its reason is part of the error.
pub fn query(library: &Path, variables: &Variables, quiet: bool) -> Result<Vec<Device>> {
    let exe = std::env::current_exe().context("cannot tell where this command lies (is /proc mounted?)")?;
    // A library with logging off would not give its reason either.
    let silent = |(name, value): &(&str, OsString)| *name == LOG.name() && value.eq_ignore_ascii_case("off");
    let quiet = quiet || variables.iter().any(silent);
    let mut command = Command::new(exe);
    // The command has told of these.
    for unknown in Unknown::of_process() {
        command.env_remove(unknown.name);
    }
    let mut child = command
        .arg("inventory")
        .arg(library)
        .envs(variables.iter().map(|(n, v)| (*n, v)))
        // The messages on standard error are read only if it fails, and must be there then.
        .envs(quiet.then(|| (LOG.name(), LogLevel::Error.word())))
        // The library asked is the one named; a preload of the user's has no part in it.
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start a process to ask the verbs library")?;
    let (json, complaint) = read_to_end(&mut child)?;
    let status = child.wait().context("cannot wait for the process that asks the verbs library")?;
    if !status.success() {
        let reason = reason(&complaint);
        if let Some(wrong) = settings::told_by_the_library(reason) {
            return Err(wrong.into());
        }
        bail!("{} did not list its devices ({status}): {reason}", library.display());
    }
    if !quiet {
        eprint!("{complaint}");
    }
    serde_json::from_slice(&json).context("the process that asks the verbs library gave no JSON")
}

/// The reason why the child failed: the library's first message, for that is the cause of the rest, else the last
/// words.
fn reason(complaint: &str) -> &str {
    let cause = complaint.lines().find_map(|line| line.strip_prefix("vervain: [ERROR ")?.split_once("] "));
    let last = complaint.lines().last().unwrap_or_default().trim_start_matches("vervain: ");
    let said = cause.map_or(last, |(_, cause)| cause);
    if said.is_empty() { "it gives no reason" } else { said }
}

/// Both streams of the child, read side by side so that neither blocks it, and by one thread: a second one may not be
/// had where processes are limited. The child is killed when it is idle for too long.
fn read_to_end(child: &mut Child) -> Result<(Vec<u8>, String)> {
    let mut streams =
        [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)].map(|s| s.map(File::from));
    let mut got = [Vec::new(), Vec::new()];
    let mut progress = Progress::begin(child.id());
    while streams.iter().any(Option::is_some) {
        let read =
            read_some(&mut streams, &mut got).context("cannot read from the process that asks the verbs library")?;
        if let Some(waited) = progress.idle_too_long(read) {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the verbs library did not answer within {} s", waited.as_secs());
        }
    }
    let [json, complaint] = got;
    Ok((json, String::from_utf8_lossy(&complaint).into_owned()))
}

/// Waits for a moment, and reads what has come; whether anything has. A stream that has ended is none any more.
fn read_some(streams: &mut [Option<File>; 2], got: &mut [Vec<u8>; 2]) -> io::Result<bool> {
    let mut waiting: Vec<_> = streams.iter().flatten().map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    match poll(&mut waiting, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let ready: Vec<_> = waiting.iter().map(|stream| !stream.revents().is_empty()).collect();
    let open = streams.iter_mut().zip(got).filter(|(stream, _)| stream.is_some());
    for ((stream, bytes), _) in open.zip(&ready).filter(|(_, ready)| **ready) {
        let mut buffer = [0; 16 << 10];
        match stream.as_mut().map_or(Ok(0), |stream| stream.read(&mut buffer)) {
            Ok(0) => *stream = None,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ready.contains(&true))
}

/// The check that a child still works. On a busy machine a step of milliseconds may take many seconds, but then the
/// child waits for a CPU or a disk, or has had some of one.
struct Progress {
    stat: String,
    begun: Instant,
    last: Instant,
    seen: Option<(bool, [u64; 2])>,
}

impl Progress {
    fn begin(pid: u32) -> Progress {
        let now = Instant::now();
        Progress { stat: format!("/proc/{pid}/stat"), begun: now, last: now, seen: None }
    }

    /// The time for which the child has been waited for, if that is too long; `heard`: it has written something since
    /// the last call.
    fn idle_too_long(&mut self, heard: bool) -> Option<Duration> {
        let (now, patience) = (Instant::now(), patience());
        let seen = std::fs::read_to_string(&self.stat).ok().and_then(|stat| activity(&stat));
        if heard || seen != self.seen || seen.is_some_and(|(wants_to, _)| wants_to) {
            self.last = now;
        }
        self.seen = seen;
        let is_idle = now - self.last >= patience || now - self.begun >= patience * MOST_PATIENCE;
        is_idle.then(|| now - self.begun)
    }
}

/// From /proc/PID/stat (proc_pid_stat(5)): whether the process waits for a CPU or a disk, and the CPU time that it has
/// had, in ticks.
fn activity(stat: &str) -> Option<(bool, [u64; 2])> {
    // The name may have blanks and parentheses.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |i: usize| fields.get(i)?.parse().ok();
    Some((matches!(*fields.first()?, "R" | "D"), [number(11)?, number(12)?]))
}

/// The child's side: asks and prints.
pub fn print(args: &InventoryArgs) -> Result<ExitCode> {
    let library = Library::open(&args.library)?;
    let devices: Vec<Device> = library.devices()?.iter().map(describe).collect::<Result<_>>()?;
    output::print(&serde_json::to_string(&devices)?)
}

fn describe(device: &vervain_rdma::Device) -> Result<Device> {
    let context = device.open()?;
    let attr = context.attr()?;
    let gids = context.gids()?;
    let ports = (1..=attr.ports).map(|number| describe_port(&context, number, &context.raw_port(number)?, &gids));
    Ok(Device {
        name: device.name().to_owned(),
        uverbs: device.uverbs(),
        node_type: device.node_type(),
        fw_ver: attr.identity.firmware.clone(),
        node_guid: groups(&attr.identity.node_guid),
        sys_image_guid: groups(&attr.identity.system_guid),
        vendor_id: attr.identity.vendor,
        vendor_part_id: attr.identity.part,
        hw_ver: attr.identity.hardware,
        ports: ports.collect::<Result<_>>()?,
    })
}

fn describe_port(context: &vervain_rdma::Context, number: u8, p: &ibv_port_attr, gids: &[GidEntry]) -> Result<Port> {
    Ok(Port {
        number,
        state: p.state,
        phys_state: p.phys_state,
        // enum: 0 unspecified, which means InfiniBand (ibv_query_port(3)).
        link_layer: if p.link_layer == IBV_LINK_LAYER_ETHERNET { "ethernet" } else { "infiniband" }.to_owned(),
        active_mtu: mtu_bytes(p.active_mtu),
        max_mtu: mtu_bytes(p.max_mtu),
        active_width: p.active_width,
        active_speed: p.active_speed,
        lid: p.lid,
        sm_lid: p.sm_lid,
        sm_sl: p.sm_sl,
        lmc: p.lmc,
        cap_mask: p.port_cap_flags,
        gid_tbl_len: u32::try_from(p.gid_tbl_len).unwrap_or(0),
        gids: gids.iter().filter(|g| g.port == u32::from(number)).map(describe_gid).collect(),
        pkeys: (0..p.pkey_tbl_len).map(|i| Ok(context.pkey(number, i)?)).collect::<Result<_>>()?,
    })
}

fn describe_gid(entry: &GidEntry) -> Gid {
    Gid {
        index: entry.index,
        gid: groups(&entry.gid.0),
        // Sysfs has one text for what it cannot tell apart.
        gid_type: if entry.kind == GidType::RoceV2 { "RoCE v2" } else { "IB/RoCE v1" }.to_owned(),
        netdev: interface_name(entry.interface),
        window_node: None,
    }
}

/// Name of the interface with this index (0: none).
fn interface_name(index: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketType, netdevice::index_to_name, socket};
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    (index != 0).then(|| index_to_name(any, index).ok()).flatten()
}

/// enum ibv_mtu: 1 is 256 bytes, 5 is 4096.
fn mtu_bytes(mtu: u32) -> u32 {
    if (1..=5).contains(&mtu) { 128 << mtu } else { 0 }
}

/// Bytes as groups of four hexadecimal digits, the way sysfs prints GUIDs and GIDs.
pub fn groups(bytes: &[u8]) -> String {
    let groups: Vec<_> = bytes.chunks(2).map(|g| format!("{:02x}{:02x}", g[0], g[1])).collect();
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_and_gids_are_printed_as_sysfs_does() {
        assert_eq!(groups(&[0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77]), "0011:2233:4455:6677");
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
        assert_eq!(groups(&gid), "0000:0000:0000:0000:0000:ffff:7f00:0001");
    }

    #[test]
    fn the_librarys_own_words_are_the_reason() {
        let said = "[WARN  a::b] slow\n[ERROR a::b] no memory: EPERM\n[ERROR a::b] again\n".replace('[', "vervain: [")
            + "vervain: cannot open vervain0\n";
        assert_eq!(reason(&said), "no memory: EPERM");
        assert_eq!(reason("one\nvervain: two\n"), "two");
        assert_eq!(reason(""), "it gives no reason");
    }

    #[test]
    fn a_process_that_waits_for_a_cpu_is_not_idle() {
        let stat = |state| format!("77 (a) b) {state} 1 77 77 0 -1 4194304 100 0 0 0 31 4 0 0 20 0 1 0 5 6 7");
        assert_eq!(activity(&stat('R')), Some((true, [31, 4])));
        assert_eq!(activity(&stat('D')), Some((true, [31, 4])));
        assert_eq!(activity(&stat('S')), Some((false, [31, 4])));
        assert_eq!(activity("77 (gone"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(activity(&own).is_some(), "{own}");
    }

    /// More than a pipe holds on either stream.
    #[test]
    fn both_streams_are_read_side_by_side() {
        let script = "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero; echo end >&2";
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (json, complaint) = read_to_end(&mut child).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!((json.len(), complaint.len()), (300_000, 300_004));
    }

    #[test]
    fn mtu_numbers_are_bytes() {
        assert_eq!([0, 1, 3, 5, 6].map(mtu_bytes), [0, 256, 1024, 4096, 0]);
    }
}
