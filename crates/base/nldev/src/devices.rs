//! The facts, read from the files of sysfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The devices, by number.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Devices(pub Vec<Device>);

/// A device.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Device {
    /// The kernel's number of the device, as `ibv_get_device_index` returns it.
    pub index: u32,
    /// Such as `vervain0`.
    pub name: String,
    /// enum rdma_node_type.
    pub node_type: u8,
    /// May be empty.
    pub fw_version: String,
    /// In the order of the host.
    pub node_guid: u64,
    /// In the order of the host.
    pub sys_image_guid: u64,
    /// The node that programs open.
    pub chardev: Option<Chardev>,
    /// From port 1.
    pub ports: Vec<Port>,
    /// The number of objects of each kind, if it is known. It is not in the files.
    pub objects: Vec<(&'static str, u64)>,
}

/// The node of a device in /dev/infiniband.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Chardev {
    /// Such as `uverbs0`.
    pub name: String,
    /// Major and minor number.
    pub number: (u32, u32),
    /// The version of its interface.
    pub abi: u64,
}

/// A port of a device.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Port {
    /// From 1.
    pub number: u32,
    /// True if its link layer is InfiniBand, which has LIDs; else it is Ethernet.
    pub infiniband: bool,
    /// enum ib_port_state.
    pub state: u8,
    /// PortPhysicalState of PortInfo.
    pub phys_state: u8,
    /// The capability mask of PortInfo.
    pub cap_mask: u32,
    /// The upper half of the first GID, in the order of the host.
    pub subnet_prefix: u64,
    /// Its LID, or 0.
    pub lid: u32,
    /// The subnet manager's LID, or 0.
    pub sm_lid: u32,
    /// LID mask control.
    pub lmc: u8,
    /// The network interface behind it, and its number.
    pub netdev: Option<(String, u32)>,
    /// The directory of its counters.
    pub counters: PathBuf,
}

impl Port {
    /// The present values of its counters, by name. They are read at each call, since each costs its sum.
    pub fn hw_counters(&self) -> Vec<(String, u64)> {
        let mut all: Vec<_> = names(&self.counters)
            .into_iter()
            // A setting, which the kernel shows once for the whole directory.
            .filter(|name| name != "lifespan")
            .filter_map(|name| text(&self.counters.join(&name)).parse().ok().map(|value| (name, value)))
            .collect();
        all.sort();
        all
    }
}

impl Devices {
    /// Reads the files below `sys`, which is laid out as /sys. Facts that are missing there have defaults.
    pub fn read(sys: &Path) -> Devices {
        let mut names = names(&sys.join("class/infiniband"));
        // In the kernel's numbering: by name alone the tenth would come before the second.
        names.sort_by_key(|name| (name.len(), name.clone()));
        let nodes = chardevs(sys);
        let device = |(index, name): (u32, String)| {
            let dir = sys.join("class/infiniband").join(&name);
            let mut ports: Vec<_> = names_as_numbers(&dir.join("ports")).map(|n| port(sys, &dir, n)).collect();
            ports.sort_by_key(|port| port.number);
            Device {
                index,
                node_type: leading(&text(&dir.join("node_type"))),
                fw_version: text(&dir.join("fw_ver")),
                node_guid: groups(&text(&dir.join("node_guid"))),
                sys_image_guid: groups(&text(&dir.join("sys_image_guid"))),
                chardev: nodes.iter().find(|(device, _)| *device == name).map(|(_, node)| node.clone()),
                ports,
                objects: Vec::new(),
                name,
            }
        };
        Devices((0..).zip(names).map(device).collect())
    }
}

fn port(sys: &Path, device: &Path, number: u32) -> Port {
    let dir = device.join("ports").join(number.to_string());
    Port {
        number,
        infiniband: text(&dir.join("link_layer")) == "InfiniBand",
        state: leading(&text(&dir.join("state"))),
        phys_state: leading(&text(&dir.join("phys_state"))),
        cap_mask: hex(&text(&dir.join("cap_mask"))),
        subnet_prefix: groups(text(&dir.join("gids/0")).get(..19).unwrap_or_default()),
        lid: hex(&text(&dir.join("lid"))),
        sm_lid: hex(&text(&dir.join("sm_lid"))),
        lmc: leading(&text(&dir.join("lid_mask_count"))),
        netdev: netdev(sys, &dir),
        counters: dir.join("hw_counters"),
    }
}

/// The interface of the port's first GID that has one: the table begins with that which stands behind the port.
fn netdev(sys: &Path, port: &Path) -> Option<(String, u32)> {
    let ndevs = port.join("gid_attrs/ndevs");
    let mut entries: Vec<_> = names_as_numbers(&ndevs).collect();
    entries.sort_unstable();
    // The file of an entry without an interface is empty.
    let name = entries.iter().map(|entry| text(&ndevs.join(entry.to_string()))).find(|name| !name.is_empty())?;
    let index = text(&sys.join("class/net").join(&name).join("ifindex")).parse().ok()?;
    Some((name, index))
}

