//! The GID table of the Ethernet ports and the interface that stands behind them, kept up to date with the host's
//! network, and the async events that a change is. The link hears of changes (netlink) and calls
//! [`crate::context::network_changed`].
//!
//! * A GID for each address; an entry keeps its index as long as the process lives. An address that goes leaves an
//!   empty entry, which is its own again when it comes back.
//! * Index 3 repeats the GID of the first interface's IPv4 address (`USUAL`); the entries from there on follow behind
//!   it.
//! * The GID of this node in a window comes behind those of all interfaces, so that index 0 remains what it is without
//!   one; with `VERVAIN_LINK=window` it is the only one, at both indices. It counts as one of the interface that comes
//!   first. InfiniBand ports have it too ([`crate::device::Device::gids`]).
//! * The port's interface gives state and MTU: the first one that runs, has an address and is no loopback, by name and
//!   for good; until there is one, the loopback interface if it runs, else the first that has an address. Peers of this
//!   host are reached whatever its MTU, so it is the network that the MTU has to fit; a cable that is pulled is a port
//!   that goes down, not one that moves to `lo`.

use crate::device::grh::is_ipv4;
use crate::device::{GidEntry, GidType, LIMITS, lids};
use crate::error::{Error, Result};
use crate::host::address_map;
use crate::host::lock::{OwnerGuard, OwnerLock};
use crate::host::network::{Interface, interfaces};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;
use vervain_config::{Config, INTERFACE, LinkChoice};
use vervain_iba::{AhAttr, Gid, event};

/// Bytes that a packet carries besides payload, at most, as rxe reserves them: IP, UDP, BTH, extended headers, ICRC.
const OVERHEAD: u32 = 80;

/// The index that programs for adapters take by default, or have in their examples. A card's table begins with the
/// link-local address and goes on with the IPv4 address, each by RoCE v1 and then by v2: so the GID of IPv4 by RoCE v2
/// is there. Entries of RoCE v1 would name what no link here speaks, so the indices before it have what they had
/// without it.
const USUAL: u32 = 3;

/// The port behind which the network lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub up: bool,
    /// `enum ibv_mtu`.
    pub mtu: u32,
}

struct Slot {
    entry: GidEntry,
    present: bool,
}

impl Slot {
    /// One that no GID has had.
    fn unused() -> Slot {
        let (index, gid, ifindex, ifname, gid_type) = (0, [0; 16], 0, String::new(), GidType::RoceV2);
        Slot { entry: GidEntry { index, gid, ifindex, ifname, gid_type }, present: false }
    }
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    /// Place in `slots` of the GID that has index [`USUAL`] too: for good, once there is a GID.
    usual: Option<usize>,
    /// Every address of this host, those included that have no GID.
    addresses: Vec<Gid>,
    /// Name of the port's interface once it is settled.
    port: Option<String>,
    line: Option<Line>,
}

static TABLE: OwnerLock<Option<Table>> = OwnerLock::new(None);
/// The GID of this node in the window; true if there is no other.
static WINDOW: OnceLock<(Gid, bool)> = OnceLock::new();

/// This node has `gid` in a window. Said before the first look at the table; it stays.
pub fn set_window(gid: Gid) {
    let link = Config::of_process().map(|config| config.link);
    let _ = WINDOW.set((gid, link.is_ok_and(|link| link == LinkChoice::Window)));
}

/// The GID of this node in a window, if there is one.
pub(crate) fn window() -> Option<Gid> {
    WINDOW.get().map(|(gid, _)| *gid)
}

/// Returns true if an address leads through the window: the GIDs of its nodes differ in the number alone, and LIDs are
/// theirs.
pub(crate) fn is_in_window(ah: &AhAttr) -> bool {
    let is_of_node = |window: Gid| ah.is_global && window[..8] == ah.grh.dgid[..8];
    window().is_some_and(|window| is_of_node(window) || lids::node(ah.dlid).is_some())
}

/// The number of this node in the window: its GID ends with that and one.
pub(crate) fn node() -> Option<u32> {
    let last = *window()?.last_chunk()?;
    u32::try_from(u64::from_be_bytes(last).checked_sub(1)?).ok()
}

/// The largest IB MTU that an interface carries, as `enum ibv_mtu`: 1 for 256 up to 5 for 4096.
pub(crate) fn mtu_of(interface_mtu: u32) -> u32 {
    (2..=5).rev().find(|code| (128 << code) + OVERHEAD <= interface_mtu).unwrap_or(1)
}

/// The interfaces whose addresses become GIDs: those that `VERVAIN_INTERFACE` names, else all.
fn wanted() -> Option<&'static [String]> {
    Config::of_process().ok()?.interfaces.as_deref()
}

