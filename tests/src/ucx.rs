//! UCX's own benchmark over Vervain.

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::pairs::pair;
use crate::{Failures, alone, have, way};

const LIMIT: Duration = Duration::from_secs(60);

/// UCX's names of transports: RC makes its connections by UD, `rc_v` stands for both.
pub const RC: &str = "rc_v,self";
/// The transports over UD.
pub const UD: &str = "ud_v,self";

/// The options by which `ucx_perftest` makes its pair over TCP: built with MPI (Debian 13), it takes itself for a job of one rank
/// wherever standard input is no terminal; built without, it refuses the option.
pub fn over_tcp() -> &'static [&'static str] {
    static HELP: OnceLock<String> = OnceLock::new();
    let help = HELP.get_or_init(|| {
        let output = Command::new("ucx_perftest").arg("-h").output().expect("ucx_perftest is installed");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    });
    if help.lines().any(|line| line.trim_start().starts_with("-P ")) { &["-P", "0"] } else { &[] }
}

/// Runs `ucx_perftest` for each operation and size (in bytes), `count` times each, with transports `tls` only, on a link that [`way`]
/// knows.
///
/// # Panics
/// When one fails or warns.
pub fn perftest(link: &str, tls: &str, operations: &[&[&str]], sizes: &[&str], count: &str) {
    if !have(&["ucx_perftest"]) {
        return;
    }
    let _turn = alone();
    let mut failures = Failures::default();
    let mut variables = way(link);
    variables.push(("UCX_TLS", tls));
    for operation in operations.iter().copied().flatten() {
        for size in sizes {
            let words = ["-t", operation, "-s", size, "-n", count, "-w", "10", "-f"];
            let args: Vec<_> = words.iter().chain(over_tcp()).map(|word| (*word).to_owned()).collect();
            let (server, client) = pair("ucx_perftest", &args, &variables, LIMIT);
            println!("{link} {tls} {operation} {size}: {:.2} s", client.took.as_secs_f64());
            for end in [&server, &client] {
                let warned = end.output.contains("WARN") || end.output.contains("ERROR");
                if !end.success() || warned {
                    failures.add(&format!("{link} {tls} {operation} {size}"), end.describe());
                }
            }
        }
    }
    failures.assert_none();
}