/// The nodes of all devices, each with its device's name.
fn chardevs(sys: &Path) -> Vec<(String, Chardev)> {
    let dir = sys.join("class/infiniband_verbs");
    let node = |name: String| {
        let of = dir.join(&name);
        let (major, minor) = text(&of.join("dev")).split_once(':').map(|(a, b)| (leading(a), leading(b)))?;
        Some((
            text(&of.join("ibdev")),
            Chardev { number: (major, minor), abi: leading(&text(&of.join("abi_version"))), name },
        ))
    };
    names(&dir).into_iter().filter_map(node).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn names_as_numbers(dir: &Path) -> impl Iterator<Item = u32> {
    names(dir).into_iter().filter_map(|name| name.parse().ok())
}

fn text(file: &Path) -> String {
    fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The decimal number that `text` begins with, such as the 4 of `4: ACTIVE`.
fn leading<T: FromStr + Default>(text: &str) -> T {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().unwrap_or_default()
}

/// A number such as `0x1a`.
fn hex(text: &str) -> u32 {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_default()
}

/// Eight bytes such as `0011:2233:4455:6677`.
fn groups(text: &str) -> u64 {
    u64::from_str_radix(&text.replace(':', ""), 16).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A view of sysfs with these files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let files: BTreeMap<_, _> = files.iter().copied().collect();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    /// Two devices, one of Ethernet and one of InfiniBand, as `vervain run` shows them.
    pub(crate) fn two() -> (tempfile::TempDir, Devices) {
        let tree = tree(&[
            ("class/infiniband/vervain0/node_type", "1: CA\n"),
            ("class/infiniband/vervain0/fw_ver", "1.0\n"),
            ("class/infiniband/vervain0/node_guid", "0011:2233:4455:6677\n"),
            ("class/infiniband/vervain0/sys_image_guid", "0011:2233:4455:6678\n"),
            ("class/infiniband/vervain0/ports/1/state", "4: ACTIVE\n"),
            ("class/infiniband/vervain0/ports/1/phys_state", "5: LinkUp\n"),
            ("class/infiniband/vervain0/ports/1/link_layer", "Ethernet\n"),
            ("class/infiniband/vervain0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            ("class/infiniband/vervain0/ports/1/gid_attrs/ndevs/8", ""),
            ("class/infiniband/vervain0/ports/1/gid_attrs/ndevs/10", "lo\n"),
            ("class/infiniband/vervain0/ports/1/gid_attrs/ndevs/9", "eth0\n"),
            ("class/infiniband/vervain0/ports/1/hw_counters/sent_pkts", "17\n"),
            ("class/infiniband/vervain0/ports/1/hw_counters/duplicate_request", "3\n"),
            ("class/infiniband/vervain0/ports/1/hw_counters/lifespan", "10\n"),
            ("class/net/eth0/ifindex", "42\n"),
            ("class/infiniband_verbs/abi_version", "6\n"),
            ("class/infiniband_verbs/uverbs0/ibdev", "vervain0\n"),
            ("class/infiniband_verbs/uverbs0/dev", "1:3\n"),
            ("class/infiniband_verbs/uverbs0/abi_version", "1\n"),
            ("class/infiniband/vervain10/node_type", "1: CA\n"),
            ("class/infiniband/vervain2/node_type", "1: CA\n"),
            ("class/infiniband/vervain2/ports/2/link_layer", "InfiniBand\n"),
            ("class/infiniband/vervain2/ports/1/link_layer", "InfiniBand\n"),
            ("class/infiniband/vervain2/ports/1/gids/0", "fe80:0000:0000:0001:0000:0000:0000:0001\n"),
            ("class/infiniband/vervain2/ports/1/lid", "0x1a\n"),
            ("class/infiniband/vervain2/ports/1/sm_lid", "0x1\n"),
            ("class/infiniband/vervain2/ports/1/lid_mask_count", "2\n"),
            ("class/infiniband/vervain2/ports/1/cap_mask", "0x02010000\n"),
        ]);
        let devices = Devices::read(tree.path());
        (tree, devices)
    }

    #[test]
    fn the_files_of_sysfs_say_it_all() {
        let (_tree, Devices(devices)) = two();
        let [ethernet, infiniband, tenth] = &devices[..] else { panic!("{devices:?}") };
        assert_eq!(
            (ethernet.name.as_str(), infiniband.name.as_str(), tenth.name.as_str()),
            ("vervain0", "vervain2", "vervain10")
        );
        assert_eq!((ethernet.index, infiniband.index, tenth.index), (0, 1, 2));
        assert_eq!((ethernet.node_type, ethernet.fw_version.as_str()), (1, "1.0"));
        assert_eq!((ethernet.node_guid, ethernet.sys_image_guid), (0x0011_2233_4455_6677, 0x0011_2233_4455_6678));
        assert_eq!(ethernet.chardev, Some(Chardev { name: "uverbs0".into(), number: (1, 3), abi: 1 }));
        let port = &ethernet.ports[0];
        assert_eq!((port.number, port.infiniband, port.state, port.phys_state), (1, false, 4, 5));
        assert_eq!(port.netdev, Some(("eth0".into(), 42)), "that of the first GID, by number");
        assert_eq!(port.hw_counters(), [("duplicate_request".into(), 3), ("sent_pkts".into(), 17)]);
        assert_eq!(infiniband.chardev, None);
        let port = &infiniband.ports[0];
        assert_eq!((port.number, port.infiniband, port.lid, port.sm_lid, port.lmc), (1, true, 0x1a, 1, 2));
        assert_eq!((port.subnet_prefix, port.cap_mask), (0xfe80_0000_0000_0001, 0x0201_0000));
        assert_eq!(infiniband.ports[1].number, 2);
    }

    #[test]
    fn where_there_is_nothing_no_device_is_found() {
        assert_eq!(Devices::read(Path::new("/no/such/directory")), Devices::default());
    }
}
