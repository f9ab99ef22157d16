//! One sentence for `vervain doctor`: whether programs allocate from shared memory here, and why not.

use crate::heap::THRESHOLD;
use crate::object::Object;
use crate::room;
use crate::settings::Settings;

/// What is in force for a process with this process's environment, limits and kernel.
pub fn sentence() -> String {
    let off = |why: crate::settings::Off| format!("nothing is allocated from shared memory: {}", why.reason());
    let settings = match Settings::read() {
        Ok(settings) => settings,
        Err(why) => return off(why),
    };
    let from = THRESHOLD >> 10;
    let what =
        format!("allocated from shared memory: blocks and anonymous mappings from {from} KiB, and page-aligned ones");
    let window = room::wanted().map(|spec| (room::open(&spec), spec));
    let beside = match window {
        Some((Ok((_, room)), spec)) => {
            let (len, node, file) = (room.len() >> 20, room.node(), spec.path.display());
            return format!(
                "{what}, in up to {len} MiB of node {node} of the window {file}, which the node's processes share"
            );
        }
        Some((Err(why), _)) => format!(". The heap is not in the window: {why}"),
        None => String::new(),
    };
    if let Err(why) = Object::create(settings.heap_len, settings.huge) {
        return off(why) + &beside;
    }
    let pages = if settings.huge { "huge pages where a block has room for them" } else { "small pages only" };
    format!("{what}, in a sealed memfd of up to {} GiB, {pages}{beside}", settings.heap_len >> 30)
}
