//! The variables that put a program on Vervain's devices, computed from the options and from what is set already.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use vervain_config::SYSFS;

use crate::libs;

/// Names and values in the order in which they are printed.
pub type Variables = Vec<(&'static str, OsString)>;

/// Variables that make communication libraries use the device if the user has not chosen another: they prefer shared
/// memory of their own inside a host, and many look for verbs only if there is an adapter of Mellanox's. A variable
/// that is set, if only to nothing, stays as it is.
const DEFAULTS: [(&str, &str); 4] = [
    // UCX: neither its shared memory nor TCP; what is for GPUs stays.
    ("UCX_TLS", "^sm,tcp"),
    // Open MPI: takes UCX for devices with these drivers. Said by leaving out, for a component that is named must be
    // there: Debian leaves UCX out; osc/rdma would come before osc/ucx, by shared memory.
    ("OMPI_MCA_opal_common_ucx_devices", "vervain*,mlx*,hns*"),
    ("OMPI_MCA_pml", "^cm"),
    ("OMPI_MCA_osc", "^rdma"),
];

/// The defaults that `is_set` leaves.
pub fn client_defaults(is_set: impl Fn(&str) -> bool) -> Variables {
    DEFAULTS.into_iter().filter(|(name, _)| !is_set(name)).map(|(name, value)| (name, value.into())).collect()
}

/// Settings for checkers that they cannot get otherwise: a sanitizer's runtime that is linked into the program reads
/// nothing but its variable (`crates/verbs/preload/src/checkers.rs` serves the others), and valgrind reads files. An
/// option that the user has set stays as it is.
pub fn checkers(dir: &Path, current: impl Fn(&str) -> Option<OsString>) -> Variables {
    let mut variables = Variables::new();
    let mut add = |name: &'static str, option: &str, value: &OsStr, separator: u8| {
        let had = current(name).unwrap_or_default();
        if !contains(&had, option) {
            let mut all = had.into_vec();
            if !all.is_empty() {
                all.push(separator);
            }
            all.extend_from_slice(option.as_bytes());
            all.extend_from_slice(value.as_bytes());
            variables.push((name, OsString::from_vec(all)));
        }
    };
    add("ASAN_OPTIONS", "verify_asan_link_order=", OsStr::new("0"), b':');
    // Neither has a way to write every path: blanks separate in both, and the quote ends.
    let expressible = |path: &Path| !path.as_os_str().as_bytes().iter().any(|b| b.is_ascii_whitespace() || *b == b'"');
    let tsan = dir.join(libs::TSAN_SUPPRESSIONS);
    if tsan.is_file() && expressible(&tsan) {
        let quoted = [b"\"", tsan.as_os_str().as_bytes(), b"\""].concat();
        add("TSAN_OPTIONS", "suppressions=", OsStr::from_bytes(&quoted), b':');
    }
    let valgrind = dir.join(libs::VALGRIND_SUPPRESSIONS);
    if valgrind.is_file() && expressible(&valgrind) {
        let had = current("VALGRIND_OPTS").unwrap_or_default();
        // Many files may be named, so only this one is looked for.
        let option = [b"--suppressions=", valgrind.as_os_str().as_bytes()].concat();
        if !had.as_bytes().split(u8::is_ascii_whitespace).any(|word| word == option) {
            let parts = [had.as_bytes(), &option];
            let words: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            variables.push(("VALGRIND_OPTS", OsString::from_vec(words.join(&b' '))));
        }
    }
    variables
}

fn contains(text: &OsStr, part: &str) -> bool {
    text.as_bytes().windows(part.len()).any(|window| window == part.as_bytes())
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
    in_front(entry, current.map(others_preloads).as_deref(), b':')
}

/// LD_PRELOAD and the name of the view's tree as they are without the preload, if a `vervain run` around this one has
/// set them. Variables that are not set are left out; an empty value stands for a variable that is to be unset.
pub fn without_preload(current: impl Fn(&str) -> Option<OsString>) -> Variables {
    let mut variables = Variables::new();
    if let Some(had) = current("LD_PRELOAD") {
        variables.push(("LD_PRELOAD", others_preloads(&had)));
    }
    if current(SYSFS.name()).is_some() {
        variables.push((SYSFS.name(), OsString::new()));
    }
    variables
}

