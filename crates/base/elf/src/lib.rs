//! The facts that the dynamic linker uses of a program or library: its class and machine, its interpreter, the
//! libraries that it needs, and the search paths that are written into it. The command asks it of programs, the preload
//! of libraries. It knows nothing of verbs.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef, StringTable};
use object::{Endianness, FileKind};

/// An ELF file that this machine's dynamic linker may start or load.
#[derive(Debug, Default)]
pub struct Elf {
    /// A 64-bit file for the machine that this command was built for.
    pub native: bool,
    /// PT_INTERP; a file without it is static.
    pub interpreter: Option<PathBuf>,
    /// DT_NEEDED: the names of the libraries that it is linked to, in their order.
    pub needed: Vec<OsString>,
    /// DT_RPATH, which ld.so searches before LD_LIBRARY_PATH unless there is a DT_RUNPATH (ld.so(8)).
    pub rpath: Vec<OsString>,
    /// DT_RUNPATH, which it searches after LD_LIBRARY_PATH.
    pub runpath: Vec<OsString>,
}

const NATIVE_MACHINE: u16 = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };

/// Up to this length a file is read whole: a plugin is, and one read costs less than the eight of its parts.
const SMALL: usize = 64 << 10;

/// Reads the headers of `path`; None if it is no ELF file. Only the parts needed are read of a large file.
///
/// # Errors
/// When the file cannot be read, or contradicts itself.
pub fn read(path: &Path) -> io::Result<Option<Elf>> {
    let mut file = File::open(path)?;
    match usize::try_from(file.metadata()?.len()) {
        Ok(length) if length <= SMALL => {
            let mut bytes = vec![0; length];
            file.read_exact(&mut bytes)?;
            understand(&bytes[..])
        }
        _ => understand(&ReadCache::new(file)),
    }
}

fn understand<'data, R: ReadRef<'data>>(data: R) -> io::Result<Option<Elf>> {
    match FileKind::parse(data) {
        Ok(FileKind::Elf64) => parse(data).map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)),
        Ok(FileKind::Elf32) => Ok(Some(Elf::default())),
        _ => Ok(None),
    }
}

fn parse<'data, R: ReadRef<'data>>(data: R) -> object::Result<Elf> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    let mut out = Elf { native: header.e_machine(endian) == NATIVE_MACHINE, ..Elf::default() };
    for segment in segments {
        if let Some(path) = segment.interpreter(endian, data)? {
            out.interpreter = Some(PathBuf::from(OsStr::from_bytes(path)));
        }
        if let Some(dynamic) = segment.dynamic(endian, data)? {
            let value = |tag: u32| dynamic.iter().find(|d| d.tag32(endian) == Some(tag)).map(|d| d.d_val(endian));
            let Some(start) = value(elf::DT_STRTAB).and_then(|address| file_offset(segments, endian, address)) else {
                continue;
            };
            let strings = StringTable::new(data, start, start.saturating_add(value(elf::DT_STRSZ).unwrap_or(0)));
            let string = |offset: u64| strings.get(u32::try_from(offset).ok()?).ok();
            let needed = dynamic.iter().filter(|d| d.tag32(endian) == Some(elf::DT_NEEDED));
            let names = needed.filter_map(|d| string(d.d_val(endian)));
            out.needed = names.map(|name| OsString::from_vec(name.to_vec())).collect();
            let search_path = |tag| {
                value(tag)
                    .and_then(string)
                    .map(|s| s.split(|&b| b == b':').filter(|e| !e.is_empty()))
                    .map(|entries| entries.map(|e| OsString::from_vec(e.to_vec())).collect())
                    .unwrap_or_default()
            };
            out.rpath = search_path(elf::DT_RPATH);
            out.runpath = search_path(elf::DT_RUNPATH);
        }
    }
    Ok(out)
}

/// The offset in the file of the byte at this virtual address.
fn file_offset<P: ProgramHeader>(segments: &[P], endian: P::Endian, address: u64) -> Option<u64> {
    segments.iter().filter(|s| s.p_type(endian) == elf::PT_LOAD).find_map(|s| {
        let within = address.checked_sub(s.p_vaddr(endian).into())?;
        (within < s.p_filesz(endian).into()).then(|| within + s.p_offset(endian).into())
    })
}

/// A search path entry with $ORIGIN replaced by `origin`: for a program, the directory of the file itself, for a
/// library, that of the path by which it is loaded, which may be a link (ld.so(8)).
pub fn expand_origin(entry: &OsStr, origin: &Path) -> PathBuf {
    let text = entry.to_string_lossy().replace("${ORIGIN}", "$ORIGIN");
    PathBuf::from(text.replace("$ORIGIN", &origin.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_native_dynamic_program() {
        let elf = read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(elf.native);
        assert!(elf.interpreter.unwrap().to_string_lossy().contains("ld-"));
        assert!(elf.needed.iter().any(|name| name == "libc.so.6"), "{:?}", elf.needed);
        assert!(elf.rpath.is_empty());
    }

    #[test]
    fn a_small_file_says_the_same_as_a_large_one() {
        let dir = tempfile::tempdir().unwrap();
        let [source, small, large] = ["a.c", "small", "large"].map(|name| dir.path().join(name));
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        let mut cc = std::process::Command::new("cc");
        cc.args(["-s", "-Wl,-rpath,/x:/y", "-o"]).args([&small, &source]);
        assert!(cc.status().unwrap().success());
        std::fs::copy(&small, &large).unwrap();
        File::options().append(true).open(&large).unwrap().set_len(2 * SMALL as u64).unwrap();
        assert!(std::fs::metadata(&small).unwrap().len() <= SMALL as u64);
        let said = [small, large].map(|file| format!("{:?}", read(&file).unwrap().unwrap()));
        assert_eq!(said[0], said[1]);
        assert!(said[0].contains(r#""libc.so.6""#) && said[0].contains(r#"["/x", "/y"]"#), "{said:?}");
    }

    #[test]
    fn a_text_file_is_no_elf() {
        let tmp = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(tmp.path(), "#!/bin/sh\n").unwrap();
        assert!(read(tmp.path()).unwrap().is_none());
    }

    #[test]
    fn origin_is_replaced_in_both_spellings() {
        for entry in ["$ORIGIN/../lib", "${ORIGIN}/../lib"] {
            assert_eq!(expand_origin(OsStr::new(entry), Path::new("/opt/a/bin")), Path::new("/opt/a/bin/../lib"));
        }
    }
}
