//! The common part of sets, multisets and maps: a hash table in the memory of several ranks, keys and values of any
//! bytes, and any number of ranks and threads that search and change it at once.
//!
//! A [`Container`] is named by the address of its directory, which lies at one rank and has the addresses of the
//! tables, one for each index of a rank. A key's CRC gives its index, and its slot. A slot is a word, the pointer to
//! the first of a list of elements, and the container's id. Elements are blocks of the heap of their table's rank, new
//! ones go to the end of their list.
//!
//! * **Who searches locks nothing.** It reads the slot's word, then the first pointer; then each element, and after it
//!   the word again in the same round trip. If that has not changed, what was read was so at that moment; else it
//!   begins again. After some failures it takes the slot as who changes it does, so that it comes to an end.
//! * **Who changes** searches so, then makes the word its own by compare and swap from the version that it has found:
//!   nobody has come between. It stores the one pointer or counter, and behind it the word with the next version. A new
//!   element is written in the round trip of the compare and swap.
//! * **No turns are kept.** A slot is whose compare and swap comes first: where near ranks change the keys of one slot
//!   without a pause, a far one, whose swap comes later each time, may wait as long as they go on, also to read after
//!   those failures.
//! * **An element that is gone** is a block that was freed: those who still read it find the word changed. Blocks of
//!   16 KiB or more may be unmapped then, so elements of that size are read by who has the slot only; their pointers
//!   tell them apart, and tables consist of smaller chunks.
//! * **A rank remembers** where tables are, and the container's id with it. Destroying one clears the ids, so that
//!   whoever still remembers its tables finds out.
//! * **A rank that dies in the midst of a change** leaves its slot locked, with its number in the word. Whoever waits
//!   for long reads some memory of that rank, which ends the job with a sentence.

mod bytes;
mod change;
mod directory;
mod layout;
mod slot;
mod walk;
mod whole;

use vervain_acp::{GlobalAddress, World};
use vervain_acp_heap::Heap;

pub use bytes::{Bytes, Room};
pub use directory::Places;
pub use walk::{Cursor, Item, Parts};
pub use whole::Container;

/// The resources of a rank's hashed containers: its heap, and its memory of their places.
#[derive(Clone, Copy)]
pub struct Hashed<'a> {
    heap: &'a Heap<'a>,
    places: &'a Places,
}

impl<'a> Hashed<'a> {
    /// Both are for all of the rank's containers.
    pub fn new(heap: &'a Heap<'a>, places: &'a Places) -> Self {
        Self { heap, places }
    }

    /// The heap that they are in.
    pub fn heap(&self) -> &'a Heap<'a> {
        self.heap
    }

    /// The world that they are of.
    pub fn world(&self) -> &'a World {
        self.heap.world()
    }
}

/// The kind of a container's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Keys.
    Set = 1,
    /// Keys, each with how often it is there.
    Multiset = 2,
    /// Keys, each with a value.
    Map = 3,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Multiset => "multiset",
            Self::Map => "map",
        }
    }
}

/// The name of a container in the whole job (`acp_set_t`, `acp_multiset_t`, `acp_map_t`). Ranks may send it to each
/// other as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Name {
    /// The address of its directory.
    pub address: GlobalAddress,
    /// Indexes, each the table of a rank.
    pub ranks: u64,
    /// Slots of each table.
    pub slots: u64,
}

impl Name {
    /// The name of no container.
    pub const NONE: Self = Self { address: GlobalAddress::NULL, ranks: 0, slots: 0 };
}

/// The extent of an operation on a whole container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All elements.
    All,
    /// Those that are stored at this rank.
    Local,
}
