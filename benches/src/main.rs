//! `make bench`: Vervain's speed beside the raw calls it stands on.

fn main() {}
