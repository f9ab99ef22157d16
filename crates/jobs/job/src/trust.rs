//! The check of the writers of a checkpoint. A restart executes its images with the rights of the user who restarts it,
//! so no other user may have had write access to them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Refuses a folder of another user's, or one that others may write to, or replace by way of a folder above it.
///
/// # Errors
/// A sentence that names the folder and what is wrong with it.
pub fn folder(dir: &Path) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let dir = dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))?;
    let meta = fs::metadata(&dir).with_context(|| format!("cannot look at {}", dir.display()))?;
    ensure!(meta.is_dir(), "{} is no folder", dir.display());
    ensure!(
        meta.uid() == own,
        "{} belongs to uid {}, and a restart would execute what is in it: only checkpoints of the own user's are restarted",
        dir.display(),
        meta.uid()
    );
    ensure!(
        meta.mode() & 0o022 == 0,
        "others may write to {} (mode {:04o}), and a restart would execute what is in it; remedy: chmod go-w, if nobody has",
        dir.display(),
        meta.mode() & 0o7777
    );
    for above in dir.ancestors().skip(1) {
        let meta = fs::metadata(above).with_context(|| format!("cannot look at {}", above.display()))?;
        // With the sticky bit set, as on /tmp, only the owner of an entry may rename it.
        let open = meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0;
        ensure!(
            !open && (meta.uid() == own || meta.uid() == 0),
            "{} may be replaced by others, since {} {}; put checkpoints where only this user may write",
            dir.display(),
            above.display(),
            if open { "is writable for them".to_owned() } else { format!("belongs to uid {}", meta.uid()) }
        );
    }
    Ok(())
}

/// Refuses a file in such a folder that is somebody else's, or that others may write to.
///
/// # Errors
/// A sentence that names the file.
pub fn file(path: &Path) -> Result<fs::Metadata> {
    let own = rustix::process::geteuid().as_raw();
    let meta = fs::symlink_metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    ensure!(
        meta.is_file() && meta.uid() == own && meta.mode() & 0o022 == 0,
        "{} is no file that only this user may write, and a restart would execute what is in it",
        path.display()
    );
    Ok(meta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_others_may_write_is_refused_with_its_name() {
        let tmp = tempfile::tempdir().unwrap();
        let (above, dir) = (tmp.path().join("above"), tmp.path().join("above/dir"));
        fs::create_dir_all(&dir).unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&above, 0o755);
        mode(&dir, 0o755);
        folder(&dir).unwrap();
        for bad in [0o775, 0o757] {
            mode(&dir, bad);
            let why = folder(&dir).unwrap_err().to_string();
            assert!(why.contains("others may write to") && why.contains("/above/dir"), "{why}");
        }
        mode(&dir, 0o700);
        mode(&above, 0o777);
        assert!(folder(&dir).unwrap_err().to_string().contains("may be replaced by others"));
        mode(&above, 0o1777);
        folder(&dir).unwrap();
        let inside = dir.join("file");
        fs::write(&inside, "").unwrap();
        mode(&inside, 0o600);
        file(&inside).unwrap();
        mode(&inside, 0o620);
        assert!(file(&inside).is_err());
    }
}
