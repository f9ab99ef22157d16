//! Operations on whole lists. Links are fetched once, an element at a time since each names the next; then the order is
//! made up in this rank's memory, and the links that have changed are written together.

use std::cmp::Ordering;
use std::collections::HashMap;

use vervain_acp::{Batch, GlobalAddress, Order, Place, Result};
use vervain_acp_heap::Heap;

use super::node::{KIND, Links, Node, free, put, relink, reserve};
use super::{Cursor, List};
use crate::source::{CHUNK, Element, check};

/// Compares two elements where they lie.
type Compare<'c> = &'c mut dyn FnMut(Element, Element) -> Ordering;

impl List {
    /// The header, and all elements: one round trip, and one for each.
    fn nodes(self, heap: &Heap<'_>, batch: &mut Batch<'_>) -> Result<(Node, Vec<Node>)> {
        let links = Links::of(heap.world(), self.address);
        let header = links.fetch(batch, self.address)?;
        let nodes = links.all(batch, &header)?;
        batch.clear()?;
        Ok((header, nodes))
    }

    /// The places of the values of all elements, from the first on, until they are erased. One round trip, and one for
    /// each.
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn elements(self, heap: &Heap<'_>) -> Result<Vec<Element>> {
        let (_, nodes) = self.nodes(heap, &mut heap.world().batch())?;
        Ok(nodes.iter().map(Node::element).collect())
    }

    /// Erases all elements. Two round trips, one for each element, and freeing them; one more for each 1,000 beyond the
    /// first.
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn clear(self, heap: &Heap<'_>) -> Result<()> {
        let mut batch = heap.world().batch();
        let (_, nodes) = self.nodes(heap, &mut batch)?;
        reserve(&mut batch, nodes.len())?;
        relink(&mut batch, self.address, &[])?;
        free(heap, &mut batch, nodes.iter().map(|node| node.at))
    }

    /// Frees it with all elements. Nobody may use it any more. As [`clear`](Self::clear).
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn destroy(self, heap: &Heap<'_>) -> Result<()> {
        let mut batch = heap.world().batch();
        let (_, nodes) = self.nodes(heap, &mut batch)?;
        reserve(&mut batch, nodes.len())?;
        put(&mut batch, self.address, KIND, 0)?;
        free(heap, &mut batch, nodes.iter().map(|node| node.at))?;
        heap.free(self.address)
    }

    /// Makes it a copy of `other`, whose elements are copied as by [`insert_range`](Self::insert_range). One round trip
    /// for each element of both, and four; and allocating and freeing them.
    ///
    /// # Errors
    /// As of [`insert`](Self::insert); where it is refused, nothing has happened.
    pub fn assign(self, heap: &Heap<'_>, other: Self) -> Result<()> {
        if self == other {
            return Ok(());
        }
        let (_, nodes) = other.nodes(heap, &mut heap.world().batch())?;
        self.become_copies(heap, &nodes)
    }

    /// Makes it a copy of the elements from `first` up to `end`, not with it, of another list or this one. As
    /// [`assign`](Self::assign).
    ///
    /// # Errors
    /// As of [`assign`](Self::assign) and [`erase_range`](Self::erase_range).
    pub fn assign_range(self, heap: &Heap<'_>, first: Cursor, end: Cursor) -> Result<()> {
        let (_, nodes) = first.list.range(heap, first, end)?;
        self.become_copies(heap, &nodes)
    }

    fn become_copies(self, heap: &Heap<'_>, nodes: &[Node]) -> Result<()> {
        let mut batch = heap.world().batch();
        let (_, old) = self.nodes(heap, &mut batch)?;
        reserve(&mut batch, nodes.len().max(old.len()))?;
        let copies = self.copies(heap, &mut batch, nodes, (self.address, self.address))?;
        let ends = [copies.first(), copies.last()].map(|end| end.copied().unwrap_or(self.address).0);
        batch.put_words(self.address, &[ends[0], ends[1], copies.len() as u64], Order::Now)?;
        batch.clear()?;
        free(heap, &mut batch, old.iter().map(|node| node.at))
    }

    /// Reverses the elements' order. One round trip for each element, and two; one more for each 1,000 elements.
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn reverse(self, heap: &Heap<'_>) -> Result<()> {
        let mut batch = heap.world().batch();
        let (_, mut nodes) = self.nodes(heap, &mut batch)?;
        nodes.reverse();
        reserve(&mut batch, nodes.len())?;
        relink(&mut batch, self.address, &nodes)?;
        batch.wait()
    }

