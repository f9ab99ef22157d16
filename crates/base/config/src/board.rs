//! The options of `VERVAIN_WINDOW=peach2:FILE`: how the model of the board behaves.

use crate::choices::Switch;

/// The model of a PEACH2 board: what of it is to be another way than by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peach2 {
    /// True if memory that the board cannot read is refused when it is registered (`strict=on`).
    pub strict: bool,
    /// True if puts take the time that they take on the board (`timing=on`).
    pub timing: bool,
    /// True if the shared heap of programs is memory of a GPU (`heap=gpu`).
    pub gpu_heap: bool,
    /// How the boards are joined (`links=rings`, `links=all-to-all`).
    pub links: Links,
    /// Nanoseconds that a put takes longer for each board that it passes (`hop=NS`).
    pub hop_ns: u32,
    /// Nanoseconds that the processor takes to make a descriptor in the memory of the board (`make-internal=NS`).
    pub make_internal_ns: u32,
    /// Nanoseconds that the processor takes to make a descriptor in the memory of the host (`make-host=NS`).
    pub make_host_ns: u32,
    /// Parts of the protocol that are left out, to see what each is worth (`without=PART+PART`).
    pub without: Without,
}

impl Default for Peach2 {
    fn default() -> Self {
        Peach2 {
            strict: false,
            timing: false,
            gpu_heap: false,
            links: Links::Rings,
            hop_ns: 150,
            make_internal_ns: 500,
            make_host_ns: 20,
            without: Without::default(),
        }
    }
}

/// How boards are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// As on PEACH2: two rings, whose boards are joined one by one.
    Rings,
    /// Each with each.
    AllToAll,
}

/// Parts of the protocol that are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Without {
    /// `low-latency`: short messages do not go in slots whose descriptors are there already.
    pub low_latency: bool,
    /// `high-bandwidth`: there are no rings for long messages beside the block.
    pub high_bandwidth: bool,
    /// `chaining`: each put of a chain is a transfer of its own.
    pub chaining: bool,
    /// `internal`: no descriptor is in the memory of the board.
    pub internal: bool,
    /// `prepared`: descriptors in the memory of the board are made for each message.
    pub prepared: bool,
    /// `zero-copy`: the board reads nothing where the program has it; all is copied by the sender first.
    pub zero_copy: bool,
}

impl Peach2 {
    /// The values that an option takes, as a sentence; None for an unknown option.
    pub(crate) fn takes(name: &str) -> Option<&'static str> {
        Some(match name {
            "strict" => "strict takes on or off",
            "timing" => "timing takes on or off",
            "links" => "links takes rings or all-to-all",
            "hop" => "hop takes nanoseconds, as in hop=150",
            "make-internal" => "make-internal takes nanoseconds, as in make-internal=500",
            "make-host" => "make-host takes nanoseconds, as in make-host=20",
            "without" => {
                "without takes parts, as in without=chaining+internal: low-latency, high-bandwidth, chaining, internal, \
                 prepared or zero-copy"
            }
            _ => return None,
        })
    }

    /// Takes in `name=value`; none for what cannot be.
    pub(crate) fn set(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        let is_on = || Switch::of(value).map(|switch| switch == Switch::On);
        let ns = || std::str::from_utf8(value).ok()?.parse().ok();
        match name {
            b"strict" => self.strict = is_on()?,
            b"timing" => self.timing = is_on()?,
            b"links" if value == b"rings" => self.links = Links::Rings,
            b"links" if value == b"all-to-all" => self.links = Links::AllToAll,
            b"hop" => self.hop_ns = ns()?,
            b"make-internal" => self.make_internal_ns = ns()?,
            b"make-host" => self.make_host_ns = ns()?,
            b"without" => value.split(|byte| *byte == b'+').try_for_each(|part| self.without.set(part))?,
            _ => return None,
        }
        Some(())
    }
}

impl Without {
    fn set(&mut self, part: &[u8]) -> Option<()> {
        let part = match part {
            b"low-latency" => &mut self.low_latency,
            b"high-bandwidth" => &mut self.high_bandwidth,
            b"chaining" => &mut self.chaining,
            b"internal" => &mut self.internal,
            b"prepared" => &mut self.prepared,
            b"zero-copy" => &mut self.zero_copy,
            _ => return None,
        };
        (!std::mem::replace(part, true)).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(said: &[(&str, &str)]) -> Option<Peach2> {
        let mut board = Peach2::default();
        said.iter().try_for_each(|(name, value)| board.set(name.as_bytes(), value.as_bytes()))?;
        Some(board)
    }

    #[test]
    fn what_is_said_of_a_board_is_taken_in() {
        let said = [("strict", "on"), ("timing", "on"), ("links", "all-to-all"), ("hop", "0"), ("make-host", "7")];
        let numbers = Peach2 { hop_ns: 0, make_host_ns: 7, links: Links::AllToAll, ..Peach2::default() };
        assert_eq!(of(&said), Some(Peach2 { strict: true, timing: true, ..numbers }));
        let parts = of(&[("without", "chaining+zero-copy")]).unwrap().without;
        assert_eq!(parts, Without { chaining: true, zero_copy: true, ..Without::default() });
        for wrong in [
            ("strict", "yes"),
            ("hop", "-1"),
            ("hop", "1us"),
            ("links", "star"),
            ("without", ""),
            ("without", "chaining+"),
            ("without", "chaining+chaining"),
            ("speed", "1"),
        ] {
            assert_eq!(of(&[wrong]), None, "{wrong:?}");
            assert_eq!(Peach2::takes(wrong.0).is_some(), wrong.0 != "speed", "{wrong:?}");
        }
    }
}
