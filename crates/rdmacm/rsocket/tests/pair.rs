//! Two ends of a stream with the memory between them, in every order of steps: all bytes arrive, nothing gets stuck,
//! and whatever a peer says and writes, an end touches nothing that is not its own.

mod common;

use common::{End, Pair};
use proptest::prelude::*;
use vervain_rsocket::protocol::stream::{CONTROLS, Phase, SPARE_RECEIVES, Sizes};
use vervain_rsocket::protocol::wire::Order;

fn sizes() -> impl Strategy<Value = Sizes> {
    let small = (2_u16..20, 2_u16..20, 24_u32..3000, 1_u32..3000, prop_oneof![Just(0), Just(3), 0_u32..64]);
    (small, any::<bool>()).prop_map(|((requests, credits, send_bytes, half, inline_bytes), separate)| Sizes {
        send_requests: requests + CONTROLS,
        credits,
        send_bytes,
        receive_bytes: 2 * half,
        io_maps: 4,
        inline_bytes,
        separate,
    })
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Little), Just(Order::Big)]
}

/// Sizes of both ends, of one kind of device.
fn pair() -> impl Strategy<Value = Pair> {
    (sizes(), sizes(), order(), order()).prop_map(|(a, mut b, one, other)| {
        b.separate = a.separate;
        Pair::new(a, b, one, other)
    })
}

/// The next step of an end: the numbers are lengths.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize, usize),
    Receive(usize, usize),
    Deliver(usize),
    Complete(usize),
    Controls(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2_usize, 1..9000_usize).prop_map(|(end, length)| Step::Send(end, length)),
        (0..2_usize, 1..9000_usize).prop_map(|(end, length)| Step::Receive(end, length)),
        (0..2_usize).prop_map(Step::Deliver),
        (0..2_usize).prop_map(Step::Complete),
        (0..2_usize).prop_map(Step::Controls),
    ]
}

