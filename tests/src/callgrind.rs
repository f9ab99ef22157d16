//! Instructions of one operation, and of one call, counted by callgrind: numbers that no neighbour on the machine can
//! disturb. The test and `make bench` count by these functions and hold the counts against these bounds.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::{Job, way};

/// Operations of `benches/c/looped.c`, of 8 bytes on a looped QP, and the most instructions that the library may take for each,
/// from post to completion; what the program around them does is taken off. Lower one whenever its count falls; never raise one without saying why in the commit.
pub const INSTRUCTIONS_AT_MOST: [(&str, f64); 5] =
    [("write", 386.0), ("wr-write-inline", 408.0), ("read", 427.0), ("send-recv", 1258.0), ("fetch-add", 464.0)];

/// A function of `benches/c/looped.c` that is one call of the library.
pub struct Call {
    /// Its name.
    pub function: &'static str,
    /// The operation of the program that calls it.
    pub operation: &'static str,
    /// The link that it goes by (see [`way`]).
    pub link: &'static str,
    /// What it is.
    pub what: &'static str,
    /// A call with fewer does not do what is counted.
    pub at_least: u64,
    /// The most instructions that it may take; what the kernel does is not counted.
    pub at_most: f64,
}

/// A poll in vain, of which few do more than the most (they look at the clock, and offer the CPU); of 8 bytes each an RDMA Write
/// over packets, a Send through a window, and 16 requests over packets that are begun together.
pub const CALL_INSTRUCTIONS_AT_MOST: [Call; 8] = [
    Call {
        function: "poll_received",
        operation: "poll-empty",
        link: "auto",
        what: "ibv_poll_cq of an empty CQ",
        at_least: 20,
        at_most: 143.0,
    },
    Call {
        function: "send_packet",
        operation: "packet",
        link: "roce",
        what: "packet sent: ibv_post_send of a write",
        at_least: MOVES_A_PACKET,
        at_most: 2_690.0,
    },
    Call {
        function: "receive_packet",
        operation: "packet-to-poll",
        link: "roce",
        what: "packet received: ibv_poll_cq that takes it in",
        at_least: MOVES_A_PACKET,
        at_most: 2_830.0,
    },
    Call {
        function: "post_train",
        operation: "write-train",
        link: "roce",
        what: "16 ibv_post_send of a write each",
        at_least: POSTS_A_TRAIN,
        at_most: 9_990.0,
    },
    Call {
        function: "post_train",
        operation: "read-train",
        link: "roce",
        what: "16 ibv_post_send of a read each",
        at_least: POSTS_A_TRAIN,
        at_most: 9_990.0,
    },
    Call {
        function: "post_train",
        operation: "fetch-add-train",
        link: "roce",
        what: "16 ibv_post_send of a fetch-and-add each",
        at_least: POSTS_A_TRAIN,
        at_most: 9_990.0,
    },
    Call {
        function: "send_packet",
        operation: "message",
        link: "window",
        what: "window: ibv_post_send of a send",
        at_least: MOVES_A_PACKET,
        at_most: 2_450.0,
    },
    Call {
        function: "poll_received",
        operation: "message",
        link: "window",
        what: "window: ibv_poll_cq that takes it in, acknowledges it and takes that in",
        at_least: MOVES_A_PACKET,
        at_most: 4_580.0,
    },
];

/// The operation of `benches/c/looped.c` that does what the program does for a write, and calls nothing of the library.
const NOTHING: &str = "nothing";

/// Two lengths of the same run; what they differ by is free of loading, opening and connecting.
const SHORT: u32 = 1_000;
const LONG: u32 = 6_000;
/// Calls of a run.
const CALLS: u32 = 250;
/// A call that moves no packet takes fewer instructions: a few hundred.
const MOVES_A_PACKET: u64 = 1_000;
/// And 16 of them that wait to be begun take more than this, the first of them sent.
const POSTS_A_TRAIN: u64 = 4_000;
const LIMIT: Duration = Duration::from_secs(120);

/// Instructions of the library in one `operation` of `benches/c/looped.c`, compiled as `looped`, under `vervain run`, and
/// those of the program around it; `under_vervain` gives the command that runs valgrind there.
///
/// # Errors
/// What the program or callgrind said when there is no count.
pub fn per_operation(
    under_vervain: impl Fn() -> Command,
    looped: &Path,
    operation: &str,
) -> Result<(f64, f64), String> {
    let count = |operation: &str, operations: u32| {
        let mut command = under_vervain();
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        command.arg(looped).args([operation, "1", &operations.to_string()]);
        let run = Job::start(&mut command).finish(LIMIT);
        let count = run.success().then(|| collected(&run.output)).flatten();
        count.ok_or_else(|| run.describe())
    };
    let each = |operation: &str| -> Result<f64, String> {
        Ok((count(operation, LONG)? - count(operation, SHORT)?) / f64::from(LONG - SHORT))
    };
    let program = each(NOTHING)?;
    Ok((each(operation)? - program, program))
}

/// Instructions of one call (see [`CALL_INSTRUCTIONS_AT_MOST`]): the median
/// of many calls, each counted alone. A mean would count the progress thread's turns too: when a call meets one, it wakes that
/// thread, or finds its packet taken.
///
/// # Errors
/// What the program or callgrind said when there is no count.
pub fn per_call(under_vervain: impl Fn() -> Command, looped: &Path, call: &Call) -> Result<f64, String> {
    let Call { function, operation, link, at_least, .. } = call;
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    let counts = directory.path().join("callgrind.out");
    let mut command = under_vervain();
    command.envs(way(link)).args(["--tool=callgrind", "--combine-dumps=yes"]);
    command.arg(format!("--callgrind-out-file={}", counts.display()));
    command.args([format!("--toggle-collect={function}"), format!("--dump-after={function}")]);
    command.arg(looped).args([*operation, "1", &CALLS.to_string()]);
    let run = Job::start(&mut command).finish(LIMIT);
    let calls = if run.success() { std::fs::read_to_string(counts).unwrap_or_default() } else { String::new() };
    // A few come without a call: of the time before the first and after the last. Of others a thread of the library has taken the
    // packet before: through a window the one that is woken for it, which valgrind may well run first.
    let mut each: Vec<u64> = totals(&calls).filter(|count| count >= at_least).collect();
    each.sort_unstable();
    if each.len() < CALLS as usize / 10 {
        return Err(format!("{} calls of {function} were counted\n{}", each.len(), run.describe()));
    }
    Ok(each[each.len() / 2] as f64)
}

/// The numbers in lines "totals: N" of a file of callgrind's, one for each part.
fn totals(file: &str) -> impl Iterator<Item = u64> {
    file.lines().filter_map(|line| line.strip_prefix("totals:")?.trim().parse().ok())
}

/// The number in callgrind's line "Collected : N".
fn collected(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{collected, totals};

    #[test]
    fn the_count_is_found_in_what_callgrind_prints() {
        let printed = "0.3\n==7== Events    : Ir\n==7== Collected : 15342567\n==7==\n";
        assert_eq!(collected(printed), Some(15_342_567.0));
        assert_eq!(collected("0.3\n"), None);
    }

    #[test]
    fn each_part_of_a_file_has_a_total() {
        let file = "part: 1\nsummary: 0\nfn=(1) main\n12 3\ntotals: 0\n\npart: 2\nsummary: 2772\ntotals: 2772\n";
        assert_eq!(totals(file).collect::<Vec<_>>(), [0, 2772]);
    }
}
