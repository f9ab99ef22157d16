//! Things with numbers: a number whose thing is gone is that of nothing, also when its place is used again.

/// The number of a channel, of a segmented buffer or of a request: never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(u64);

impl Id {
    /// Its bits, for who hands it through a foreign interface.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The number with these bits; of nothing, unless they came from [`bits`](Id::bits).
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn place(self) -> Option<usize> {
        (self.0 as u32).checked_sub(1).map(|place| place as usize)
    }
}

struct Place<T> {
    /// How often the place was given up.
    life: u32,
    thing: Option<T>,
}

pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Self { places: vec![], free: vec![] }
    }

    #[inline]
    pub fn insert(&mut self, thing: T) -> Id {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { life: 0, thing: None });
            (self.places.len() - 1) as u32
        });
        let at = &mut self.places[place as usize];
        at.thing = Some(thing);
        Id(u64::from(at.life) << 32 | u64::from(place + 1))
    }

    #[inline]
    fn place(&mut self, id: Id) -> Option<&mut Place<T>> {
        let at = self.places.get_mut(id.place()?)?;
        (u64::from(at.life) == id.0 >> 32).then_some(at)
    }

    #[inline]
    pub fn get(&mut self, id: Id) -> Option<&mut T> {
        self.place(id)?.thing.as_mut()
    }

    #[inline]
    pub fn remove(&mut self, id: Id) -> Option<T> {
        let at = self.place(id)?;
        let thing = at.thing.take()?;
        at.life = at.life.wrapping_add(1);
        self.free.extend(id.place().map(|place| place as u32));
        Some(thing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_what_is_gone_are_of_nothing() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.get(a), Some(&mut 'a'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.get(a), None);
        let c = slab.insert('c');
        assert!(c != a && c.bits() as u32 == a.bits() as u32, "the place is used again");
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.get(b), Some(&mut 'b'));
        assert_eq!(slab.get(c), Some(&mut 'c'));
        for bits in [0, 1 << 32, 99, u64::MAX] {
            assert_eq!(slab.get(Id::from_bits(bits)), None);
        }
    }
}