fn carry_out(pair: &mut Pair, step: Step) {
    match step {
        Step::Send(end, length) => pair.send(end, length),
        Step::Receive(end, length) => pair.receive(end, length),
        Step::Deliver(end) => pair.deliver(end),
        Step::Complete(end) => pair.complete(end),
        Step::Controls(end) => pair.controls(end),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn all_bytes_arrive_in_order(mut pair in pair(), steps in prop::collection::vec(step(), 0..400)) {
        for step in steps {
            carry_out(&mut pair, step);
        }
        // In every state, sent data arrives when both ends go on, and more can be sent both ways.
        for end in 0..2 {
            let until = pair.ends[end].sent + 20_000;
            let mut rounds = 0;
            while pair.ends[1 - end].received < until {
                if pair.ends[end].sent < until {
                    let left = (until - pair.ends[end].sent) as usize;
                    pair.send(end, left);
                }
                pair.settle();
                pair.receive(1 - end, 1 << 20);
                rounds += 1;
                prop_assert!(rounds < 100_000, "stuck: {pair:?}");
            }
        }
        prop_assert!(pair.most_receives <= usize::from(SPARE_RECEIVES), "{} more than credits", pair.most_receives);
        pair.settle();
        prop_assert!(pair.ends.iter().all(|end| end.stream.is_done()));
    }

    #[test]
    fn a_half_closed_stream_still_goes_the_other_way(mut pair in pair(), early in 0..5000_usize) {
        pair.send(0, early);
        let first = pair.ends[0].sent;
        pair.ends[0].stream.shut_down(false, true);
        prop_assert!(!pair.ends[0].stream.is_sending() && pair.ends[0].stream.is_writable());
        pair.settle();
        pair.receive(1, 1 << 20);
        prop_assert_eq!(pair.ends[1].received, first);
        prop_assert!(pair.ends[1].stream.is_readable() && !pair.ends[1].stream.is_receiving());
        while pair.ends[0].received < 10_000 {
            pair.send(1, 100);
            pair.settle();
            pair.receive(0, 1 << 20);
        }
        prop_assert_eq!(pair.ends[0].stream.phase(), Phase::Open);
        pair.ends[1].stream.shut_down(true, true);
        pair.settle();
        for end in &pair.ends {
            prop_assert_eq!(end.stream.phase(), Phase::Disconnected);
        }
    }

    #[test]
    fn the_end_comes_after_the_data(mut pair in pair(), length in 1..5000_usize, both: bool) {
        pair.send(0, length);
        let sent = pair.ends[0].sent;
        pair.ends[0].stream.shut_down(true, true);
        if both {
            pair.ends[1].stream.shut_down(true, true);
        }
        pair.settle();
        pair.receive(1, 1 << 20);
        prop_assert_eq!(pair.ends[1].received, sent);
        for end in &pair.ends {
            prop_assert_eq!(end.stream.phase(), Phase::Disconnected);
            prop_assert!(end.stream.is_readable() && end.stream.is_writable() && end.stream.is_done());
        }
    }

    #[test]
    fn credit_is_exhausted_and_comes_back(mut pair in pair()) {
        // Each message is one byte; nobody reads.
        let mut sent = 0;
        while { pair.send(0, 1); pair.settle(); pair.ends[0].sent > sent } {
            sent = pair.ends[0].sent;
        }
        let Sizes { credits, receive_bytes, .. } = *pair.ends[1].stream.sizes();
        prop_assert_eq!(sent, u64::from(credits).min(u64::from(receive_bytes)));
        prop_assert!(!pair.ends[0].stream.is_writable());
        pair.receive(1, 1 << 20);
        pair.settle();
        prop_assert!(pair.ends[0].stream.is_writable());
    }

    #[test]
    fn a_hostile_peer_breaks_its_own_stream_only(
        sizes in sizes(),
        order in order(),
        hello in prop::collection::vec(any::<u8>(), 0..60),
        plausible: bool,
        script in prop::collection::vec((any::<u32>(), 0..8_u32, any::<[u8; 24]>(), any::<u16>()), 0..300),
    ) {
        let mut hello = hello;
        if plausible {
            hello.resize(40, 1);
            (hello[0], hello[8], hello[24]) = (1, 0, 0);
        }
        let mut end = End::new(sizes, order, 0x10_0000);
        if end.stream.greet(&hello).is_err() {
            return Ok(());
        }
        end.stream.begin();
        for (word, kind, bytes, number) in script {
            // Small numbers are the likelier attack.
            let data = if kind & 1 == 0 { word % 5000 } else { word };
            let kind = [0, 0, 0, 4, 4, 6, 7, 1][kind as usize];
            end.scribble(number, &bytes);
            if end.arrived(kind << 29 | data & 0x1fff_ffff).is_err() {
                end.stream.break_off(71);
            }
            end.check(usize::from(number));
        }
    }
}

#[test]
fn iomaps_are_found_by_offset_and_take_credit_that_comes_back() {
    let sizes = Sizes {
        send_requests: 16,
        credits: 4,
        send_bytes: 4096,
        receive_bytes: 4096,
        io_maps: 4,
        inline_bytes: 0,
        separate: false,
    };
    for (one, other) in [(Order::Little, Order::Big), (Order::Big, Order::Big)] {
        let mut pair = Pair::new(sizes, sizes, one, other);
        for round in 0..50_u64 {
            pair.map(1, (round % 4) as u16, 1000 * round, 500);
            pair.settle();
        }
        assert!(pair.ends[0].stream.next_io_write(1, 0, 46_500).is_err(), "behind the buffer's end");
        assert!(pair.ends[0].stream.next_io_write(1, 0, 0).is_err(), "its entry is another's now");
        let write = pair.ends[0].stream.next_io_write(800, 0, 47_100).unwrap().unwrap();
        assert_eq!((write.length, write.word), (400, None));
        assert_eq!(write.address, pair.mapped(1, 47_000) + 100);
    }
}

#[test]
fn nothing_is_taken_before_the_peer_has_said_where_its_memory_is() {
    let sizes = Sizes {
        send_requests: 16,
        credits: 4,
        send_bytes: 4096,
        receive_bytes: 4096,
        io_maps: 1,
        inline_bytes: 0,
        separate: false,
    };
    let (mut end, peer) = (End::new(sizes, Order::HOST, 0x10_0000), End::new(sizes, Order::HOST, 0x20_0000));
    assert!(!end.stream.is_greeted());
    assert!(end.stream.greet(&[0; 40]).is_err() && !end.stream.is_greeted());
    end.stream.greet(&peer.stream.hello().encode()).unwrap();
    assert!(end.stream.is_greeted());
}

#[test]
fn a_peer_that_says_too_much_is_found_out() {
    use vervain_rsocket::protocol::stream::Violation;
    let sizes = Sizes {
        send_requests: 16,
        credits: 2,
        send_bytes: 4096,
        receive_bytes: 4096,
        io_maps: 1,
        inline_bytes: 0,
        separate: false,
    };
    let said = |words: &[u32]| {
        let mut pair = Pair::new(sizes, sizes, Order::HOST, Order::HOST);
        words.iter().try_for_each(|word| pair.ends[0].arrived(*word))
    };
    assert_eq!(said(&[2048]), Ok(()));
    assert_eq!(said(&[2049]), Err(Violation::Bytes));
    assert_eq!(said(&[2000, 49]), Err(Violation::Bytes));
    assert_eq!(said(&[1, 1, 1]), Err(Violation::Messages));
    assert_eq!(said(&[0xc000_0001]), Err(Violation::IoMap(1)));
    // No content, a keepalive, a reserved one.
    assert_eq!(said(&[0, 0, 0, 0xe000_0001, 0x2000_0000, 0xe000_0009]), Ok(()));
    let mut pair = Pair::new(sizes, sizes, Order::HOST, Order::HOST);
    pair.ends[0].scribble(16, &[0xff; 24]);
    assert_eq!(pair.ends[0].arrived(0x8000_0001), Err(Violation::Memory));
}
