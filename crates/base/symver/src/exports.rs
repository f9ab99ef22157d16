//! The versioned symbols of a built library, for the tests of the cdylibs: its dynamic symbols, as ld.so sees them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, Sym};

/// The names with versions (`f@@NODE`, `f@NODE`) that the library at `path` defines.
///
/// # Errors
/// When the file cannot be read or is no 64-bit ELF file: the sentence names it.
pub fn versioned_exports(path: &Path) -> Result<BTreeSet<String>, String> {
    let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&bytes).map_err(|e| format!("{}: {e}", path.display()))
}

fn parse(data: &[u8]) -> object::read::Result<BTreeSet<String>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
    let versions = sections.versions(endian, data)?.unwrap_or_default();
    let mut exports = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        // The nodes themselves are absolute symbols in GNU ld's libraries; lld makes none. Sections are local symbols.
        if symbol.is_undefined(endian) || symbol.is_absolute(endian) || symbol.is_local() {
            continue;
        }
        let name = String::from_utf8_lossy(symbol.name(endian, symbols.strings())?);
        let version = versions.version_index(endian, index);
        exports.insert(match versions.version(version)?.map(|node| String::from_utf8_lossy(node.name())) {
            Some(node) if version.is_hidden() => format!("{name}@{node}"),
            Some(node) => format!("{name}@@{node}"),
            None => name.into_owned(),
        });
    }
    Ok(exports)
}

/// The cdylib `name`: of the tests' own build, or as it is shipped in `make check`, which has built that.
///
/// # Errors
/// When it is not there: `cargo test` itself builds only libraries that a test can link.
pub fn built_library(name: &str) -> Result<PathBuf, String> {
    let exe = env::current_exe().map_err(|e| e.to_string())?;
    // The test is <target>/<profile>/deps/<test>-<hash>.
    let own = exe.ancestors().nth(2).ok_or("the test has no target directory")?;
    let is_whole = env::var("VERVAIN_TESTS_WHOLE").is_ok_and(|value| value == "1");
    let library = if is_whole { own.with_file_name("release").join(name) } else { own.join(name) };
    if library.is_file() {
        Ok(library)
    } else {
        Err(format!("{} is not there: run make build-checked", library.display()))
    }
}

/// The lines of lists of exports, without comments.
///
/// # Errors
/// When a list cannot be read.
pub fn expected_exports(lists: &[PathBuf]) -> Result<BTreeSet<String>, String> {
    let mut all = BTreeSet::new();
    for list in lists {
        let text = fs::read_to_string(list).map_err(|e| format!("{}: {e}", list.display()))?;
        all.extend(text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned));
    }
    Ok(all)
}

/// Compares the library `name` with all lists in `tests/data` of its package, which lies in `manifest_dir`.
///
/// # Errors
/// Says which exports are missing and which are too many.
pub fn check_exports(name: &str, manifest_dir: &str) -> Result<(), String> {
    let data = Path::new(manifest_dir).join("tests/data");
    let mut lists = Vec::new();
    for entry in fs::read_dir(&data).map_err(|e| format!("{}: {e}", data.display()))? {
        lists.push(entry.map_err(|e| format!("{}: {e}", data.display()))?.path());
    }
    let expected = expected_exports(&lists)?;
    let found = versioned_exports(&built_library(name)?)?;
    let missing: Vec<_> = expected.difference(&found).collect();
    let surplus: Vec<_> = found.difference(&expected).collect();
    if missing.is_empty() && surplus.is_empty() {
        Ok(())
    } else {
        Err(format!("{name}: missing {missing:?}, too many {surplus:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_a_library_defines_has_its_versions_and_nothing_else_is_listed() {
        const SOURCE: &str = r#"
            int puts(const char *);
            int old_f(void) { return puts("old"); }
            int new_f(void) { return puts("new"); }
            int g(void) { return 0; }
            int data = 1;
            int plain(void) { return 0; }
            __attribute__((visibility("hidden"))) int hidden(void) { return 0; }
            __asm__(".symver old_f, f@ONE");
            __asm__(".symver new_f, f@@TWO");
        "#;
        let dir = tempfile::tempdir().unwrap();
        let [source, script, library] = ["a.c", "a.map", "liba.so"].map(|name| dir.path().join(name));
        fs::write(&source, SOURCE).unwrap();
        fs::write(&script, "ONE { global: data; local: old_f; new_f; };\nTWO { g; } ONE;\n").unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", &format!("-Wl,--version-script={}", script.display()), "-o"]);
        cc.args([&library, &source]);
        assert!(cc.status().unwrap().success());
        let found = versioned_exports(&library).unwrap();
        assert_eq!(
            found.iter().map(String::as_str).collect::<Vec<_>>(),
            ["data@@ONE", "f@@TWO", "f@ONE", "g@@TWO", "plain"]
        );
    }

    #[test]
    fn a_file_that_is_no_library_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("text", &b"#!/bin/sh\n"[..]), ("torn", b"\x7fELF\x02\x01\x01"), ("empty", b"")] {
            let file = dir.path().join(name);
            fs::write(&file, text).unwrap();
            let error = versioned_exports(&file).unwrap_err();
            assert!(error.contains(file.to_str().unwrap()), "{error}");
        }
        assert!(versioned_exports(&dir.path().join("none")).unwrap_err().contains("none"));
    }
}
