//! The source tree against the table: the page on the environment, names in all documents, and code that reads
//! variables.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use vervain_config::{Reader, Setter, Syntax, TABLE, Variable, find};

/// The root of the source tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// The files below `dir` that end with `ending`, without what is built or downloaded.
fn files(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.starts_with('.') {
                files(&path, ending, found);
            }
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

/// The files of the tree that end with `ending`, and their texts.
fn texts(ending: &str) -> Vec<(PathBuf, String)> {
    let (root, mut found) = (root(), Vec::new());
    files(&root, ending, &mut found);
    assert!(!found.is_empty(), "no {ending} in {}", root.display());
    found.iter().map(|path| (path.strip_prefix(&root).unwrap().into(), fs::read_to_string(path).unwrap())).collect()
}

/// A version node of libibverbs (the crate gsi), which is no variable.
const NODE: &str = "PRIVATE_1";

/// Names that begin as Vervain's do. Tests talk to their own processes by those that begin with VERVAIN_TEST.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |rest: &str| !rest.is_empty() && !rest.starts_with("TEST") && rest != NODE;
    words.filter(move |word| word.strip_prefix("VERVAIN_").is_some_and(is_name))
}

/// The rows of the table behind a heading of the page: cells without backticks.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let section = page.split("\n## ").find(|section| section.starts_with(heading));
    let section = section.unwrap_or_else(|| panic!("no heading {heading:?}"));
    let lines = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|c| c.trim().replace('`', "")).collect();
    lines.skip(2).map(cells).collect()
}

/// The page's words about a variable's values: words with commas between, else as in the sentence about a wrong one.
fn values(variable: &Variable) -> String {
    match variable.syntax {
        Syntax::Words(words) => words.iter().map(|choice| choice.word).collect::<Vec<_>>().join(", "),
        syntax => syntax.to_string(),
    }
}

fn set_by(setter: Setter) -> BTreeSet<&'static str> {
    TABLE.into_iter().filter(|variable| variable.setter == setter).map(Variable::name).collect()
}

#[test]
fn the_page_has_what_users_set_with_its_values_and_defaults() {
    let page = fs::read_to_string(root().join("docs/environment.md")).unwrap();
    let rows = rows(&page, "Read by the library");
    let described: BTreeSet<_> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(described, set_by(Setter::User));
    assert_eq!(rows.len(), described.len(), "a variable has two rows");
    for row in &rows {
        let variable = find(&row[0]).unwrap();
        assert_eq!((row[1].as_str(), row[2].as_str()), (values(variable).as_str(), variable.default), "{}", row[0]);
    }
}

#[test]
fn the_page_has_what_the_command_and_testers_set() {
    let page = fs::read_to_string(root().join("docs/environment.md")).unwrap();
    for (heading, setter) in [
        ("Set by `vervain run`", Setter::Run),
        ("Set by `vervain launch`", Setter::Launch),
        ("Read by build, tests and benches", Setter::Tester),
    ] {
        let rows = rows(&page, heading);
        let described: BTreeSet<_> = rows.iter().flat_map(|row| names(&row[0])).collect();
        assert_eq!(described, set_by(setter), "{heading}");
        for variable in described.iter().filter_map(|name| find(name)).filter(|v| v.default.parse::<u32>().is_ok()) {
            let said = rows.iter().any(|row| row[0].contains(variable.name()) && row[1].contains(variable.default));
            assert!(said, "the default of {} is {}", variable.name(), variable.default);
        }
    }
}

#[test]
fn documents_and_scripts_name_no_other_variable() {
    for ending in [".md", ".sh", "Makefile", ".py"] {
        for (path, text) in texts(ending) {
            let other: Vec<_> = names(&text).filter(|name| find(name).is_none()).collect();
            assert!(other.is_empty(), "{}: {other:?}", path.display());
        }
    }
}

/// The string literals of Rust that are a name of Vervain's, and nothing else.
fn literals(source: &str) -> impl Iterator<Item = &str> {
    names(source).filter(|name| {
        let at = name.as_ptr() as usize - source.as_ptr() as usize;
        source[..at].ends_with('"') && source[at + name.len()..].starts_with('"')
    })
}

#[test]
fn only_this_crate_reads_variables_and_tests_read_those_of_the_table() {
    let mut seen = BTreeSet::new();
    for (path, text) in texts(".rs") {
        if path.starts_with("crates/base/config") {
            continue;
        }
        let parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
        let test = !matches!(parts[..], ["crates", _, "src", ..]) || path.ends_with("tests.rs");
        // The tests beside the code come last.
        let code = if test { "" } else { text.split("#[cfg(test)]\nmod tests {").next().unwrap() };
        let own: Vec<_> = literals(code).collect();
        assert!(own.is_empty(), "{}: {own:?} are read by crates/base/config, which others ask", path.display());
        for name in literals(&text) {
            assert!(
                find(name).is_some() || unknown_on_purpose(&path),
                "{}: {name} is not in the table",
                path.display()
            );
            seen.insert(name.to_owned());
        }
    }
    for variable in TABLE.into_iter().filter(|v| v.readers.contains(&Reader::Tests)) {
        assert!(seen.contains(variable.name()), "no test reads {}", variable.name());
    }
}

/// The tests of messages about names that no code reads.
fn unknown_on_purpose(path: &Path) -> bool {
    path.ends_with("crates/tools/cli/tests/command.rs")
}
