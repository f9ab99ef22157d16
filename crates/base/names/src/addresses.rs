//! Which addresses have become which: a job goes on where addresses are others than those that its programs know.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Addresses, and what they have become. All change at once, so two may have changed places. Both of a pair are of one
/// family, and those of one host; no two become one. IPv4 addresses that are mapped into IPv6 are IPv4 addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressMap(BTreeMap<IpAddr, IpAddr>);

/// The reason why a map of addresses is wrong: a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMap(String);

impl AddressMap {
    /// The map of these pairs, old and new.
    ///
    /// # Errors
    /// A pair is of two families, or has what is no address of one host; an address is in two pairs on the same side.
    pub fn new(pairs: impl IntoIterator<Item = (IpAddr, IpAddr)>) -> Result<AddressMap, BadMap> {
        let mut map = BTreeMap::new();
        for (old, new) in pairs.into_iter().map(|(old, new)| (old.to_canonical(), new.to_canonical())) {
            if let Some(bad) = [old, new].into_iter().find(|ip| !is_of_one_host(*ip)) {
                return Err(BadMap(format!("{bad} is no address of a host")));
            }
            if old.is_ipv4() != new.is_ipv4() {
                return Err(BadMap(format!("{old} and {new} are of two families")));
            }
            if map.values().any(|other| *other == new) {
                return Err(BadMap(format!("two addresses cannot become {new}")));
            }
            if map.insert(old, new).is_some() {
                return Err(BadMap(format!("{old} is named twice")));
            }
        }
        Ok(AddressMap(map))
    }

    /// Returns true if no address is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each pair, old and new, ordered by the old ones.
    pub fn pairs(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.0.iter().map(|(old, new)| (*old, *new))
    }

    /// The new address for an old one; the old one itself, if it is not named. One that is mapped into IPv6 stays so.
    pub fn of(&self, old: IpAddr) -> IpAddr {
        match (self.0.get(&old.to_canonical()), old) {
            (None, _) => old,
            (Some(IpAddr::V4(new)), IpAddr::V6(_)) => new.to_ipv6_mapped().into(),
            (Some(new), _) => *new,
        }
    }
}

fn is_of_one_host(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && !matches!(ip, IpAddr::V4(ip) if ip.is_broadcast())
}

/// `old=new[,old=new…]`; nothing at all is an empty map.
impl FromStr for AddressMap {
    type Err = BadMap;

    fn from_str(text: &str) -> Result<AddressMap, BadMap> {
        let ip = |text: &str| text.parse().map_err(|_| BadMap(format!("`{text}` is no IP address")));
        let pair = |text: &str| match text.split_once('=') {
            Some((old, new)) => Ok((ip(old)?, ip(new)?)),
            None => Err(BadMap(format!("`{text}` is not OLD=NEW"))),
        };
        let pairs = text.split(',').filter(|_| !text.is_empty()).map(pair).collect::<Result<Vec<_>, _>>()?;
        AddressMap::new(pairs)
    }
}

/// The form that is parsed.
impl fmt::Display for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (old, new)) in self.pairs().enumerate() {
            write!(f, "{}{old}={new}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_map_is_read_and_written_alike() {
        for text in ["", "10.0.0.1=10.0.0.2", "10.0.0.1=10.0.0.2,10.0.0.2=10.0.0.1,fd00::1=fd00::2"] {
            assert_eq!(text.parse::<AddressMap>().unwrap().to_string(), text);
        }
        assert!("".parse::<AddressMap>().unwrap().is_empty());
    }

    #[test]
    fn each_address_becomes_what_it_is_said_to() {
        let map: AddressMap = "10.0.0.1=10.0.0.2,10.0.0.2=10.0.0.1,fd00::1=fd00::2".parse().unwrap();
        for (old, new) in [
            ("10.0.0.1", "10.0.0.2"),
            ("10.0.0.2", "10.0.0.1"),
            ("10.0.0.3", "10.0.0.3"),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.2"),
            ("::ffff:10.0.0.3", "::ffff:10.0.0.3"),
            ("fd00::1", "fd00::2"),
            ("::", "::"),
        ] {
            assert_eq!(map.of(ip(old)), ip(new));
        }
        assert_eq!("::ffff:10.0.0.1=10.0.0.2".parse::<AddressMap>().unwrap().to_string(), "10.0.0.1=10.0.0.2");
    }

    #[test]
    fn what_is_no_map_is_a_sentence() {
        for text in [
            ",",
            "10.0.0.1",
            "10.0.0.1=",
            "=10.0.0.1",
            "10.0.0.1=a.host",
            "10.0.0.1=fd00::1",
            "10.0.0.1=10.0.0.2,",
            "10.0.0.1=10.0.0.3,10.0.0.2=10.0.0.3",
            "10.0.0.1=10.0.0.3,10.0.0.1=10.0.0.4",
            "10.0.0.1=10.0.0.3,::ffff:10.0.0.1=10.0.0.4",
            "0.0.0.0=10.0.0.1",
            "10.0.0.1=224.0.0.1",
            "10.0.0.1=255.255.255.255",
            "fd00::1=ff02::1",
            "::=fd00::1",
        ] {
            assert!(text.parse::<AddressMap>().is_err(), "{text}");
        }
    }
}