/// Checks that `VERVAIN_INTERFACE` names interfaces that exist.
pub(crate) fn check_interfaces() -> Result<()> {
    let Some(wanted) = wanted() else { return Ok(()) };
    let all = interfaces();
    match wanted.iter().find(|name| !all.iter().any(|i| i.name == **name)) {
        None => Ok(()),
        Some(_) => {
            let names: Vec<_> = all.iter().map(|i| i.name.as_str()).collect();
            let names = names.join(", ");
            let variable = INTERFACE.name();
            Err(Error::invalid(format!("{variable} is '{}'; it can be some of {names}", wanted.join(","))))
        }
    }
}

impl Table {
    /// Takes over the network as it is now; says whether the GIDs and what of the line has changed.
    fn update(&mut self, all: &[Interface], wanted: Option<&[String]>, window: Option<(Gid, bool)>) -> Changes {
        let line = self.line;
        let gids: Vec<Gid> = self.present().map(|e| e.gid).collect();
        self.addresses = all.iter().flat_map(|i| i.addresses.iter().map(|a| gid_of(*a))).collect();
        let mut chosen: Vec<&Interface> =
            all.iter().filter(|i| wanted.is_none_or(|names| names.contains(&i.name))).collect();
        chosen.sort_by_key(|i| (i.loopback, !i.running, i.index));
        self.slots.iter_mut().for_each(|s| s.present = false);
        let alone = window.is_some_and(|(_, alone)| alone);
        for interface in chosen.iter().filter(|_| !alone) {
            let mut addresses = interface.addresses.clone();
            addresses.sort_by_key(IpAddr::is_ipv6);
            addresses.iter().for_each(|a| self.enter(interface, gid_of(*a)));
        }
        if let (Some((gid, _)), Some(first)) = (window, chosen.first()) {
            // Which interface comes first may change, and no address goes with it.
            let known = self.slots.iter().position(|s| s.entry.gid == gid);
            match known {
                Some(place) => self.slots[place].present = true,
                None => {
                    if !self.slots.is_empty() {
                        self.slots.resize_with(self.slots.len().max(USUAL as usize), Slot::unused);
                    }
                    self.enter(first, gid);
                }
            }
            self.addresses.push(gid);
        }
        self.usual = self.usual.or_else(|| self.choose_usual(&chosen));
        let has_address = |i: &&&Interface| !i.addresses.is_empty();
        if self.port.is_none() {
            self.port = chosen.iter().filter(has_address).find(|i| i.running && !i.loopback).map(|i| i.name.clone());
        }
        let port = match &self.port {
            Some(name) => chosen.iter().find(|i| i.name == *name),
            None => {
                let all = chosen.iter().filter(has_address);
                all.clone().find(|i| i.loopback && i.running).or(all.clone().next())
            }
        };
        let now = Line {
            up: port.is_some_and(|i| i.running),
            // An interface that is gone keeps the MTU that it had.
            mtu: port.map_or(line.map_or(1, |l| l.mtu), |i| mtu_of(i.mtu)),
        };
        self.line = Some(now);
        Changes { gids: !gids.iter().eq(self.present().map(|e| &e.gid)), up: line.map(|l| l.up), now }
    }

    /// The place of the first IPv4 address of an interface like the first one that has a GID: one that runs, or is a
    /// loopback, if that is; else the place of the first GID.
    fn choose_usual(&self, chosen: &[&Interface]) -> Option<usize> {
        let first = self.slots.iter().position(|s| s.present)?;
        let sort = |s: &Slot| chosen.iter().find(|i| i.name == s.entry.ifname).map(|i| (i.loopback, i.running));
        let is_like_it = |s: &Slot| s.present && is_ipv4(&s.entry.gid) && sort(s) == sort(&self.slots[first]);
        self.slots.iter().position(is_like_it).or(Some(first))
    }

    fn enter(&mut self, interface: &Interface, gid: Gid) {
        let entry = |place: usize| GidEntry {
            index: place as u32 + u32::from(place as u32 >= USUAL),
            gid,
            ifindex: interface.index,
            ifname: interface.name.clone(),
            gid_type: GidType::RoceV2,
        };
        let same = |s: &Slot| !s.present && s.entry.gid == gid && s.entry.ifname == interface.name;
        let place = match self.slots.iter().position(same) {
            Some(place) => place,
            None if self.slots.len() < LIMITS.gids as usize - 1 => self.slots.len(),
            None => match self.slots.iter().position(|s| !s.present) {
                Some(place) => place,
                None => return,
            },
        };
        let slot = Slot { entry: entry(place), present: true };
        match self.slots.get_mut(place) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
    }

