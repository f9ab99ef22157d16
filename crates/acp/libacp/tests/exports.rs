//! The exports of the built library are the functions that the header declares, those of the list, and no others.

use std::collections::BTreeSet;
use std::path::Path;

use vervain_symver::exports::{check_exports, expected_exports};

#[test]
fn the_exports_are_those_of_the_list() {
    check_exports("libacp.so", env!("CARGO_MANIFEST_DIR")).expect("the lists agree");
}

#[test]
fn the_header_declares_what_the_list_has() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(package.join("include/acp.h")).expect("the header");
    // A declaration begins in the first column, with its type; comments do not.
    let declared: BTreeSet<String> = header
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()) && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .map(str::to_owned)
        .collect();
    let lists = std::fs::read_dir(package.join("tests/data")).expect("the lists");
    let lists: Vec<_> = lists.map(|list| list.expect("a list").path()).collect();
    let listed = expected_exports(&lists).expect("the lists");
    let listed: BTreeSet<_> = listed.iter().filter_map(|name| Some(name.split_once("@@")?.0.to_owned())).collect();
    assert_eq!(declared, listed);
}
