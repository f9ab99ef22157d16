//! Declares librdmacm's version nodes to the linker.

fn main() {
    // QP 1 calls this library's code: a program that closes it with dlclose must not unmap it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    vervain_symver::write_version_script(
        "librdmacm.so.1",
        &[
            ("RDMACM_1.0", ""),
            ("RDMACM_1.1", "RDMACM_1.0"),
            ("RDMACM_1.2", "RDMACM_1.1"),
            ("RDMACM_1.3", "RDMACM_1.2"),
            ("RDMACM_1.4", "RDMACM_1.3"),
            ("RDMACM_1.5", "RDMACM_1.4"),
        ],
    );
}
