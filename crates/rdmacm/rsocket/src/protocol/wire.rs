//! The formats of private data, of the arrays that peers write to, and of immediate data.

/// The order of bytes of a host, in which its arrays are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The lowest byte first.
    Little,
    /// The highest byte first, as on the network.
    Big,
}

impl Order {
    /// The byte order of this host.
    pub const HOST: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };

    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }

    fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        }
    }

    fn bytes4(self, value: u32) -> [u8; 4] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }

    fn bytes8(self, value: u64) -> [u8; 8] {
        match self {
            Order::Little => value.to_le_bytes(),
            Order::Big => value.to_be_bytes(),
        }
    }

    /// A message as it stands in memory, for devices without immediate data.
    pub fn message_bytes(self, word: u32) -> [u8; 4] {
        self.bytes4(word)
    }

    /// Reads one.
    pub fn message(self, bytes: [u8; 4]) -> u32 {
        self.u32(bytes)
    }
}

/// Bytes of an [`Sge`] in memory.
pub const SGE_BYTES: usize = 16;

/// Memory of a peer: an entry of a target SGL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of its first byte.
    pub address: u64,
    /// Its rkey.
    pub key: u32,
    /// Bytes; of the target SGL itself: entries.
    pub length: u32,
}

impl Sge {
    /// Its bytes in the memory of a host.
    pub fn encode(&self, order: Order) -> [u8; SGE_BYTES] {
        let mut bytes = [0; SGE_BYTES];
        bytes[..8].copy_from_slice(&order.bytes8(self.address));
        bytes[8..12].copy_from_slice(&order.bytes4(self.key));
        bytes[12..].copy_from_slice(&order.bytes4(self.length));
        bytes
    }

    /// From the memory of a host.
    pub fn decode(bytes: &[u8; SGE_BYTES], order: Order) -> Sge {
        let [a, b, c, d] = words(bytes);
        let address = [a, b].concat().try_into().expect("8 bytes");
        Sge { address: order.u64(address), key: order.u32(c), length: order.u32(d) }
    }

    /// Returns true if the addresses of all its bytes are addresses.
    fn is_sound(&self) -> bool {
        self.address.checked_add(u64::from(self.length)).is_some()
    }
}

fn words<const N: usize, const M: usize>(bytes: &[u8; M]) -> [[u8; 4]; N] {
    const { assert!(N * 4 == M) };
    std::array::from_fn(|i| [bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

/// Bytes of an [`IoMap`] in memory.
pub const IO_MAP_BYTES: usize = 24;

/// A buffer that the peer may write to by an offset, an entry of the target iomap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoMap {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its memory.
    pub memory: Sge,
}

impl IoMap {
    /// Its bytes in the memory of a host.
    pub fn encode(&self, order: Order) -> [u8; IO_MAP_BYTES] {
        let mut bytes = [0; IO_MAP_BYTES];
        bytes[..8].copy_from_slice(&order.bytes8(self.offset));
        bytes[8..].copy_from_slice(&self.memory.encode(order));
        bytes
    }

    /// Reads it from the memory of a host; None if its end is beyond all offsets or addresses.
    pub fn decode(bytes: &[u8; IO_MAP_BYTES], order: Order) -> Option<IoMap> {
        let (offset, memory) = bytes.split_first_chunk().expect("8 bytes");
        let memory = Sge::decode(memory.try_into().expect("16 bytes"), order);
        let map = IoMap { offset: order.u64(*offset), memory };
        (map.memory.is_sound() && map.offset.checked_add(u64::from(map.memory.length)).is_some()).then_some(map)
    }
}

/// A number of iomap entries as one byte: up to 128 as it is, beyond that in 256s.
pub fn scale(entries: u16) -> u8 {
    if entries <= 128 { entries as u8 } else { 128 | (entries >> 8).min(127) as u8 }
}

/// The number of entries that a byte of [`scale`] says.
pub fn unscale(scaled: u8) -> u16 {
    if scaled <= 128 { u16::from(scaled) } else { u16::from(scaled & 127) << 8 }
}

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 40;

const VERSION: u8 = 1;
const FLAG_BIG_ENDIAN: u8 = 1 << 0;
const FLAG_IO_MAPS: u8 = 1 << 1;

/// The greeting of an end in the private data of the request or the reply: struct rs_conn_data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its order of bytes.
    pub order: Order,
    /// Messages with data that may be sent to it before it grants more.
    pub credits: u16,
    /// Entries of its target iomap, which follows its target SGL; as many as [`unscale`] gives.
    pub io_maps: u16,
    /// Its target SGL: address, key and number of entries.
    pub target: Sge,
    /// The first part of its receive buffer, the first entry of the peer's target SGL.
    pub buffer: Sge,
}

/// The reason why a peer's [`Hello`] is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is too short.
    #[error("the peer's private data is shorter than {HELLO_BYTES} bytes")]
    Short,
    /// Another version, or another protocol.
    #[error("the peer speaks version {0} of rsockets, not {VERSION}")]
    Version(u8),
    /// A target SGL without entries, or memory that goes beyond the last address.
    #[error("the peer's memory has no end or no beginning")]
    Memory,
}

