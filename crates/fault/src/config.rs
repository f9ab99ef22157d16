//! What a user writes into `VERVAIN_FAULTS`, and the errors that tell what is wrong with it.

use std::fmt;
use std::str::FromStr;

use crate::Nanos;
use crate::chance::Probability;
use crate::rule::{Action, Direction, Rule};
use crate::selector::Selector;
use crate::units::{self, Span};

/// How late a packet is that others are to overtake, unless the user says.
const REORDER: Span<Nanos> = Span { low: 20_000, high: 1_000_000 };
/// Bytes that wait for the rate, unless the user says: a small switch's buffer for one port.
const QUEUE: u64 = 512_000;

/// Faults, as they are configured: items `[tx.|rx.]KEY=VALUE`, with commas between. An item without a direction is about
/// packets that are sent, so that two processes with the same faults have each packet meet them once.
///
/// | item | meaning |
/// |---|---|
/// | `seed=7` | which of the possible runs; 0 unless given |
/// | `drop=1%` | packets are lost; `drop=1%:x1..8` that many in a row each time |
/// | `dup=0.1%` | packets arrive twice; `dup=0.1%:1ms..2s` the second that much later |
/// | `corrupt=0.01%` | one to three bits are turned |
/// | `delay=100us..2ms` | packets are late, in order |
/// | `reorder=5%` | packets are late by 20us..1ms, others overtake them; `reorder=5%:1ms..5ms` by that much |
/// | `rate=1Gbit` | packets leave at this rate; those that find `queue=512kB` of others waiting are lost |
/// | `down=1s..3s` | everything is lost in this time after the start; may be repeated |
///
/// `drop`, `dup`, `corrupt`, `delay` and `reorder` may be repeated and take, after further colons, a probability (`100%`
/// unless given) and the packets that are meant, by the name of their operation and by count: `drop=50%:ack`,
/// `drop=read_response_last@3`, `delay=5ms:write@10..20`. Names are `any`, `ack`, `nak`, `rnr`, and the operations of the
/// BTH from `send_first` to `atomic_write`; a beginning (`send`, `read_response`) stands for all that begin so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub(crate) seed: u64,
    pub(crate) rules: Vec<Rule>,
    pub(crate) transmit: Port,
    pub(crate) receive: Port,
}

/// What holds for all packets of a direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    /// Bits in a second.
    pub(crate) rate: Option<u64>,
    /// Bytes that may wait for the rate.
    pub(crate) queue: u64,
    /// When nothing passes.
    pub(crate) down: Vec<Span<Nanos>>,
}

impl Default for Port {
    fn default() -> Self {
        Self { rate: None, queue: QUEUE, down: Vec::new() }
    }
}

/// An item that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear {
    /// As it was written.
    pub item: String,
    /// What could stand there.
    pub wanted: &'static str,
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not understood: wanted {}", self.item, self.wanted)
    }
}

impl std::error::Error for Unclear {}

impl Faults {
    /// Whether there are any in this direction.
    pub fn any(&self, direction: Direction) -> bool {
        let port = self.port(direction);
        port.rate.is_some() || !port.down.is_empty() || self.rules.iter().any(|rule| rule.direction == direction)
    }

    pub(crate) fn port(&self, direction: Direction) -> &Port {
        match direction {
            Direction::Transmit => &self.transmit,
            Direction::Receive => &self.receive,
        }
    }

    fn item(&mut self, item: &str) -> Result<(), &'static str> {
        let (key, value) = item.split_once('=').ok_or("KEY=VALUE")?;
        let (direction, key) = match key.split_once('.') {
            Some(("tx", key)) => (Direction::Transmit, key),
            Some(("rx", key)) => (Direction::Receive, key),
            Some(_) => return Err("tx. or rx. before the key"),
            None => (Direction::Transmit, key),
        };
        let port = match direction {
            Direction::Transmit => &mut self.transmit,
            Direction::Receive => &mut self.receive,
        };
        match key {
            "seed" => self.seed = value.parse().map_err(|_| "a number, as in seed=7")?,
            "rate" => {
                port.rate = Some(units::rate(value).ok_or("bits in a second, as in rate=100Mbit or rate=2.5Gbit")?)
            }
            "queue" => port.queue = units::bytes(value).ok_or("bytes, as in queue=256kB")?,
            "down" => port.down.push(units::span(value, units::time).ok_or("from and to, as in down=1s..3s")?),
            _ => self.rules.push(rule(direction, key, value)?),
        }
        Ok(())
    }
}

impl FromStr for Faults {
    type Err = Unclear;

    fn from_str(text: &str) -> Result<Self, Unclear> {
        let mut faults = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            faults.item(item).map_err(|wanted| Unclear { item: item.to_owned(), wanted })?;
        }
        Ok(faults)
    }
}

