//! Whether the memory of the models is one.

macro_rules! allows_and_forbids {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() {
            vervain_model::litmus::$name(0..100);
        })*
    };
}

allows_and_forbids! {
    a_store_may_be_seen_late,
    a_barrier_for_everybody_serves_both_sides,
    a_message_needs_release_and_acquire,
    what_was_released_is_carried_on_by_an_exchange_only,
    loads_of_a_word_never_go_back,
}
