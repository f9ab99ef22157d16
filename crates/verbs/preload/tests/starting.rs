//! The preload as the dynamic linker takes it at each start of a program: what it runs, and what it writes.

use std::ops::Range;
use std::process::Command;

/// What readelf prints of the preload.
fn readelf(option: &str) -> String {
    let library = vervain_symver::exports::built_library("libvervain_preload.so").unwrap();
    let output = Command::new("readelf").args(["--wide", option]).arg(library).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Addresses of the section that programs may write to.
fn data() -> Range<u64> {
    let sections = readelf("--section-headers");
    let line = sections.lines().find(|line| line.contains(" .data ")).expect("a section .data");
    // Behind the name: type, address, offset, size.
    let words: Vec<_> = line.split(" .data ").nth(1).expect("words").split_whitespace().collect();
    let start = hex(words[1]);
    start..start + hex(words[3])
}

#[test]
fn no_start_file_of_the_compiler_runs_at_the_start_or_end_of_a_program() {
    let dynamic = readelf("--dynamic");
    assert!(dynamic.contains("(INIT_ARRAY)"), "{dynamic}");
    for tag in ["(INIT)", "(FINI)", "(FINI_ARRAY)"] {
        assert!(!dynamic.contains(tag), "{dynamic}");
    }
}

#[test]
fn a_start_maps_the_file_twice() {
    let segments = readelf("--program-headers");
    assert_eq!(segments.lines().filter(|line| line.trim_start().starts_with("LOAD ")).count(), 2, "{segments}");
    assert!(!segments.contains("GNU_RELRO"), "{segments}");
}

/// Of the seventy names of functions behind ours none is one: each relocation is a write to a page that all programs
/// could otherwise share with the file.
#[test]
fn a_start_relocates_little_of_what_programs_may_write_to() {
    let (data, relocations) = (data(), readelf("--relocs"));
    let at = relocations
        .lines()
        .filter(|line| line.contains(" R_"))
        .map(|line| hex(line.split_whitespace().next().expect("an offset")));
    let written = at.filter(|at| data.contains(at)).count();
    assert!(written <= 24, "{written} of\n{relocations}");
}
