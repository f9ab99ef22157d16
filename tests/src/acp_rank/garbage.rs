//! Rank 0 tells rank 1 garbage: it has none of ACP's messages itself, and stores to where rank 1 has its ends. What cannot be is an
//! error with a sentence, and nothing is stored outside of the memory that a request names.
//!
//! The words are those of `channel.rs`, `ring.rs`, `mail.rs` and `segments.rs` of the library.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use fastrand::Rng;
use vervain_acp::{GlobalAddress, GlobalPtr, Library, Order, Region, Result, World};
use vervain_acp_channel::Channels;

use super::other;

/// Words in front of a ring, and of a ring.
const FRONT: u64 = 16;
const RING: usize = 2048;
/// The most bytes of a record whose bytes are as they are.
const LONG: u64 = 4088;
/// Words of rank 0's memory: what is put, an end, and what others may store to.
const SCRATCH: u64 = 0;
const END: u64 = 4096;
const TARGET: u64 = 8192;
const WORDS: usize = 32 << 10;
/// Until what must come is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

const SHORT: u64 = 1;
const WHOLE: u64 = 2;
const BEGIN: u64 = 3;
const PART: u64 = 4;
const OFFER: u64 = 5;
const SKIP: u64 = 6;
const FREE: u64 = 7;
const HELLO: u64 = 8;

fn head(kind: u64, len: u64) -> u64 {
    kind << 32 | len
}

/// A record whose words have marks.
fn marked(kind: u64, numbers: &[u64]) -> Vec<u64> {
    let halves = numbers.iter().flat_map(|number| [number & 0xffff_ffff, number >> 32]);
    [head(kind, 8 * numbers.len() as u64)].into_iter().chain(halves.map(|half| 15 << 32 | half)).collect()
}

/// Rank 0's side, and what both know.
struct Both<'w> {
    world: &'w World,
    own: Region<'w>,
    /// Of rank 0.
    memory: GlobalAddress,
}

impl<'w> Both<'w> {
    fn new(world: &'w World) -> Result<Self> {
        let own = world.region(8 * WORDS, 0)?;
        let starter = |rank| world.starter_of::<u64>(rank).ok_or_else(|| other(format!("no rank {rank}")));
        world.store(starter(world.rank())?, own.key().0)?;
        world.sync()?;
        let heard = starter(world.rank())?.add(1);
        let handle = world.copy_values(heard, starter(0)?, 1, Order::Now)?;
        world.complete(handle)?;
        let memory = GlobalAddress(world.load(heard)?);
        world.sync()?;
        Ok(Self { world, own, memory })
    }

    fn is_victim(&self) -> bool {
        self.world.rank() == 1
    }

    /// A word of rank 0's memory.
    fn at(&self, word: u64) -> GlobalAddress {
        self.memory.add(8 * word)
    }

    fn put(&self, to: GlobalAddress, words: &[u64]) -> Result<()> {
        let scratch = self.own.at::<u64>(8 * SCRATCH as usize);
        self.world.write(scratch, words)?;
        let handle = self.world.copy(to, scratch.address(), size_of_val(words), Order::Now)?;
        self.world.complete(handle)
    }

    /// The list of a rank.
    fn list(&self, rank: u32) -> Result<GlobalPtr<u64>> {
        let list = self.world.library_starter(Library::Communication, rank);
        list.map(GlobalPtr::new).ok_or_else(|| other(format!("no rank {rank}")))
    }

    /// A word of this rank's, once it is not zero.
    fn comes(&self, word: GlobalPtr<u64>) -> Result<u64> {
        let began = Instant::now();
        loop {
            match self.world.load(word)? {
                0 if began.elapsed() > PATIENCE => return Err(other("rank 1 says nothing".into())),
                0 => std::thread::yield_now(),
                told => return Ok(told),
            }
        }
    }

    /// Where rank 1 has the end that it has pushed.
    fn node(&self) -> Result<GlobalAddress> {
        let list = self.list(0)?;
        let node = self.comes(list)?;
        self.world.store(list, 0)?;
        Ok(GlobalAddress(node))
    }

    /// Pushes an end of rank 0's.
    fn push(&self, node: &[u64; 5]) -> Result<()> {
        self.world.write(self.own.at(8 * END as usize), &vec![0u64; RING + FRONT as usize])?;
        self.world.write(self.own.at(8 * END as usize), node)?;
        self.put(self.list(1)?.address(), &[self.at(END).0])
    }

    /// What rank 1 tells in a word of that end.
    fn told(&self, word: u64) -> Result<u64> {
        self.comes(self.own.at(8 * (END + word) as usize))
    }

