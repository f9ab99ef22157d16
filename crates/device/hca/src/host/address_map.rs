//! Addresses as the program knows them, and as they are. A process that was restored elsewhere keeps in its memory the
//! addresses that it has learned: GIDs of its own and of its peers. Inside the process they stay as they were; the
//! kernel and the wire use the present ones. Code that talks to either translates here. A process that was never moved
//! pays a load and a branch.
//!
//! Its own addresses also keep the names of interfaces by which the GID table knows them ([`crate::device::gids`]).

use crate::host::lock::OwnerLock;
use crate::host::network::{Interface, at_present};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Some address is another than the program knows.
static MOVED: AtomicBool = AtomicBool::new(false);
/// Odd while the process has left; the network does not concern it then.
static PARTINGS: AtomicU32 = AtomicU32::new(0);
static STATE: OwnerLock<State> = OwnerLock::new(State {
    now: Moves::NONE,
    at_leave: Left { moves: Moves::NONE, own: Vec::new() },
    names: Vec::new(),
});

struct State {
    now: Moves,
    /// State at the moment of leaving. The pairs given at a return refer to it, however often the process tries to
    /// return.
    at_leave: Left,
    /// Addresses that the process has had itself, as it knows them, and their interfaces.
    names: Vec<(IpAddr, String)>,
}

/// State when the process left: the moves, and its own addresses with their interfaces.
struct Left {
    moves: Moves,
    own: Vec<(IpAddr, String)>,
}

/// Present addresses that differ from those that the program knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Moves {
    /// Present addresses of hosts, by the addresses that the program has known first.
    hosts: BTreeMap<IpAddr, IpAddr>,
    /// Present addresses, by addresses that hosts have had in between, which the program may have learned, and no host
    /// has now.
    learned: BTreeMap<IpAddr, IpAddr>,
    /// The hosts by what their addresses have become; of two the one that was set last.
    known: BTreeMap<IpAddr, IpAddr>,
}

/// Returns true if any address is another than the program knows: what is on the way of each packet asks this, and the
/// rest apart.
#[inline]
pub fn is_moved() -> bool {
    MOVED.load(Ordering::Relaxed)
}

/// The address that a host has which the program knows by `known`.
#[inline]
pub fn actual(known: IpAddr) -> IpAddr {
    if is_moved() { actual_of_moved(known) } else { known }
}

#[cold]
fn actual_of_moved(known: IpAddr) -> IpAddr {
    STATE.lock().now.actual(known)
}

/// The address by which the program knows the host that has `actual`; none if it knows another host by that one.
#[cold]
pub fn known(actual: IpAddr) -> Option<IpAddr> {
    STATE.lock().now.known(actual)
}

/// The address by which the program has known a host first, of that or of what it has become.
#[inline]
pub fn first_known(ip: IpAddr) -> IpAddr {
    if is_moved() { first_known_of_moved(ip) } else { ip }
}

#[cold]
fn first_known_of_moved(ip: IpAddr) -> IpAddr {
    let state = STATE.lock();
    state.now.known(state.now.actual(ip)).unwrap_or(ip)
}

/// [`actual`] of an address with a port.
#[cold]
pub fn actual_socket(mut known: SocketAddr) -> SocketAddr {
    known.set_ip(actual(known.ip()));
    known
}

/// [`known`] of an address with a port.
#[cold]
pub fn known_socket(mut actual: SocketAddr) -> Option<SocketAddr> {
    actual.set_ip(known(actual.ip())?);
    Some(actual)
}

/// The process leaves: from now on the network may be another. `own` are the addresses of this process, as the program
/// knows them, with the names of their interfaces.
pub(crate) fn leave(own: Vec<(IpAddr, String)>) {
    let mut state = STATE.lock();
    if here().is_some() {
        state.at_leave = Left { moves: state.now.clone(), own };
        PARTINGS.fetch_add(1, Ordering::AcqRel);
    }
}

