//! Lists.

use std::ffi::c_int;

use vervain_acp::{Error, GlobalAddress, Result};
use vervain_acp_containers::{Cursor, List as Inner};

use crate::element::Element;
use crate::sequences::{NULL, done, int, rank, source};

/// `acp_list_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct List {
    ga: u64,
}

impl List {
    fn inner(self) -> Inner {
        Inner::new(GlobalAddress(self.ga))
    }
}

/// `acp_list_it_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ListIt {
    list: List,
    elem: u64,
}

impl ListIt {
    const NULL: Self = Self { list: List { ga: NULL }, elem: NULL };

    fn cursor(self) -> Cursor {
        Cursor { list: self.list.inner(), element: GlobalAddress(self.elem) }
    }
}

impl From<Cursor> for ListIt {
    fn from(cursor: Cursor) -> Self {
        Self { list: List { ga: cursor.list.address().0 }, elem: cursor.element.0 }
    }
}

/// A function that compares two elements.
type Comparison = Option<unsafe extern "C" fn(Element, Element) -> c_int>;

/// The same for Rust.
///
/// # Safety
/// The function may be called.
unsafe fn comparison(
    comp: Comparison,
) -> Result<impl FnMut(vervain_acp_containers::Element, vervain_acp_containers::Element) -> std::cmp::Ordering> {
    let comp = comp.ok_or_else(|| Error::refused("there is no function that compares"))?;
    // SAFETY: the caller's promise.
    Ok(move |one, other| unsafe { comp(Element::from(one), Element::from(other)) }.cmp(&0))
}

/// Makes one a copy of another.
pub extern "C" fn acp_assign_list(list1: List, list2: List) {
    done("acp_assign_list", (), |heap| list1.inner().assign(heap, list2.inner()))
}

/// Makes one a copy of elements.
pub extern "C" fn acp_assign_range_list(list: List, start: ListIt, end: ListIt) {
    done("acp_assign_range_list", (), |heap| list.inner().assign_range(heap, start.cursor(), end.cursor()))
}

/// The first element.
pub extern "C" fn acp_begin_list(list: List) -> ListIt {
    done("acp_begin_list", ListIt::NULL, |heap| Ok(list.inner().begin(heap)?.into()))
}

/// Erases all elements.
pub extern "C" fn acp_clear_list(list: List) {
    done("acp_clear_list", (), |heap| list.inner().clear(heap))
}

/// Makes one.
pub extern "C" fn acp_create_list(on: c_int) -> List {
    done("acp_create_list", List { ga: NULL }, |heap| Ok(List { ga: Inner::create(heap, rank(on)?)?.address().0 }))
}

/// Frees it.
pub extern "C" fn acp_destroy_list(list: List) {
    done("acp_destroy_list", (), |heap| list.inner().destroy(heap))
}

/// Returns 1 if it has no elements, else 0; -1 on an error.
pub extern "C" fn acp_empty_list(list: List) -> c_int {
    done("acp_empty_list", -1, |heap| Ok(list.inner().is_empty(heap)?.into()))
}

/// Behind the last element.
pub extern "C" fn acp_end_list(list: List) -> ListIt {
    done("acp_end_list", ListIt::NULL, |_| match list.ga {
        NULL => Err(Error::refused("there is no list at a null address")),
        _ => Ok(list.inner().end().into()),
    })
}

/// Erases an element.
pub extern "C" fn acp_erase_list(it: ListIt) -> ListIt {
    done("acp_erase_list", ListIt::NULL, |heap| Ok(it.list.inner().erase(heap, it.cursor())?.into()))
}

/// Erases elements.
pub extern "C" fn acp_erase_range_list(start: ListIt, end: ListIt) -> ListIt {
    done("acp_erase_range_list", ListIt::NULL, |heap| {
        Ok(start.list.inner().erase_range(heap, start.cursor(), end.cursor())?.into())
    })
}

/// Inserts an element.
pub extern "C" fn acp_insert_list(it: ListIt, elem: Element, on: c_int) -> ListIt {
    done("acp_insert_list", ListIt::NULL, |heap| {
        Ok(it.list.inner().insert(heap, it.cursor(), source(elem.ga.0, elem.size), rank(on)?)?.into())
    })
}

/// Inserts copies of elements.
pub extern "C" fn acp_insert_range_list(it: ListIt, start: ListIt, end: ListIt) -> ListIt {
    done("acp_insert_range_list", ListIt::NULL, |heap| {
        Ok(it.list.inner().insert_range(heap, it.cursor(), start.cursor(), end.cursor())?.into())
    })
}

