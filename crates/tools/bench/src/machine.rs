//! Facts about a machine and its device: the part of the results that names the origin of the numbers. Read from the
//! kernel's own files, without other programs. A fact that a machine does not give is "unknown" or 0, never an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rustix::system::{sysinfo, uname};
use vervain_rdma::{Context, DeviceAttr, LinkLayer, Mtu, PortAttr};

use crate::results::{DeviceFacts, Host};
use crate::topology::Topology;

/// The value of a fact that a machine does not give.
const UNKNOWN: &str = "unknown";

/// This host with that device and those workers. To be called after libibverbs was loaded, which it names.
pub(crate) fn host(topology: &Topology, device: DeviceFacts, pinned: BTreeMap<String, Option<u32>>) -> Host {
    let root = Path::new("/");
    let names = uname();
    Host {
        name: names.nodename().to_string_lossy().into_owned(),
        cpu: cpu(),
        cpus: u32::try_from(topology.cpus().len()).unwrap_or(u32::MAX),
        nodes: u32::try_from(topology.nodes().len()).unwrap_or(u32::MAX),
        memory: memory(),
        kernel: names.release().to_string_lossy().into_owned(),
        governor: governor(root, topology.cpus()),
        library: read(root, "proc/self/maps").and_then(|text| library(&text)).unwrap_or_else(|| UNKNOWN.into()),
        device,
        gpu: None,
        pinned,
    }
}

/// The name of this host's CPU.
pub fn cpu() -> String {
    read(Path::new("/"), "proc/cpuinfo").and_then(|text| cpu_model(&text)).unwrap_or_else(|| UNKNOWN.into())
}

/// Bytes of memory of this host.
pub fn memory() -> u64 {
    let memory = sysinfo();
    #[allow(clippy::unnecessary_cast, reason = "the type of the fields is the machine's word")]
    (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit))
}

/// The kernel's boot id, which is that of the machine for namespaces and containers too; empty where there is none.
pub(crate) fn boot() -> String {
    read(Path::new("/"), "proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Facts about `context` and its `port` (from 1); `mtu` is that of the paths which the measurement uses.
///
/// # Errors
/// The device or the port cannot be queried.
pub(crate) fn device(context: &Context, port: u8, mtu: Mtu) -> vervain_rdma::Result<DeviceFacts> {
    Ok(describe(context.name(), context.numa_node(), port, mtu, &context.attr()?, &context.port(port)?))
}

fn describe(name: &str, node: Option<u32>, port: u8, mtu: Mtu, attr: &DeviceAttr, of_port: &PortAttr) -> DeviceFacts {
    DeviceFacts {
        name: name.into(),
        port,
        firmware: attr.identity.firmware.clone(),
        vendor: attr.identity.vendor,
        part: attr.identity.part,
        link_layer: match of_port.link_layer {
            LinkLayer::InfiniBand => "InfiniBand".into(),
            LinkLayer::Ethernet => "Ethernet".into(),
            LinkLayer::Other(number) => format!("{UNKNOWN} ({number})"),
        },
        gbps: of_port.gbps(),
        mtu: mtu.bytes(),
        max_rd_atomic: attr.max_rd_atomic,
        node,
    }
}

/// The CPU's name in /proc/cpuinfo: each architecture has its own key for it, and Arm only numbers (of
/// `Documentation/arch/arm64/cpu-feature-registers.rst`, MIDR).
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let of = |wanted: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, value)| key.trim() == wanted && !value.trim().is_empty()).map(|(_, value)| value.trim())
    };
    let named = ["model name", "cpu model", "cpu", "uarch"].into_iter().find_map(of).map(String::from);
    named.or_else(|| Some(format!("Arm implementer {}, part {}", of("CPU implementer")?, of("CPU part")?)))
}

