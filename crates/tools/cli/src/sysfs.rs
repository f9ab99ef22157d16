//! The tree of files that the preload library serves for /sys/class/infiniband, /sys/class/infiniband_verbs,
//! /sys/class/misc/rdma_cm and /dev/infiniband. It says what the verbs library answered (`inventory`), in the kernel's
//! own spelling, and is laid out as for the kernel's virtual devices: class entries are links into
//! /sys/devices/virtual.
//!
//! One tree per configuration, named by a hash of its content, in a private directory of this user: runs share it, and
//! a later one removes it when nobody uses it any more (`prune`). Device nodes are links to /dev/null, since UCX and
//! Mooncake want a character device there; that of rdma_cm is one to /dev/full. A librdmacm that is not Vervain's,
//! inside of a program, would write its commands there, and is refused instead of told that each was carried out.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};

use crate::inventory::{Device, Port};
use crate::prune;

/// A file's content or a link's target.
#[derive(Debug, PartialEq, Eq)]
enum Node {
    File(String),
    Link(String),
    /// A file that the preload library replaces if a program opens it: by the value of the counter that the text names,
    /// or, without a text, by one whose read fails.
    Placeholder(String),
}

type Plan = BTreeMap<PathBuf, Node>;

/// The tree for these devices, made if it is not there yet.
pub fn tree(devices: &[Device]) -> Result<PathBuf> {
    let plan = plan(devices);
    let dir = private_directory()?;
    let root = dir.join(format!("sysfs-{:016x}", fingerprint(&plan)));
    let held = prune::hold(&dir);
    ensure_tree(&root, &plan).with_context(|| format!("cannot make {}", root.display()))?;
    prune::touch(&root);
    drop(held);
    prune::unused(&dir);
    Ok(root)
}