/// Merges two sorted lists.
///
/// # Safety
/// `comp` is null or may be called.
pub unsafe extern "C" fn acp_merge_list(list1: List, list2: List, comp: Comparison) {
    done("acp_merge_list", (), |heap| {
        // SAFETY: the caller's promise.
        list1.inner().merge(heap, list2.inner(), unsafe { comparison(comp) }?)
    })
}

/// Erases the last element.
pub extern "C" fn acp_pop_back_list(list: List) {
    done("acp_pop_back_list", (), |heap| some(list.inner().pop_back(heap)?))
}

/// Erases the first element.
pub extern "C" fn acp_pop_front_list(list: List) {
    done("acp_pop_front_list", (), |heap| some(list.inner().pop_front(heap)?))
}

/// The error if there was no element.
fn some(was: bool) -> Result<()> {
    if was { Ok(()) } else { Err(Error::refused("the list has no element")) }
}

/// Adds an element at the end.
pub extern "C" fn acp_push_back_list(list: List, elem: Element, on: c_int) {
    done("acp_push_back_list", (), |heap| {
        list.inner().push_back(heap, source(elem.ga.0, elem.size), rank(on)?).map(drop)
    })
}

/// Adds an element at the front.
pub extern "C" fn acp_push_front_list(list: List, elem: Element, on: c_int) {
    done("acp_push_front_list", (), |heap| {
        list.inner().push_front(heap, source(elem.ga.0, elem.size), rank(on)?).map(drop)
    })
}

/// Erases elements with these bytes.
pub extern "C" fn acp_remove_list(list: List, elem: Element) {
    done("acp_remove_list", (), |heap| {
        let value = vervain_acp_containers::Element { address: elem.ga, size: elem.size };
        list.inner().remove(heap, value).map(drop)
    })
}

/// Reverses it.
pub extern "C" fn acp_reverse_list(list: List) {
    done("acp_reverse_list", (), |heap| list.inner().reverse(heap))
}

/// Elements that it has.
pub extern "C" fn acp_size_list(list: List) -> usize {
    done("acp_size_list", 0, |heap| list.inner().len(heap))
}

/// Sorts it.
///
/// # Safety
/// `comp` is null or may be called.
pub unsafe extern "C" fn acp_sort_list(list: List, comp: Comparison) {
    // SAFETY: the caller's promise.
    done("acp_sort_list", (), |heap| list.inner().sort(heap, unsafe { comparison(comp) }?))
}

/// Moves an element.
pub extern "C" fn acp_splice_list(it1: ListIt, it2: ListIt) {
    done("acp_splice_list", (), |heap| it1.list.inner().splice(heap, it1.cursor(), it2.cursor()))
}

/// Moves elements.
pub extern "C" fn acp_splice_range_list(it: ListIt, start: ListIt, end: ListIt) {
    done("acp_splice_range_list", (), |heap| {
        it.list.inner().splice_range(heap, it.cursor(), start.cursor(), end.cursor())
    })
}

/// Exchanges the elements of two lists.
pub extern "C" fn acp_swap_list(list1: List, list2: List) {
    done("acp_swap_list", (), |heap| list1.inner().swap(heap, list2.inner()))
}

/// Erases equal neighbours.
pub extern "C" fn acp_unique_list(list: List) {
    done("acp_unique_list", (), |heap| list.inner().unique(heap).map(drop))
}

/// An element further on, or back.
pub extern "C" fn acp_advance_list_it(it: ListIt, n: c_int) -> ListIt {
    done("acp_advance_list_it", ListIt::NULL, |heap| Ok(it.cursor().advance(heap, n.into())?.into()))
}

/// The element before.
pub extern "C" fn acp_decrement_list_it(it: ListIt) -> ListIt {
    done("acp_decrement_list_it", ListIt::NULL, |heap| Ok(it.cursor().previous(heap)?.into()))
}

/// The place of an element.
pub extern "C" fn acp_dereference_list_it(it: ListIt) -> Element {
    done("acp_dereference_list_it", Element::NONE, |heap| Ok(it.cursor().value(heap)?.into()))
}

/// Elements between two iterators.
pub extern "C" fn acp_distance_list_it(first: ListIt, last: ListIt) -> c_int {
    done("acp_distance_list_it", -1, |heap| int(first.cursor().distance(heap, last.cursor())?))
}

/// The next element.
pub extern "C" fn acp_increment_list_it(it: ListIt) -> ListIt {
    done("acp_increment_list_it", ListIt::NULL, |heap| Ok(it.cursor().next(heap)?.into()))
}
