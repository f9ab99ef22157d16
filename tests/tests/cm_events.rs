//! Events of librdmacm that no peer causes: a program's own, and the names that it has resolved; and of peers that come too early.

use std::path::Path;
use std::time::Duration;

use vervain_tests::{Job, alone, have, under_vervain, way};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn events_of_its_own_and_resolved_names_come_and_who_connects_early_is_served() {
    if !have(&["python3"]) {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/cm_events.py");
    let end = Job::start(under_vervain("python3").arg(script)).finish(LIMIT);
    assert!(end.success() && end.output.ends_with("OK\n"), "{}", end.describe());
}

/// Each takes part in the port of each address, and waits for others there, who may be waiting themselves.
#[test]
fn processes_that_bind_at_once_keep_nobody_waiting() {
    if !have(&["python3"]) {
        return;
    }
    let _turn = alone();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/cm_binds.py");
    for name in ["auto", "roce"] {
        for _ in 0..5 {
            let start =
                |_| Job::start(under_vervain("python3").arg(&script).envs(way(name)).env("VERVAIN_LOG", "info"));
            let jobs: Vec<_> = (0..6).map(start).collect();
            for end in jobs.into_iter().map(|job| job.finish(LIMIT)) {
                let missed = end.output.contains("no MADs come by packets");
                assert!(end.success() && end.output.contains("OK\n") && !missed, "{name}: {}", end.describe());
            }
        }
    }
}
