//! The introduction of a rank to its peers, which the handshake of a connection carries: the addresses of its table of
//! registrations and of its words for answers.

/// The introduction of a connection's peer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peer {
    /// The address of its table of registrations.
    pub table: u64,
    pub(super) scratch: u64,
    /// The key of its table.
    pub table_key: u32,
    pub(super) scratch_key: u32,
    /// True: its device does the atomics on its words; else its processor does.
    pub(super) atomics: bool,
}

impl Peer {
    const BYTES: usize = 17 + 8 * vervain_mesh::MAX_DEVICES;

    /// Decodes the [`hello`] of a peer, for connections of a color. None for bytes of another form.
    pub fn decode(bytes: &[u8], color: u32) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let keys = 16 + 8 * color as usize;
        let (table, scratch, atomics) = (long(0), long(8), bytes[Self::BYTES - 1] == 1);
        Some(Self { table, scratch, table_key: short(keys), scratch_key: short(keys + 4), atomics })
    }
}

/// Encodes the addresses of a rank's table and of its words for answers, the keys of both at each port, and `atomics`:
/// its device does the atomics.
pub fn hello(table: u64, scratch: u64, keys: impl Fn(usize) -> (u32, u32), ports: usize, atomics: bool) -> Vec<u8> {
    let mut bytes = vec![];
    bytes.extend(table.to_le_bytes());
    bytes.extend(scratch.to_le_bytes());
    for port in 0..vervain_mesh::MAX_DEVICES {
        // Connections of a color that this rank does not have use its last port.
        let (table, scratch) = keys(port.min(ports - 1));
        bytes.extend(table.to_le_bytes());
        bytes.extend(scratch.to_le_bytes());
    }
    bytes.push(atomics.into());
    bytes
}
