//! The stand-ins for vendors' provider libraries, for programs that link one beside libibverbs.

use std::time::Duration;

use vervain_tests::{Job, c_program_with, have_c, libraries, under_vervain, unswayed};

const LIBRARIES: &[&str] = &["hns", "mlx5", "efa", "mlx4", "mana", "ionic"];
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_program_linked_with_provider_libraries_loads_and_is_refused_by_each() {
    if !have_c() {
        return;
    }
    let program = c_program_with("providers", LIBRARIES);
    let end = Job::start(&mut under_vervain(&program)).finish(LIMIT);
    assert!(end.success() && end.output.contains("6 cases, 0 failed"), "{}", end.describe());
}

#[test]
fn every_library_is_there_under_the_name_to_link_and_the_name_to_load() {
    for library in LIBRARIES.iter().chain(&["ibverbs", "rdmacm"]) {
        for name in [format!("lib{library}.so"), format!("lib{library}.so.1")] {
            let file = libraries().join(&name);
            assert!(file.is_file(), "{} is missing", file.display());
            let end = Job::start(unswayed("readelf").arg("-d").arg(&file)).finish(LIMIT);
            let soname = format!("Library soname: [lib{library}.so.1]");
            assert!(end.success() && end.output.contains(&soname), "{name}: {}", end.describe());
        }
    }
}