    /// Rank 1 uses channels while rank 0 does something.
    fn once(
        &self,
        victim: impl FnOnce(&Channels<'w>) -> Result<()>,
        garbage: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.is_victim() {
            victim(&Channels::new(self.world))?;
        } else if self.world.rank() == 0 {
            garbage()?;
        }
        self.world.complete_all()?;
        self.world.sync()?;
        self.world.store(self.list(self.world.rank())?, 0)?;
        self.world.sync()
    }
}

/// It has failed with such a sentence.
fn fails<T: Debug>(what: &dyn Debug, sentence: &str, outcome: Result<T>) -> Result<()> {
    match outcome {
        Err(error) if !error.is_refused() && error.to_string().contains(sentence) => Ok(()),
        all => Err(other(format!("{what:x?}: {all:?}, not '{sentence}'"))),
    }
}

/// The first that is no success, of what is asked until then.
fn until<T>(mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        let answer = ask();
        if answer.is_err() || began.elapsed() > PATIENCE {
            return answer;
        }
    }
}

/// Everything, and `count` rings of anything.
pub fn run(world: &World, count: u64, seed: u64) -> Result<()> {
    let both = Both::new(world)?;
    rings(&both)?;
    senders(&both)?;
    lists(&both)?;
    segments(&both)?;
    changed(&both)?;
    anything(&both, count, seed)
}

/// What a receiver finds in its ring, from the first word on.
fn rings(both: &Both<'_>) -> Result<()> {
    let hello = marked(HELLO, &[both.at(TARGET).0]);
    let behind = |words: &[u64]| [&hello[..], words].concat();
    let (record, disorder, nowhere) = ("is no record", "in disorder", "is not where rank 0 has its end");
    let mine = both.list(1)?.address().0;
    let cases = [
        (vec![1], record),
        (vec![head(9, 4)], record),
        (vec![u64::MAX], record),
        (vec![head(SHORT, 65)], record),
        (vec![head(SHORT, 0xffff_ffff)], record),
        (vec![head(WHOLE, 0)], record),
        (vec![head(WHOLE, LONG + 1)], record),
        (vec![head(PART, 0xffff_fff8)], record),
        (vec![head(BEGIN, 4)], record),
        (vec![head(OFFER, 8)], record),
        (vec![head(FREE, 1)], record),
        (vec![head(SKIP, 0)], record),
        (vec![head(SKIP, 4)], record),
        (vec![head(HELLO, 8), 14 << 32, 15 << 32], "is no data"),
        (vec![head(HELLO, 8), 15 << 32, 1], "is no data"),
        (vec![head(SHORT, 0)], "does not say where its channel is"),
        (vec![head(FREE, 0)], "does not say where its channel is"),
        (behind(&hello), nowhere),
        (marked(HELLO, &[0]), nowhere),
        (marked(HELLO, &[mine]), nowhere),
        (marked(HELLO, &[both.at(TARGET).0 + 4]), nowhere),
        (marked(HELLO, &[u64::MAX]), nowhere),
        (behind(&[head(PART, 8), 0]), disorder),
        (behind(&marked(BEGIN, &[0])), disorder),
        (behind(&[marked(BEGIN, &[9]), marked(BEGIN, &[9])].concat()), disorder),
        (behind(&[marked(BEGIN, &[9]), vec![head(SHORT, 0)]].concat()), disorder),
        (behind(&[marked(BEGIN, &[9]), vec![head(PART, 10), 0, 0]].concat()), disorder),
        (behind(&[marked(BEGIN, &[9]), vec![head(PART, 8), 0, head(PART, 2), 0]].concat()), disorder),
        (behind(&marked(OFFER, &[mine, 8])), "which is not its own"),
        (behind(&marked(OFFER, &[0, 8])), "which is not its own"),
        // It would lead to what was read and is not zero yet.
        (behind(&[head(SKIP, 0)]), record),
    ];
    for (words, sentence) in &cases {
        let mut bytes = [0; 16];
        both.once(
            // SAFETY: the bytes are this thread's, and live until nothing goes on any more.
            |channels| unsafe {
                fails(
                    words,
                    sentence,
                    channels.create(0, 1).and_then(|end| channels.receive(end, bytes.as_mut_ptr(), bytes.len())),
                )
            },
            || both.put(both.node()?.add(8 * FRONT), words),
        )?;
    }
    Ok(())
}