    /// One entry for each GID.
    fn present(&self) -> impl Iterator<Item = &GidEntry> {
        self.slots.iter().filter(|s| s.present).map(|s| &s.entry)
    }

    /// The entry at `index`, which is [`USUAL`] or the entry's own.
    fn at(&self, index: u32) -> Option<&GidEntry> {
        let place = match index {
            USUAL => self.usual?,
            0..USUAL => index as usize,
            _ => index as usize - 1,
        };
        self.slots.get(place).filter(|s| s.present).map(|s| &s.entry)
    }

    /// All valid entries, by index.
    fn valid(&self) -> Vec<GidEntry> {
        let with_index = |index| self.at(index).map(|entry| GidEntry { index, ..entry.clone() });
        (0..LIMITS.gids).filter_map(with_index).collect()
    }
}

struct Changes {
    gids: bool,
    /// True if the line was up; None at the first look.
    up: Option<bool>,
    now: Line,
}

impl Changes {
    /// The events of a port (IBA 11.6.3.2; GID change: `man ibv_get_async_event`).
    fn events(&self) -> impl Iterator<Item = u32> {
        let line = match (self.up, self.now.up) {
            (Some(true), false) => Some(event::PORT_ERR),
            (Some(false), true) => Some(event::PORT_ACTIVE),
            _ => None,
        };
        let gids = (self.gids && self.up.is_some()).then_some(event::GID_CHANGE);
        line.into_iter().chain(gids)
    }
}

/// A GID and the index of its interface, without the list; none for an empty entry.
pub(crate) fn source(index: u32) -> Option<(Gid, u32)> {
    let table = table();
    let entry = table.as_ref()?.at(index)?;
    Some((entry.gid, entry.ifindex))
}

/// The table, filled at the first look.
fn table() -> OwnerGuard<'static, Option<Table>> {
    let mut guard = TABLE.lock();
    if guard.is_none() {
        let mut table = Table::default();
        table.update(&interfaces(), wanted(), WINDOW.get().copied());
        *guard = Some(table);
    }
    guard
}

/// Looks at the network again. Returns the async events (`enum ibv_event_type`) that the change means for the ports
/// behind it, and true if they are up now. A process that has left sees no change, nor does one that has left
/// meanwhile.
pub(crate) fn look_again() -> (Vec<u32>, bool) {
    let here = address_map::here();
    let all = interfaces();
    let mut table = table();
    let is_news = here.is_some() && here == address_map::here();
    let changes = table.as_mut().filter(|_| is_news).map(|t| t.update(&all, wanted(), WINDOW.get().copied()));
    changes.map_or((Vec::new(), false), |changes| (changes.events().collect(), changes.now.up))
}

/// The addresses behind the valid entries, and their interfaces.
pub(crate) fn own_addresses() -> Vec<(IpAddr, String)> {
    let own = |entry: &GidEntry| (Ipv6Addr::from(entry.gid).to_canonical(), entry.ifname.clone());
    table().iter().flat_map(|t| t.present().map(own)).collect()
}

/// The index of the interface that has a GID at this moment, and had `index` when the table was filled; none if no
/// interface has it.
pub fn interface_of(gid: &Gid, index: u32) -> Option<u32> {
    let is_it = |e: &&GidEntry| e.gid == *gid && e.ifindex == index;
    let name = table().as_ref()?.present().find(is_it).map(|entry| entry.ifname.clone());
    let mut all = interfaces();
    all.retain(|interface| interface.addresses.iter().any(|ip| gid_of(*ip) == *gid));
    let same = all.iter().find(|interface| Some(&interface.name) == name.as_ref());
    same.or(all.first()).map(|interface| interface.index)
}

/// State and MTU of the line.
pub(crate) fn line() -> Line {
    table().as_ref().and_then(|t| t.line).unwrap_or(Line { up: false, mtu: 1 })
}

/// The valid entries.
pub(crate) fn entries() -> Vec<GidEntry> {
    table().as_ref().map(Table::valid).unwrap_or_default()
}

/// The GID at `index`; zeros for an empty entry.
pub(crate) fn gid_at(index: u32) -> Gid {
    table().as_ref().and_then(|t| t.at(index)).map_or([0; 16], |entry| entry.gid)
}

/// Returns true if an address of this host has this GID, as the program has known it first or as it is now.
pub fn is_of_this_host(gid: &Gid) -> bool {
    let gid = gid_of(address_map::first_known(Ipv6Addr::from(*gid).to_canonical()));
    table().as_ref().is_some_and(|t| t.addresses.contains(&gid))
}

