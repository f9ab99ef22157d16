//! The exports of the built library are those of rdma-core's, name by name and version by version.

use vervain_symver::exports::check_exports;

#[test]
fn the_exports_are_those_of_rdma_core() {
    check_exports("librdmacm.so", env!("CARGO_MANIFEST_DIR")).expect("the lists agree");
}
