//! Waking an end that sleeps.

use super::Two;
use super::rings::headers;

use crate::pairs::rendezvous::{PeerId, Rendezvous};
use crate::pairs::ring::{Class, Incoming, NO_BYTES, Outgoing};
use crate::pairs::waking::{Barrier, Occasion, Waking};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

impl Two {
    /// A ring from the first to the second and what the second says to the first, who wake each other: as processes 3
    /// and 5.
    fn waking_ring(&self) -> (Outgoing, Incoming, Outgoing) {
        let ids = [PeerId { node: 0, process: 3 }, PeerId { node: 1, process: 5 }];
        let [out, back] = [0, 1].map(|n| {
            let device = &self.devices[n];
            let channel = device.channel(1 - n as u32).unwrap();
            let mut outgoing = Outgoing::new(channel, self.block(0), device.own().clone(), self.block(0));
            let layout = device.facts().layout;
            outgoing.wakes(Waking::new(layout, ids[1 - n], ids[n], Occasion::Pair), Barrier::Full);
            outgoing
        });
        assert!(out.lacks_announcement() && back.lacks_announcement());
        (out, Incoming::new(self.block(0)), back)
    }

    /// Offset of the word on which the second sleeps.
    fn waking_word(&self) -> u64 {
        Rendezvous::waking_word(self.devices[1].facts().layout, PeerId { node: 1, process: 5 })
    }
}

#[test]
fn a_sender_wakes_once_for_each_announcement() {
    let two = Two::new();
    assert!(two.devices[0].wakes(1) && !two.devices[0].wakes(7));
    let (mut out, _, mut back) = two.waking_ring();
    let word = || two.devices[1].own().word(two.waking_word()).load(Ordering::Relaxed);
    let mut last = word();
    for round in 0..3 {
        out.packet(Class::Request, &headers(0), &NO_BYTES).unwrap();
        assert_eq!(word(), last, "nobody sleeps");
        assert!(back.announce_sleep(), "{round}");
        assert!(!back.announce_sleep(), "there is one already");
        for more in 0..3 {
            match more {
                0 if round == 2 => out.tell_taken(0),
                _ => out.packet(Class::Request, &headers(0), &NO_BYTES).unwrap(),
            }
            out.wake_if_asleep();
            assert_eq!(word() != last, more == 0, "{more}");
            last = word();
        }
        assert!(back.lacks_announcement());
    }
    assert!(out.lacks_announcement(), "the other way nothing was announced");
}

#[test]
fn who_announces_and_looks_once_more_is_always_woken() {
    const MESSAGES: u64 = 100_000;
    let two = Two::new();
    let (mut out, mut incoming, mut back) = two.waking_ring();
    let (device, waking_word) = (Arc::clone(&two.devices[1]), two.waking_word());
    let has_taken = Arc::new(AtomicU64::new(0));
    let taken = Arc::clone(&has_taken);
    std::thread::spawn(move || {
        loop {
            let seen = device.own().word(waking_word).load(Ordering::Acquire) as u32;
            back.announce_sleep();
            fence(Ordering::SeqCst);
            let Some(message) = incoming.next(device.own()).unwrap() else {
                device.sleep(waking_word, seen);
                continue;
            };
            if let Some(n) = incoming.took(&message) {
                back.tell_taken(n);
            }
            taken.fetch_add(1, Ordering::Release);
        }
    });
    for n in 0..MESSAGES {
        out.packet(Class::Request, &headers(n), &NO_BYTES).unwrap();
        let since = Instant::now();
        while has_taken.load(Ordering::Acquire) <= n {
            assert!(since.elapsed() < Duration::from_secs(60), "the sleeper was not woken");
            (0..4).for_each(|_| std::hint::spin_loop());
        }
        // The next one comes while the other looks, announces, looks once more, or sleeps.
        (0..n % 32).for_each(|_| std::hint::spin_loop());
    }
}
