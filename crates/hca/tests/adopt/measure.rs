//! How long adopting and reverting take: prints medians, checks nothing. Run with `--ignored --nocapture`.

use crate::{Memory, PAGE, adoption};
use std::time::Instant;

#[test]
#[ignore = "prints timings and asserts nothing; run by name with --ignored"]
fn times() {
    let Some(adoption) = adoption() else { return };
    for (name, len, rounds) in
        [("4 KiB", PAGE, 2000), ("64 KiB", 64 << 10, 1000), ("1 MiB", 1 << 20, 200), ("64 MiB", 64 << 20, 9)]
    {
        let memory = Memory::new(len + 2 * PAGE);
        let (mut adopt, mut revert) = (Vec::new(), Vec::new());
        let touch = || memory.bytes().iter_mut().step_by(PAGE).for_each(|b| *b = b.wrapping_add(1));
        for _ in 0..rounds {
            touch();
            let start = Instant::now();
            let adopted = adoption.adopt(memory.base + PAGE, len).unwrap();
            adopt.push(start.elapsed());
            touch();
            let start = Instant::now();
            adoption.revert(adopted);
            revert.push(start.elapsed());
        }
        adopt.sort();
        revert.sort();
        println!("{name}: adopt {:?}, revert {:?}", adopt[rounds / 2], revert[rounds / 2]);
    }
}