fn plan(devices: &[Device]) -> Plan {
    let mut plan = Plan::new();
    let mut add = |path: String, node| plan.insert(PathBuf::from(path), node);
    add("sys/class/infiniband_verbs/abi_version".into(), Node::File("6\n".into()));
    add(format!("sys/devices/virtual/infiniband_driver/{DRIVER}/uevent"), Node::File(String::new()));
    let base = "sys/devices/virtual/misc/rdma_cm";
    add("sys/class/misc/rdma_cm".into(), Node::Link("../../devices/virtual/misc/rdma_cm".into()));
    // RDMA_USER_CM_ABI_VERSION of the kernel's headers.
    add(format!("{base}/abi_version"), Node::File("4\n".into()));
    // The numbers of /dev/full.
    add(format!("{base}/dev"), Node::File("1:7\n".into()));
    add(format!("{base}/uevent"), Node::File("MAJOR=1\nMINOR=7\nDEVNAME=infiniband/rdma_cm\n".into()));
    add("dev/infiniband/rdma_cm".into(), Node::Link("/dev/full".into()));
    let cpus = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_else(|_| "0".into()).trim().to_owned();
    let nodes = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let ports: usize = devices.iter().map(|d| d.ports.len()).sum();
    let mut port_index = 0;
    let addresses = addresses();
    for d in devices {
        let base = format!("sys/devices/virtual/infiniband/{}", d.name);
        let link = format!("../../devices/virtual/infiniband/{}", d.name);
        add(format!("sys/class/infiniband/{}", d.name), Node::Link(link));
        for (file, text) in [
            ("node_type", format!("{}: {}", d.node_type, node_type_name(d.node_type))),
            ("node_guid", d.node_guid.clone()),
            ("sys_image_guid", d.sys_image_guid.clone()),
            ("fw_ver", d.fw_ver.clone()),
            ("hw_rev", format!("{:x}", d.hw_ver)),
            ("hca_type", "Vervain".to_owned()),
            ("node_desc", d.name.clone()),
            ("uevent", format!("NAME={}", d.name)),
        ] {
            add(format!("{base}/{file}"), Node::File(text + "\n"));
        }
        // The parent of an adapter: programs look there for the processors near it, which all are.
        let parent = format!("{PARENTS}/{}", d.name);
        let to_parent = format!("../../infiniband_parent/{}", d.name);
        add(format!("{base}/device"), Node::Link(to_parent.clone()));
        let ethernet = d.ports.iter().all(|port| port.link_layer == "ethernet");
        for (file, text) in [
            ("numa_node", numa_node(&nodes).to_owned()),
            ("local_cpulist", cpus.clone()),
            ("local_cpus", mask(&cpus)),
            // The numbers of ibv_query_device. The vendor's has more than the 16 bits of PCI's: it is no other
            // vendor's.
            ("vendor", format!("{:#08x}", d.vendor_id)),
            ("device", format!("{:#06x}", d.vendor_part_id)),
            // PCI's class of network controllers: Ethernet, InfiniBand.
            ("class", if ethernet { "0x020000" } else { "0x020700" }.to_owned()),
            // Without PCI_SLOT_NAME and PCI_ID: it is in no slot.
            ("uevent", format!("DRIVER={DRIVER}")),
        ] {
            add(format!("{parent}/{file}"), Node::File(text + "\n"));
        }
        // Open MPI goes by the driver's name.
        add(format!("{parent}/driver"), Node::Link(format!("../../infiniband_driver/{DRIVER}")));
        add(format!("{parent}/infiniband/{}", d.name), Node::Link(format!("../../../infiniband/{}", d.name)));
        add(
            format!("{parent}/infiniband_verbs/{}", d.uverbs),
            Node::Link(format!("../../../infiniband_verbs/{}", d.uverbs)),
        );
        for port in &d.ports {
            let netdev = interface(port, &addresses);
            if let Some(netdev) = netdev {
                add(format!("{parent}/net/{netdev}"), Node::Link(format!("/sys/class/net/{netdev}")));
            }
            add(format!("{base}/ports/{}/counters/link_downed", port.number), link_downed(netdev));
            for (file, text) in port_files(port) {
                add(format!("{base}/ports/{}/{file}", port.number), Node::File(text + "\n"));
            }
            for file in attributes_without_value(port) {
                add(format!("{base}/ports/{}/gid_attrs/{file}", port.number), Node::Placeholder(String::new()));
            }
            for counter in vervain_counters::REAL {
                let file = format!("{base}/ports/{}/{}/{}", port.number, counter.directory.name(), counter.name);
                add(file, Node::Placeholder(vervain_counters::placeholder(counter, port_index, ports)));
            }
            port_index += 1;
        }
        let base = format!("sys/devices/virtual/infiniband_verbs/{}", d.uverbs);
        add(format!("{base}/device"), Node::Link(to_parent));
        let link = format!("../../devices/virtual/infiniband_verbs/{}", d.uverbs);
        add(format!("sys/class/infiniband_verbs/{}", d.uverbs), Node::Link(link));
        add(format!("{base}/ibdev"), Node::File(d.name.clone() + "\n"));
        add(format!("{base}/abi_version"), Node::File("1\n".into()));
        // The numbers that stat(2) gives for the node below, which is /dev/null.
        add(format!("{base}/dev"), Node::File("1:3\n".into()));
        add(format!("dev/infiniband/{}", d.uverbs), Node::Link("/dev/null".into()));
    }
    plan
}

/// The addresses of this host, each with the name of its interface.
fn addresses() -> Vec<(String, Ipv6Addr)> {
    let address = |entry: InterfaceAddress| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().to_ipv6_mapped());
        // A label of an address is behind a colon.
        let name = entry.interface_name.split(':').next().unwrap_or_default().to_owned();
        Some((name, v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip()))?))
    };
    getifaddrs().into_iter().flatten().filter_map(address).collect()
}

/// The interface that stands behind a port, whose addresses come first in its table. That of a window's node is none:
/// programs ask for the interface to connect to an address that it has.
fn interface<'a>(port: &'a Port, addresses: &[(String, Ipv6Addr)]) -> Option<&'a str> {
    port.gids.iter().find_map(|gid| {
        let (name, ip) = (gid.netdev.as_deref()?, gid.gid.parse::<Ipv6Addr>().ok()?);
        addresses.iter().any(|(of, address)| of == name && *address == ip).then_some(name)
    })
}

/// How often a port lost its link: as often as the interface behind it lost its carrier, which the kernel counts (since
/// Linux 4.16).
fn link_downed(netdev: Option<&str>) -> Node {
    let counter = netdev.map(|netdev| format!("/sys/class/net/{netdev}/carrier_down_count"));
    match counter.filter(|counter| Path::new(counter).is_file()) {
        Some(counter) => Node::Link(counter),
        None => Node::File("0\n".into()),
    }
}

