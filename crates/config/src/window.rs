//! The value of `VERVAIN_WINDOW`: a file or a folder, and what of it is to be another way than by default.

use crate::choices::Switch;
use crate::variable::bytes;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Memory that nodes without a common kernel write to, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSpec {
    /// The file, or the folder of a file for each node.
    pub path: PathBuf,
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
        let mut items = value.split(|byte| *byte == b',');
        let path = items.next().filter(|path| !path.is_empty())?;
        let (mut size, mut node, mut heap, mut direct) = (None, None, None, None);
        for item in items {
            let at = item.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (&item[..at], &item[at + 1..]);
            match name {
                b"size" if size.is_none() => size = Some(bytes(value)? as u64),
                b"node" if node.is_none() => node = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                b"heap" if heap.is_none() => heap = Some(Switch::of(value)? == Switch::On),
                b"direct" if direct.is_none() => direct = Some(Switch::of(value)? == Switch::On),
                _ => return None,
            }
        }
        let path = PathBuf::from(OsStr::from_bytes(path));
        Some(WindowSpec { path, size, node, heap: heap.unwrap_or(false), direct: direct.unwrap_or(true) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_file_and_what_is_said_of_it() {
        let plain = WindowSpec { path: "/dev/shm/w".into(), size: None, node: None, heap: false, direct: true };
        assert_eq!(WindowSpec::of(b"/dev/shm/w").as_ref(), Some(&plain));
        assert_eq!(WindowSpec::of(b"/dev/shm/w,heap=off"), Some(plain.clone()));
        let all = WindowSpec { size: Some(1 << 30), node: Some(3), heap: true, direct: false, ..plain };
        assert_eq!(WindowSpec::of(b"/dev/shm/w,node=3,heap=on,direct=off,size=1G"), Some(all));
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
            "f,",
        ] {
            assert_eq!(WindowSpec::of(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
