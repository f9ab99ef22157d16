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

/// What makes communication libraries use the device where nobody has told them what to use: they prefer shared memory of
/// their own inside a host, and to many an adapter that is not Mellanox's is no reason to look for verbs. A variable that is
/// set, if only to nothing, stays as it is.
const DEFAULTS: [(&str, &str); 4] = [
    // UCX: neither its shared memory nor TCP; what is for GPUs stays.
    ("UCX_TLS", "^sm,tcp"),
    // Open MPI: takes UCX for devices with these drivers. Said by leaving out, for a component that is named must be there:
    // Debian leaves UCX out; osc/rdma would come before osc/ucx, by shared memory.
    ("OMPI_MCA_opal_common_ucx_devices", "vervain*,mlx*,hns*"),
    ("OMPI_MCA_pml", "^cm"),
    ("OMPI_MCA_osc", "^rdma"),
];

/// The defaults that `is_set` leaves.
pub fn client_defaults(is_set: impl Fn(&str) -> bool) -> Variables {
    DEFAULTS.into_iter().filter(|(name, _)| !is_set(name)).map(|(name, value)| (name, value.into())).collect()
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
    fn what_the_user_has_set_stays() {
        let names =
            |set: &[&str]| client_defaults(|name| set.contains(&name)).into_iter().map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(names(&[]), DEFAULTS.map(|(name, _)| name));
        assert_eq!(names(&["UCX_TLS", "OMPI_MCA_osc"]), ["OMPI_MCA_opal_common_ucx_devices", "OMPI_MCA_pml"]);
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
