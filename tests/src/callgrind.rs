//! Instructions of one operation, counted by callgrind: a number that no neighbour on the machine can disturb. The
//! test and `make bench` count by this one function and hold the count against this one bound.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Job;

/// Operations of `benches/c/looped.c`, of 8 bytes on a looped QP, and the most instructions that the library may take for each,
/// from post to completion (`poll-empty`: for the poll of a CQ without completions); what the program around them does is taken
/// off. Lower one whenever its count falls; never raise one without saying why in the commit.
pub const INSTRUCTIONS_AT_MOST: [(&str, f64); 6] = [
    ("write", 395.0),
    ("wr-write-inline", 409.0),
    ("read", 434.0),
    ("send-recv", 1252.0),
    ("fetch-add", 469.0),
    ("poll-empty", 152.0),
];

/// The operation of `benches/c/looped.c` that does what the program does for a write, and calls nothing of the library.
const NOTHING: &str = "nothing";

/// Two lengths of the same run; what they differ by is free of loading, opening and connecting.
const SHORT: u32 = 1_000;
const LONG: u32 = 6_000;
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

/// The number in callgrind's line "Collected : N".
fn collected(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::collected;

    #[test]
    fn the_count_is_found_in_what_callgrind_prints() {
        let printed = "0.3\n==7== Events    : Ir\n==7== Collected : 15342567\n==7==\n";
        assert_eq!(collected(printed), Some(15_342_567.0));
        assert_eq!(collected("0.3\n"), None);
    }
}