/// The NUMA node of the devices, from the list of those that are online: the only one. Memory is near all of several;
/// -1 is none.
fn numa_node(online: &str) -> &str {
    let online = online.trim();
    if online.parse::<u32>().is_ok() { online } else { "-1" }
}

const DRIVER: &str = "vervain";
/// The folder of the devices' parents: the kernel has its virtual devices without any, and PCI devices elsewhere.
const PARENTS: &str = "sys/devices/virtual/infiniband_parent";

/// A list of processors such as `0-3,8` as a mask, in the kernel's words of 32 bits.
fn mask(list: &str) -> String {
    let mut words = vec![0_u32];
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            for cpu in first..=last.min(MOST_CPUS) {
                words.resize(words.len().max(cpu / 32 + 1), 0);
                words[cpu / 32] |= 1 << (cpu % 32);
            }
        }
    }
    let words: Vec<_> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

/// More than any kernel is built for.
const MOST_CPUS: usize = 1 << 16;

fn port_files(p: &Port) -> Vec<(String, String)> {
    let layer = if p.link_layer == "ethernet" { "Ethernet" } else { "InfiniBand" };
    let mut files: Vec<(String, String)> = [
        ("state", format!("{}: {}", p.state, port_state_name(p.state))),
        ("phys_state", format!("{}: {}", p.phys_state, phys_state_name(p.phys_state))),
        ("rate", rate(p.active_width, p.active_speed)),
        ("link_layer", layer.to_owned()),
        ("lid", format!("{:#x}", p.lid)),
        ("lid_mask_count", p.lmc.to_string()),
        ("sm_lid", format!("{:#x}", p.sm_lid)),
        ("sm_sl", p.sm_sl.to_string()),
        ("cap_mask", format!("{:#010x}", p.cap_mask)),
        // No link has symbols or credits here, so that there are no wrong ones and nothing waits for one.
        ("counters/symbol_error", "0".to_owned()),
        ("counters/port_xmit_wait", "0".to_owned()),
        // The kernel's default, in milliseconds; a card's can be written to. Each read gives the counters of that
        // moment.
        ("hw_counters/lifespan", "10".to_owned()),
    ]
    .map(|(file, text)| (file.to_owned(), text))
    .into();
    let empty = crate::inventory::groups(&[0; 16]);
    files.extend((0..p.gid_tbl_len).map(|i| (format!("gids/{i}"), empty.clone())));
    for gid in &p.gids {
        files.push((format!("gids/{}", gid.index), gid.gid.clone()));
        files.push((format!("gid_attrs/types/{}", gid.index), gid.gid_type.clone()));
        if let Some(netdev) = &gid.netdev {
            files.push((format!("gid_attrs/ndevs/{}", gid.index), netdev.clone()));
        }
    }
    files.extend(p.pkeys.iter().enumerate().map(|(i, pkey)| (format!("pkeys/{i}"), format!("{pkey:#06x}"))));
    files
}

/// The attributes of GIDs for which the kernel has a file, and EINVAL for who reads it: those of empty entries, and
/// interfaces of entries that have none.
fn attributes_without_value(p: &Port) -> impl Iterator<Item = String> {
    (0..p.gid_tbl_len).flat_map(move |i| {
        let gid = p.gids.iter().find(|gid| gid.index == i);
        let no_type = gid.is_none().then(|| format!("types/{i}"));
        let no_interface = gid.is_none_or(|gid| gid.netdev.is_none()).then(|| format!("ndevs/{i}"));
        no_type.into_iter().chain(no_interface)
    })
}

/// enum rdma_node_type, as the kernel's node_type file spells it.
fn node_type_name(node_type: i32) -> &'static str {
    match node_type {
        1 => "CA",
        2 => "switch",
        3 => "router",
        4 => "RNIC",
        _ => "<unknown>",
    }
}

/// enum ib_port_state.
fn port_state_name(state: u32) -> &'static str {
    ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"]
        .get(usize::try_from(state).unwrap_or(usize::MAX))
        .unwrap_or(&"UNKNOWN")
}

