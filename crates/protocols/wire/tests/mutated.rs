//! Damaged packets: a bounded run of what the fuzz target `packet` runs without end, from the golden captures.

mod common;
#[path = "common/mutate.rs"]
mod mutate;
#[path = "../../../../fuzz/checks/packet.rs"]
mod packet;

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use vervain_wire::icrc::Untold;

/// A run of about a second.
const CASES: u32 = 200_000;

#[test]
fn damaged_packets_are_taken_apart_or_malformed_and_nothing_else() {
    let golden = common::packets(common::GOLDEN);
    let datagrams: Vec<Vec<u8>> = golden.iter().map(|captured| captured.datagram.clone()).collect();
    let (taken, malformed) = (Cell::new(0), Cell::new(0));
    let damage = (any::<prop::sample::Index>(), prop::collection::vec(mutate::mutation(), 1..5));
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let run = runner.run(&damage, |(which, mutations)| {
        let captured = &golden[which.index(golden.len())];
        let mut datagram = captured.datagram.clone();
        mutations.iter().for_each(|mutation| mutate::apply(&mut datagram, mutation, &datagrams));

        let count = if packet::check(&datagram) { &taken } else { &malformed };
        count.set(count.get() + 1);
        if let Some(id) = captured.id
            && captured.flow.verify(id, &datagram) == Some(Untold::with_df(id))
        {
            // Byte 4 is the network's.
            datagram[4] = captured.datagram[4];
            prop_assert_eq!(&datagram, &captured.datagram, "{}", &captured.name);
        }
        Ok(())
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
    // Neither the damage nor the parser lets everything through.
    let (taken, malformed) = (taken.get(), malformed.get());
    assert!(taken > CASES / 10 && malformed > CASES / 10, "{taken} taken, {malformed} malformed");
}
