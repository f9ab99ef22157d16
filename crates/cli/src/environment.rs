//! The variables that put a program on Vervain's devices, computed from the options and from what is set already.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::cli::DeviceOptions;
use crate::libs;

/// Names and values in the order in which they are printed.
pub type Variables = Vec<(&'static str, OsString)>;

/// The device options as the library reads them; an option that was not given stays unset.
pub fn device_variables(options: &DeviceOptions) -> Variables {
    let mut vars = Variables::new();
    let mut set = |name, value: Option<String>| vars.extend(value.map(|v| (name, v.into())));
    set("VERVAIN_DEVICES", options.devices.map(|n| n.to_string()));
    set("VERVAIN_PORTS", options.ports.map(|n| n.to_string()));
    set("VERVAIN_LINK_LAYER", options.link_layer.map(|l| l.word()));
    set("VERVAIN_LINK", options.link.map(|l| l.word()));
    set("VERVAIN_INTERFACE", options.interface.clone());
    set("VERVAIN_LOG", options.log.map(|l| l.word()));
    set("VERVAIN_MEMORY", options.memory.map(|w| w.word()));
    set("VERVAIN_SHARE", options.share.map(|s| s.word()));
    set("VERVAIN_ADOPT", options.adopt.map(|s| s.word()));
    vars
}

/// LD_LIBRARY_PATH with `dir` in front of what the user had.
pub fn library_path(dir: &Path, current: Option<&OsStr>) -> OsString {
    in_front(dir.as_os_str(), current, b':')
}

/// LD_PRELOAD with Vervain's preload in front of what the user had.
///
/// LD_PRELOAD separates by blanks too (ld.so(8)), so in a directory whose path has one the bare name stands, which
/// ld.so finds through LD_LIBRARY_PATH.
pub fn preload(dir: &Path, current: Option<&OsStr>) -> OsString {
    let path = dir.join(libs::PRELOAD);
    let blank = path.as_os_str().as_bytes().iter().any(u8::is_ascii_whitespace);
    let entry = if blank { OsStr::new(libs::PRELOAD) } else { path.as_os_str() };
    in_front(entry, current, b':')
}

/// `first`, then the entries of `rest` other than `first`; an unset or empty rest adds nothing (an empty entry in
/// LD_LIBRARY_PATH would mean the working directory).
fn in_front(first: &OsStr, rest: Option<&OsStr>, separator: u8) -> OsString {
    let mut out = first.as_bytes().to_vec();
    let rest = rest.filter(|r| !r.is_empty()).into_iter().flat_map(|r| r.as_bytes().split(move |&b| b == separator));
    for entry in rest.filter(|e| *e != first.as_bytes()) {
        out.push(separator);
        out.extend_from_slice(entry);
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{LinkLayer, MemoryWay};

    fn text(s: OsString) -> String {
        s.into_string().unwrap()
    }

    #[test]
    fn the_users_library_path_is_kept_behind_ours() {
        let dir = Path::new("/opt/v");
        assert_eq!(text(library_path(dir, None)), "/opt/v");
        assert_eq!(text(library_path(dir, Some(OsStr::new("")))), "/opt/v");
        assert_eq!(text(library_path(dir, Some(OsStr::new("/a:/b")))), "/opt/v:/a:/b");
    }

    #[test]
    fn a_run_inside_a_run_adds_nothing_twice() {
        let dir = Path::new("/opt/v");
        assert_eq!(text(library_path(dir, Some(OsStr::new("/opt/v:/a")))), "/opt/v:/a");
    }

    #[test]
    fn the_users_preload_is_kept_behind_ours() {
        let had = OsStr::new("/usr/lib/libjemalloc.so.2 other.so");
        assert_eq!(
            text(preload(Path::new("/opt/v"), Some(had))),
            "/opt/v/libvervain_preload.so:/usr/lib/libjemalloc.so.2 other.so"
        );
    }

    #[test]
    fn a_blank_in_the_directory_leaves_the_bare_name() {
        assert_eq!(text(preload(Path::new("/opt/my libs"), None)), "libvervain_preload.so");
    }

    #[test]
    fn only_given_options_become_variables() {
        let options = DeviceOptions {
            devices: Some(2),
            link_layer: Some(LinkLayer::Infiniband),
            memory: Some(MemoryWay::Owner),
            ..DeviceOptions::default()
        };
        let vars: Vec<_> = device_variables(&options).into_iter().map(|(n, v)| (n, text(v))).collect();
        assert_eq!(
            vars,
            [
                ("VERVAIN_DEVICES", "2".to_owned()),
                ("VERVAIN_LINK_LAYER", "infiniband".to_owned()),
                ("VERVAIN_MEMORY", "owner".to_owned())
            ]
        );
    }
}
