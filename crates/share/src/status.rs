//! One sentence for `vervain doctor`: whether programs allocate from shared memory here, and why not.

use crate::heap::THRESHOLD;
use crate::object::Object;
use crate::settings::Settings;

/// What is in force for a process with this process's environment, limits and kernel.
pub fn sentence() -> String {
    let off = |why: crate::settings::Off| format!("nothing is allocated from shared memory: {}", why.reason());
    let settings = match Settings::read() {
        Ok(settings) => settings,
        Err(why) => return off(why),
    };
    if let Err(why) = Object::create(settings.heap_len, settings.huge) {
        return off(why);
    }
    let pages = if settings.huge { "huge pages where a block has room for them" } else { "small pages only" };
    format!(
        "allocated from shared memory: blocks and anonymous mappings from {} KiB, and page-aligned ones, in a \
         sealed memfd of up to {} GiB, {pages}",
        THRESHOLD >> 10,
        settings.heap_len >> 30
    )
}