/// The parts of a rule's value, which may stand in any order.
#[derive(Default)]
struct Parts {
    probability: Option<Probability>,
    time: Option<Span<Nanos>>,
    run: Option<Span<u64>>,
    selector: Option<Selector>,
}

impl Parts {
    fn parse(value: &str) -> Result<Self, &'static str> {
        let mut parts = Self::default();
        for part in value.split(':') {
            let twice = if part.contains('%') {
                parts.probability.replace(units::probability(part).ok_or("0% to 100%")?).is_some()
            } else if let Some(run) = part.strip_prefix('x') {
                let run = units::span(run, |n| n.parse().ok().filter(|&n: &u64| n > 0));
                parts.run.replace(run.ok_or("how many in a row, as in x3 or x1..8")?).is_some()
            } else if part.starts_with(|c: char| c.is_ascii_digit()) {
                let time = units::span(part, units::time);
                parts.time.replace(time.ok_or("a time, as in 5ms or 100us..2ms")?).is_some()
            } else {
                let selector = Selector::parse(part);
                let wanted = "a time, a percentage, or the name of an operation and a count, as in write_last@3";
                parts.selector.replace(selector.ok_or(wanted)?).is_some()
            };
            if twice {
                return Err("only one probability, one time and one selection of packets");
            }
        }
        Ok(parts)
    }
}

fn rule(direction: Direction, key: &str, value: &str) -> Result<Rule, &'static str> {
    let parts = || Parts::parse(value);
    let (parts, action, timed) = match key {
        "drop" => {
            let parts = parts()?;
            let run = parts.run.unwrap_or(Span { low: 1, high: 1 });
            (parts, Action::Drop(run), false)
        }
        "corrupt" => (parts()?, Action::Corrupt, false),
        "dup" => {
            let parts = parts()?;
            let after = parts.time.unwrap_or(Span { low: 0, high: 0 });
            (parts, Action::Duplicate(after), true)
        }
        "delay" => {
            let parts = parts()?;
            let by = parts.time.ok_or("how long, as in delay=5ms or delay=100us..2ms")?;
            (parts, Action::Delay(by), true)
        }
        "reorder" => {
            let parts = parts()?;
            let by = parts.time.unwrap_or(REORDER);
            (parts, Action::Reorder(by), true)
        }
        _ => return Err("seed, drop, dup, corrupt, delay, reorder, rate, queue or down"),
    };
    if parts.time.is_some() && !timed {
        return Err("no time: only dup, delay and reorder have one");
    }
    if parts.run.is_some() && !matches!(action, Action::Drop(_)) {
        return Err("no xN: only drop has one");
    }
    if parts.probability.is_none() && parts.selector.is_none() && !matches!(action, Action::Delay(_)) {
        return Err("a percentage or the name of an operation, as in 1% or ack@3");
    }
    let probability = parts.probability.unwrap_or(Probability::ALWAYS);
    Ok(Rule { direction, action, probability, selector: parts.selector })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_item_is_understood() {
        let text = "seed=7, drop=1%:x1..8,rx.drop=read_response_last@3,dup=0.1%:1ms..2s,corrupt=0.01%,delay=100us..2ms,\
                    reorder=5%,rate=1Gbit,queue=64kB,down=1s..3s,rx.down=5s..6s";
        let faults: Faults = text.parse().unwrap();
        assert_eq!(faults.seed, 7);
        assert_eq!(faults.rules.len(), 6);
        assert_eq!(faults.rules[0].action, Action::Drop(Span { low: 1, high: 8 }));
        assert_eq!(faults.rules[1].direction, Direction::Receive);
        assert_eq!(faults.rules[1].probability, Probability::ALWAYS);
        assert_eq!(faults.transmit.rate, Some(1_000_000_000));
        assert_eq!(faults.transmit.queue, 64_000);
        assert_eq!(faults.receive.down.len(), 1);
        assert!(faults.any(Direction::Transmit) && faults.any(Direction::Receive));
    }

    #[test]
    fn no_items_are_no_faults() {
        let faults: Faults = "seed=3".parse().unwrap();
        assert!(!faults.any(Direction::Transmit) && !faults.any(Direction::Receive));
        assert!(!"rx.drop=1%".parse::<Faults>().unwrap().any(Direction::Transmit));
    }

    #[test]
    fn an_error_names_the_item_and_what_could_stand_there() {
        let error = "drop=1%,delay=3".parse::<Faults>().unwrap_err();
        assert_eq!(error.to_string(), "\"delay=3\" is not understood: wanted a time, as in 5ms or 100us..2ms");
        for text in [
            "drop",
            "drop=",
            "drop=0.5",
            "lose=1%",
            "up.drop=1%",
            "drop=1%:2%",
            "drop=5ms:ack",
            "dup=1%:x3",
            "delay=ack",
            "rate=5",
        ] {
            assert_eq!(text.parse::<Faults>().unwrap_err().item, text);
        }
    }
}
