//! How the preload is linked. Every process under `vervain run` loads it, so what a start costs is left out:
//!
//! - libgcc_s.so.1, some 60 µs; the unwinder that the Rust library wants comes from the static archive;
//! - the compiler's start files, whose functions touch pages at the start and the end of each program;
//! - two of four mappings and a call of mprotect(2), some 25 µs with their page faults: what is read lies beside the
//!   code, and what relocation writes beside the data. It stays writable (no RELRO), which protects little here: malloc
//!   and all other functions behind ours are called by pointers that are found later.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Cargo names the linker where it was told of one, as for another processor than this machine's.
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--no-rosegment,-z,norelro,-z,separate-loadable-segments");
    vervain_symver::link_by_lld();
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or("cc".into());
    let archive = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output();
    let path = archive.ok().and_then(|out| String::from_utf8(out.stdout).ok());
    // Without it the shared library serves as well.
    if let Some(folder) = path.as_deref().and_then(|p| p.trim().strip_suffix("/libgcc_eh.a")) {
        println!("cargo:rustc-link-search=native={folder}");
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
}