/// PortPhysicalState (IBA vol. 1, PortInfo).
fn phys_state_name(state: u8) -> &'static str {
    match state {
        1 => "Sleep",
        2 => "Polling",
        3 => "Disabled",
        4 => "PortConfigurationTraining",
        5 => "LinkUp",
        6 => "LinkErrorRecovery",
        7 => "Phy Test",
        _ => "<unknown>",
    }
}

/// The kernel's sentence for width and speed, such as `100 Gb/sec (4X EDR)`; it counts in units of 100 Mb/s per lane.
fn rate(width: u8, speed: u8) -> String {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    let (per_lane, name) = match speed {
        2 => (50, " DDR"),
        4 => (100, " QDR"),
        8 => (100, " FDR10"),
        16 => (140, " FDR"),
        32 => (250, " EDR"),
        64 => (500, " HDR"),
        128 => (1000, " NDR"),
        _ => (25, ""),
    };
    let rate = per_lane * lanes;
    let half = if rate % 10 == 0 { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X{name})", rate / 10)
}

/// FNV-1a over every path and content: stable between runs and versions of the compiler.
fn fingerprint(plan: &Plan) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut feed = |bytes: &[u8]| {
        for b in bytes.iter().chain(&[0]) {
            hash = (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for (path, node) in plan {
        feed(path.as_os_str().as_encoded_bytes());
        let (Node::File(text) | Node::Link(text) | Node::Placeholder(text)) = node;
        feed(text.as_bytes());
    }
    hash
}

/// Builds the tree aside and renames it into place, so that nobody sees a half of it. In one that is there, what a
/// cleaner of /tmp took away is put back.
fn ensure_tree(root: &Path, plan: &Plan) -> io::Result<()> {
    if root.is_dir() {
        return complete(root, plan);
    }
    let aside = root.with_extension(format!("new-{}", std::process::id()));
    let built = complete(&aside, plan).and_then(|()| fs::rename(&aside, root));
    if built.is_err() {
        let _ = fs::remove_dir_all(&aside);
        if root.is_dir() {
            // Another run was first.
            return complete(root, plan);
        }
    }
    built
}

/// Adds every node of the plan that `root` lacks.
fn complete(root: &Path, plan: &Plan) -> io::Result<()> {
    for (path, node) in plan {
        let path = root.join(path);
        if fs::symlink_metadata(&path).is_ok() {
            continue;
        }
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        let aside = path.with_extension(format!("new-{}", std::process::id()));
        match node {
            Node::File(text) => write(&aside, text, FILE_MODE)?,
            Node::Placeholder(text) => write(&aside, text, vervain_counters::PLACEHOLDER_MODE)?,
            Node::Link(target) => symlink(target, &aside)?,
        }
        fs::rename(&aside, &path)?;
    }
    Ok(())
}

/// The mode of sysfs's files that can only be read.
const FILE_MODE: u32 = 0o444;

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// `$XDG_RUNTIME_DIR/vervain`, else `/tmp/vervain-<uid>`, else `/dev/shm/vervain-<uid>`, which a container with a
/// read-only root has: this user's, and nobody else's.
pub fn private_directory() -> Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|d| d.is_absolute() && is_private(d, uid));
    let places = [runtime.map(|d| d.join("vervain"))].into_iter().flatten();
    first_private(places.chain(["/tmp", "/dev/shm"].map(|d| PathBuf::from(format!("{d}/vervain-{uid}")))), uid)
}

/// The first of the directories that can be made or written to; the error of the first where none can. One that is
/// there and somebody else's is an error, and none is taken in its place.
fn first_private(places: impl Iterator<Item = PathBuf>, uid: u32) -> Result<PathBuf> {
    let mut refused = None;
    for dir in places {
        let made = DirBuilder::new().mode(0o700).create(&dir);
        if let Err(e) = made
            && e.kind() != io::ErrorKind::AlreadyExists
        {
            refused = refused.or(Some(anyhow::anyhow!("cannot make {}: {e}", dir.display())));
            continue;
        }
        ensure!(is_private(&dir, uid), "{} is not a directory that only this user can enter", dir.display());
        if is_writable(&dir) {
            return Ok(dir);
        }
        refused = refused.or(Some(anyhow::anyhow!("{} cannot be written to", dir.display())));
    }
    Err(refused.unwrap_or_else(|| anyhow::anyhow!("no directory for it")))
}

