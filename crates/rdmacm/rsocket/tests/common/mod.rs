//! Two ends, the memory that each lets the other write to, and the requests between them.

use std::cell::RefCell;
use std::collections::VecDeque;

use vervain_rsocket::protocol::stream::{
    Arrays, Control, Places, Sizes, Source, Stream, TARGET_ENTRIES, Tag, Violation, Write,
};
use vervain_rsocket::protocol::wire::{IO_MAP_BYTES, IoMap, Message, Order, SGE_BYTES, Sge};

/// Memory at an address.
#[derive(Debug)]
struct Memory {
    base: u64,
    bytes: RefCell<Vec<u8>>,
}

impl Memory {
    fn new(base: u64, length: usize) -> Memory {
        Memory { base, bytes: RefCell::new(vec![0; length]) }
    }

    fn write(&self, address: u64, data: &[u8]) {
        let at = usize::try_from(address.checked_sub(self.base).expect("below the memory")).unwrap();
        self.bytes.borrow_mut()[at..at + data.len()].copy_from_slice(data);
    }

    fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.borrow()[at..at + N].try_into().unwrap()
    }
}

const ARRAYS_KEY: u32 = 1;
const BUFFER_KEY: u32 = 2;

#[derive(Debug)]
struct TargetArrays(Memory);

impl Arrays for TargetArrays {
    fn target(&self, index: u32) -> [u8; SGE_BYTES] {
        assert!(index < TARGET_ENTRIES);
        self.0.read(index as usize * SGE_BYTES)
    }

    fn clear_target(&self, index: u32) {
        self.0.write(self.0.base + u64::from(index) * SGE_BYTES as u64, &[0; SGE_BYTES]);
    }

    fn io_map(&self, index: u16) -> [u8; IO_MAP_BYTES] {
        self.0.read(TARGET_ENTRIES as usize * SGE_BYTES + usize::from(index) * IO_MAP_BYTES)
    }
}

/// One end, and what it has sent and received: byte n of a stream is a function of n.
#[derive(Debug)]
pub struct End {
    pub stream: Stream,
    arrays: TargetArrays,
    buffer: Memory,
    pub sent: u64,
    pub received: u64,
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl End {
    pub fn new(sizes: Sizes, order: Order, base: u64) -> End {
        let places = Places { arrays: base, arrays_key: ARRAYS_KEY, buffer: base + 0x10_0000, buffer_key: BUFFER_KEY };
        End {
            stream: Stream::new(order, sizes, places),
            arrays: TargetArrays(Memory::new(places.arrays, sizes.array_memory())),
            buffer: Memory::new(places.buffer, sizes.receive_bytes as usize),
            sent: 0,
            received: 0,
        }
    }

    pub fn arrived(&mut self, word: u32) -> Result<(), Violation> {
        self.stream.arrived(word, &self.arrays)
    }

    /// The peer writes what it wants into the arrays.
    pub fn scribble(&self, at: u16, bytes: &[u8; 24]) {
        let mut arrays = self.arrays.0.bytes.borrow_mut();
        let length = arrays.len();
        for (i, byte) in bytes.iter().enumerate() {
            arrays[(usize::from(at) + i) % length] = *byte;
        }
    }

    /// After any message, the next steps of this end stay inside of its own memory and numbers.
    #[allow(dead_code, reason = "of one of the tests")]
    pub fn check(&mut self, length: usize) {
        let sizes = *self.stream.sizes();
        let inside = |parts: &[std::ops::Range<u32>; 2], size: u32| {
            assert!(parts.iter().all(|part| part.start <= part.end && part.end <= size), "{parts:?} of {size}");
        };
        assert!(self.stream.unread() <= sizes.receive_bytes as usize);
        inside(&self.stream.parts(length), sizes.receive_bytes);
        self.stream.consume(length.min(self.stream.unread()));
        for _ in 0..2 {
            if let Some(control) = self.stream.next_control(true) {
                assert!((control.place as usize) + SGE_BYTES <= sizes.send_memory());
                self.stream.completed(control.tag);
            }
        }
        let io_write = self.stream.next_io_write(length, 0, length as u64).ok().flatten();
        for write in [self.stream.next_write(length, length), io_write].into_iter().flatten() {
            assert!(write.length as usize <= length && write.address.checked_add(u64::from(write.length)).is_some());
            if let Source::Ring(parts) = &write.source {
                inside(parts, sizes.send_bytes);
            }
            self.stream.completed(write.tag);
            if sizes.separate && write.word.is_some() {
                self.stream.completed(Tag::Data(0));
            }
        }
    }
}

/// On its way: bytes, where they go and by which key, and what is said with them.
type Request = (Option<(Vec<u8>, u64, u32)>, Option<u32>, Tag);

#[derive(Debug)]
pub struct Pair {
    pub ends: [End; 2],
    /// From each end: posted; and arrived, to be completed at the sender and noticed at the receiver.
    posted: [VecDeque<Request>; 2],
    done: [VecDeque<Tag>; 2],
    /// Messages that have arrived at each end, and were not noticed.
    words: [VecDeque<u32>; 2],
    /// Outstanding requests of each end.
    requests: [usize; 2],
    /// The most messages beyond credits that an end had not noticed.
    pub most_receives: usize,
    mapped: Vec<(usize, u64, u64)>,
}

impl Pair {
    pub fn new(a: Sizes, b: Sizes, one: Order, other: Order) -> Pair {
        let mut ends = [End::new(a, one, 0x1000_0000), End::new(b, other, 0x2000_0000)];
        let hellos = [ends[0].stream.hello().encode(), ends[1].stream.hello().encode()];
        ends[0].stream.greet(&hellos[1]).unwrap();
        ends[1].stream.greet(&hellos[0]).unwrap();
        ends.iter_mut().for_each(|end| end.stream.begin());
        Pair {
            ends,
            posted: Default::default(),
            done: Default::default(),
            words: Default::default(),
            requests: [0; 2],
            most_receives: 0,
            mapped: Vec::new(),
        }
    }

