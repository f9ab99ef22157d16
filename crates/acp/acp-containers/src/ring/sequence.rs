//! The common part of vectors and deques: the methods of both.

/// The methods that a container of bytes has in either form.
macro_rules! sequence {
    ($name:ident, $kind:expr) => {
        impl $name {
            /// The one whose header is at `address`, an address from the rank that has made it. Its first use shows if
            /// there is one.
            pub fn new(address: GlobalAddress) -> Self {
                Self { address }
            }

            /// The address of its header, which ranks send each other.
            pub fn address(self) -> GlobalAddress {
                self.address
            }

            fn ring(self, batch: &mut Batch<'_>, heap: &Heap<'_>) -> Result<Ring> {
                Ring::fetch(batch, heap.world(), $kind, self.address)
            }

            /// Frees it. Nobody may use it any more. Two round trips, besides freeing two blocks.
            ///
            /// # Errors
            /// As of all methods: [refused](vervain_acp::Error::is_refused) where the address is null, and nothing has
            /// happened; otherwise the job is broken, as where no such container is at the address.
            pub fn destroy(self, heap: &Heap<'_>) -> Result<()> {
                let mut batch = heap.world().batch();
                let ring = self.ring(&mut batch, heap)?;
                ring.destroy(heap, &mut batch)
            }

            /// Bytes that it has. One round trip.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy).
            pub fn len(self, heap: &Heap<'_>) -> Result<usize> {
                Ok(self.ring(&mut heap.world().batch(), heap)?.size)
            }

            /// Returns whether it has none. One round trip.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy).
            pub fn is_empty(self, heap: &Heap<'_>) -> Result<bool> {
                Ok(self.len(heap)? == 0)
            }

            /// Bytes that it has room for; a vector's are a multiple of 8. Its block may be larger. One round trip.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy).
            pub fn capacity(self, heap: &Heap<'_>) -> Result<usize> {
                Ok(self.ring(&mut heap.world().batch(), heap)?.capacity())
            }

            /// Makes room for `capacity` bytes in all. One round trip where there is; else two more, an allocation, and
            /// freeing a block.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy); refused also where there is no memory.
            pub fn reserve(self, heap: &Heap<'_>, capacity: usize) -> Result<()> {
                let mut batch = heap.world().batch();
                self.ring(&mut batch, heap)?.reserve(heap, &mut batch, capacity)
            }

            /// Erases all bytes; the room stays. Two round trips.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy).
            pub fn clear(self, heap: &Heap<'_>) -> Result<()> {
                let mut batch = heap.world().batch();
                let mut ring = self.ring(&mut batch, heap)?;
                let all = 0..ring.size;
                ring.erase(&mut batch, all)
            }

            /// Adds bytes at the end, of memory of any rank, of itself too. Two round trips where there is room; else
            /// an allocation of twice the room, and freeing a block, come to them.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy); refused also where there is no memory, or no source.
            pub fn push_back(self, heap: &Heap<'_>, source: Source<'_>) -> Result<()> {
                let mut batch = heap.world().batch();
                let mut ring = self.ring(&mut batch, heap)?;
                let end = ring.size;
                ring.insert(heap, &mut batch, end, source)
            }

            /// Erases up to `count` bytes at the end, as many as there are. Two round trips.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy).
            pub fn pop_back(self, heap: &Heap<'_>, count: usize) -> Result<()> {
                let mut batch = heap.world().batch();
                let mut ring = self.ring(&mut batch, heap)?;
                let last = ring.size - count.min(ring.size)..ring.size;
                ring.erase(&mut batch, last)
            }

            /// Inserts bytes before the one at `index`, or at the end, of memory of any rank, of itself too. Round
            /// trips: as of [`push_back`](Self::push_back), and one for each 256 KiB that have to move while there is
            /// room.
            ///
            /// # Errors
            /// As of [`push_back`](Self::push_back); refused also where the index is behind the end.
            pub fn insert(self, heap: &Heap<'_>, index: usize, source: Source<'_>) -> Result<()> {
                let mut batch = heap.world().batch();
                self.ring(&mut batch, heap)?.insert(heap, &mut batch, index, source)
            }

            /// Inserts bytes of `other`, which may be the same. Round trips as of [`insert`](Self::insert).
            ///
            /// # Errors
            /// As of [`insert`](Self::insert); refused also where the range is not of the other's bytes.
            pub fn insert_range(self, heap: &Heap<'_>, index: usize, other: Self, range: Range<usize>) -> Result<()> {
                let mut batch = heap.world().batch();
                let headers = [self.address, other.address];
                let [mut to, from] = Ring::fetch_two(&mut batch, heap.world(), $kind, headers)?;
                to.insert_from(heap, &mut batch, index, &from, range)
            }

            /// Erases the bytes of the range, of which those behind the end are not there. Two round trips, and one for
            /// each 256 KiB that have to move.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy); refused also where the range begins behind the end, or ends before it
            /// begins.
            pub fn erase(self, heap: &Heap<'_>, range: Range<usize>) -> Result<()> {
                let mut batch = heap.world().batch();
                let mut ring = self.ring(&mut batch, heap)?;
                let end = if range.end < range.start { range.end } else { range.end.min(ring.size) };
                ring.erase(&mut batch, range.start..end)
            }

            /// Makes it a copy of `other`. Two round trips where there is room, else an allocation and freeing a block
            /// come to them.
            ///
            /// # Errors
            /// As of [`push_back`](Self::push_back).
            pub fn assign(self, heap: &Heap<'_>, other: Self) -> Result<()> {
                let mut batch = heap.world().batch();
                let headers = [self.address, other.address];
                let [mut to, from] = Ring::fetch_two(&mut batch, heap.world(), $kind, headers)?;
                to.replace(heap, &mut batch, &from, 0..from.size)
            }

            /// Makes it a copy of bytes of `other`, which may be the same. Round trips as of [`assign`](Self::assign);
            /// of itself, in a vector, one for each 256 KiB.
            ///
            /// # Errors
            /// As of [`push_back`](Self::push_back); refused also where the range is not of the other's bytes.
            pub fn assign_range(self, heap: &Heap<'_>, other: Self, range: Range<usize>) -> Result<()> {
                let mut batch = heap.world().batch();
                let headers = [self.address, other.address];
                let [mut to, from] = Ring::fetch_two(&mut batch, heap.world(), $kind, headers)?;
                to.replace(heap, &mut batch, &from, range)
            }

            /// Exchanges the bytes of two. They stay where they are, of whichever rank; what is allocated later is of
            /// the rank of the header again. Two round trips.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy).
            pub fn swap(self, heap: &Heap<'_>, other: Self) -> Result<()> {
                let mut batch = heap.world().batch();
                let headers = [self.address, other.address];
                let [one, two] = Ring::fetch_two(&mut batch, heap.world(), $kind, headers)?;
                Ring::exchange(&mut batch, &one, &two)
            }

            /// Reads bytes. Two round trips, and one for each 256 KiB after the first.
            ///
            /// # Errors
            /// As of [`destroy`](Self::destroy); refused also where they are not all there.
            pub fn read(self, heap: &Heap<'_>, index: usize, to: &mut [u8]) -> Result<()> {
                let mut batch = heap.world().batch();
                self.ring(&mut batch, heap)?.read_bytes(&mut batch, index, to)
            }

            /// Overwrites bytes. Round trips as of [`read`](Self::read).
            ///
            /// # Errors
            /// As of [`read`](Self::read).
            pub fn write(self, heap: &Heap<'_>, index: usize, bytes: &[u8]) -> Result<()> {
                let mut batch = heap.world().batch();
                self.ring(&mut batch, heap)?.overwrite(&mut batch, index, bytes)
            }
        }
    };
}

pub(crate) use sequence;
