//! The value of `VERVAIN_WINDOW`: what holds the memory of the window, and what of it is to be another way than by default.

use crate::board::Peach2;
use crate::choices::Switch;
use crate::variable::bytes;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Before the file of a window whose nodes have boards.
const PEACH2: &[u8] = b"peach2:";

/// Memory that nodes without a common kernel write to, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSpec {
    /// The file, the folder of a file for each node, `/dev/daxN.M`, or `ivshmem` with a colon and a PCI address if one is said.
    pub path: PathBuf,
    /// The model of the board by which nodes put there; by stores of the processor if none is said.
    pub peach2: Option<Peach2>,
    /// Its bytes when it is made; those that it must have otherwise.
    pub size: Option<u64>,
    /// The number of this node, from 0; found if none is said.
    pub node: Option<u32>,
    /// Whether the shared heap of programs lies in it.
    pub heap: bool,
    /// Whether peers may put where data belongs, unasked.
    pub direct: bool,
}

impl WindowSpec {
    /// What a value says; none for one that cannot be. A file name has no comma.
    pub fn of(value: &[u8]) -> Option<WindowSpec> {
        let (mut board, value) = match value.strip_prefix(PEACH2) {
            Some(rest) => (Some(Peach2::default()), rest),
            None => (None, value),
        };
        let mut items = value.split(|byte| *byte == b',');
        let path = items.next().filter(|path| !path.is_empty())?;
        let (mut size, mut node, mut heap, mut direct) = (None, None, None, None);
        let mut said = Vec::new();
        for item in items {
            let at = item.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (&item[..at], &item[at + 1..]);
            if said.contains(&name) {
                return None;
            }
            said.push(name);
            match name {
                b"size" => size = Some(bytes(value)? as u64),
                b"node" => node = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                b"heap" if value == b"gpu" => {
                    board.as_mut()?.gpu_heap = true;
                    heap = Some(true);
                }
                b"heap" => heap = Some(Switch::of(value)? == Switch::On),
                b"direct" => direct = Some(Switch::of(value)? == Switch::On),
                _ => board.as_mut()?.set(name, value)?,
            }
        }
        let path = PathBuf::from(OsStr::from_bytes(path));
        Some(WindowSpec {
            path,
            peach2: board,
            size,
            node,
            heap: heap.unwrap_or(false),
            direct: direct.unwrap_or(true),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_file_and_what_is_said_of_it() {
        let plain =
            WindowSpec { path: "/dev/shm/w".into(), peach2: None, size: None, node: None, heap: false, direct: true };
        assert_eq!(WindowSpec::of(b"/dev/shm/w").as_ref(), Some(&plain));
        assert_eq!(WindowSpec::of(b"/dev/shm/w,heap=off"), Some(plain.clone()));
        let all = WindowSpec { size: Some(1 << 30), node: Some(3), heap: true, direct: false, ..plain };
        assert_eq!(WindowSpec::of(b"/dev/shm/w,node=3,heap=on,direct=off,size=1G"), Some(all.clone()));
        let board = |board| Some(WindowSpec { peach2: Some(board), ..all.clone() });
        let with = |more: &str| WindowSpec::of(format!("peach2:/dev/shm/w,node=3,direct=off,size=1G{more}").as_bytes());
        assert_eq!(with(",heap=on"), board(Peach2::default()));
        assert_eq!(with(",heap=gpu"), board(Peach2 { gpu_heap: true, ..Peach2::default() }));
        assert_eq!(with(",heap=on,strict=on"), board(Peach2 { strict: true, ..Peach2::default() }));
        for wrong in [
            "",
            ",node=1",
            "f,node",
            "f,node=",
            "f,node=-1",
            "f,size=1x",
            "f,nodes=2",
            "f,node=1,node=1",
            "f,heap",
            "f,heap=",
            "f,heap=2",
            "f,heap=on,heap=on",
            "f,heap=gpu",
            "f,timing=on",
            "peach2:",
            "peach2:f,timing=on,timing=on",
            "f,",
        ] {
            assert_eq!(WindowSpec::of(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
