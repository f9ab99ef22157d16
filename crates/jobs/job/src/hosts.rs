//! The hosts of a job besides the supervisor's: their names, how an agent is started on one, and which hosts and
//! addresses have become which at a restart.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use serde::{Deserialize, Serialize};
use vervain_names::AddressMap;

/// A host as programs name it: a name or an IP address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Host(String);

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Host, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        // It becomes a word of a command line, and a part of a path.
        if text.is_empty() || text.len() > 253 || text.starts_with(['-', '.']) || !text.chars().all(fits) {
            return Err(format!("{text:?} is no name or address of a host"));
        }
        Ok(Host(text.to_owned()))
    }
}

impl TryFrom<String> for Host {
    type Error = String;

    fn try_from(text: String) -> Result<Host, String> {
        text.parse()
    }
}

impl From<Host> for String {
    fn from(host: Host) -> String {
        host.0
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Host {
    /// Its form in file names.
    pub(crate) fn file_name(&self) -> String {
        self.0.replace(':', "-")
    }
}

/// How a program is started on another host: words for a shell, in which `{}` stands for the host; without one the host
/// comes last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteStart(String);

impl FromStr for RemoteStart {
    type Err = String;

    fn from_str(text: &str) -> Result<RemoteStart, String> {
        if text.trim().is_empty() {
            return Err("it can be a command such as 'ssh' or 'srun -N1 -n1 -w {}'".to_owned());
        }
        Ok(RemoteStart(text.to_owned()))
    }
}

impl RemoteStart {
    /// The command that starts `program` on `host`.
    pub(crate) fn command(&self, host: &Host, program: &str) -> String {
        let name = &host.0;
        let start = if self.0.contains("{}") { self.0.replace("{}", name) } else { format!("{} {name}", self.0) };
        format!("exec {start} {program}")
    }
}

/// The addresses that this host has now.
///
/// # Errors
/// The kernel does not tell.
pub(crate) fn own_addresses() -> nix::Result<Vec<IpAddr>> {
    let up = getifaddrs()?.filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP));
    let addresses = up.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(addresses.collect())
}

/// The moves of a job that is brought back elsewhere: new hosts for old ones, and new addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    hosts: BTreeMap<Host, Host>,
    /// Addresses.
    pub addresses: AddressMap,
}

/// `old=new[,old=new…]`, of names and addresses. Hosts that are named by addresses move with these.
impl FromStr for Moves {
    type Err = String;

    fn from_str(text: &str) -> Result<Moves, String> {
        let mut moves = Moves::default();
        let mut pairs = Vec::new();
        for pair in text.split(',') {
            let (old, new) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is no old=new"))?;
            let (from, to): (Host, Host) = (old.parse()?, new.parse()?);
            match (old.parse::<IpAddr>(), new.parse::<IpAddr>()) {
                (Ok(old), Ok(new)) => pairs.push((old, new)),
                (Err(_), Err(_)) => {}
                _ => {
                    return Err(format!(
                        "{pair:?} has a name and an address; two names or two addresses can be a pair"
                    ));
                }
            }
            if moves.hosts.insert(from, to).is_some() {
                return Err(format!("{old} is named twice"));
            }
        }
        moves.addresses = AddressMap::new(pairs).map_err(|e| e.to_string())?;
        Ok(moves)
    }
}

impl Moves {
    /// The new host for one of the checkpoint; itself, if it is not named.
    pub(crate) fn of(&self, host: &Host) -> Host {
        self.hosts.get(host).unwrap_or(host).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_harmless_word() {
        for good in ["node7", "10.0.0.1", "fe80::1", "a-b.example"] {
            assert_eq!(good.parse::<Host>().unwrap().to_string(), good);
        }
        for bad in ["", "-oProxyCommand=x", "a b", "a;b", "../a", "a/b", "$(a)"] {
            assert!(bad.parse::<Host>().is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Host>("\"a b\"").is_err());
    }

    #[test]
    fn a_program_is_started_where_the_braces_say() {
        let host: Host = "n1".parse().unwrap();
        let command = |start: &str| start.parse::<RemoteStart>().unwrap().command(&host, "agent");
        assert_eq!(command("ssh"), "exec ssh n1 agent");
        assert_eq!(command("srun -w {} -n1"), "exec srun -w n1 -n1 agent");
        assert!(" ".parse::<RemoteStart>().is_err());
    }

    #[test]
    fn hosts_and_addresses_move() {
        let moves: Moves = "a=b,10.0.0.1=10.0.1.1".parse().unwrap();
        let of = |host: &str| moves.of(&host.parse().unwrap()).to_string();
        assert_eq!((of("a"), of("10.0.0.1"), of("c")), ("b".into(), "10.0.1.1".into(), "c".into()));
        let old: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(moves.addresses.of(old), "10.0.1.1".parse::<IpAddr>().unwrap());
        for bad in ["a", "a=10.0.0.1", "a=b,a=c", "10.0.0.1=::1", "=", "a=b,"] {
            assert!(bad.parse::<Moves>().is_err(), "{bad}");
        }
    }
}
