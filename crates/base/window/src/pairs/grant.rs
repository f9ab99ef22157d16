//! Grants: memory of the own region into which a peer may put without a message each time. A writer asks once for each
//! key; the owner grants the key's whole region, or refuses. All grants to a peer are revoked together: the owner
//! counts revocations in the peer's block ([`block::TAKEN_BACK`]), and the peer puts the same number into the owner's
//! ([`block::GIVEN_BACK`]) once none of its puts there is under way. A grant names the count under which it was given,
//! and ends with it: the peer looks at a word of its own memory before each put.

use super::block;
use super::ring::HEADERS;

/// The question for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The owner's QP.
    pub qpn: u32,
    /// The QP that asks.
    pub from: u32,
    /// The key.
    pub rkey: u32,
}

/// A grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The QP that has asked.
    pub qpn: u32,
    /// The key.
    pub rkey: u32,
    /// Number of revocations by the owner when it gave the grant ([`block::TAKEN_BACK`]).
    pub count: u32,
    /// Offset of the memory in the owner's region.
    pub at: u64,
    /// Length of the memory in bytes.
    pub len: u64,
    /// Address of its first byte under the key.
    pub iova: u64,
    /// The incarnation that has claimed the memory.
    pub owner: u64,
}

/// Words of a message.
type Words = [u64; 5];
/// Offset in the headers of the upper half of an owner's incarnation.
const OWNER_AT: usize = HEADERS - 4;
const _: () = assert!(size_of::<Words>() == OWNER_AT);
const _: () = assert!(size_of::<Words>() <= HEADERS && block::GIVEN_BACK < block::SLOTS_AT);

fn encode(words: Words) -> [u8; HEADERS] {
    let mut headers = [0; HEADERS];
    for (to, word) in headers.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    headers
}

fn decode(headers: &[u8; HEADERS]) -> Words {
    let mut words = Words::default();
    for (word, from) in words.iter_mut().zip(headers.chunks_exact(8)) {
        *word = u64::from_le_bytes(from.try_into().unwrap_or_default());
    }
    words
}

fn halves(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Want {
    /// Headers of a message of kind [`super::slot::Kind::WantGrant`].
    pub fn encode(self) -> [u8; HEADERS] {
        encode([halves(self.qpn, self.from), self.rkey.into(), 0, 0, 0])
    }

    /// The request in such headers.
    pub fn decode(headers: &[u8; HEADERS]) -> Want {
        let [qpns, rkey, ..] = decode(headers);
        Want { qpn: qpns as u32, from: (qpns >> 32) as u32, rkey: rkey as u32 }
    }
}

impl Grant {
    /// Headers of a message of kind [`super::slot::Kind::Grant`]; of a [`super::slot::Kind::NoGrant`] only the QP and
    /// the key count.
    pub fn encode(self) -> [u8; HEADERS] {
        let count = halves(self.count, self.owner as u32);
        let mut headers = encode([halves(self.qpn, self.rkey), count, self.at, self.len, self.iova]);
        headers[OWNER_AT..].copy_from_slice(&((self.owner >> 32) as u32).to_le_bytes());
        headers
    }

    /// The grant in such headers. None of its fields is checked.
    pub fn decode(headers: &[u8; HEADERS]) -> Grant {
        let [qpn_rkey, count, at, len, iova] = decode(headers);
        let owner = u32::from_le_bytes(headers[OWNER_AT..].try_into().unwrap_or_default());
        let owner = halves((count >> 32) as u32, owner);
        Grant { qpn: qpn_rkey as u32, rkey: (qpn_rkey >> 32) as u32, count: count as u32, at, len, iova, owner }
    }

    /// Offset in the owner's region of bytes `[addr, addr + len)` of the key; None: not all of them are granted.
    #[inline]
    pub fn place(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.iova).filter(|offset| *offset <= self.len && len <= self.len - offset)?;
        self.at.checked_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_sent_is_what_comes(qpn: u32, from: u32, rkey: u32, count: u32, at: u64, len: u64, iova: u64, owner: u64) {
            let (want, grant) = (Want { qpn, from, rkey }, Grant { qpn, rkey, count, at, len, iova, owner });
            prop_assert_eq!(Want::decode(&want.encode()), want);
            prop_assert_eq!(Grant::decode(&grant.encode()), grant);
        }

        #[test]
        fn only_what_was_granted_has_a_place(at in 0..1_u64 << 40, len in 0..5000_u64, iova: u64, from in 0..6000_u64, n in 0..6000_u64) {
            let grant = Grant { qpn: 1, rkey: 2, count: 0, at, len, iova, owner: 0 };
            let addr = iova.wrapping_add(from);
            let place = grant.place(addr, n);
            prop_assert_eq!(place.is_some(), addr >= iova && from + n <= len);
            prop_assert!(place.is_none_or(|place| place == at + from));
        }
    }
}