    /// Sorts the elements by `compare`, which gets their places; those that it finds equal keep their order. It is
    /// called n log n times at most, and may use the world. The list has the same elements afterwards, also if its
    /// answers are inconsistent. Round trips as of [`reverse`](Self::reverse), besides those of `compare`.
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn sort(self, heap: &Heap<'_>, mut compare: impl FnMut(Element, Element) -> Ordering) -> Result<()> {
        let mut batch = heap.world().batch();
        let (_, nodes) = self.nodes(heap, &mut batch)?;
        reserve(&mut batch, nodes.len())?;
        relink(&mut batch, self.address, &sorted(nodes, &mut compare))?;
        batch.wait()
    }

    /// Moves the elements of `other` into this list; both are sorted by `compare`, as the list is then. Of equal ones
    /// those of this list come first. Nothing happens if both are the same. Round trips: one for each element of both,
    /// and three; one more for each 1,000 elements.
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn merge(
        self,
        heap: &Heap<'_>,
        other: Self,
        mut compare: impl FnMut(Element, Element) -> Ordering,
    ) -> Result<()> {
        if self == other {
            return Ok(());
        }
        let mut batch = heap.world().batch();
        let (_, nodes) = self.nodes(heap, &mut batch)?;
        let (_, theirs) = other.nodes(heap, &mut batch)?;
        let mut all = Vec::with_capacity(nodes.len() + theirs.len());
        merged(&nodes, &theirs, &mut all, &mut compare);
        reserve(&mut batch, all.len())?;
        relink(&mut batch, other.address, &[])?;
        relink(&mut batch, self.address, &all)?;
        batch.wait()
    }

    /// Erases all elements that have these bytes; returns how many. Round trips: one for each element, two, one for
    /// each 256 KiB that are compared, and freeing those that are erased. The bytes may be those of an element.
    ///
    /// # Errors
    /// As of [`len`](Self::len); refused also where there are no such bytes.
    pub fn remove(self, heap: &Heap<'_>, value: Element) -> Result<usize> {
        if value.size > 0 {
            check(heap.world(), value.address, value.size)?;
        }
        let mut batch = heap.world().batch();
        let (_, nodes) = self.nodes(heap, &mut batch)?;
        let alike = nodes.iter().filter(|node| node.size == value.size);
        let pairs: Vec<_> = alike.clone().map(|node| (value.address, node.element())).collect();
        let equal = equal(&mut batch, &pairs)?;
        let erased = alike.zip(&equal).filter(|(_, equal)| **equal).map(|(node, _)| node.at).collect();
        self.keep_others(heap, &mut batch, nodes, erased)
    }

    /// Erases all elements that have the bytes of the one before; returns how many. As [`remove`](Self::remove).
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn unique(self, heap: &Heap<'_>) -> Result<usize> {
        let mut batch = heap.world().batch();
        let (_, nodes) = self.nodes(heap, &mut batch)?;
        let alike = nodes.windows(2).filter(|pair| pair[0].size == pair[1].size);
        let pairs: Vec<_> = alike.clone().map(|pair| (pair[0].element().address, pair[1].element())).collect();
        let equal = equal(&mut batch, &pairs)?;
        let erased = alike.zip(&equal).filter(|(_, equal)| **equal).map(|(pair, _)| pair[1].at).collect();
        self.keep_others(heap, &mut batch, nodes, erased)
    }

    /// Erases these, in the order of the list.
    fn keep_others(
        self,
        heap: &Heap<'_>,
        batch: &mut Batch<'_>,
        mut nodes: Vec<Node>,
        erased: Vec<GlobalAddress>,
    ) -> Result<usize> {
        if erased.is_empty() {
            return Ok(0);
        }
        let mut next = erased.iter().peekable();
        reserve(batch, nodes.len())?;
        nodes.retain(|node| next.next_if(|erased| **erased == node.at).is_none());
        relink(batch, self.address, &nodes)?;
        free(heap, batch, erased.iter().copied())?;
        Ok(erased.len())
    }

    /// Exchanges the elements of two lists, which stay where they are. Two round trips. Positions are then of the other
    /// list.
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn swap(self, heap: &Heap<'_>, other: Self) -> Result<()> {
        if self == other {
            return Ok(());
        }
        let mut batch = heap.world().batch();
        let both = [self, other].map(|list| Links::of(heap.world(), list.address));
        let places = [both[0].begin(&mut batch, self.address)?, both[1].begin(&mut batch, other.address)?];
        batch.wait()?;
        let (one, two) =
            (both[0].read(&batch, places[0], self.address)?, both[1].read(&batch, places[1], other.address)?);
        for (to, from) in [(one, two), (two, one)] {
            if from.next == from.at {
                relink(&mut batch, to.at, &[])?;
                continue;
            }
            batch.put_words(to.at, &[from.next.0, from.previous.0, from.size as u64], Order::Now)?;
            put(&mut batch, from.next, super::PREVIOUS, to.at.0)?;
            put(&mut batch, from.previous, super::NEXT, to.at.0)?;
        }
        batch.wait()
    }
}

