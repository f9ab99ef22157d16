//! The exports of the built library are those of rdma-core's, name by name and version by version, and what `vervain.h`
//! declares.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use vervain_symver::exports::{check_exports, expected_exports};

#[test]
fn the_exports_are_those_of_rdma_core_and_vervains_own() {
    check_exports("libibverbs.so", env!("CARGO_MANIFEST_DIR")).expect("the lists agree");
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_declares_what_is_vervains_own() {
    let header = std::fs::read_to_string(package().join("include/vervain.h")).expect("the header");
    // A declaration begins in the first column, with its type.
    let functions = header.lines().filter(|line| line.starts_with("int "));
    let declared: BTreeSet<String> =
        functions.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next()).map(str::to_owned).collect();
    let listed = expected_exports(&[package().join("tests/data/exports-vervain.txt")]).expect("the list");
    let listed: BTreeSet<_> = listed.iter().filter_map(|name| Some(name.split_once("@@")?.0.to_owned())).collect();
    assert_eq!(declared, listed);
}

#[test]
fn the_header_is_c_and_cpp() {
    let header = package().join("include/vervain.h");
    for (compiler, language, standard) in
        [("cc", "c", "c99"), ("cc", "c", "c11"), ("c++", "c++", "c++11"), ("c++", "c++", "c++17")]
    {
        let mut command = Command::new(compiler);
        command.args(["-x", language, &format!("-std={standard}"), "-Wall", "-Wextra", "-pedantic", "-Werror"]);
        let Ok(output) = command.arg("-fsyntax-only").arg(&header).output() else {
            eprintln!("skipped: there is no {compiler}");
            continue;
        };
        assert!(output.status.success(), "{compiler} {standard}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