/// Returns true if files can be made in a directory: not so on a read-only file system.
fn is_writable(dir: &Path) -> bool {
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}

fn is_private(dir: &Path, uid: u32) -> bool {
    // symlink_metadata: another user's link in /tmp must not lead elsewhere.
    fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Gid;
    use std::os::unix::fs::FileTypeExt;

    fn device() -> Device {
        let gid = Gid {
            index: 1,
            gid: "0000:0000:0000:0000:0000:ffff:7f00:0001".into(),
            gid_type: "RoCE v2".into(),
            netdev: Some("lo".into()),
            window_node: None,
        };
        let port = Port {
            number: 1,
            state: 4,
            phys_state: 5,
            link_layer: "ethernet".into(),
            active_mtu: 4096,
            max_mtu: 4096,
            active_width: 2,
            active_speed: 32,
            lid: 0,
            sm_lid: 0,
            sm_sl: 0,
            lmc: 0,
            cap_mask: 0x1_0000,
            gid_tbl_len: 3,
            gids: vec![gid],
            pkeys: vec![0xffff],
        };
        Device {
            name: "vervain0".into(),
            uverbs: "uverbs0".into(),
            node_type: 1,
            fw_ver: "1.0".into(),
            node_guid: "0011:2233:4455:6677".into(),
            sys_image_guid: "0011:2233:4455:6677".into(),
            vendor_id: 0x02_5652,
            vendor_part_id: 4123,
            hw_ver: 0x1a,
            ports: vec![port],
        }
    }

    #[test]
    fn the_interface_behind_a_port_has_the_address_that_its_gid_is() {
        let has = |name: &str, ip: &str| (name.to_owned(), ip.parse().unwrap());
        let port = &device().ports[0];
        assert_eq!(interface(port, &[has("eth0", "fd00::1"), has("lo", "::ffff:127.0.0.1")]), Some("lo"));
        // The interface of a window's GID is the first one.
        assert_eq!(interface(port, &[has("eth0", "::ffff:127.0.0.1"), has("lo", "::1")]), None);
    }

    #[test]
    fn rates_are_spelled_as_the_kernel_does() {
        assert_eq!(rate(2, 32), "100 Gb/sec (4X EDR)");
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X)");
        assert_eq!(rate(2, 64), "200 Gb/sec (4X HDR)");
        assert_eq!(rate(2, 128), "400 Gb/sec (4X NDR)");
    }

    #[test]
    fn processors_are_named_as_the_kernel_does() {
        assert_eq!(mask("0-1"), "00000003");
        assert_eq!(mask("0,4-7,33"), "00000002,000000f1");
        assert_eq!(mask(""), "00000000");
    }

    #[test]
    fn a_device_is_at_the_only_node_there_is() {
        assert_eq!(["0\n", "1\n", "0-1\n", "0,2\n", ""].map(numa_node), ["0", "1", "-1", "-1", "-1"]);
    }

    #[test]
    fn the_tree_reads_like_sysfs() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().join("sysfs-1");
        ensure_tree(&root, &plan(&[device()])).unwrap();
        let read = |p: &str| fs::read_to_string(root.join(p)).unwrap();
        assert_eq!(read("sys/class/infiniband/vervain0/node_type"), "1: CA\n");
        assert_eq!(read("sys/class/infiniband/vervain0/hw_rev"), "1a\n");
        assert_eq!(read("sys/class/infiniband/vervain0/ports/1/state"), "4: ACTIVE\n");
        assert_eq!(read("sys/class/infiniband/vervain0/ports/1/gids/0"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(read("sys/class/infiniband/vervain0/ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
        assert_eq!(read("sys/class/infiniband/vervain0/ports/1/gid_attrs/ndevs/1"), "lo\n");
        for (file, is_placeholder) in [("types/0", true), ("types/1", false), ("types/2", true), ("ndevs/2", true)] {
            let file = root.join("sys/class/infiniband/vervain0/ports/1/gid_attrs").join(file);
            let meta = fs::metadata(&file).unwrap();
            let of = (meta.mode() & 0o7777 == vervain_counters::PLACEHOLDER_MODE, meta.len() == 0);
            assert_eq!(of, (is_placeholder, is_placeholder), "{}", file.display());
        }
        assert_eq!(read("sys/class/infiniband_verbs/uverbs0/ibdev"), "vervain0\n");
        let device = |file: &str| read(&format!("sys/class/infiniband/vervain0/device/{file}"));
        assert_eq!([device("vendor"), device("device")], ["0x025652\n", "0x101b\n"]);
        assert_eq!([device("class"), device("uevent")], ["0x020000\n", "DRIVER=vervain\n"]);
        let port = |file: &str| read(&format!("sys/class/infiniband/vervain0/ports/1/{file}"));
        assert_eq!(["symbol_error", "port_xmit_wait"].map(|name| port(&format!("counters/{name}"))), ["0\n", "0\n"]);
        assert!(port("counters/link_downed").trim().parse::<u64>().is_ok());
        assert_eq!(port("hw_counters/lifespan"), "10\n");
        let lifespan = root.join("sys/class/infiniband/vervain0/ports/1/hw_counters/lifespan");
        assert_eq!(fs::metadata(lifespan).unwrap().mode() & 0o7777, 0o444);
        let driver = fs::canonicalize(root.join("sys/class/infiniband/vervain0/device/driver")).unwrap();
        assert_eq!(driver.file_name().unwrap(), "vervain");
        assert_eq!(read("sys/class/infiniband_verbs/uverbs0/device/infiniband/vervain0/node_type"), "1: CA\n");
        assert_eq!(read("sys/class/infiniband/vervain0/device/infiniband_verbs/uverbs0/ibdev"), "vervain0\n");
        let interface = fs::read_dir(root.join("sys/class/infiniband/vervain0/device/net")).unwrap();
        let interface: Vec<_> = interface.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(interface, ["lo"]);
        assert_eq!(read("sys/class/infiniband/vervain0/device/net/lo/type"), "772\n", "ARPHRD_LOOPBACK");
        assert_eq!(read("sys/class/misc/rdma_cm/abi_version"), "4\n");
        for (node, number) in
            [("uverbs0", "sys/class/infiniband_verbs/uverbs0/dev"), ("rdma_cm", "sys/class/misc/rdma_cm/dev")]
        {
            let node = fs::metadata(root.join("dev/infiniband").join(node)).unwrap();
            assert!(node.file_type().is_char_device());
            let (major, minor) = (rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev()));
            assert_eq!(read(number), format!("{major}:{minor}\n"));
        }
        // Commands to the kernel are not taken.
        let refused = fs::write(root.join("dev/infiniband/rdma_cm"), [0; 8]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 1, "nothing but the tree is left");
    }

    #[test]
    fn a_tree_that_lost_files_is_completed() {
        let tmp = tempfile::tempdir().unwrap();
        let (root, plan) = (tmp.path().join("sysfs-1"), plan(&[device()]));
        ensure_tree(&root, &plan).unwrap();
        fs::remove_dir_all(root.join("sys/devices/virtual/infiniband/vervain0/ports")).unwrap();
        ensure_tree(&root, &plan).unwrap();
        assert!(root.join("sys/class/infiniband/vervain0/ports/1/state").is_file());
    }

    #[test]
    fn another_configuration_is_another_tree() {
        let mut other = device();
        other.ports[0].state = 1;
        assert_ne!(fingerprint(&plan(&[device()])), fingerprint(&plan(&[other])));
        assert_eq!(fingerprint(&plan(&[device()])), fingerprint(&plan(&[device()])));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_passed_over_and_one_of_others_is_not() {
        let tmp = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let [absent, open, good] = ["absent/dir", "open", "good"].map(|name| tmp.path().join(name));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let first = |places: &[&Path]| first_private(places.iter().map(|p| p.to_path_buf()), uid);
        assert_eq!(first(&[&absent, &good]).unwrap(), good);
        let said = first(&[&absent]).unwrap_err().to_string();
        assert!(said.contains("cannot make") && said.contains("absent/dir"), "{said}");
        let said = first(&[&open, &good]).unwrap_err().to_string();
        assert!(said.contains("only this user"), "{said}");
    }

    #[test]
    fn a_directory_open_to_others_is_not_private() {
        let tmp = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(is_private(tmp.path(), uid));
        assert!(!is_private(tmp.path(), uid + 1));
        fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!is_private(tmp.path(), uid));
    }
}