/// Which of the pairs have the same bytes, of the size that each has. Short ones are fetched together, long ones in
/// parts.
fn equal(batch: &mut Batch<'_>, pairs: &[(GlobalAddress, Element)]) -> Result<Vec<bool>> {
    let mut answers = Vec::with_capacity(pairs.len());
    while let Some((one, Element { address: other, size })) = pairs.get(answers.len()).copied() {
        if size > CHUNK {
            answers.push(equal_in_parts(batch, one, other, size)?);
            continue;
        }
        // As many as fit. An address that comes twice, as between neighbours, is fetched once.
        let mut places: HashMap<GlobalAddress, Place> = HashMap::new();
        let mut bytes = 0;
        let first = answers.len();
        let mut end = first;
        batch.clear()?;
        while let Some((one, Element { address: other, size })) = pairs.get(end).copied()
            && size <= CHUNK
            && bytes <= CHUNK
            // A batch of more accesses would wait in its midst.
            && end - first < 500
        {
            for at in [one, other] {
                if size > 0 && !places.contains_key(&at) {
                    places.insert(at, batch.get(at, size, Order::Now)?);
                    bytes += size;
                }
            }
            end += 1;
        }
        batch.wait()?;
        let fetched = |at: &GlobalAddress| places.get(at).map(|place| batch.bytes(*place)).unwrap_or_default();
        answers.extend(pairs[first..end].iter().map(|(one, other)| {
            other.size == 0 || fetched(one)[..other.size] == fetched(&other.address)[..other.size]
        }));
    }
    batch.clear()?;
    Ok(answers)
}

fn equal_in_parts(batch: &mut Batch<'_>, one: GlobalAddress, other: GlobalAddress, size: usize) -> Result<bool> {
    for at in (0..size).step_by(CHUNK / 2) {
        let len = (size - at).min(CHUNK / 2);
        batch.clear()?;
        let places = [one, other].map(|from| batch.get(from.add(at as u64), len, Order::Now));
        let [one, other] = [places[0].clone()?, places[1].clone()?];
        batch.wait()?;
        if batch.bytes(one) != batch.bytes(other) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Sorts nodes, the first of equal ones first: runs that double in length, whatever `compare` says.
fn sorted(mut nodes: Vec<Node>, compare: Compare<'_>) -> Vec<Node> {
    let mut run = 1;
    while run < nodes.len() {
        let mut next = Vec::with_capacity(nodes.len());
        for pair in nodes.chunks(2 * run) {
            let (one, two) = pair.split_at(run.min(pair.len()));
            merged(one, two, &mut next, compare);
        }
        nodes = next;
        run *= 2;
    }
    nodes
}

/// Appends the nodes of both, which are sorted, to `all`.
fn merged(mut one: &[Node], mut two: &[Node], all: &mut Vec<Node>, compare: Compare<'_>) {
    while let ([first, one_rest @ ..], [second, two_rest @ ..]) = (one, two) {
        if compare(first.element(), second.element()) == Ordering::Greater {
            all.push(*second);
            two = two_rest;
        } else {
            all.push(*first);
            one = one_rest;
        }
    }
    all.extend_from_slice(one);
    all.extend_from_slice(two);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(sizes: &[usize]) -> Vec<Node> {
        let node = |(i, size): (usize, &usize)| {
            let at = GlobalAddress(1000 + i as u64);
            Node { at, next: at, previous: at, size: *size }
        };
        sizes.iter().enumerate().map(node).collect()
    }

    #[test]
    fn sorting_is_stable_and_compares_n_log_n_times() {
        for len in 0..200 {
            let sizes: Vec<usize> = (0..len).map(|i| i * 7919 % 13).collect();
            let mut expected = nodes(&sizes);
            expected.sort_by_key(|node| node.size);
            let mut calls = 0;
            let seen = sorted(nodes(&sizes), &mut |a, b| {
                calls += 1;
                a.size.cmp(&b.size)
            });
            assert_eq!(seen, expected);
            assert!(calls <= len * (usize::BITS - len.leading_zeros()) as usize, "{calls} of {len}");
        }
    }

    #[test]
    fn a_comparison_without_sense_loses_nothing() {
        let sizes: Vec<usize> = (0..100).collect();
        let mut turn = 0;
        let mut seen = sorted(nodes(&sizes), &mut |_, _| {
            turn += 1;
            [Ordering::Less, Ordering::Greater, Ordering::Greater][turn % 3]
        });
        seen.sort_by_key(|node| node.size);
        assert_eq!(seen, nodes(&sizes));
    }
}