/// What a sender hears of its receiver.
fn senders(both: &Both<'_>) -> Result<()> {
    let (read, taken) = (0, 1);
    let cases = [
        (RING as u64 + 8, None, "has a ring of"),
        (RING as u64, Some((read, 1 << 20)), "has read"),
        (RING as u64, Some((read, u64::MAX)), "has read"),
        (RING as u64, Some((taken, 1)), "has taken"),
        (RING as u64, Some((taken, u64::MAX)), "has taken"),
    ];
    for (ring, tells, sentence) in cases {
        // More than the ring has room for, so that the request stays.
        let bytes = vec![7; 60_000];
        both.once(
            // SAFETY: as above.
            |channels| unsafe {
                fails(
                    &(ring, tells),
                    sentence,
                    channels.create(1, 0).and_then(|end| channels.send(end, bytes.as_ptr(), bytes.len())),
                )
            },
            || {
                both.push(&[0, 1 << 32, ring, 0, 0])?;
                let Some((word, value)) = tells else { return Ok(()) };
                // The record Hello: each word has a half of the address.
                let [low, high] = [both.told(FRONT + 1)?, both.told(FRONT + 2)?];
                both.put(GlobalAddress(high << 32 | low & 0xffff_ffff).add(8 * word), &[value])
            },
        )?;
    }
    Ok(())
}

/// Nodes, and what is none.
fn lists(both: &Both<'_>) -> Result<()> {
    let (none, wrong) = ("is no node", "cannot be");
    let node = |next, kind: u64, number| [next, kind << 32 | number, RING as u64, 0, 0];
    let own = both.at(END).0;
    let cases = [
        (both.list(1)?.address().0, None, none),
        (own + 4, None, none),
        (u64::MAX, None, none),
        (own, Some(node(0, 0, 0)), wrong),
        (own, Some(node(0, 3, 0)), wrong),
        (own, Some(node(0, 1, 0xffff_ffff)), wrong),
        (own, Some(node(own, 1, 5)), wrong),
        (own, Some(node(own, 2, 5)), wrong),
        (own, Some(node(both.list(1)?.address().0, 1, 5)), none),
    ];
    for (first, node, sentence) in cases {
        both.once(
            // SAFETY: no bytes.
            |channels| unsafe {
                fails(
                    &(first, node),
                    sentence,
                    channels.create(1, 0).and_then(|end| channels.send(end, [].as_ptr(), 0)),
                )
            },
            || node.map_or_else(|| both.put(both.list(1)?.address(), &[first]), |node| both.push(&node)),
        )?;
    }
    Ok(())
}

/// What either end of a segmented buffer of two segments hears.
fn segments(both: &Both<'_>) -> Result<()> {
    let mine = both.list(1)?.address().0;
    let target = both.at(TARGET).0;
    let mut bytes = [0; 16];
    let start = bytes.as_mut_ptr();
    for (source, tail, sentence) in [
        (mine, 0, "is not where rank 0 has its segmented buffer"),
        (target + 4, 0, "is not where rank 0 has its segmented buffer"),
        (target, 3, "says 3 of segments"),
        (target, u64::MAX, "of segments, which are"),
    ] {
        both.once(
            |channels| {
                // SAFETY: the bytes live until nothing goes on any more.
                let end = unsafe { channels.create_buffer(0, start, 8, 2, false)? };
                let heard = channels.connect_buffer(end);
                fails(&(source, tail), sentence, heard.and_then(|()| until(|| channels.is_segment_pushed(end))))
            },
            || both.put(both.node()?.add(5 * 8), &[8, 2, source, tail]),
        )?;
    }
    for (segments, head, sentence) in [
        (mine, 0, "is not where rank 0 has segments"),
        (target, 1, "says 1 of segments"),
        (target, u64::MAX, "of segments, which are"),
    ] {
        both.once(
            |channels| {
                // SAFETY: as above.
                let end = unsafe { channels.create_buffer(0, start, 8, 2, true)? };
                let heard = channels.connect_buffer(end);
                fails(&(segments, head), sentence, heard.and_then(|()| until(|| channels.is_segment_ready(end))))
            },
            || {
                both.push(&[0, 2 << 32, 8, 2, segments])?;
                if head == 0 { Ok(()) } else { both.put(GlobalAddress(both.told(7)?), &[head]) }
            },
        )?;
    }
    Ok(())
}

