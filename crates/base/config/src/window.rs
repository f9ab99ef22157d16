//! The value of `VERVAIN_WINDOW`: what holds the memory of the window, and what of it is to be another way than by
//! default.

use crate::board::Peach2;
use crate::choices::Switch;
use crate::size::bytes;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Before the file of a window whose nodes have boards.
const PEACH2: &[u8] = b"peach2:";

/// Memory that nodes without a common kernel write to, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSpec {
    /// The file, the folder of a file for each node, `/dev/daxN.M`, or `ivshmem` with a colon and a PCI address if one
    /// is said.
    pub path: PathBuf,
    /// The model of the board by which nodes put there; by stores of the processor if none is said.
    pub peach2: Option<Peach2>,
    /// Its bytes when it is made; those that it must have otherwise.
    pub size: Option<u64>,
    /// The number of this node, from 0; found if none is said.
    pub node: Option<u32>,
    /// True if the shared heap of programs lies in it.
    pub heap: bool,
    /// True if peers may put where data belongs, unasked.
    pub direct: bool,
}

impl WindowSpec {
    /// Reads a value; None for an invalid one. A file name has no comma.
    pub fn of(value: &[u8]) -> Option<WindowSpec> {
        Self::parse(value).ok()
    }

    /// Reads a value.
    ///
    /// # Errors
    /// The first wrong word, and what is allowed in its place.
    pub fn parse(value: &[u8]) -> Result<WindowSpec, WrongWord> {
        let kind = Kind::of(value);
        let (board, value) = match value.strip_prefix(PEACH2) {
            Some(rest) => (Some(Peach2::default()), rest),
            None => (None, value),
        };
        let mut items = value.split(|byte| *byte == b',');
        let path = items.next().unwrap_or_default();
        let wrong = |item: &[u8], wanted| WrongWord { item: String::from_utf8_lossy(item).into_owned(), wanted };
        if path.is_empty() {
            return Err(wrong(value, "it begins with the name of a file, folder or device".to_owned()));
        }
        let path = PathBuf::from(OsStr::from_bytes(path));
        let mut spec = WindowSpec { path, peach2: board, size: None, node: None, heap: false, direct: true };
        let mut said = Vec::new();
        for item in items {
            let at = item.iter().position(|byte| *byte == b'=');
            let (name, value) = at.map_or((item, None), |at| (&item[..at], Some(&item[at + 1..])));
            if said.contains(&name) {
                return Err(wrong(item, format!("{} is there twice", String::from_utf8_lossy(name))));
            }
            said.push(name);
            value.and_then(|value| spec.set(name, value)).ok_or_else(|| wrong(item, kind.wants(name)))?;
        }
        Ok(spec)
    }

    /// Takes in `name=value`; none for what cannot be.
    fn set(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        let is_on = || Switch::of(value).map(|switch| switch == Switch::On);
        match name {
            b"size" => self.size = Some(bytes(value)?),
            b"node" => self.node = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
            b"heap" if value == b"gpu" => {
                self.peach2.as_mut()?.gpu_heap = true;
                self.heap = true;
            }
            b"heap" => self.heap = is_on()?,
            b"direct" => self.direct = is_on()?,
            _ => self.peach2.as_mut()?.set(name, value)?,
        }
        Some(())
    }
}

/// A word that cannot stand in the value of `VERVAIN_WINDOW`. As text the word and a sentence on what could.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{item}': {wanted}")]
pub struct WrongWord {
    item: String,
    wanted: String,
}

/// Kinds of windows, which have different options.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
    Dax,
    Ivshmem,
    Boards,
}

impl Kind {
    fn of(value: &[u8]) -> Kind {
        let path = value.split(|byte| *byte == b',').next().unwrap_or_default();
        match path {
            _ if path.starts_with(PEACH2) => Kind::Boards,
            _ if path == b"ivshmem" || path.starts_with(b"ivshmem:") => Kind::Ivshmem,
            _ if path.starts_with(b"/dev/dax") => Kind::Dax,
            _ if path.ends_with(b"/") => Kind::Folder,
            _ => Kind::File,
        }
    }

    /// The sentence about the values that the option `name` takes.
    fn wants(self, name: &[u8]) -> String {
        let is_board = self == Kind::Boards;
        match name {
            b"size" => "size takes a number of bytes, as in size=512M or size=4G".to_owned(),
            b"node" => "node takes a number from 0, as in node=1".to_owned(),
            b"heap" if is_board => "heap takes on, off or gpu".to_owned(),
            b"heap" => "heap takes on or off".to_owned(),
            b"direct" => "direct takes on or off".to_owned(),
            _ => {
                let name = String::from_utf8_lossy(name);
                match Peach2::takes(&name) {
                    Some(takes) if is_board => takes.to_owned(),
                    Some(_) => format!("{name} is an option of boards, as in peach2:FILE; {}", self.options()),
                    None => format!("there is no option '{name}'; {}", self.options()),
                }
            }
        }
    }

    fn options(self) -> &'static str {
        match self {
            Kind::File => "a file has size=BYTES, node=N, heap=on and direct=off",
            Kind::Ivshmem => "an ivshmem device has size=BYTES, node=N, heap=on and direct=off",
            Kind::Dax => "device-DAX has size=BYTES, node=N, heap=on and direct=off",
            // It cannot hold the heap of programs.
            Kind::Folder => "a folder has size=BYTES and node=N",
            Kind::Boards => {
                "peach2:FILE has size=BYTES, node=N, heap=on, heap=gpu, direct=off, strict=on, timing=on, links=all-to-all, \
                 hop=NS, make-internal=NS, make-host=NS and without=PART+PART"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_named_with_what_could_stand_there() {
        const OF_FILE: &str = "a file has size=BYTES, node=N, heap=on and direct=off";
        for (value, wanted) in [
            (",node=1", "',node=1': it begins with the name of a file, folder or device".to_owned()),
            ("f,node=1,nodes=2,size=1x", format!("'nodes=2': there is no option 'nodes'; {OF_FILE}")),
            ("f,size=4M,", format!("'': there is no option ''; {OF_FILE}")),
            ("f,size=1x", "'size=1x': size takes a number of bytes, as in size=512M or size=4G".to_owned()),
            ("f,node", "'node': node takes a number from 0, as in node=1".to_owned()),
            ("f,node=1,node=2", "'node=2': node is there twice".to_owned()),
            ("f,heap=gpu", "'heap=gpu': heap takes on or off".to_owned()),
            ("peach2:f,heap=x", "'heap=x': heap takes on, off or gpu".to_owned()),
            ("f,timing=on", format!("'timing=on': timing is an option of boards, as in peach2:FILE; {OF_FILE}")),
            ("peach2:f,timing=x", "'timing=x': timing takes on or off".to_owned()),
            ("f/,nodes=2", "'nodes=2': there is no option 'nodes'; a folder has size=BYTES and node=N".to_owned()),
            (
                "ivshmem,x=2",
                "'x=2': there is no option 'x'; an ivshmem device has size=BYTES, node=N, heap=on and direct=off"
                    .to_owned(),
            ),
            (
                "/dev/dax0.0,x",
                "'x': there is no option 'x'; device-DAX has size=BYTES, node=N, heap=on and direct=off".to_owned(),
            ),
        ] {
            assert_eq!(WindowSpec::parse(value.as_bytes()).unwrap_err().to_string(), wanted, "{value}");
        }
    }

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