fn gid_of(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str, mtu: u32, addresses: &[&str]) -> Interface {
        Interface {
            index,
            name: name.into(),
            mtu,
            running: true,
            loopback: name == "lo",
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        }
    }

    fn lo() -> Interface {
        interface(1, "lo", 65536, &["127.0.0.1", "::1"])
    }

    /// Indices of the valid entries, and their interfaces.
    fn names(table: &Table) -> Vec<(u32, &str)> {
        let name = |index| Some((index, table.at(index)?.ifname.as_str()));
        (0..LIMITS.gids).filter_map(name).collect()
    }

    /// The address at index 3.
    fn usual(table: &Table) -> Option<String> {
        table.at(USUAL).map(|entry| Ipv6Addr::from(entry.gid).to_canonical().to_string())
    }

    fn events(changes: &Changes) -> Vec<u32> {
        changes.events().collect()
    }

    #[test]
    fn an_ib_mtu_leaves_room_for_the_headers() {
        let known = [(65536, 5), (9000, 5), (4200, 5), (4175, 4), (1500, 3), (1400, 3), (1280, 3), (1103, 2), (68, 1)];
        for (netdev, code) in known {
            assert_eq!(mtu_of(netdev), code, "{netdev}");
        }
    }

    #[test]
    fn the_ports_interface_is_the_first_running_one_that_is_no_loopback() {
        let mut table = Table::default();
        let mut bridge = interface(3, "docker0", 1500, &["172.17.0.1"]);
        bridge.running = false;
        let eth = interface(4, "eth0", 9000, &["fe80::1", "10.0.0.1"]);
        table.update(&[lo(), bridge, eth], None, None);
        assert_eq!(table.line, Some(Line { up: true, mtu: 5 }));
        assert_eq!(names(&table), [(0, "eth0"), (1, "eth0"), (2, "docker0"), (3, "eth0"), (4, "lo"), (5, "lo")]);
        assert_eq!(table.slots[0].entry.gid, gid_of("10.0.0.1".parse().unwrap()), "IPv4 first");
    }

    #[test]
    fn loopback_alone_is_a_port_until_there_is_a_network() {
        let mut table = Table::default();
        table.update(&[lo()], None, None);
        assert_eq!(table.line, Some(Line { up: true, mtu: 5 }));
        let changes = table.update(&[lo(), interface(2, "eth0", 1500, &["10.0.0.1"])], None, None);
        assert_eq!((events(&changes), changes.now), (vec![event::GID_CHANGE], Line { up: true, mtu: 3 }));
        assert_eq!(table.slots[0].entry.ifname, "lo", "entries keep their indices");
    }

    #[test]
    fn a_pulled_cable_takes_the_port_down_and_addresses_come_back_where_they_were() {
        let mut table = Table::default();
        let up = interface(2, "eth0", 1500, &["10.0.0.1", "fe80::1"]);
        let mut down = interface(2, "eth0", 1500, &["10.0.0.1"]);
        down.running = false;
        assert!(events(&table.update(&[lo(), up.clone()], None, None)).is_empty(), "the first look is no news");
        let changes = table.update(&[lo(), down], None, None);
        assert_eq!(events(&changes), [event::PORT_ERR, event::GID_CHANGE]);
        assert!(!table.slots[1].present);
        let changes = table.update(&[lo()], None, None);
        assert_eq!((events(&changes), changes.now), (vec![event::GID_CHANGE], Line { up: false, mtu: 3 }));
        let changes = table.update(&[lo(), up], None, None);
        assert_eq!(events(&changes), [event::PORT_ACTIVE, event::GID_CHANGE]);
        assert_eq!(names(&table), [(0, "eth0"), (1, "eth0"), (2, "lo"), (3, "eth0"), (4, "lo")]);
    }

    #[test]
    fn an_interface_without_carrier_is_the_port_where_there_is_no_other() {
        let mut table = Table::default();
        let mut down = interface(2, "eth0", 1500, &["10.0.0.1"]);
        down.running = false;
        table.update(std::slice::from_ref(&down), None, None);
        assert_eq!(table.line, Some(Line { up: false, mtu: 3 }));
        table.update(&[lo(), down], None, None);
        assert_eq!(table.line, Some(Line { up: true, mtu: 5 }));
    }

    #[test]
    fn index_3_has_the_ipv4_address_that_leads_farthest_and_keeps_it() {
        let eth = |name: &str, addresses: &[&str]| interface(2, name, 1500, addresses);
        let mut down = interface(3, "eth1", 1500, &["10.0.0.3"]);
        down.running = false;
        let cases: [(&[Interface], _); 6] = [
            (&[lo()], "127.0.0.1"),
            (&[lo(), eth("eth0", &["fe80::1", "10.0.0.1", "10.0.0.2"])], "10.0.0.1"),
            (&[lo(), eth("br0", &["fe80::1"]), interface(4, "eth0", 1500, &["10.0.0.1"])], "10.0.0.1"),
            (&[lo(), eth("eth0", &["2001:db8::1", "fe80::1"])], "2001:db8::1"),
            (&[lo(), eth("eth0", &["fe80::1"]), down], "fe80::1"),
            (&[interface(1, "lo", 65536, &["::1"])], "::1"),
        ];
        for (all, expected) in cases {
            let mut table = Table::default();
            table.update(all, None, None);
            assert_eq!(usual(&table).as_deref(), Some(expected));
            let entries = table.valid();
            assert!(entries.iter().all(|e| e.gid_type == GidType::RoceV2) && entries.is_sorted_by_key(|e| e.index));
            assert_eq!(entries.len(), table.present().count() + 1);
        }
        let mut table = Table::default();
        table.update(&[], None, None);
        assert_eq!(usual(&table), None, "no address");
        table.update(&[lo()], None, None);
        table.update(&[lo(), eth("eth0", &["10.0.0.1"])], None, None);
        assert_eq!(usual(&table).as_deref(), Some("127.0.0.1"), "entries keep their indices");
        assert_eq!(names(&table), [(0, "lo"), (1, "lo"), (2, "eth0"), (3, "lo")]);
        table.update(&[eth("eth0", &["10.0.0.1"])], None, None);
        assert_eq!(names(&table), [(2, "eth0")]);
        table.update(&[lo(), eth("eth0", &["10.0.0.1", "10.0.0.2"])], None, None);
        assert_eq!(names(&table), [(0, "lo"), (1, "lo"), (2, "eth0"), (3, "lo"), (4, "eth0")]);
    }

    #[test]
    fn a_full_table_gives_the_place_of_an_address_that_went() {
        let mut table = Table::default();
        let many: Vec<String> = (0..63).map(|i| format!("10.0.0.{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        table.update(&[interface(2, "eth0", 1500, &many)], None, None);
        let kept = [&many[1..], &["10.9.9.9", "10.9.9.8"]].concat();
        table.update(&[interface(2, "eth0", 1500, &kept)], None, None);
        assert_eq!((table.slots.len(), table.valid().len()), (63, 64));
        assert_eq!(table.slots[0].entry.gid, gid_of("10.9.9.9".parse().unwrap()));
        assert!(table.addresses.contains(&gid_of("10.9.9.8".parse().unwrap())), "still an address of this host");
    }

    #[test]
    fn only_wanted_interfaces_have_gids() {
        let mut table = Table::default();
        let names = ["lo".to_owned()];
        table.update(&[lo(), interface(2, "eth0", 1500, &["10.0.0.1"])], Some(&names), None);
        assert_eq!(table.line, Some(Line { up: true, mtu: 5 }));
        assert!(table.present().all(|e| e.ifname == "lo"));
    }

    #[test]
    fn the_window_s_gid_comes_last_and_may_be_the_only_one() {
        let window = [0xfd; 16];
        let eth = interface(2, "eth0", 1500, &["10.0.0.1"]);
        for (alone, index) in [(false, 4), (true, 0)] {
            let mut table = Table::default();
            table.update(&[lo(), eth.clone()], None, Some((window, alone)));
            let of_window: Vec<_> = table.present().filter(|e| e.gid == window).map(|e| e.index).collect();
            assert_eq!(of_window, [index]);
            assert_eq!(table.valid().last().map(|e| e.gid), Some(window));
            assert_eq!(table.at(USUAL).map(|e| e.gid == window), Some(alone));
            assert!(table.addresses.contains(&window), "it leads to this host");
            assert_eq!(table.line, Some(Line { up: true, mtu: 3 }));
            // It has no address that could go.
            let more = interface(3, "eth1", 1500, &["10.0.0.2"]);
            let mut down = eth.clone();
            down.running = false;
            table.update(&[lo(), down, more], None, Some((window, alone)));
            let of_window: Vec<_> = table.present().filter(|e| e.gid == window).map(|e| e.index).collect();
            assert_eq!(of_window, [index]);
        }
        let mut table = Table::default();
        table.update(&[lo()], None, Some((window, false)));
        assert_eq!(table.valid().iter().map(|e| e.index).collect::<Vec<_>>(), [0, 1, 3, 4], "behind index 3");
    }
}
