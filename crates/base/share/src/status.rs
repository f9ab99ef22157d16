//! Sentences for `vervain doctor` and for tests: whether programs allocate from shared memory here, where, and why not.

use crate::object::Object;
use crate::room;
use crate::settings::{Settings, THRESHOLD};

/// The settings that a process with this process's environment, limits and kernel would have.
pub fn sentence() -> String {
    let off = |why: crate::settings::Off| format!("nothing is allocated from shared memory: {}", why.reason());
    let settings = match Settings::read() {
        Ok(settings) => settings,
        Err(why) => return off(why),
    };
    let from = THRESHOLD >> 10;
    let what =
        format!("allocated from shared memory: blocks and anonymous mappings from {from} KiB, and page-aligned ones");
    if let Some(Ok(place)) = window() {
        return format!("{what}, {place}");
    }
    if let Err(why) = Object::create(settings.heap_len, settings.huge) {
        return off(why);
    }
    let pages = if settings.huge { "huge pages where a block has room for them" } else { "small pages only" };
    format!("{what}, in a sealed memfd of up to {} GiB, {pages}", settings.heap_len >> 30)
}

/// The place of heaps in the window that `VERVAIN_WINDOW` names for them, or the reason why they are not in it; None if
/// it names none.
pub fn window() -> Option<Result<String, String>> {
    let spec = room::wanted()?;
    let place = |room: room::WindowRoom| {
        let (len, node, file) = (room.len() >> 20, room.node(), spec.path.display());
        format!("in the window {file}, where the programs of node {node} share {len} MiB")
    };
    Some(room::open(&spec).map(|(_, room)| place(room)).map_err(|e| e.to_string()))
}
