//! Links the unwinder that the Rust library wants from the static archive. Every process under `vervain run` loads this
//! library, and libgcc_s.so.1 beside it cost each of them some 60 µs of its start, a third of what the preload costs.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Cargo names the linker where it was told of one, as for another processor than this machine's.
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or("cc".into());
    let archive = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output();
    let path = archive.ok().and_then(|out| String::from_utf8(out.stdout).ok());
    // Without it the shared library serves as well.
    if let Some(folder) = path.as_deref().and_then(|p| p.trim().strip_suffix("/libgcc_eh.a")) {
        println!("cargo:rustc-link-search=native={folder}");
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
}
