//! Congestion control in a simulated network, in virtual time: the requesters and responders of flows that share
//! nothing but one bottleneck. Each run gives the same numbers.

mod host;
mod network;

use network::{Bottleneck, MS, Network, Outcome, PACKET};

/// A bottleneck without faults, and how long it is watched.
struct Line {
    rate: u64,
    room: u64,
    mark_above: u64,
    time: u64,
}

/// Where the round trip takes 40 us, queues hold 3 ms, 0.8 ms and 0.16 ms, and are marked above a seventh of that.
const LINES: [Line; 3] = [
    Line { rate: 1, room: 400 << 10, mark_above: 60 << 10, time: 2_000 * MS },
    Line { rate: 10, room: 1 << 20, mark_above: 150 << 10, time: 500 * MS },
    Line { rate: 100, room: 2 << 20, mark_above: 300 << 10, time: 200 * MS },
];

impl Line {
    /// Watches the line after a fifth of the time, with this share of packets (in a thousand) lost.
    fn run(&self, flows: usize, marks: bool, lost: u64, speaking: bool) -> Outcome {
        let mark_above = marks.then_some(self.mark_above);
        let bottleneck = Bottleneck { rate: self.rate, room: self.room, mark_above, lost, speaking };
        let outcome = Network::new(bottleneck, flows, MS / 10).run(self.time / 5, self.time);
        println!(
            "{} Gbit/s, {flows} flows, marks {marks}, {lost} of 1,000 lost, gaps {speaking}: {outcome:?}",
            self.rate
        );
        outcome
    }
}

#[test]
fn flows_share_a_line_that_marks_fairly_and_fill_it_and_its_queue_stays_short() {
    for line in LINES {
        for flows in [2, 8] {
            let outcome = line.run(flows, true, 0, true);
            assert!(outcome.used > 0.95, "data takes 0.976 of a full line: {outcome:?}");
            assert!(outcome.unfairness() < 1.1, "{outcome:?}");
            // Each flow has two packets under way at least, and grows by two in a round trip.
            let target = line.mark_above * 5 / 4 + 5 * PACKET * flows as u64;
            assert!(outcome.longest < target && outcome.dropped == 0, "more than {target}: {outcome:?}");
        }
    }
}

#[test]
fn flows_that_report_gaps_fill_a_line_that_drops_only_and_share_it() {
    for line in LINES {
        for flows in [2, 8] {
            let outcome = line.run(flows, false, 0, true);
            // Packets that are dropped have not been on the line.
            assert!(outcome.used > 0.97, "{outcome:?}");
            assert!(outcome.unfairness() < 1.4, "{outcome:?}");
        }
    }
}

#[test]
fn flows_that_go_back_fill_a_line_that_drops_only_and_share_it_as_far_as_loss_tells_them() {
    for line in LINES {
        for flows in [2, 8] {
            let outcome = line.run(flows, false, 0, false);
            // The rest of the line is packets that are sent again (go-back-N).
            assert!(outcome.used > 0.65 && outcome.carried > 0.95, "{outcome:?}");
            assert!(outcome.unfairness() < 1.5, "{outcome:?}");
        }
    }
}

#[test]
fn random_loss_is_not_taken_for_congestion() {
    // What 46 packets under way carry where go-back-N sends a window again for each loss.
    for (line, least) in LINES.iter().zip([0.72, 0.72, 0.18]) {
        let dropping = line.run(1, false, 10, false);
        let marking = line.run(1, true, 10, false);
        assert!(dropping.used > least, "{dropping:?}");
        assert!(marking.used >= dropping.used && marking.dropped == 0, "{marking:?}");
    }
    for line in LINES {
        for marks in [false, true] {
            let speaking = line.run(1, marks, 10, true);
            assert!(speaking.used > 0.9 && speaking.dropped == 0, "{speaking:?}");
        }
    }
}

#[test]
fn a_flow_that_comes_later_gets_its_share() {
    let bottleneck = Bottleneck { rate: 10, room: 1 << 20, mark_above: Some(150 << 10), lost: 0, speaking: true };
    // The second begins when the first has had the line for 100 ms.
    let outcome = Network::new(bottleneck, 2, 100 * MS).run(200 * MS, 500 * MS);
    assert!(outcome.unfairness() < 1.1 && outcome.dropped == 0, "{outcome:?}");
}