/// The frequency governor of these CPUs; all of them where they differ.
fn governor(root: &Path, cpus: &[u32]) -> Option<String> {
    let of = |cpu: &u32| read(root, &format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"));
    let governors: BTreeSet<String> = cpus.iter().filter_map(of).map(|text| text.trim().into()).collect();
    (!governors.is_empty()).then(|| Vec::from_iter(governors).join(", "))
}

/// The libibverbs that a process has mapped, by its /proc/PID/maps (proc_pid_maps(5)); all where there are several, as
/// with Python wheels that bring one of their own.
fn library(maps: &str) -> Option<String> {
    // Address, permissions, offset, device, inode, and a path that may have spaces.
    let path = |line: &str| {
        let mut rest = line.trim_end();
        for _ in 0..5 {
            rest = rest.split_once(' ')?.1.trim_start();
        }
        let name = Path::new(rest).file_name()?.to_str()?;
        name.starts_with("libibverbs.so").then(|| rest.to_string())
    };
    let mut paths: Vec<String> = maps.lines().filter_map(path).collect();
    paths.dedup();
    (!paths.is_empty()).then(|| paths.join(", "))
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

#[cfg(test)]
mod tests {
    use vervain_rdma::{AtomicCap, Capabilities, DeviceIdentity, PortState, SrqLimits};

    use super::*;

    fn facts() -> DeviceFacts {
        let attr = DeviceAttr {
            identity: DeviceIdentity {
                firmware: "20.31.1014".into(),
                node_guid: [0; 8],
                system_guid: [0; 8],
                vendor: 0x2c9,
                part: 4123,
                hardware: 0,
            },
            max_region: 1 << 40,
            max_qp: 1000,
            max_queue: 1000,
            max_sge: 30,
            max_read_sge: 30,
            max_cq: 1000,
            max_cqe: 1000,
            max_mr: 1000,
            max_dest_rd_atomic: 8,
            max_rd_atomic: 16,
            atomics: AtomicCap::Device,
            max_ah: 1000,
            max_pd: 1000,
            max_windows: 1000,
            srq: SrqLimits { max: 1000, max_queue: 1000, max_sge: 30 },
            page_sizes: 4096,
            capabilities: Capabilities::empty(),
            ports: 2,
        };
        let port = PortAttr {
            state: PortState::Active,
            max_mtu: Some(Mtu::B4096),
            active_mtu: Some(Mtu::B4096),
            gid_table: 8,
            pkey_table: 1,
            max_message: 1 << 30,
            lid: 0,
            link_layer: LinkLayer::Ethernet,
            lanes: 4,
            lane_gbps: 25.0,
            grh_required: false,
        };
        describe("mlx5_0", Some(1), 2, Mtu::B1024, &attr, &port)
    }

    #[test]
    fn a_device_is_described_with_the_mtu_that_is_used() {
        let found = facts();
        assert_eq!((found.name.as_str(), found.port, found.firmware.as_str()), ("mlx5_0", 2, "20.31.1014"));
        assert_eq!((found.vendor, found.part, found.max_rd_atomic, found.node), (0x2c9, 4123, 16, Some(1)));
        assert_eq!((found.link_layer.as_str(), found.gbps, found.mtu), ("Ethernet", 100.0, 1024));
    }

    #[test]
    fn this_host_says_what_it_is() {
        let topology = Topology::read().expect("this machine");
        let pinned = BTreeMap::from([("client".to_string(), Some(1))]);
        let found = host(&topology, facts(), pinned.clone());
        assert!(found.memory > 1 << 26, "{}", found.memory);
        assert!(!found.name.is_empty() && found.kernel.starts_with(|c: char| c.is_ascii_digit()), "{found:?}");
        assert_eq!((found.cpus as usize, found.nodes as usize), (topology.cpus().len(), topology.nodes().len()));
        assert_eq!((found.device, found.pinned), (facts(), pinned));
    }

    #[test]
    fn the_cpu_is_named_whatever_its_architecture_calls_the_line() {
        let named = |text: &str| cpu_model(text);
        let x86 = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7763\nprocessor\t: 1\nmodel name\t: other\n";
        assert_eq!(named(x86).as_deref(), Some("AMD EPYC 7763"));
        assert_eq!(
            named("processor : 0\ncpu : POWER9, altivec supported\n").as_deref(),
            Some("POWER9, altivec supported")
        );
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(named(arm).as_deref(), Some("Arm implementer 0x41, part 0xd0c"));
        assert_eq!(named("processor : 0\n"), None);
    }

    #[test]
    fn governors_that_differ_are_all_said_and_none_is_none() {
        let root = tempfile::tempdir().expect("a directory");
        for (cpu, governor) in [(0, "performance"), (1, "powersave"), (2, "performance")] {
            let at = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}/cpufreq"));
            fs::create_dir_all(&at).expect("directories");
            fs::write(at.join("scaling_governor"), format!("{governor}\n")).expect("a file");
        }
        let of = |cpus: &[u32]| governor(root.path(), cpus);
        assert_eq!(of(&[0, 2]).as_deref(), Some("performance"));
        assert_eq!(of(&[0, 1, 2, 3]).as_deref(), Some("performance, powersave"));
        assert_eq!(of(&[3]), None);
    }

    #[test]
    fn the_library_is_the_file_that_is_mapped() {
        let line = |path: &str| format!("7f12-7f34 r-xp 00001000 08:01 1234          {path}\n");
        let maps = |paths: &[&str]| paths.iter().map(|path| line(path)).collect::<String>();
        let anonymous = "7f12-7f34 rw-p 00000000 00:00 0 \n".to_string() + &maps(&["[stack]", "/lib/libc.so.6"]);
        assert_eq!(library(&anonymous), None);
        assert_eq!(library(&maps(&["/usr/lib/libibverbs/libmlx5-rdmav34.so", "/x/notlibibverbs.so.1"])), None);
        let twice = anonymous + &maps(&["/a dir/libibverbs.so.1.14.50.0", "/a dir/libibverbs.so.1.14.50.0"]);
        assert_eq!(library(&twice).as_deref(), Some("/a dir/libibverbs.so.1.14.50.0"));
        assert_eq!(
            library(&maps(&["/a/libibverbs.so.1", "/b/libibverbs.so"])).as_deref(),
            Some("/a/libibverbs.so.1, /b/libibverbs.so")
        );
    }
}