/// Sets the changes of addresses before the process returns. Each pair is an address as it was when the process left,
/// or as the program knows it, and as it is now. A second call replaces the pairs of the first.
pub(crate) fn change(pairs: &[(IpAddr, IpAddr)]) {
    let present = if pairs.is_empty() { Vec::new() } else { at_present() };
    let mut state = STATE.lock();
    let State { now, at_leave, names } = &mut *state;
    if !pairs.is_empty() {
        let news = at_leave.own.iter().filter(|(ip, _)| !names.iter().any(|(known, _)| known == ip));
        let news: Vec<_> = news.cloned().collect();
        names.extend(news);
    }
    *now = at_leave.moves.then(pairs);
    now.follow_links(names, &present);
    MOVED.store(!now.is_none(), Ordering::Relaxed);
}

/// It is back.
pub(crate) fn come_back() {
    let _state = STATE.lock();
    if here().is_none() {
        PARTINGS.fetch_add(1, Ordering::AcqRel);
    }
}

/// A number that changes when the process leaves: facts about the network that were read under another number are no
/// news. None while it is away.
pub(crate) fn here() -> Option<u32> {
    Some(PARTINGS.load(Ordering::Acquire)).filter(|partings| partings & 1 == 0)
}

/// The interfaces with the addresses and names that the program knows.
pub(crate) fn as_known(all: Vec<Interface>) -> Vec<Interface> {
    let state = STATE.lock();
    if state.names.is_empty() && state.now.is_none() { all } else { view(&state.now, &state.names, all) }
}

/// An interface whose addresses the program knows on several appears as each of these.
fn view(moves: &Moves, names: &[(IpAddr, String)], all: Vec<Interface>) -> Vec<Interface> {
    let mut shown: Vec<Interface> = Vec::new();
    // Names that others are known by, and whose they are.
    let mut claimed: Vec<(String, String)> = Vec::new();
    let mut bare = Vec::new();
    for interface in all {
        let mut parts: Vec<Interface> = Vec::new();
        let mut rest = Vec::new();
        for known in interface.addresses.iter().filter_map(|ip| moves.known(*ip)) {
            let Some((_, name)) = names.iter().find(|(ip, _)| *ip == known) else {
                rest.push(known);
                continue;
            };
            match parts.iter_mut().find(|part| part.name == *name) {
                Some(part) => part.addresses.push(known),
                None => parts.push(Interface { name: name.clone(), addresses: vec![known], ..interface.clone() }),
            }
        }
        let own = parts.iter().position(|part| part.name == interface.name).unwrap_or(0);
        match parts.get_mut(own) {
            Some(part) => part.addresses.extend(rest),
            None => bare.push(Interface { addresses: rest, ..interface.clone() }),
        }
        claimed.extend(parts.iter().map(|part| (part.name.clone(), interface.name.clone())));
        shown.extend(parts);
    }
    for mut interface in bare {
        // It makes room for the one that is known by its name.
        let mut seen = 0;
        while let Some((_, of)) = claimed.iter().find(|(name, _)| *name == interface.name)
            && seen < claimed.len()
        {
            interface.name.clone_from(of);
            seen += 1;
        }
        shown.push(interface);
    }
    shown.sort_by_key(|interface| interface.index);
    shown
}

impl Moves {
    const NONE: Moves = Moves { hosts: BTreeMap::new(), learned: BTreeMap::new(), known: BTreeMap::new() };

    fn is_none(&self) -> bool {
        self.hosts.is_empty() && self.learned.is_empty()
    }

    fn actual(&self, known: IpAddr) -> IpAddr {
        self.hosts.get(&known).or_else(|| self.learned.get(&known)).copied().unwrap_or(known)
    }

    fn known(&self, actual: IpAddr) -> Option<IpAddr> {
        let is_other = self.hosts.contains_key(&actual) || self.learned.contains_key(&actual);
        self.known.get(&actual).copied().or((!is_other).then_some(actual))
    }