/// An offer becomes something else while it may be fetched.
fn changed(both: &Both<'_>) -> Result<()> {
    let mut bytes = vec![0; 4 << 20];
    for (round, instead) in [head(SHORT, 0), head(OFFER, 16), 0, head(SKIP, 0), u64::MAX].into_iter().enumerate() {
        let (start, len) = (bytes.as_mut_ptr(), 8 * WORDS);
        both.once(
            |channels| {
                let end = channels.create(0, 1)?;
                // SAFETY: the bytes live until nothing goes on any more.
                let request = unsafe { channels.begin_receive(end, start, len)? };
                both.world.sync()?;
                // SAFETY: as above, and others. It begins to be fetched.
                let begun = unsafe { channels.begin_receive(end, start.add(len), 8) };
                both.world.sync()?;
                both.world.sync()?;
                begun?;
                // SAFETY: as above, and others; each goes on with the end.
                let more = until_some(400, || unsafe { channels.begin_receive(end, start.add(len), 8) });
                // It was over before, or it is not.
                match more {
                    Ok(_) if instead == 0 || instead == head(OFFER, 16) => Ok(()),
                    Ok(_) => channels.wait(request).map(drop),
                    error => fails(&(round, instead), "in a channel", error),
                }
            },
            || {
                let ring = both.node()?.add(8 * FRONT);
                both.put(
                    ring,
                    &[marked(HELLO, &[both.at(TARGET).0]), marked(OFFER, &[both.memory.0, len as u64])].concat(),
                )?;
                both.world.sync()?;
                both.world.sync()?;
                both.put(ring.add(3 * 8), &[instead])?;
                both.world.sync()
            },
        )?;
    }
    Ok(())
}

/// As [`until`], so often at most.
fn until_some<T>(times: usize, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let mut answer = ask();
    for _ in 1..times {
        if answer.is_ok() {
            answer = ask();
        }
    }
    answer
}

/// A record that may be, or not.
fn some_record(both: &Both<'_>, random: &mut Rng) -> Vec<u64> {
    let len = match random.u8(0..8) {
        0 => random.u64(..),
        1 => random.u64(LONG - 8..LONG + 8),
        _ => random.u64(0..80),
    };
    let mut data = |kind: u64, len: u64| {
        let words = if kind == WHOLE || kind == PART { len.div_ceil(8) } else { len.div_ceil(4) };
        let words = (0..words.min(600)).map(|_| match random.u8(0..200) {
            0 => random.u64(..),
            _ => 15 << 32 | random.u64(..) & 0xffff_ffff,
        });
        [head(kind, len & 0xffff_ffff)].into_iter().chain(words).collect::<Vec<_>>()
    };
    match len % 13 {
        0..=3 => data(SHORT, len.min(64)),
        4..=6 => data(WHOLE, len.clamp(1, LONG)),
        7 => [marked(BEGIN, &[len % 10_000 + 1]), data(PART, (len % 10_000 + 1).min(LONG))].concat(),
        8 => data(PART, len.clamp(1, LONG)),
        9 => marked(OFFER, &[both.memory.0 + len % 1000, len % 10_000]),
        10 => data(len % 10, len),
        11 => vec![head(SKIP, 0)],
        _ => vec![len],
    }
}

/// Rings of anything: an error, messages, or nothing; and what is stored is inside of what the requests name.
fn anything(both: &Both<'_>, count: u64, seed: u64) -> Result<()> {
    const ROOM: usize = 6000;
    const REQUESTS: usize = 24;
    let mut random = Rng::with_seed(seed);
    let mut bytes = vec![0u8; ROOM * REQUESTS];
    for round in 0..count {
        let mut len = || {
            let below = if random.bool() { 100 } else { ROOM - 8 };
            random.usize(0..below)
        };
        let lens: Vec<usize> = (0..REQUESTS).map(|_| len()).collect();
        let mut words = marked(HELLO, &[both.at(TARGET).0]);
        while words.len() < RING && random.u8(0..60) != 0 {
            words.extend(some_record(both, &mut random));
        }
        words.truncate(RING);
        bytes.fill(0xee);
        let start = bytes.as_mut_ptr();
        both.once(
            |channels| {
                let end = channels.create(0, 1)?;
                both.world.sync()?;
                let mut at = 0;
                // Each goes on with the end; then some that ask for nothing.
                let _ = until_some(REQUESTS + 20, || {
                    at += 1;
                    let (place, len) = if at <= REQUESTS { ((at - 1) * ROOM + 4, lens[at - 1]) } else { (0, 0) };
                    // SAFETY: inside of the bytes, which live until nothing goes on any more.
                    unsafe { channels.begin_receive(end, start.add(place), len) }
                });
                Ok(())
            },
            || {
                both.put(both.node()?.add(8 * FRONT), &words)?;
                both.world.sync()
            },
        )?;
        for (request, len) in lens.iter().enumerate() {
            let place = &bytes[request * ROOM..(request + 1) * ROOM];
            if place[..4].iter().chain(&place[4 + len..]).any(|byte| *byte != 0xee) {
                return Err(other(format!(
                    "seed {seed}, round {round}: more than request {request} of {len} B is stored"
                )));
            }
        }
    }
    Ok(())
}
