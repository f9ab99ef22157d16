//! Opening a window by its name.

use crate::device::PutDevice;
use crate::error::Result;
use crate::file::FileDevice;
use crate::ivshmem;
use crate::make::Options;
use crate::peach2::Peach2Device;
use crate::write_only::WriteOnlyDevice;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Opens the window `path`: a [`WriteOnlyDevice`] for a folder or a name with a slash at its end, a [`FileDevice`] for
/// everything else, including `ivshmem`. Makes the window if nothing is there.
///
/// # Errors
/// Those of [`FileDevice::open`].
pub fn open(path: &Path, options: &Options) -> Result<Arc<dyn PutDevice>> {
    if let Some(model) = options.peach2 {
        return Ok(Arc::new(Peach2Device::open(path, options, model)?));
    }
    if ivshmem::named(path).is_none() && (path.is_dir() || path.as_os_str().as_bytes().ends_with(b"/")) {
        return Ok(Arc::new(WriteOnlyDevice::open(path, options)?));
    }
    Ok(Arc::new(FileDevice::open(path, options)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_slash_at_its_end_is_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { size: Some(4 << 20), nodes: Some(2), ..Options::default() };
        let [file, made, full] = ["file", "made/", "full"].map(|name| folder.path().join(name));
        let open = |path: &Path| open(path, &options).map(|device| device.facts().uuid).map_err(|e| e.to_string());
        let first = [&file, &made].map(|path| open(path).unwrap());
        assert!(file.is_file() && folder.path().join("made/region1").is_file());
        assert_eq!([open(&file), open(&folder.path().join("made"))], first.map(Ok));
        let error = open(&folder.path().join("file/")).unwrap_err();
        assert!(error.contains("File exists"), "{error}");
        std::fs::create_dir(&full).unwrap();
        std::fs::write(full.join("anything"), "").unwrap();
        let error = open(&full).unwrap_err();
        assert!(
            error.contains("is a folder without a window: name another one in it, as in ")
                && error.ends_with("full/window/"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
    }
}
