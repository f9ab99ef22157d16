//! The GID table of the Ethernet ports and the interface that stands behind them, kept up to date with the host's network,
//! and the async events that a change is. The link hears of changes (netlink) and calls
//! [`crate::context::network_changed`].
//!
//! * A GID for each address; an entry keeps its index as long as the process lives. An address that goes leaves an empty
//!   entry, which is its own again when it comes back.
//! * The GID of this node in a window comes behind those of all interfaces, so that index 0 remains what it is without one; with
//!   `VERVAIN_LINK=window` it is the only one. It counts as one of the interface that comes first. InfiniBand ports have it too
//!   ([`crate::device::Device::gids`]).
//! * The port's interface gives state and MTU: the first one that runs, has an address and is no loopback, by name and
//!   for good; until there is one, the loopback interface if it runs, else the first that has an address. Peers of this host are reached whatever its MTU, so it is the
//!   network that the MTU has to fit; a cable that is pulled is a port that goes down, not one that moves to `lo`.

use crate::device::{GidEntry, GidType, LIMITS, lids};
use crate::error::{Error, Result};
use crate::host::address_map;
use crate::host::lock::{OwnerGuard, OwnerLock};
use crate::host::network::{Interface, interfaces};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;
use vervain_config::{Config, INTERFACE, LinkChoice};
use vervain_iba::{AhAttr, Gid, event};

/// What a packet carries besides payload, at most, and what rxe leaves for it: IP, UDP, BTH, extended headers, ICRC.
const OVERHEAD: u32 = 80;

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

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    /// Every address of this host, those included that have no GID.
    addresses: Vec<Gid>,
    /// Name of the port's interface once it is settled.
    port: Option<String>,
    line: Option<Line>,
}

static TABLE: OwnerLock<Option<Table>> = OwnerLock::new(None);
/// That of this node in the window, and whether there is no other.
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

/// Whether an address leads through the window: the GIDs of its nodes differ in the number alone, and LIDs are theirs.
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

/// Whether `VERVAIN_INTERFACE` names interfaces that exist.
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
                Some(index) => self.slots[index].present = true,
                None => self.enter(first, gid),
            }
            self.addresses.push(gid);
        }
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
            // Of an interface that is gone, the MTU that it had.
            mtu: port.map_or(line.map_or(1, |l| l.mtu), |i| mtu_of(i.mtu)),
        };
        self.line = Some(now);
        Changes { gids: !gids.iter().eq(self.present().map(|e| &e.gid)), up: line.map(|l| l.up), now }
    }

    fn enter(&mut self, interface: &Interface, gid: Gid) {
        let entry = |index: usize| GidEntry {
            index: index as u32,
            gid,
            ifindex: interface.index,
            ifname: interface.name.clone(),
            gid_type: GidType::RoceV2,
        };
        let same = |s: &Slot| !s.present && s.entry.gid == gid && s.entry.ifname == interface.name;
        let index = match self.slots.iter().position(same) {
            Some(index) => index,
            None if self.slots.len() < LIMITS.gid_table as usize => self.slots.len(),
            None => match self.slots.iter().position(|s| !s.present) {
                Some(index) => index,
                None => return,
            },
        };
        let slot = Slot { entry: entry(index), present: true };
        match self.slots.get_mut(index) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
    }

    fn present(&self) -> impl Iterator<Item = &GidEntry> {
        self.slots.iter().filter(|s| s.present).map(|s| &s.entry)
    }
}

struct Changes {
    gids: bool,
    /// Whether the line was up; none at the first look.
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
    let slot = table.as_ref()?.slots.get(index as usize).filter(|s| s.present)?;
    Some((slot.entry.gid, slot.entry.ifindex))
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

/// Looks at the network again; the async events (`enum ibv_event_type`) that the change is to the ports behind it, and whether
/// they are up now. What a process sees that has left, or has left since, is no change.
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
    let own = |entry: GidEntry| (Ipv6Addr::from(entry.gid).to_canonical(), entry.ifname);
    entries().into_iter().map(own).collect()
}

/// The index of the interface that has a GID at this moment, and had `index` when the table was filled; none if no interface has it.
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
    table().as_ref().map(|t| t.present().cloned().collect()).unwrap_or_default()
}

/// The GID at `index`; zeros for an empty entry.
pub(crate) fn gid_at(index: u32) -> Gid {
    let table = table();
    let slot = table.as_ref().and_then(|t| t.slots.get(index as usize));
    slot.filter(|s| s.present).map_or([0; 16], |s| s.entry.gid)
}

/// Whether an address of this host has this GID, as the program has known it first or as it is now.
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
        let gids: Vec<_> = table.present().map(|e| (e.index, e.ifname.as_str())).collect();
        assert_eq!(gids, [(0, "eth0"), (1, "eth0"), (2, "docker0"), (3, "lo"), (4, "lo")]);
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
        let gids: Vec<_> = table.present().map(|e| (e.index, e.ifname.as_str())).collect();
        assert_eq!(gids, [(0, "eth0"), (1, "eth0"), (2, "lo"), (3, "lo")]);
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
    fn a_full_table_gives_the_place_of_an_address_that_went() {
        let mut table = Table::default();
        let many: Vec<String> = (0..64).map(|i| format!("10.0.0.{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        table.update(&[interface(2, "eth0", 1500, &many)], None, None);
        let kept = [&many[1..], &["10.9.9.9", "10.9.9.8"]].concat();
        table.update(&[interface(2, "eth0", 1500, &kept)], None, None);
        assert_eq!(table.slots.len(), 64);
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
        for (alone, index) in [(false, 3), (true, 0)] {
            let mut table = Table::default();
            table.update(&[lo(), eth.clone()], None, Some((window, alone)));
            let gids: Vec<_> = table.present().map(|e| e.gid).collect();
            assert_eq!((gids.len(), gids[index]), (index + 1, window));
            assert!(table.addresses.contains(&window), "it leads to this host");
            assert_eq!(table.line, Some(Line { up: true, mtu: 3 }));
            // It has no address that could go.
            let more = interface(3, "eth1", 1500, &["10.0.0.2"]);
            let mut down = eth.clone();
            down.running = false;
            table.update(&[lo(), down, more], None, Some((window, alone)));
            let of_window: Vec<_> = table.present().filter(|e| e.gid == window).map(|e| e.index as usize).collect();
            assert_eq!(of_window, [index]);
        }
    }
}
