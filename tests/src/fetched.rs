//! What `scripts/fetch.sh` has downloaded for tests.

use std::path::{Path, PathBuf};

/// A folder below `target/fetched`; None, with a printed reason, if it was not fetched.
#[track_caller]
pub fn fetched(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fetched").join(name);
    let found = folder.canonicalize().ok();
    if found.is_none() {
        crate::skip(format_args!(
            "target/fetched/{name} is missing; scripts/fetch.sh downloads it where it can be had"
        ));
    }
    found
}