impl Hello {
    /// Its private data, in network order.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0] = VERSION;
        bytes[1] = FLAG_IO_MAPS | if self.order == Order::Big { FLAG_BIG_ENDIAN } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = scale(self.io_maps);
        bytes[8..24].copy_from_slice(&self.target.encode(Order::Big));
        bytes[24..].copy_from_slice(&self.buffer.encode(Order::Big));
        bytes
    }

    /// From private data, behind which there may be padding.
    ///
    /// # Errors
    /// It is not that of a peer with which a stream is possible.
    pub fn decode(bytes: &[u8]) -> Result<Hello, Malformed> {
        let bytes: &[u8; HELLO_BYTES] = bytes.first_chunk().ok_or(Malformed::Short)?;
        if bytes[0] != VERSION {
            return Err(Malformed::Version(bytes[0]));
        }
        let sge = |at: usize| Sge::decode(bytes[at..].first_chunk().expect("16 bytes"), Order::Big);
        let hello = Hello {
            order: if bytes[1] & FLAG_BIG_ENDIAN != 0 { Order::Big } else { Order::Little },
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            io_maps: if bytes[1] & FLAG_IO_MAPS != 0 { unscale(bytes[7]) } else { 0 },
            target: sge(8),
            buffer: sge(24),
        };
        // So no address that is computed from these, for the whole life of the stream, overflows.
        let array = u64::from(hello.target.length) * SGE_BYTES as u64 + u64::from(hello.io_maps) * IO_MAP_BYTES as u64;
        let sound =
            hello.target.length != 0 && hello.target.address.checked_add(array).is_some() && hello.buffer.is_sound();
        sound.then_some(hello).ok_or(Malformed::Memory)
    }

    /// Address of entry `index` of its target SGL.
    pub(super) fn target_entry(&self, index: u32) -> u64 {
        self.target.address + u64::from(index) * SGE_BYTES as u64
    }

    /// Address of entry `index` of its target iomap.
    pub(super) fn io_map_entry(&self, index: u16) -> u64 {
        self.target_entry(self.target.length) + u64::from(index) * IO_MAP_BYTES as u64
    }
}

/// The largest number in a [`Message`].
pub const MAX_DATA: u32 = (1 << 29) - 1;

/// A message of 32 bits: the kind in the upper 3, a number below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Bytes that were written into the receive buffer.
    Data(u32),
    /// Messages with data may be sent until the count of them, modulo 2^16, is this; an entry of the target SGL may be
    /// new.
    Credit(u16),
    /// This entry of the target iomap is new.
    IoMap(u32),
    /// The peer neither sends nor takes anything any more.
    Disconnect,
    /// No content.
    KeepAlive,
    /// The peer sends no more.
    Shutdown,
    /// Not one of these: reserved, to be ignored.
    Reserved(u32),
}

