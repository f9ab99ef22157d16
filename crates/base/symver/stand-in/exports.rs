//! The exports of the built library are those of rdma-core's, name by name and version by version.

use vervain_symver::exports::check_exports;

#[test]
fn the_exports_are_those_of_rdma_core() {
    // The package is vervain-libNAME, the library libNAME.so.
    let library = env!("CARGO_PKG_NAME").trim_start_matches("vervain-").to_owned() + ".so";
    check_exports(&library, env!("CARGO_MANIFEST_DIR")).expect("the lists agree");
}