    fn post(&mut self, from: usize, request: Request) {
        self.requests[from] += 1;
        assert!(
            self.requests[from] <= usize::from(self.ends[from].stream.sizes().send_requests),
            "the send queue is full"
        );
        self.posted[from].push_back(request);
    }

    fn post_write(&mut self, from: usize, write: &Write, data: Vec<u8>) {
        assert_eq!(data.len(), write.length as usize);
        let place = Some((data, write.address, write.key));
        if self.ends[from].stream.sizes().separate && write.word.is_some() {
            self.post(from, (place, None, write.tag));
            self.post(from, (None, write.word, Tag::Data(0)));
        } else {
            self.post(from, (place, write.word, write.tag));
        }
    }

    fn post_control(&mut self, from: usize, control: &Control) {
        let entry = control.entry.map(|(bytes, address, key)| (bytes.to_vec(), address, key));
        if self.ends[from].stream.sizes().separate && entry.is_some() {
            self.post(from, (entry, None, control.tag));
            self.post(from, (None, Some(control.word), control.tag));
        } else {
            self.post(from, (entry, Some(control.word), control.tag));
        }
    }

    /// Sends as much of `length` bytes as can be sent now.
    pub fn send(&mut self, from: usize, length: usize) {
        let mut before = 0;
        while let Some(write) = self.ends[from].stream.next_write(length - before, before) {
            if let Source::Ring(parts) = &write.source {
                let size = self.ends[from].stream.sizes().send_bytes;
                assert!(parts[0].end <= size && parts[1].end <= parts[0].start, "{parts:?} of {size}");
                assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), write.length as usize);
            }
            let at = self.ends[from].sent;
            let data = (at..at + u64::from(write.length)).map(byte).collect();
            self.ends[from].sent += u64::from(write.length);
            before += write.length as usize;
            self.post_write(from, &write, data);
        }
    }

    /// Reads up to `length` bytes.
    pub fn receive(&mut self, at: usize, length: usize) {
        let end = &mut self.ends[at];
        let parts = end.stream.parts(length);
        let bytes: Vec<u8> = parts
            .iter()
            .flat_map(|part| end.buffer.bytes.borrow()[part.start as usize..part.end as usize].to_vec())
            .collect();
        for got in &bytes {
            assert_eq!(*got, byte(end.received), "byte {}", end.received);
            end.received += 1;
        }
        end.stream.consume(bytes.len());
    }

    /// The oldest request from an end arrives.
    pub fn deliver(&mut self, from: usize) {
        let Some((place, word, tag)) = self.posted[from].pop_front() else { return };
        let to = &self.ends[1 - from];
        if let Some((data, address, key)) = place {
            let memory = if key == ARRAYS_KEY { &to.arrays.0 } else { &to.buffer };
            memory.write(address, &data);
        }
        if let Some(word) = word {
            self.words[1 - from].push_back(word);
            let beyond = self.words[1 - from].len().saturating_sub(to.stream.sizes().credits.into());
            self.most_receives = self.most_receives.max(beyond);
        }
        self.done[from].push_back(tag);
    }

    /// An end notices what has come and what was done.
    pub fn complete(&mut self, at: usize) {
        while let Some(word) = self.words[at].pop_front() {
            self.ends[at].arrived(word).unwrap();
        }
        while let Some(tag) = self.done[at].pop_front() {
            assert_eq!(Tag::from_id(tag.to_id()), Some(tag));
            self.requests[at] -= 1;
            self.ends[at].stream.completed(tag);
        }
    }

    /// An end says what it has to say.
    pub fn controls(&mut self, from: usize) {
        while let Some(control) = self.ends[from].stream.next_control(true) {
            let sizes = self.ends[from].stream.sizes();
            assert!(control.place as usize + SGE_BYTES <= sizes.send_memory());
            self.post_control(from, &control);
        }
    }

    /// All that is on its way arrives, until neither has anything to say.
    pub fn settle(&mut self) {
        for _ in 0..10 {
            for end in 0..2 {
                self.controls(end);
                while !self.posted[end].is_empty() {
                    self.deliver(end);
                }
                self.complete(1 - end);
                self.complete(end);
            }
        }
    }

    /// Maps a buffer for the peer.
    #[allow(dead_code, reason = "of one of the tests")]
    pub fn map(&mut self, at: usize, index: u16, offset: u64, length: u32) {
        let address = 0x7000_0000 + offset;
        let map = IoMap { offset, memory: Sge { address, key: 9, length } };
        let (write, bytes) = self.ends[at].stream.next_io_map(index, &map).expect("room");
        assert_eq!(write.word, Some(Message::IoMap(index.into()).to_word()));
        self.mapped.push((at, offset, address));
        self.post_write(at, &write, bytes.to_vec());
    }

    #[allow(dead_code, reason = "of one of the tests")]
    pub fn mapped(&self, at: usize, offset: u64) -> u64 {
        self.mapped.iter().find(|(end, of, _)| (*end, *of) == (at, offset)).expect("mapped").2
    }
}
