//! The linker arguments of a library with versioned symbols; called by build scripts.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::table::Table;

/// Writes a version script that declares `nodes` (name, and the node it follows or "") and passes it, with `soname`, to
/// the linker of the crate's cdylib.
///
/// The script names no symbol: a symbol whose name ends in `@@NODE` carries its version itself, so the export table in
/// the crate's source is the only list. All other symbols are made local by the script that rustc itself passes; a
/// `local: *` here would hide the older versions (`name@NODE`) of the node that it stands in, as lld reads it.
///
/// # Panics
/// When cargo's variables are missing or the script cannot be written: there is no build then.
pub fn write_version_script(soname: &str, nodes: &[(&str, &str)]) {
    declare(soname, nodes);
    // The build depends on the script itself only, which cargo runs again when it changes. This names a file that every
    // package has: a missing one, as a build.rs of another package would be, would have it run each time.
    println!("cargo:rerun-if-changed=Cargo.toml");
}

/// Makes a stand-in for a provider library out of `table`, a file of the package vervain-libNAME: exports.rs for the
/// library's source to include, and the nodes for the linker. [`Table`] describes the file.
///
/// # Panics
/// When the table cannot be read or understood, and where [`write_version_script`] does.
pub fn write_stand_in(table: &str) {
    let text = fs::read_to_string(table).unwrap_or_else(|e| panic!("{table}: {e}"));
    let read = Table::parse(&text).unwrap_or_else(|e| panic!("{table}: {e}"));
    fs::write(out_dir().join("exports.rs"), read.source()).expect("OUT_DIR can be written");
    let package = env::var("CARGO_PKG_NAME").expect("CARGO_PKG_NAME is set by cargo");
    declare(&format!("{}.so.1", package.trim_start_matches("vervain-")), &read.nodes());
    println!("cargo:rerun-if-changed={table}");
}

fn declare(soname: &str, nodes: &[(&str, &str)]) {
    let mut script = String::new();
    for (node, parent) in nodes {
        let _ = writeln!(script, "{node} {{ }} {parent};");
    }
    let path = out_dir().join("versions.map");
    fs::write(&path, script).expect("OUT_DIR can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    link_by_lld();
}

/// Has the library linked by lld, which rustc takes by itself for x86-64 only: by the one that rustc brings, else by
/// the system's. For build scripts whose flags lld alone knows.
pub fn link_by_lld() {
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("{name} is set by cargo"));
    if variable("CARGO_CFG_TARGET_ARCH") == "x86_64" {
        return;
    }
    let sysroot = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output().expect("rustc can be run");
    let sysroot = String::from_utf8(sysroot.stdout).expect("a path");
    let lld = Path::new(sysroot.trim()).join("lib/rustlib").join(variable("HOST")).join("bin/gcc-ld");
    if lld.is_dir() {
        println!("cargo:rustc-cdylib-link-arg=-B{}", lld.display());
    }
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
}

fn out_dir() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR is set by cargo"))
}
