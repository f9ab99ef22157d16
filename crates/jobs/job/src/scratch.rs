//! Copies of trees of files, for what a job keeps in folders of its own. Holes stay holes; sockets are
//! left out, for CRIU makes those that are open, and device files, which such folders do not have.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{
    DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink,
};
use std::path::Path;

use nix::sys::stat::Mode;
use rustix::fs::{SeekFrom, seek};

/// Copies what is in the folder `from` into the folder `to`, which is made if it is not there.
///
/// # Errors
/// A file cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    let meta = fs::metadata(from)?;
    DirBuilder::new().recursive(true).mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name: OsString = entry.file_name();
        one(&from.join(&name), &to.join(&name)).or_else(|e| match e.kind() {
            // It has gone meanwhile.
            ErrorKind::NotFound => Ok(()),
            _ => Err(e),
        })?;
    }
    let _ = chown(to, Some(meta.uid()), Some(meta.gid()));
    fs::set_permissions(to, Permissions::from_mode(meta.mode() & 0o7777))
}

fn one(from: &Path, to: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(from)?;
    let kind = meta.file_type();
    if kind.is_dir() {
        copy(from, to)
    } else if kind.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
        let _ = lchown(to, Some(meta.uid()), Some(meta.gid()));
        Ok(())
    } else if kind.is_file() {
        file(from, to, &meta)
    } else if kind.is_fifo() {
        nix::unistd::mkfifo(to, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let _ = chown(to, Some(meta.uid()), Some(meta.gid()));
        fs::set_permissions(to, Permissions::from_mode(meta.mode() & 0o7777))
    } else {
        Ok(())
    }
}

fn file(from: &Path, to: &Path, meta: &Metadata) -> io::Result<()> {
    let source = File::open(from)?;
    let copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    copy.set_len(meta.len())?;
    let mut at = 0;
    // To the next data, to the hole behind it, and on; the end counts as a hole.
    while let Ok(data) = seek(&source, SeekFrom::Data(at)) {
        let hole = seek(&source, SeekFrom::Hole(data))?;
        seek(&source, SeekFrom::Start(data))?;
        seek(&copy, SeekFrom::Start(data))?;
        io::copy(&mut io::Read::take(&source, hole - data), &mut &copy)?;
        at = hole;
    }
    let _ = chown(to, Some(meta.uid()), Some(meta.gid()));
    fs::set_permissions(to, Permissions::from_mode(meta.mode() & 0o7777))?;
    copy.set_modified(meta.modified()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_tree_comes_with_its_holes_links_and_rights_and_without_its_sockets() {
        let tmp = tempfile::tempdir().unwrap();
        let (from, to) = (tmp.path().join("from"), tmp.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        let sparse = File::create(from.join("a/sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        sparse.write_all_at(b"x", 1 << 29).unwrap();
        fs::write(from.join("a/b/small"), "small").unwrap();
        fs::set_permissions(from.join("a/b/small"), Permissions::from_mode(0o640)).unwrap();
        symlink("a/nowhere", from.join("link")).unwrap();
        nix::unistd::mkfifo(&from.join("fifo"), Mode::S_IRUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        copy(&from, &to).unwrap();
        let copied = fs::metadata(to.join("a/sparse")).unwrap();
        assert_eq!(copied.len(), 1 << 30);
        assert!(copied.blocks() * 512 < 1 << 20, "{}", copied.blocks());
        let mut byte = [0];
        File::open(to.join("a/sparse")).unwrap().read_exact_at(&mut byte, 1 << 29).unwrap();
        assert_eq!(byte, *b"x");
        assert_eq!(fs::read(to.join("a/b/small")).unwrap(), b"small");
        assert_eq!(fs::metadata(to.join("a/b/small")).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("a/nowhere"));
        let fifo = fs::metadata(to.join("fifo")).unwrap();
        assert!(fifo.file_type().is_fifo() && fifo.mode() & 0o7777 == 0o400, "{fifo:?}");
        assert!(!to.join("socket").exists());
        copy(&tmp.path().join("missing"), &tmp.path().join("none")).unwrap();
    }
}
