//! The linker arguments of a library with versioned symbols; called by build scripts.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

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
    let mut script = String::new();
    for (node, parent) in nodes {
        let _ = writeln!(script, "{node} {{ }} {parent};");
    }
    let path = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR is set by cargo")).join("versions.map");
    fs::write(&path, script).expect("OUT_DIR can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo:rerun-if-changed=build.rs");
}
