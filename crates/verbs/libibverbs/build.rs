//! Declares libibverbs's version nodes to the linker, and Vervain's own. There never were nodes 1.2 to 1.4.

fn main() {
    // The progress thread runs this library's code: a program that closes it with dlclose must not unmap it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    vervain_symver::write_version_script(
        "libibverbs.so.1",
        &[
            ("IBVERBS_1.0", ""),
            ("IBVERBS_1.1", "IBVERBS_1.0"),
            ("IBVERBS_1.5", "IBVERBS_1.1"),
            ("IBVERBS_1.6", "IBVERBS_1.5"),
            ("IBVERBS_1.7", "IBVERBS_1.6"),
            ("IBVERBS_1.8", "IBVERBS_1.7"),
            ("IBVERBS_1.9", "IBVERBS_1.8"),
            ("IBVERBS_1.10", "IBVERBS_1.9"),
            ("IBVERBS_1.11", "IBVERBS_1.10"),
            ("IBVERBS_1.12", "IBVERBS_1.11"),
            ("IBVERBS_1.13", "IBVERBS_1.12"),
            ("IBVERBS_1.14", "IBVERBS_1.13"),
            ("IBVERBS_1.15", "IBVERBS_1.14"),
            ("IBVERBS_1.16", "IBVERBS_1.15"),
            ("IBVERBS_1.17", "IBVERBS_1.16"),
            ("IBVERBS_1.18", "IBVERBS_1.17"),
            ("IBVERBS_PRIVATE_34", ""),
            ("IBVERBS_PRIVATE_57", ""),
            ("IBVERBS_PRIVATE_59", ""),
            ("IBVERBS_PRIVATE_64", ""),
            ("IBVERBS_PRIVATE_65", ""),
            ("VERVAIN_1.0", ""),
            ("VERVAIN_PRIVATE_1", ""),
        ],
    );
}
