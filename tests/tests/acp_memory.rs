//! What a rank of ACP holds: `vervain acp memory`.

use std::process::Output;

use serde_json::Value;
use vervain_tests::{unswayed, vervain};

fn memory(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = unswayed(vervain());
    command.args(["acp", "memory"]).args(arguments).envs(variables.iter().copied());
    command.output().expect("the command")
}

fn table(arguments: &[&str], variables: &[(&str, &str)]) -> Value {
    let output = memory(&[arguments, &["--json"]].concat(), variables);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn bytes(table: &Value, what: &str) -> u64 {
    let rows = table["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no row '{what}' in {table}"));
    row["bytes"].as_u64().expect("a number")
}

#[test]
fn the_table_follows_ranks_and_settings() {
    const QPS: &str = "QPs, of Vervain's device";
    const FETCHED: &str = "values in the launcher's library";
    let (few, many) = (table(&["--ranks", "1024"], &[]), table(&[], &[]));
    assert_eq!(bytes(&many, FETCHED), 977 * bytes(&few, FETCHED));
    assert!(bytes(&many, QPS) > 256 * 4096, "a QP has queues: {many}");
    assert!(many["bytes"].as_u64() < Some(16_000_000) && many["paper_bytes"].as_u64() > Some(187_000_000), "{many}");
    let less = table(&["--starter", "64k"], &[("ACP_CONNECTIONS", "64")]);
    assert_eq!(bytes(&less, "connections"), bytes(&many, "connections") / 4);
    assert!(bytes(&less, QPS).abs_diff(bytes(&many, QPS) / 4) < bytes(&many, QPS) / 40, "{less} {many}");
    assert_eq!(bytes(&less, "starter memory"), (64 << 10) + 8192);
}

#[test]
fn wrong_settings_are_a_sentence() {
    let output = memory(&[], &[("ACP_CONNECTIONS", "1")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("ACP_CONNECTIONS=1 is no number of connections"), "{said}");
}
