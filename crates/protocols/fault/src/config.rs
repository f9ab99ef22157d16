//! The text of `VERVAIN_FAULTS`, and the errors that name what is wrong with it.

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

/// The items as help text: those that the documentation of [`Faults`] has.
pub const GRAMMAR: &str = "\
Items, separated by commas:
  drop=1%             lost; drop=1%:x1..8 that many in a row each time
  dup=0.1%            arrives twice; dup=0.1%:1ms..2s the second that much later
  corrupt=0.01%       one to three bits are turned
  delay=100us..2ms    late, in order
  reorder=5%          late by 20us..1ms, others overtake; reorder=5%:1ms..5ms by that much
  rate=1Gbit          leaves at this rate; lost if queue=512kB of others wait
  down=1s..3s         everything is lost in this time after the start
  seed=7              decides as the run that said seed=7 at its end; random unless given
All are of packets that are sent, with rx. before an item of those that are received. drop, dup, \
corrupt, delay and reorder take a percentage and the packets that are meant, by operation and \
count: drop=50%:ack, rx.drop=read_response_last@3, delay=5ms:write@10..20. Operations are any, \
ack, nak, rnr, and those of the BTH from send_first to atomic_write, or how some of them begin.";

/// Faults, as they are configured: items `[tx.|rx.]KEY=VALUE`, with commas between. An item without a direction is
/// about packets that are sent, so that two processes with the same faults have each packet meet them once.
///
/// | item | meaning |
/// |---|---|
/// | `seed=7` | which of the possible runs; each process decides as all others with this seed, each port too |
/// | `drop=1%` | packets are lost; `drop=1%:x1..8` that many in a row each time |
/// | `dup=0.1%` | packets arrive twice; `dup=0.1%:1ms..2s` the second that much later |
/// | `corrupt=0.01%` | one to three bits are turned |
/// | `delay=100us..2ms` | packets are late, in order |
/// | `reorder=5%` | packets are late by 20us..1ms, others overtake them; `reorder=5%:1ms..5ms` by that much |
/// | `rate=1Gbit` | packets leave at this rate; those that find `queue=512kB` of others waiting are lost |
/// | `down=1s..3s` | everything is lost in this time after the start; may be repeated |
///
/// `drop`, `dup`, `corrupt`, `delay` and `reorder` may be repeated and take, after further colons, a probability
/// (`100%` unless given) and the packets that are meant, by the name of their operation and by count: `drop=50%:ack`,
/// `drop=read_response_last@3`, `delay=5ms:write@10..20`. Names are `any`, `ack`, `nak`, `rnr`, and the operations of
/// the BTH from `send_first` to `atomic_write`; a beginning (`send`, `read_response`) stands for all that begin so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub(crate) seed: Option<u64>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) transmit: Port,
    pub(crate) receive: Port,
}

/// The settings for all packets of a direction.
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{item}': {wanted}")]
pub struct Unclear {
    /// The item as it was written.
    pub item: String,
    /// A sentence on what could stand there.
    pub wanted: String,
}

/// The values that a key takes; None for an unknown key.
fn takes(key: &str) -> Option<&'static str> {
    Some(match key {
        "seed" => "seed takes a number, as in seed=7",
        "drop" => "drop takes a percentage, as in drop=1%",
        "dup" => "dup takes a percentage, as in dup=0.1%",
        "corrupt" => "corrupt takes a percentage, as in corrupt=0.01%",
        "delay" => "delay takes a time, as in delay=5ms or delay=100us..2ms",
        "reorder" => "reorder takes a percentage, as in reorder=5%",
        "rate" => "rate takes bits per second, as in rate=100Mbit or rate=2.5Gbit",
        "queue" => "queue takes a number of bytes, as in queue=256kB",
        "down" => "down takes two times after the start, as in down=1s..3s",
        _ => return None,
    })
}