const DATA: u32 = 0;
const CREDIT: u32 = 4;
const IO_MAP: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    /// The message as 32 bits, which go onto the network in network order.
    pub fn to_word(self) -> u32 {
        let (kind, data) = match self {
            Message::Data(length) => (DATA, length),
            Message::Credit(until) => (CREDIT, u32::from(until)),
            Message::IoMap(index) => (IO_MAP, index),
            Message::Disconnect => (CONTROL, 0),
            Message::KeepAlive => (CONTROL, 1),
            Message::Shutdown => (CONTROL, 2),
            Message::Reserved(word) => return word,
        };
        debug_assert!(data <= MAX_DATA);
        kind << 29 | data
    }

    /// The message of 32 bits. A peer may grant credit by more bits than are used.
    pub fn from_word(word: u32) -> Message {
        let data = word & MAX_DATA;
        match (word >> 29, data) {
            (DATA, length) => Message::Data(length),
            (CREDIT, until) => Message::Credit(until as u16),
            (IO_MAP, index) => Message::IoMap(index),
            (CONTROL, 0) => Message::Disconnect,
            (CONTROL, 1) => Message::KeepAlive,
            (CONTROL, 2) => Message::Shutdown,
            _ => Message::Reserved(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_laid_out_as_rdma_cores() {
        let hello = Hello {
            order: Order::Little,
            credits: 384,
            io_maps: 0x300,
            target: Sge { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 2 },
            buffer: Sge { address: 0x2122_2324_2526_2728, key: 0x3132_3334, length: 65536 },
        };
        let bytes = hello.encode();
        #[rustfmt::skip]
        assert_eq!(bytes, [
            1, 2, 1, 0x80, 0, 0, 0, 0x83,
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2,
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 1, 0, 0,
        ]);
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        // The CM's private data is padded with zeros.
        assert_eq!(Hello::decode(&[&bytes[..], &[0; 16]].concat()), Ok(hello));
        let big = Hello { order: Order::Big, ..hello };
        assert_eq!(big.encode()[1], 3);
        assert_eq!(Hello::decode(&big.encode()), Ok(big));
    }

    #[test]
    fn a_peer_without_iomaps_has_none() {
        let target = Sge { address: 16, key: 1, length: 2 };
        let mut bytes = Hello { order: Order::Big, credits: 1, io_maps: 4, target, buffer: Sge::default() }.encode();
        bytes[1] &= !FLAG_IO_MAPS;
        assert_eq!(Hello::decode(&bytes).map(|hello| hello.io_maps), Ok(0));
    }

    #[test]
    fn a_hello_that_is_none_is_refused() {
        let good = Hello {
            order: Order::Little,
            credits: 1,
            io_maps: 0,
            target: Sge { address: 0, key: 0, length: 2 },
            buffer: Sge::default(),
        };
        assert_eq!(Hello::decode(&[]), Err(Malformed::Short));
        assert_eq!(Hello::decode(&good.encode()[..39]), Err(Malformed::Short));
        assert_eq!(Hello::decode(&[2; 40]), Err(Malformed::Version(2)));
        let refused = |hello: Hello| assert_eq!(Hello::decode(&hello.encode()), Err(Malformed::Memory));
        refused(Hello { target: Sge { length: 0, ..good.target }, ..good });
        refused(Hello { target: Sge { address: u64::MAX - 30, ..good.target }, ..good });
        refused(Hello { buffer: Sge { address: u64::MAX, key: 0, length: 1 }, ..good });
    }

    #[test]
    fn words_are_those_of_the_document() {
        for (message, word) in [
            (Message::Data(5), 5),
            (Message::Credit(0xffff), 0x8000_ffff),
            (Message::IoMap(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
            (Message::Reserved(0xe000_0003), 0xe000_0003),
            (Message::Reserved(0x2000_0000), 0x2000_0000),
        ] {
            assert_eq!(message.to_word(), word);
            assert_eq!(Message::from_word(word), message);
        }
        // 65,535 messages and 384 more are 383.
        assert_eq!(Message::from_word(0x8000_0000 + 65_535 + 384), Message::Credit(383));
    }

    #[test]
    fn numbers_of_iomaps_are_one_byte() {
        for (entries, byte, back) in
            [(0, 0, 0), (128, 128, 128), (200, 128, 128), (1000, 131, 768), (65535, 255, 32512)]
        {
            assert_eq!((scale(entries), unscale(scale(entries))), (byte, back));
        }
    }

    #[test]
    fn entries_stand_in_memory_as_the_host_reads_them() {
        let sge = Sge { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 0x2122_2324 };
        assert_eq!(sge.encode(Order::Little)[..12], [8, 7, 6, 5, 4, 3, 2, 1, 0x14, 0x13, 0x12, 0x11]);
        assert_eq!(sge.encode(Order::Big)[8..], [0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24]);
        let map = IoMap { offset: 0x99, memory: sge };
        for order in [Order::Little, Order::Big] {
            assert_eq!(Sge::decode(&sge.encode(order), order), sge);
            assert_eq!(IoMap::decode(&map.encode(order), order), Some(map));
        }
        let endless = IoMap { offset: u64::MAX, memory: Sge { length: 1, ..Sge::default() } };
        assert_eq!(IoMap::decode(&endless.encode(Order::Big), Order::Big), None);
    }
}
