//! A process that puts what it likes, wherever the others look for what it says.

use crate::process::Process;
use crate::random::Random;
use vervain_window::pairs::block;
use vervain_window::pairs::door::{End, State};
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::pairs::slot::tag;
use vervain_window::{CELL, Channel, Origin, PROCESSES, Put, PutDevice};

pub struct Scribbler {
    pub id: PeerId,
    channels: Vec<Box<dyn Channel>>,
}

impl Scribbler {
    pub fn new(process: &Process) -> Scribbler {
        let nodes = 0..process.device.facts().layout.nodes();
        let channels = nodes.map(|node| process.device.channel(node).expect("a node")).collect();
        Scribbler { id: process.id, channels }
    }

    /// Puts something to somebody; how many words.
    pub fn scribble(&mut self, own: &Process, all: &[Process], random: &mut Random) -> u64 {
        let victim = &all[random.up_to(all.len() as u64 - 1) as usize];
        if victim.id == self.id {
            return 0;
        }
        let link = own.links.get(&victim.id);
        let layout = own.device.facts().layout;
        let cell = layout.door(victim.id.process) + u64::from(self.id.node * PROCESSES + self.id.process) * CELL;
        let (to, words): (u64, Vec<u64>) = match (random.up_to(7), link) {
            // A mix of the states of others.
            (0 | 1, _) => (cell, self.state(own, victim, random).encode(random.up_to(1 << 20)).to_vec()),
            (2, _) => (cell + 8 * random.up_to(7), vec![self.word(random)]),
            // A slot that is the next one, nearly.
            (3 | 4, Some(link)) => {
                let number = link.out.sent() + random.up_to(2);
                let what = random.one_of(&[1, 1, 1, 2, 3, 4, 7]) | random.up_to(3) << 8 | random.up_to(20_000) << 16;
                let place = [self.word(random), link.theirs + block::BYTES_AT + random.up_to(block::BYTES)];
                let mut words = vec![u64::from(tag(number))];
                words.extend((0..5).map(|_| self.word(random)));
                words.push(self.word(random) & 0xffff_ffff | what << 32);
                words.push(random.one_of(&place));
                (link.theirs + block::slot_at(number), words)
            }
            (5, Some(link)) => {
                let taken = link.out.taken() + random.up_to(100);
                let told = [taken, self.word(random)];
                (link.theirs + block::TAKEN, vec![random.one_of(&told)])
            }
            (6, Some(link)) => {
                let len = 1 + random.up_to(7);
                let at = random.up_to(block::LEN / 8 - len) * 8;
                (link.theirs + at, (0..len).map(|_| self.word(random)).collect())
            }
            (7, Some(link)) => {
                let Some(long) = link.long else { return 0 };
                (long + random.up_to(block::LONG_BYTES / 8 - 1) * 8, vec![self.word(random)])
            }
            _ => return 0,
        };
        // The bell, which everybody may ring.
        let bell = layout.door(victim.id.process) + u64::from(victim.id.node * PROCESSES + victim.id.process) * CELL;
        let ring = [random.word()];
        let chain = [Put { to, from: Origin::Words(&words) }, Put { to: bell, from: Origin::Words(&ring) }];
        let chain = if random.one_in(2) { &chain[..] } else { &chain[..1] };
        self.channels[victim.id.node as usize].put(chain).expect("inside of the region");
        words.len() as u64
    }

    fn word(&self, random: &mut Random) -> u64 {
        let words = [random.word(), random.up_to(100), u64::MAX - random.up_to(100), 1 << random.up_to(63)];
        random.one_of(&words)
    }

    fn state(&self, own: &Process, victim: &Process, random: &mut Random) -> State {
        let mut end = |incarnation: u64| End {
            incarnation: if random.one_in(4) { random.word().max(1) } else { incarnation },
            pair: random.up_to(6),
        };
        let (from, to) = (end(own.incarnation()), end(victim.incarnation()));
        let layout = own.device.facts().layout;
        let blocks = (layout.region_len() - layout.door(PROCESSES)) / block::LEN;
        let block = layout.door(PROCESSES).next_multiple_of(block::LEN) + random.up_to(blocks) * block::LEN;
        let to = if random.one_in(3) { End::default() } else { to };
        let (is_up, asks) = (random.one_in(2), random.one_in(2));
        State { from, to, block: random.one_in(2).then_some(block), is_up, asks }
    }
}