    /// The moves after those of `pairs` as well. These name an address as it was until now, or, if no host had that
    /// address, as the program knows it.
    fn then(&self, pairs: &[(IpAddr, IpAddr)]) -> Moves {
        let changes: BTreeMap<IpAddr, IpAddr> = pairs.iter().copied().collect();
        let after = |of: &BTreeMap<IpAddr, IpAddr>| -> BTreeMap<IpAddr, IpAddr> {
            of.iter().map(|(known, was)| (*known, *changes.get(was).unwrap_or(was))).collect()
        };
        let (mut hosts, mut learned) = (after(&self.hosts), after(&self.learned));
        for (old, new) in changes.iter() {
            if self.known.contains_key(old) {
                if !self.hosts.contains_key(old) {
                    learned.entry(*old).or_insert(*new);
                }
            } else if self.hosts.get(old).is_none_or(|was| !changes.contains_key(was)) {
                hosts.insert(*old, *new);
            }
        }
        hosts.retain(|known, actual| known != actual);
        let by_actual = |all: &BTreeMap<IpAddr, IpAddr>, is_new: bool| -> Vec<(IpAddr, IpAddr)> {
            let is_told = |(known, actual): &(&IpAddr, &IpAddr)| (self.hosts.get(known) != Some(actual)) == is_new;
            all.iter().filter(is_told).map(|(known, actual)| (*actual, *known)).collect()
        };
        let known: BTreeMap<_, _> = by_actual(&hosts, false).into_iter().chain(by_actual(&hosts, true)).collect();
        learned.retain(|ip, actual| ip != actual && !hosts.contains_key(ip) && !known.contains_key(ip));
        Moves { hosts, learned, known }
    }

    /// An address of a link, which the pairs do not name, is that of the interface to which other addresses of its own
    /// have gone: each host has others, and a program that uses all of its addresses has them open too.
    fn follow_links(&mut self, own: &[(IpAddr, String)], present: &[Interface]) {
        for (ip, name) in own.iter().filter(|(ip, _)| is_of_link(*ip)) {
            let now = self.actual(*ip);
            if present.iter().any(|interface| interface.addresses.contains(&now)) {
                continue;
            }
            let others: Vec<IpAddr> = own
                .iter()
                .filter(|(other, of)| !is_of_link(*other) && of == name)
                .map(|(ip, _)| self.actual(*ip))
                .collect();
            let Some(interface) = present.iter().find(|i| i.addresses.iter().any(|ip| others.contains(ip))) else {
                continue;
            };
            if let Some(new) =
                interface.addresses.iter().find(|new| is_of_link(**new) && self.known(**new) == Some(**new))
            {
                self.hosts.insert(*ip, *new);
                self.known.insert(*new, *ip);
            }
        }
    }
}

