//! Containers of values: what one rank has put in, the next one changes, and all read.

use vervain_acp::{GlobalAddress, Result};
use vervain_acp_containers::{Deque, GDeque, GList, GVec, List, Vector};
use vervain_acp_heap::Heap;

use super::{must, shared, wrong};

type Value = [u32; 3];

fn value(i: usize) -> Value {
    [i as u32, 7 * i as u32, !(i as u32)]
}

fn all<T>(values: impl Iterator<Item = Result<T>>) -> Result<Vec<T>> {
    values.collect()
}

/// `count` values, of which there are more than are read at a time.
pub fn run(heap: &Heap<'_>, count: u64) -> Result<()> {
    let (world, count) = (heap.world(), count as usize);
    let last = world.size() - 1;
    let make = || -> Result<Vec<GlobalAddress>> {
        let vector = GVec::<Value>::create(heap, last)?.bytes().address();
        let deque = GDeque::<Value>::create(heap, last)?.bytes().address();
        Ok(vec![vector, deque, GList::<Value>::create(heap, last)?.bytes().address()])
    };
    let made = shared(world, make, 3)?;
    let vector = GVec::<Value>::open(heap, Vector::new(made[0]));
    let deque = GDeque::<Value>::open(heap, Deque::new(made[1]));
    let list = GList::<Value>::open(heap, List::new(made[2]));
    if world.rank() == 0 {
        must(vector.is_empty()? && deque.is_empty()? && list.is_empty()?, || "they begin with values".into())?;
        must(vector.pop_back()?.is_none() && deque.pop_front()?.is_none() && list.pop_back()?.is_none(), || {
            "values come out of nothing".into()
        })?;
        let values: Vec<Value> = (0..count).map(value).collect();
        vector.extend(&values)?;
        for i in 0..50 {
            list.push_back(value(50 + i), i as u32 % world.size())?;
            list.push_front(value(49 - i), i as u32 % world.size())?;
            deque.push_back(value(50 + i))?;
            deque.push_front(value(49 - i))?;
        }
    }
    world.sync()?;
    let hundred: Vec<Value> = (0..100).map(value).collect();
    must(vector.len()? == count && all(vector.iter()?)? == (0..count).map(value).collect::<Vec<_>>(), || {
        "the vector has other values".into()
    })?;
    must(all(deque.iter()?)? == hundred && all(list.iter()?)? == hundred, || "deque or list have other values".into())?;
    world.sync()?;
    if world.rank() == last {
        vector.set(3, value(1000))?;
        vector.insert(1, &[value(2000), value(3000)])?;
        vector.remove(0..1)?;
        let got = [vector.get(0)?, vector.get(1)?, vector.get(2)?, vector.get(4)?];
        must(got == [2000, 3000, 1, 1000].map(value), || format!("the vector begins with {got:?}"))?;
        must(vector.pop_back()? == Some(value(count - 1)), || "it ends with another value".into())?;
        must(vector.get(count).is_err_and(|error| error.is_refused()), || "it goes on behind its end".into())?;
        must(deque.pop_front()? == Some(value(0)) && deque.pop_back()? == Some(value(99)), || {
            "the deque's ends".into()
        })?;
        must(list.pop_front()? == Some(value(0)) && list.pop_back()? == Some(value(99)), || "the list's ends".into())?;
        list.sort_by(|one, other| (other[0] % 10).cmp(&(one[0] % 10)))?;
        let mut sorted = hundred[1..99].to_vec();
        sorted.sort_by_key(|value| std::cmp::Reverse(value[0] % 10));
        must(all(list.iter()?)? == sorted, || "the list is not sorted".into())?;
        let first = list.bytes().begin(heap)?;
        list.set(first, value(5))?;
        must(list.get(first)? == value(5) && list.len()? == 98, || "the list has another first value".into())?;
        let other = GList::<u8>::open(heap, list.bytes());
        must(other.get(first).is_err_and(|error| error.is_refused()), || "a value has another size".into())?;
        for what in [format!("{vector:?}"), format!("{deque:?}"), format!("{list:?}")] {
            must(what.contains("[u32; 3]"), || what)?;
        }
        vector.destroy()?;
        deque.destroy()?;
        list.destroy()?;
    }
    world.sync().map_err(|error| wrong(error.to_string()))
}
