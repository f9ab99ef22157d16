//! What tests do with a pair of veth interfaces between two network namespaces.

use std::process::Command;
use std::time::{Duration, Instant};

/// Time for what takes some milliseconds.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Runs `ip` (iproute2) in the network namespace of this thread.
pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Waits until the kernel has noticed that both ends are up; under load it looks once a second. Earlier packets are
/// silently dropped.
pub fn wait_for_carrier(name: &str) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let output = Command::new("ip").args(["-o", "link", "show", name]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains(" state UP ") {
            return;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
