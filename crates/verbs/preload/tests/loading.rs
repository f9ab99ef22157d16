//! Programs that load a package with a libibverbs of its own: under the preload they get Vervain's, by whichever way
//! the package leads to its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A name as auditwheel makes it.
const HASHED: &str = "libibverbs-0a1b2c3d.so.1.14.48.0";
const HASHED_CM: &str = "librdmacm-0a1b2c3d.so.1.3.48.0";
const DIRECT: (&str, &str) = ("wheel/libtransport-deadbeef.so", "transport_who");
const INDIRECT: (&str, &str) = ("wheel/plugin.so", "plugin_who");
const RPATH: (&str, &str) = ("environment/libtransport.so", "transport_who");

/// A package in both layouts, the program, and `vervain`, which has the preload and what is to be loaded instead.
struct Package(TempDir);

impl Package {
    fn new() -> Self {
        let package = Package(tempfile::tempdir().unwrap());
        for dir in ["vervain", "wheel", "environment", "caller/own"] {
            fs::create_dir_all(package.path(dir)).unwrap();
        }
        let preload = vervain_symver::exports::built_library("libvervain_preload.so").unwrap();
        fs::copy(preload, package.path("vervain/libvervain_preload.so")).unwrap();
        fs::write(package.path("versions"), "IBVERBS_1.1 { global: ibv_who; };").unwrap();
        let versions = format!("-Wl,--version-script={}", package.path("versions").display());
        let verbs = |to: &str, who: &str| {
            let soname = format!("-Wl,-soname={}", Path::new(to).file_name().unwrap().to_str().unwrap());
            package.compile(to, &["-shared", &format!("-DVERBS=\"{who}\""), &soname, &versions]);
        };
        verbs("vervain/libibverbs.so.1", "Vervain's");
        verbs(&format!("wheel/{HASHED}"), "the package's");
        verbs("environment/libibverbs.so.1", "the package's");
        verbs("vervain/librdmacm.so.1", "Vervain's librdmacm");
        verbs(&format!("wheel/{HASHED_CM}"), "the package's librdmacm");
        verbs("caller/own/libfound.so", "found");
        let (wheel, environment) = (package.path("wheel"), package.path("environment"));
        let (wheel, environment) = (format!("-L{}", wheel.display()), format!("-L{}", environment.display()));
        let runpath = "-Wl,--enable-new-dtags,-rpath,$ORIGIN";
        let rpath = "-Wl,--disable-new-dtags,-rpath,${ORIGIN}";
        package.compile(DIRECT.0, &["-shared", "-DTRANSPORT", runpath, &wheel, &format!("-l:{HASHED}")]);
        package.compile(INDIRECT.0, &["-shared", "-DPLUGIN", rpath, &wheel, "-l:libtransport-deadbeef.so"]);
        package.compile(RPATH.0, &["-shared", "-DTRANSPORT", rpath, &environment, "-l:libibverbs.so.1"]);
        let own = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/own";
        package.compile("caller/libcaller.so", &["-shared", "-DCALLER", own]);
        package.compile("program", &[]);
        package
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn compile(&self, to: &str, flags: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loading.c");
        let mut cc = Command::new("cc");
        cc.args(["-fPIC", "-Wall", "-o"]).arg(self.path(to)).arg(source).args(flags).arg("-ldl");
        let output = cc.output().unwrap();
        assert!(output.status.success(), "{to}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn says(&self, preloaded: bool, (library, function): (&str, &str)) -> String {
        let mut program = Command::new(self.path("program"));
        if preloaded {
            program.env("LD_PRELOAD", self.path("vervain/libvervain_preload.so"));
            program.env("LD_LIBRARY_PATH", self.path("vervain"));
        }
        let output = program.arg(self.path(library)).arg(function).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{library}: {said}{}", String::from_utf8_lossy(&output.stderr));
        said.trim().to_owned()
    }
}

#[test]
fn whatever_leads_to_a_libibverbs_of_a_packages_own_leads_to_vervains() {
    let package = Package::new();
    let itself = format!("wheel/{HASHED}");
    for what in [DIRECT, INDIRECT, RPATH, (&itself, "ibv_who"), ("environment/libibverbs.so.1", "ibv_who")] {
        assert_eq!(package.says(false, what), "the package's", "{what:?}");
        assert_eq!(package.says(true, what), "Vervain's", "{what:?}");
    }
    let cm = format!("wheel/{HASHED_CM}");
    assert_eq!(package.says(false, (&cm, "ibv_who")), "the package's librdmacm");
    assert_eq!(package.says(true, (&cm, "ibv_who")), "Vervain's librdmacm");
}

#[test]
fn a_library_that_loads_another_keeps_its_own_search_path() {
    let package = Package::new();
    for preloaded in [false, true] {
        assert_eq!(package.says(preloaded, ("caller/libcaller.so", "loads_by_its_own_search_path")), "found");
    }
}

#[test]
fn a_package_keeps_its_own_where_vervain_has_none() {
    let package = Package::new();
    fs::remove_file(package.path("vervain/libibverbs.so.1")).unwrap();
    for what in [DIRECT, INDIRECT, RPATH] {
        assert_eq!(package.says(true, what), "the package's", "{what:?}");
    }
}