/// The entries of LD_PRELOAD that are not a Vervain's, of this directory or another: two would stand before each other.
fn others_preloads(current: &OsStr) -> OsString {
    let entries = current.as_bytes().split(|b| *b == b':' || b.is_ascii_whitespace());
    let others = entries.filter(|entry| {
        !entry.is_empty() && Path::new(OsStr::from_bytes(entry)).file_name() != Some(OsStr::new(libs::PRELOAD))
    });
    OsString::from_vec(others.collect::<Vec<_>>().join(&b':'))
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
    fn checkers_are_told_beside_what_the_user_has_told_them() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path();
        let of = |set: &[(&str, &str)]| {
            let current = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
            checkers(dir, current)
                .into_iter()
                .map(|(name, value)| format!("{name}={}", text(value)))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), ["ASAN_OPTIONS=verify_asan_link_order=0"], "no file, no option");
        for file in [libs::TSAN_SUPPRESSIONS, libs::VALGRIND_SUPPRESSIONS] {
            std::fs::write(dir.join(file), "").unwrap();
        }
        let (tsan, valgrind) = (format!("suppressions=\"{}/tsan.supp\"", dir.display()), dir.join("valgrind.supp"));
        let valgrind = format!("--suppressions={}", valgrind.display());
        let all = |a: &str, t: &str, v: &str| {
            [
                format!("ASAN_OPTIONS={a}verify_asan_link_order=0"),
                format!("TSAN_OPTIONS={t}{tsan}"),
                format!("VALGRIND_OPTS={v}{valgrind}"),
            ]
        };
        assert_eq!(of(&[]), all("", "", ""));
        let had = [("ASAN_OPTIONS", "a=1"), ("TSAN_OPTIONS", "b=2"), ("VALGRIND_OPTS", "--suppressions=/c")];
        assert_eq!(of(&had), all("a=1:", "b=2:", "--suppressions=/c "));
        let own = [("ASAN_OPTIONS", "verify_asan_link_order=1"), ("TSAN_OPTIONS", "suppressions=/b")];
        assert_eq!(of(&own), [format!("VALGRIND_OPTS={valgrind}")], "what the user has set stays");
        let all_own = [own[0], own[1], ("VALGRIND_OPTS", valgrind.as_str())];
        assert_eq!(of(&all_own), <[String; 0]>::default());
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
            "/opt/v/libvervain_preload.so:/usr/lib/libjemalloc.so.2:other.so"
        );
        let nested = OsStr::new("/opt/w/libvervain_preload.so:other.so libvervain_preload.so");
        assert_eq!(text(preload(Path::new("/opt/v"), Some(nested))), "/opt/v/libvervain_preload.so:other.so");
    }

    #[test]
    fn without_the_preload_that_of_a_run_around_this_one_goes() {
        let of = |set: &[(&str, &str)]| {
            let current = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
            without_preload(current).into_iter().map(|(n, v)| format!("{n}={}", text(v))).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [""; 0]);
        assert_eq!(of(&[("LD_PRELOAD", "a.so")]), ["LD_PRELOAD=a.so"]);
        let outer = [("LD_PRELOAD", "/opt/v/libvervain_preload.so:a.so"), ("VERVAIN_SYSFS", "/run/x")];
        assert_eq!(of(&outer), ["LD_PRELOAD=a.so", "VERVAIN_SYSFS="]);
        assert_eq!(of(&[("LD_PRELOAD", "/opt/v/libvervain_preload.so")]), ["LD_PRELOAD="]);
    }

    #[test]
    fn a_blank_in_the_directory_leaves_the_bare_name() {
        assert_eq!(text(preload(Path::new("/opt/my libs"), None)), "libvervain_preload.so");
    }
}
