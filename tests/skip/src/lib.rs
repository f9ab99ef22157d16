//! Skips: what a test says and does when the machine lacks what it needs. It passes, with a printed reason, and is counted by
//! `scripts/test.sh`; with `VERVAIN_TESTS_STRICT=1`, as in CI, it fails, unless `allowed.txt` names it and says why.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;
use std::path::Path;

/// Set to 1, skips that are not listed fail.
const STRICT: &str = "VERVAIN_TESTS_STRICT";
/// A file that each skip is added to, a line of name and reason with a tab between.
const SKIPPED: &str = "VERVAIN_TESTS_SKIPPED";

const ALLOWED: &str = include_str!("../allowed.txt");

/// Says that the test that calls leaves something out, and why. The caller returns.
///
/// # Panics
/// In strict mode, unless the test is on the list.
#[track_caller]
pub fn skip(why: impl Display) {
    let why = why.to_string();
    let name = name(std::thread::current().name(), Location::caller());
    eprintln!("skipped: {why}");
    let strict = std::env::var(STRICT).is_ok_and(|value| value == "1");
    assert!(
        !strict || is_allowed(ALLOWED, &name),
        "{STRICT} is 1, and {name} is not in tests/skip/allowed.txt, yet it is skipped: {why}"
    );
    if let Some(path) = std::env::var_os(SKIPPED) {
        // One write: tests of other threads and processes add lines too.
        let line = format!("{name}\t{}\n", why.lines().next().unwrap_or_default());
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of skips");
    }
}

/// `PROGRAM::TEST`; the test harness names threads so. In another thread of a test, and where tests run one by one in the
/// main thread, the place in the source says which it is.
fn name(thread: Option<&str>, place: &Location) -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program_of(&program).to_owned();
    match thread {
        Some(test) if test != "main" => format!("{program}::{test}"),
        _ => format!("{program}::{}:{}", place.file(), place.line()),
    }
}

/// The name of a test program without the hash that cargo adds.
fn program_of(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("test");
    name.rsplit_once('-').map_or(name, |(program, _)| program)
}

fn is_allowed(list: &str, name: &str) -> bool {
    let entries = list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": "));
    entries.into_iter().any(|(entry, reason)| entry == name && !reason.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_listed_test_may_be_skipped_and_needs_a_reason() {
        let list = "# a::comment: no\nadopt::pages::one: the kernel lacks it\nadopt::two: \n";
        assert!(is_allowed(list, "adopt::pages::one"));
        for name in ["adopt::two", "adopt::pages::one_more", "adopt::pages", "# a::comment"] {
            assert!(!is_allowed(list, name), "{name}");
        }
    }

    #[test]
    fn each_line_of_the_list_is_a_name_and_a_reason() {
        for line in ALLOWED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let entry = line.split_once(": ");
            assert!(
                entry.is_some_and(|(name, why)| name.contains("::") && is_allowed(ALLOWED, name) && !why.is_empty())
            );
        }
    }

    #[test]
    #[ignore = "run by a_skip_is_recorded_and_fails_where_skips_are_forbidden"]
    fn skips() {
        skip("it is run to see what that does\nin more lines than one");
    }

    #[test]
    fn a_skip_is_recorded_and_fails_where_skips_are_forbidden() {
        let record = std::env::temp_dir().join(format!("vervain-skip-{}", std::process::id()));
        for (strict, passes) in [("0", true), ("1", false)] {
            let mut this = Command::new(std::env::current_exe().expect("this program"));
            this.args(["--ignored", "--exact", "tests::skips", "--test-threads", "2"]);
            let end = this.env(STRICT, strict).env(SKIPPED, &record).output().expect("this program again");
            let said = String::from_utf8_lossy(&end.stdout).into_owned();
            assert_eq!(end.status.success(), passes, "{said}");
            assert!(passes || said.contains("vervain_skip::tests::skips is not in tests/skip/allowed.txt"), "{said}");
        }
        let text = std::fs::read_to_string(&record).expect("the record");
        let _ = std::fs::remove_file(&record);
        assert_eq!(text, "vervain_skip::tests::skips\tit is run to see what that does\n");
    }
}
