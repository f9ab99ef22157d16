//! Writes the packets of the golden captures as files, for a fuzz target to begin with: `seeds DIRECTORY`.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../crates/protocols/wire/tests/common/mod.rs"]
mod common;

use std::{env, fs, io};

fn main() -> io::Result<()> {
    let directory = env::args().nth(1).ok_or_else(|| io::Error::other("usage: seeds DIRECTORY"))?;
    fs::create_dir_all(&directory)?;
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/protocols/wire/tests/golden");
    for captured in common::packets(golden) {
        fs::write(format!("{directory}/{}", captured.name.replace(' ', "-")), captured.datagram)?;
    }
    Ok(())
}