fn is_of_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn pairs(text: &str) -> Vec<(IpAddr, IpAddr)> {
        let pair = |pair: &str| pair.split_once('=').map(|(old, new)| (ip(old), ip(new)));
        text.split_whitespace().filter_map(pair).collect()
    }

    fn after(restarts: &[&str]) -> Moves {
        restarts.iter().fold(Moves::default(), |moves, restart| moves.then(&pairs(restart)))
    }

    fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|text| ip(text)).collect();
        Interface { index, name: name.into(), mtu: 1500, running: true, loopback: name == "lo", addresses }
    }

    fn shown(all: &[Interface]) -> Vec<(u32, String, Vec<IpAddr>)> {
        all.iter().map(|i| (i.index, i.name.clone(), i.addresses.clone())).collect()
    }

    #[test]
    fn both_ways_lead_to_each_other() {
        let moves = after(&["10.0.0.1=10.0.1.1 10.0.0.2=10.0.0.3 10.0.0.3=10.0.0.2"]);
        for (known, actual) in pairs("10.0.0.1=10.0.1.1 10.0.0.2=10.0.0.3 10.0.0.3=10.0.0.2 10.0.0.9=10.0.0.9") {
            assert_eq!((moves.actual(known), moves.known(actual)), (actual, Some(known)));
        }
        assert_eq!(moves.known(ip("10.0.0.1")), None, "who has it now is not who the program knows by it");
        assert_eq!(moves.actual(ip("10.0.1.1")), ip("10.0.1.1"), "a program may learn it anew");
    }

    #[test]
    fn restarts_compose() {
        let hosts = |restarts: &[&str]| after(restarts).hosts.into_iter().collect::<Vec<_>>();
        assert_eq!(hosts(&["10.0.0.1=10.0.0.2", "10.0.0.2=10.0.0.3"]), pairs("10.0.0.1=10.0.0.3"));
        assert_eq!(hosts(&["10.0.0.1=10.0.0.2", "10.0.0.1=10.0.0.3"]), pairs("10.0.0.1=10.0.0.3"), "as it is known");
        assert_eq!(hosts(&["10.0.0.1=10.0.0.2", "10.0.0.2=10.0.0.1"]), [], "back again");
        assert_eq!(hosts(&["10.0.0.1=10.0.0.2", ""]), pairs("10.0.0.1=10.0.0.2"));
        let swap = "10.0.0.1=10.0.0.2 10.0.0.2=10.0.0.1";
        assert!(after(&[swap, swap]).is_none());
        // The address is that of one host, and the program knows another by it.
        assert_eq!(hosts(&[swap, "10.0.0.1=10.0.0.9"]), pairs("10.0.0.1=10.0.0.2 10.0.0.2=10.0.0.9"));
        let both = "10.0.0.1=10.0.0.8 10.0.0.2=10.0.0.9";
        assert_eq!(
            hosts(&["10.0.0.1=10.0.0.2", both]),
            pairs("10.0.0.1=10.0.0.9"),
            "what was there goes before what is known"
        );
    }

    #[test]
    fn what_hosts_were_in_between_leads_to_them_until_another_has_it() {
        let moves = after(&["10.0.0.1=10.0.0.2", "10.0.0.2=10.0.0.3", "10.0.0.3=10.0.0.1"]);
        for learned in ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip) {
            assert_eq!(moves.actual(learned), ip("10.0.0.1"));
        }
        assert_eq!(moves.known(ip("10.0.0.1")), Some(ip("10.0.0.1")));
        assert_eq!(moves.known(ip("10.0.0.2")), None);
        let moves = after(&["10.0.0.1=10.0.0.2", "10.0.0.2=10.0.0.3 10.0.0.9=10.0.0.2"]);
        assert_eq!((moves.actual(ip("10.0.0.2")), moves.known(ip("10.0.0.2"))), (ip("10.0.0.2"), Some(ip("10.0.0.9"))));
        // Of two that lead to one address, the one that was set last.
        let moves = after(&["10.0.0.1=10.0.0.5", "10.0.0.0=10.0.0.5"]);
        assert_eq!(moves.known(ip("10.0.0.5")), Some(ip("10.0.0.0")));
    }

    #[test]
    fn own_addresses_are_on_the_interfaces_that_the_program_knows() {
        let names = [("127.0.0.1", "lo"), ("10.0.0.1", "eth0"), ("fd00::1", "eth0"), ("10.1.0.1", "ib0")];
        let names = names.map(|(address, name)| (ip(address), name.to_owned()));
        let moves = after(&["10.0.0.1=10.0.0.5 fd00::1=fd00::5 10.1.0.1=10.1.0.5 10.0.0.2=10.0.0.1"]);
        let here = vec![
            interface(1, "lo", &["127.0.0.1"]),
            interface(2, "eth0", &["192.168.0.1"]),
            interface(5, "ens1", &["10.0.0.5", "10.1.0.5", "10.0.0.77"]),
            interface(6, "ens2", &["fd00::5", "10.0.0.1"]),
        ];
        let expected = [
            interface(1, "lo", &["127.0.0.1"]),
            interface(2, "ens1", &["192.168.0.1"]),
            interface(5, "eth0", &["10.0.0.1", "10.0.0.77"]),
            interface(5, "ib0", &["10.1.0.1"]),
            interface(6, "eth0", &["fd00::1", "10.0.0.2"]),
        ];
        assert_eq!(shown(&view(&moves, &names, here)), shown(&expected));
    }

    #[test]
    fn addresses_of_links_go_where_others_of_their_interface_are() {
        let own =
            [("10.0.0.1", "eth0"), ("fe80::1", "eth0"), ("fe80::2", "eth1")].map(|(a, name)| (ip(a), name.to_owned()));
        let there = [interface(2, "eth0", &["fe80::2"]), interface(3, "ens1", &["10.0.0.5", "fe80::5", "fe80::6"])];
        let mut moves = after(&["10.0.0.1=10.0.0.5"]);
        moves.follow_links(&own, &there);
        assert_eq!([moves.actual(ip("fe80::1")), moves.actual(ip("fe80::2"))], ["fe80::5", "fe80::2"].map(ip));
        // The process's own address, and the one it was named by.
        let mut moves = after(&["10.0.0.1=10.0.0.5 fe80::1=fe80::6"]);
        moves.follow_links(&own, &there);
        assert_eq!(moves.actual(ip("fe80::1")), ip("fe80::6"));
    }
}
