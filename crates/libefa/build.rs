//! Declares libefa's version nodes to the linker.

fn main() {
    vervain_symver::write_version_script(
        "libefa.so.1",
        &[
            ("EFA_1.0", ""),
            ("EFA_1.1", "EFA_1.0"),
            ("EFA_1.2", "EFA_1.1"),
            ("EFA_1.3", "EFA_1.2"),
            ("EFA_1.4", "EFA_1.3"),
            ("EFA_1.5", "EFA_1.4"),
            ("EFA_1.6", "EFA_1.5"),
            ("EFA_1.7", "EFA_1.6"),
        ],
    );
}
