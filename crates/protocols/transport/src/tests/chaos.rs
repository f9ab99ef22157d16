//! A wire that loses, repeats, delays and reorders whatever it likes, by one seed.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::host::{BASE, parsed};
use super::pair::*;
use crate::*;

/// xorshift64*: the seed is the whole test.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// How bad it is, in percent, and how long packets take: at least so long, and up to so much longer.
#[derive(Clone, Copy, Debug)]
struct Weather {
    lost: u64,
    repeated: u64,
    least: Nanos,
    delay: Nanos,
}

/// Carries packets through `weather` until the requester is done and nothing is under way.
fn carry(pair: &mut Pair, random: &mut Random, weather: Weather) {
    let mut wire: BTreeMap<(Nanos, u64), (Way, Vec<u8>)> = BTreeMap::new();
    let mut number = 0;
    for _ in 0..1_000_000 {
        if random.below(8) == 0 {
            pair.client.room = random.below(6) as usize;
            pair.server.room = random.below(6) as usize;
        } else {
            (pair.client.room, pair.server.room) = (1 << 40, 1 << 40);
        }
        let full = pair.transmit() == Sent::HostFull;
        pair.responder.execute_kept(&mut pair.server);
        let more = random.below(3) > 0 && pair.responder.poll_transmit(1 + random.below(9) as u32, &mut pair.server);
        let requests = pair.client.wire.drain(..).map(|bytes| (Way::Request, bytes));
        for packet in requests.chain(pair.server.wire.drain(..).map(|bytes| (Way::Response, bytes))) {
            for _ in 0..1 + u64::from(random.below(100) < weather.repeated) {
                if random.below(100) >= weather.lost {
                    number += 1;
                    wire.insert((pair.now + weather.least + 1 + random.below(weather.delay), number), packet.clone());
                }
            }
        }
        let arrival = wire.keys().next().map(|key| key.0);
        let timeout = pair.requester.next_timeout();
        let Some(next) = arrival.into_iter().chain(timeout).min() else {
            if full || more || pair.responder.has_ack_due() || pair.responder.has_kept_due() {
                continue;
            }
            return;
        };
        pair.now = pair.now.max(next);
        if timeout.is_some_and(|timeout| timeout <= pair.now) {
            pair.requester.handle_timeout(pair.now, &mut pair.window, &mut pair.client);
        }
        while let Some(entry) = wire.first_entry().filter(|entry| entry.key().0 <= pair.now) {
            let (way, bytes) = entry.remove();
            let packet = parsed(&bytes);
            match way {
                Way::Request => {
                    pair.arrives(&packet);
                    pair.responder.execute_kept(&mut pair.server);
                }
                Way::Response => {
                    pair.requester.handle_packet(pair.now, &packet, &mut pair.window, &mut pair.client);
                }
            }
        }
    }
    panic!("it does not come to an end: {:?}\n{:?}", pair.requester, pair.responder);
}