impl Faults {
    /// The seed that was asked for.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// These faults, decided by a seed.
    pub fn with_seed(self, seed: u64) -> Faults {
        Faults { seed: Some(seed), ..self }
    }

    /// Returns true if there are any in this direction.
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

    fn item(&mut self, item: &str) -> Result<(), String> {
        let (name, value) = item.split_once('=').map_or((item, None), |(name, value)| (name, Some(value)));
        let (direction, key) = match name.split_once('.') {
            Some(("tx", key)) => (Direction::Transmit, key),
            Some(("rx", key)) => (Direction::Receive, key),
            Some((other, _)) => {
                return Err(format!("there is no direction '{other}', only tx and rx, as in rx.drop=1%"));
            }
            None => (Direction::Transmit, name),
        };
        let takes = takes(key).ok_or_else(|| {
            format!("there is no fault '{key}', only drop, dup, corrupt, delay, reorder, rate, queue, down and seed")
        })?;
        let value = value.ok_or(takes)?;
        let port = match direction {
            Direction::Transmit => &mut self.transmit,
            Direction::Receive => &mut self.receive,
        };
        match key {
            "seed" => self.seed = Some(value.parse().map_err(|_| takes)?),
            "rate" => port.rate = Some(units::rate(value).ok_or(takes)?),
            "queue" => port.queue = units::bytes(value).ok_or(takes)?,
            "down" => {
                let span = value.contains("..").then(|| units::span(value, units::time)).flatten();
                port.down.push(span.ok_or(takes)?);
            }
            _ => self.rules.push(rule(direction, key, value, takes)?),
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
    /// `takes` says what the key takes.
    fn parse(key: &str, value: &str, takes: &str) -> Result<Self, String> {
        let mut parts = Self::default();
        for part in value.split(':') {
            let twice = if part.contains('%') {
                let probability = units::probability(part).ok_or("a percentage is 0% to 100%")?;
                parts.probability.replace(probability).is_some()
            } else if let Some(run) = part.strip_prefix('x') {
                let run = units::span(run, |n| n.parse().ok().filter(|&n: &u64| n > 0));
                let wanted = "x takes how many packets in a row, as in drop=1%:x3 or drop=1%:x1..8";
                parts.run.replace(run.ok_or(wanted)?).is_some()
            } else if part.starts_with(|c: char| c.is_ascii_digit()) {
                // A bare number where the percentage is still missing is one without its sign.
                let bare = parts.probability.is_none() && parts.selector.is_none() || key == "delay";
                let wanted = if bare { takes } else { "a time has a unit, as in 5ms or 100us..2ms" };
                parts.time.replace(units::span(part, units::time).ok_or(wanted)?).is_some()
            } else if part.is_empty() {
                return Err(takes.to_owned());
            } else {
                let selector = Selector::parse(part);
                let wanted = || format!("{takes}, or the name of an operation, as in {key}=write_last@3");
                parts.selector.replace(selector.ok_or_else(wanted)?).is_some()
            };
            if twice {
                return Err(format!("{key} takes one percentage, one time and one name of an operation"));
            }
        }
        Ok(parts)
    }
}

fn rule(direction: Direction, key: &str, value: &str, takes: &str) -> Result<Rule, String> {
    let parts = Parts::parse(key, value, takes)?;
    let (action, timed) = match key {
        "drop" => (Action::Drop(parts.run.unwrap_or(Span { low: 1, high: 1 })), false),
        "corrupt" => (Action::Corrupt, false),
        "dup" => (Action::Duplicate(parts.time.unwrap_or(Span { low: 0, high: 0 })), true),
        "delay" => (Action::Delay(parts.time.ok_or(takes)?), true),
        "reorder" => (Action::Reorder(parts.time.unwrap_or(REORDER)), true),
        _ => return Err(takes.to_owned()),
    };
    if parts.time.is_some() && !timed {
        return Err(format!("{key} takes no time; dup, delay and reorder do"));
    }
    if parts.run.is_some() && !matches!(action, Action::Drop(_)) {
        return Err(format!("{key} takes no x; drop does"));
    }
    if parts.probability.is_none() && parts.selector.is_none() && !matches!(action, Action::Delay(_)) {
        return Err(takes.to_owned());
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
        assert_eq!(faults.seed(), Some(7));
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
    fn the_help_names_each_item_and_its_examples_are_understood() {
        let items = GRAMMAR.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        let items: Vec<_> = items.collect();
        assert_eq!(items.len(), 8);
        for item in
            items.iter().copied().chain(["drop=50%:ack", "rx.drop=read_response_last@3", "delay=5ms:write@10..20"])
        {
            assert!(GRAMMAR.contains(item) && item.parse::<Faults>().is_ok(), "{item}");
        }
        for key in ["drop", "dup", "corrupt", "delay", "reorder", "rate", "queue", "down", "seed"] {
            assert!(takes(key).is_some() && GRAMMAR.contains(&format!("{key}=")), "{key}");
        }
    }

    #[test]
    fn no_items_are_no_faults() {
        let faults: Faults = "seed=3".parse().unwrap();
        assert!(!faults.any(Direction::Transmit) && !faults.any(Direction::Receive));
        assert!(!"rx.drop=1%".parse::<Faults>().unwrap().any(Direction::Transmit));
    }

    #[test]
    fn each_mistake_is_the_item_and_a_sentence_on_what_its_key_takes() {
        const NAME: &str =
            "drop takes a percentage, as in drop=1%, or the name of an operation, as in drop=write_last@3";
        for (item, wanted) in [
            ("drop=1", "drop takes a percentage, as in drop=1%"),
            ("drop", "drop takes a percentage, as in drop=1%"),
            ("drop=", "drop takes a percentage, as in drop=1%"),
            ("drop=0.5", "drop takes a percentage, as in drop=1%"),
            ("drop=x3", "drop takes a percentage, as in drop=1%"),
            ("drop=often", NAME),
            ("rx.drop=1", "drop takes a percentage, as in drop=1%"),
            ("drop=101%", "a percentage is 0% to 100%"),
            ("drop=1%:2%", "drop takes one percentage, one time and one name of an operation"),
            ("drop=1%:xmany", "x takes how many packets in a row, as in drop=1%:x3 or drop=1%:x1..8"),
            ("drop=5ms:ack", "drop takes no time; dup, delay and reorder do"),
            ("dup=1", "dup takes a percentage, as in dup=0.1%"),
            ("dup=5ms", "dup takes a percentage, as in dup=0.1%"),
            ("dup=1%:3", "a time has a unit, as in 5ms or 100us..2ms"),
            ("dup=1%:x3", "dup takes no x; drop does"),
            ("corrupt=1", "corrupt takes a percentage, as in corrupt=0.01%"),
            ("delay=3", "delay takes a time, as in delay=5ms or delay=100us..2ms"),
            ("delay=ack", "delay takes a time, as in delay=5ms or delay=100us..2ms"),
            ("reorder=5", "reorder takes a percentage, as in reorder=5%"),
            ("rate=5", "rate takes bits per second, as in rate=100Mbit or rate=2.5Gbit"),
            ("queue=5", "queue takes a number of bytes, as in queue=256kB"),
            ("down=1s", "down takes two times after the start, as in down=1s..3s"),
            ("down=3s..1s", "down takes two times after the start, as in down=1s..3s"),
            ("seed=x", "seed takes a number, as in seed=7"),
            (
                "lose=1%",
                "there is no fault 'lose', only drop, dup, corrupt, delay, reorder, rate, queue, down and seed",
            ),
            ("up.drop=1%", "there is no direction 'up', only tx and rx, as in rx.drop=1%"),
        ] {
            // The items around it are right.
            let error = format!("drop=1%, {item},seed=1").parse::<Faults>().unwrap_err();
            assert_eq!(error.to_string(), format!("'{item}': {wanted}"));
        }
    }
}
