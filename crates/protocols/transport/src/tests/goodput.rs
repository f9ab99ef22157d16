//! The goodput of a long path that loses packets at random, in virtual time: of peers that report gaps, and of others.

use std::collections::VecDeque;

use super::host::{BASE, parsed};
use super::pair::*;
use crate::*;

const MTU: u32 = 1024;
/// Bytes of each WRITE.
const LENGTH: usize = 64 << 10;
/// Bytes of each READ: sixteen at once are several windows.
const READ_LENGTH: usize = 1 << 20;
/// One packet in so many is lost.
const ONE_IN: u64 = 100;

/// A path of which the window is the only limit.
struct Path {
    one_way: Nanos,
    /// Most bytes under way.
    window: u64,
    /// Each packet with data is lost with a chance of 1 %, and each that asks for some.
    lossy: bool,
    /// The data is read, not written.
    reads: bool,
    /// Both ends speak of gaps.
    speaking: bool,
}

impl Path {
    /// Bytes that arrive in `round_trips`, after as many of warming up; and those that would if each loss had a window
    /// sent again: with a window of w packets w / (1 + p w) packets in a round trip.
    fn goodput(&self, round_trips: u64) -> (u64, u64) {
        let config = RequesterConfig { introduces: self.speaking, timeout: 18, ..requester_config(Service::Rc) };
        let mut pair = Pair::with(&config, &responder_config(Service::Rc));
        (pair.window, pair.one_way) = (Window::new(MTU, self.window), self.one_way);
        pair.room = self.speaking.then(|| share_of(64 << 20));
        for _ in 0..2 {
            pair.client.post(Opcode::Write, b"shows what this is", |_| ());
            pair.finish(all);
        }
        let (begin, round_trip) = (pair.now, 2 * self.one_way);
        let mut wire: VecDeque<(Nanos, Way, Vec<u8>)> = VecDeque::new();
        let mut seed = 1u64;
        let mut lost = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33).is_multiple_of(ONE_IN)
        };
        let length = if self.reads { READ_LENGTH } else { LENGTH };
        let data = pattern(length, 1);
        let (mut counted_from, mut expected) = (None, 0.0);
        while pair.now < begin + 2 * round_trips * round_trip {
            while pair.client.requests.len()
                < pair.client.completions.len() + (self.window as usize / length).max(1) * 4
            {
                let operation = if self.reads { Opcode::Read } else { Opcode::Write };
                pair.client.post(operation, &data, |r| r.remote_addr = BASE);
                // Only what is under way is looked at again.
                if let Some(done) = pair.client.completions.len().checked_sub(1) {
                    pair.client.requests[done].1.clear();
                    pair.client.delivered[done].clear();
                }
            }
            pair.transmit();
            while pair.responder.execute_kept(&mut pair.server) {}
            while pair.responder.poll_transmit(64, &mut pair.server) {}
            let requests = pair.client.wire.drain(..).map(|bytes| (Way::Request, bytes));
            for (way, bytes) in requests.chain(pair.server.wire.drain(..).map(|bytes| (Way::Response, bytes))) {
                if !(self.lossy && (way == Way::Request || self.reads) && lost()) {
                    wire.push_back((pair.now + self.one_way, way, bytes));
                }
            }
            let arrival = wire.front().map(|front| front.0);
            let next = arrival.into_iter().chain(pair.requester.next_timeout()).min().expect("something is under way");
            if counted_from.is_some() {
                let packets = pair.window.size() as f64 / f64::from(MTU + 512);
                let part = next.saturating_sub(pair.now) as f64 / round_trip as f64;
                expected += part * packets / (1.0 + packets / ONE_IN as f64);
            }
            pair.now = pair.now.max(next);
            // As many as a poll takes.
            for _ in 0..16 {
                let Some((_, way, bytes)) = wire.pop_front_if(|front| front.0 <= pair.now) else { break };
                match way {
                    Way::Request => pair.arrives(&parsed(&bytes)),
                    Way::Response => {
                        let packet = parsed(&bytes);
                        pair.requester.handle_packet(pair.now, &packet, &mut pair.window, &mut pair.client);
                    }
                }
            }
            // Only when all that has come is taken, as a link does.
            let has_come = wire.front().is_some_and(|front| front.0 <= pair.now);
            if !has_come && pair.requester.next_timeout().is_some_and(|at| at <= pair.now) {
                pair.requester.handle_timeout(pair.now, &mut pair.window, &mut pair.client);
            }
            if counted_from.is_none() && pair.now >= begin + round_trips * round_trip {
                counted_from = Some(self.arrived(&pair));
            }
        }
        let arrived = self.arrived(&pair) - counted_from.unwrap_or(0);
        (arrived * u64::from(MTU), expected as u64 * u64::from(MTU))
    }

    /// Packets of data that have been executed; of READs, those of whole requests.
    fn arrived(&self, pair: &Pair) -> u64 {
        match self.reads {
            true => pair.client.completions.len() as u64 * (READ_LENGTH as u64 / u64::from(MTU)),
            false => pair.server.writes as u64,
        }
    }
}

#[test]
fn random_loss_of_one_percent_leaves_four_fifths_to_peers_that_report_gaps() {
    for (one_way, window) in [(5_000_000, 2 << 20), (20_000, 256 << 10)] {
        let path = |lossy| Path { one_way, window, lossy, reads: false, speaking: true };
        let (clean, lossy) = (path(false).goodput(60).0, path(true).goodput(60).0);
        assert!(lossy * 10 >= clean * 8, "{lossy} of {clean} bytes at {one_way} ns one way");
    }
}

#[test]
fn random_loss_of_one_percent_leaves_three_quarters_to_readers_of_such_peers_and_little_to_others() {
    for (one_way, window) in [(5_000_000, 2 << 20), (20_000, 256 << 10)] {
        let goodput = |lossy, speaking| Path { one_way, window, lossy, reads: true, speaking }.goodput(200).0;
        let (clean, lossy, others) = (goodput(false, true), goodput(true, true), goodput(true, false));
        println!("READs, {one_way} ns one way: {lossy} of {clean} bytes, {others} by others");
        assert!(
            lossy * 4 >= clean * 3 && others * 2 < lossy,
            "{lossy} of {clean}, {others} by others, {one_way} ns one way"
        );
    }
}

#[test]
fn random_loss_costs_others_a_window_each() {
    for one_way in [5_000_000, 20_000] {
        let path = Path { one_way, window: 1 << 20, lossy: true, reads: false, speaking: false };
        let (arrived, expected) = path.goodput(1000);
        assert!(arrived.abs_diff(expected) * 10 < expected, "{arrived} bytes, not {expected}, at {one_way} ns one way");
    }
}