/// Requests of all kinds, between peers that are `speaking` of gaps or not.
fn storm(service: Service, speaking: bool, seed: u64, weather: Weather) {
    let random = &mut Random(seed | 1);
    let first_psn = random.below(1 << 24) as u32;
    let mtu = 256 << random.below(3);
    let depth = 1 + random.below(5) as u8;
    let config = RequesterConfig {
        first_psn,
        mtu,
        max_rd_atomic: depth,
        introduces: speaking,
        timeout: if random.below(2) == 0 { 0 } else { 18 },
        ..requester_config(service)
    };
    let responder =
        ResponderConfig { expected_psn: first_psn, mtu, max_dest_rd_atomic: depth, ..responder_config(service) };
    let mut pair = Pair::with(&config, &responder);
    pair.room = speaking.then(|| share_of(1 << 18));
    pair.server.tell_credits = random.below(2) == 0;
    let mut sent = Vec::new();
    let mut atomics = 0;
    let count = 1 + random.below(40);
    for i in 0..count {
        // Each request has its own 16 KiB; a READ reads what the WRITE before it has written.
        let own = i * 16_384;
        let most = if random.below(2) == 0 { 16_000 } else { 64 };
        let length = random.below(most);
        let data = pattern(length as usize, i as u8);
        let flags = if random.below(4) == 0 { send_flags::FENCE } else { 0 };
        match random.below(if service == Service::Uc { 2 } else { 6 }) {
            0 => {
                pair.server.posted.push_back(16_384);
                pair.client.post(Opcode::SendImm, &data, |r| (r.imm_or_rkey, r.flags) = (i as u32, flags));
                sent.push(data);
            }
            1 => {
                pair.client.post(Opcode::Write, &data, |r| (r.remote_addr, r.flags) = (BASE + own, flags));
            }
            2 => {
                pair.server.memory[own as usize..][..data.len()].copy_from_slice(&data);
                pair.client.post(Opcode::Read, &data, |r| (r.remote_addr, r.flags) = (BASE + own, flags));
            }
            3 => {
                let word = BASE + (1 << 20) - 8;
                pair.client.post(Opcode::FetchAdd, &[0; 8], |r| (r.remote_addr, r.compare_add) = (word, 1));
                atomics += 1;
            }
            4 => {
                let word = BASE + own;
                pair.client.post(Opcode::AtomicWrite, &i.to_ne_bytes(), |r| r.remote_addr = word);
            }
            _ => {
                pair.server.posted.push_back(16_384);
                pair.client.post(Opcode::WriteImm, &data, |r| r.remote_addr = BASE + own);
                sent.push(Vec::new());
            }
        }
    }
    carry(&mut pair, random, weather);
    assert_eq!(pair.statuses(), vec![Status::Success; count as usize]);
    assert_eq!(pair.window.in_flight(), 0);
    if service == Service::Uc {
        for receive in pair.server.receives.iter().filter(|receive| receive.done.is_some()) {
            assert!(sent.contains(&receive.data), "a receive holds one whole message");
        }
        return;
    }
    assert_eq!(pair.server.atomics, atomics);
    assert_eq!(pair.server.receives.len(), sent.len());
    for (receive, sent) in pair.server.receives.iter().zip(&sent) {
        assert!(receive.done.is_some() && receive.data == *sent);
    }
    let mut words = Vec::new();
    for (i, (request, data)) in pair.client.requests.iter().enumerate() {
        let own = &pair.server.memory[i * 16_384..][..data.len()];
        match request.opcode {
            Opcode::Write | Opcode::WriteImm | Opcode::AtomicWrite => assert!(own == data),
            Opcode::Read => assert!(pair.client.delivered[i] == *data),
            Opcode::FetchAdd => words.push(u64::from_ne_bytes(pair.client.delivered[i][..].try_into().unwrap())),
            _ => {}
        }
    }
    assert!(words.into_iter().eq(0..atomics as u64), "each atomic once, in order");
}

/// Without a clear measurement a path that has become slow would be probed, and its window closed, for ever.
#[test]
fn a_path_that_becomes_slow_is_soon_left_alone() {
    for fast in [0, 5] {
        let config = RequesterConfig { timeout: 18, ..requester_config(Service::Rc) };
        let mut pair = Pair::with(&config, &responder_config(Service::Rc));
        let random = &mut Random(1);
        let mut probes = 0;
        for i in 0..fast + 20 {
            let least = if i < fast { 10_000 } else { 50_000_000 };
            pair.client.post(Opcode::Write, b"hello", |_| ());
            probes = pair.requester.counters().probes;
            carry(&mut pair, random, Weather { lost: 0, repeated: 0, least, delay: 1000 });
        }
        assert_eq!(pair.requester.counters().probes, probes, "the last message after {fast} fast ones");
        assert_eq!(pair.statuses(), vec![Status::Success; fast + 20]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_request_is_executed_once_and_in_order(
        seed in any::<u64>(),
        lost in 0..30u64,
        repeated in 0..30u64,
        delay in prop::sample::select(vec![1u64, 1000, 100_000, 5_000_000]),
    ) {
        for speaking in [false, true] {
            storm(Service::Rc, speaking, seed, Weather { lost, repeated, least: 0, delay });
        }
    }

    #[test]
    fn unreliable_messages_arrive_whole_or_not(seed in any::<u64>(), lost in 0..30u64, delay in 1..1000u64) {
        storm(Service::Uc, false, seed, Weather { lost, repeated: 0, least: 0, delay });
    }
}

#[test]
fn storms_that_once_did_harm_are_weathered() {
    for (seed, lost, repeated, delay) in [(6671736571729103640, 0, 0, 5_000_000), (3636611826983769620, 26, 10, 1000)] {
        storm(Service::Rc, false, seed, Weather { lost, repeated, least: 0, delay });
    }
}
