//! Limits on the shape of every crate and the length of files. Only structs whose layout is given are beyond them, and
//! are listed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use syn::visit::Visit;

use super::{Graph, Sources, crates, files, graph, is_test, parse, reached, root, sources};

/// Columns that a line with a comment may have.
const COLUMNS: usize = 120;

/// Fields that a struct may have.
const FIELDS: usize = 20;

/// Files that may have an `impl` of one type.
const IMPL_FILES: usize = 3;

/// Files that a circle of imports may have.
const CIRCLE: usize = 8;

/// Lines that a file may have.
const LINES: usize = 700;

/// Structs with more fields, whose layout is libibverbs' or the kernel's.
const GIVEN_STRUCTS: &[(&str, usize)] = &[
    ("abi::context::ibv_context_ops", 32),
    ("abi::context::verbs_context", 47),
    ("abi::cq::ibv_cq_ex", 22),
    ("abi::device::ibv_device_attr", 40),
    ("abi::port::ibv_port_attr", 23),
    ("abi::qp::ibv_qp_attr", 26),
    ("abi::qp_ex::ibv_qp_ex", 26),
    ("verbs::marshal::ib_uverbs_qp_attr", 31),
];

fn crate_name(folder: &Path) -> String {
    folder.file_name().expect("a name").to_string_lossy().into_owned()
}

/// The comment lines for which `is_wrong` holds, with file and number.
fn comment_lines(is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for folder in crates() {
        let mut files = Vec::new();
        sources(&folder, &mut files);
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            let is_comment = |line: &str| line.trim_start().starts_with("//") || line.contains(" // ");
            let wrong = text.lines().enumerate().filter(|(_, line)| is_comment(line) && is_wrong(line));
            found.extend(wrong.map(|(n, line)| format!("{}:{}: {line}", file.display(), n + 1)));
        }
    }
    found
}

#[test]
fn comments_are_within_120_columns() {
    assert_eq!(comment_lines(|line| line.chars().count() > COLUMNS), Vec::<String>::new());
}

#[test]
fn comments_do_not_refer_to_there() {
    let refers = |line: &str| {
        line.split_once("//").is_some_and(|(_, text)| text.contains("As there") || text.contains("See there"))
    };
    assert_eq!(comment_lines(refers), Vec::<String>::new());
}

/// A file's types, the names it gives to those of other modules, and the types it implements something for.
#[derive(Default)]
struct Module {
    types: BTreeSet<String>,
    fields: Vec<(String, usize)>,
    /// A name, the path that it stands for.
    names: Vec<(String, Vec<String>)>,
    /// Modules all of whose names are its own.
    globs: Vec<Vec<String>>,
    impls: Vec<Vec<String>>,
}

impl Module {
    fn expand(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.expand(&path.tree, &with(&path.ident)),
            syn::UseTree::Name(name) => self.names.push((name.ident.to_string(), with(&name.ident))),
            syn::UseTree::Rename(name) => self.names.push((name.rename.to_string(), with(&name.ident))),
            syn::UseTree::Glob(_) => self.globs.push(before.to_vec()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.expand(item, before)),
        }
    }
}

impl Visit<'_> for Module {
    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        if !module.attrs.iter().any(is_test) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.expand(&item.tree, &[]);
    }

    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        self.types.insert(item.ident.to_string());
        self.fields.push((item.ident.to_string(), item.fields.len()));
    }

    fn visit_item_enum(&mut self, item: &syn::ItemEnum) {
        self.types.insert(item.ident.to_string());
    }

    fn visit_item_union(&mut self, item: &syn::ItemUnion) {
        self.types.insert(item.ident.to_string());
    }

    fn visit_item_impl(&mut self, item: &syn::ItemImpl) {
        if let syn::Type::Path(path) = &*item.self_ty
            && !item.attrs.iter().any(is_test)
        {
            self.impls.push(path.path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        syn::visit::visit_item_impl(self, item);
    }
}

type Modules = BTreeMap<Vec<String>, Module>;

/// The module in which the type is defined that `from` calls `path`; none if it is not of this crate.
fn definition(all: &Modules, from: &[String], path: &[String], depth: usize) -> Option<(Vec<String>, String)> {
    let depth = depth.checked_sub(1)?;
    let (name, before) = path.split_last()?;
    if !before.is_empty() {
        let above = before.iter().take_while(|part| *part == "super").count();
        let module = match before[0].as_str() {
            "crate" => before[1..].to_vec(),
            "self" => [from, &before[1..]].concat(),
            "super" => [&from[..from.len().saturating_sub(above)], &before[above..]].concat(),
            _ => [from, before].concat(),
        };
        return definition(all, &module, std::slice::from_ref(name), depth);
    }
    let module = all.get(from)?;
    if module.types.contains(name) {
        return Some((from.to_vec(), name.clone()));
    }
    let named = module.names.iter().filter(|(as_name, full)| as_name == name && full.len() > 1);
    let globs = module.globs.iter().map(|glob| [glob.as_slice(), std::slice::from_ref(name)].concat());
    named.map(|(_, full)| full.clone()).chain(globs).find_map(|full| definition(all, from, &full, depth))
}

/// The sources of which a build without tests is made.
fn production(mut all: Sources) -> Sources {
    struct TestModules(BTreeSet<String>);
    impl Visit<'_> for TestModules {
        fn visit_item_mod(&mut self, module: &syn::ItemMod) {
            if module.content.is_none() && module.attrs.iter().any(is_test) {
                self.0.insert(module.ident.to_string());
            }
        }
    }
    let mut tests = BTreeSet::new();
    for (own, file) in &all {
        let mut found = TestModules(BTreeSet::new());
        found.visit_file(file);
        tests.extend(found.0.into_iter().map(|child| [own.as_slice(), &[child]].concat()));
    }
    all.retain(|module, _| !(1..=module.len()).any(|n| module[n - 1] == "tests" || tests.contains(&module[..n])));
    all
}

/// The circles of more than [`CIRCLE`] modules.
fn circles(graph: &Graph) -> BTreeSet<BTreeSet<&str>> {
    let from: BTreeMap<&str, BTreeSet<&str>> = graph.keys().map(|m| (m.as_str(), reached(graph, m))).collect();
    let circle = |m: &str| from[m].iter().filter(|other| from[**other].contains(m)).copied().collect::<BTreeSet<_>>();
    graph.keys().map(|m| circle(m)).filter(|circle| circle.len() > CIRCLE).collect()
}

/// What is beyond the limits, by the name of the struct, the type or the crate.
#[derive(Default)]
struct Beyond {
    fields: BTreeMap<String, usize>,
    impl_files: BTreeMap<String, usize>,
    circles: BTreeMap<String, Vec<usize>>,
}

impl Beyond {
    fn add_crate(&mut self, folder: &Path) {
        let sources = production(parse(folder));
        let crate_name = crate_name(folder);
        let full = |module: &[String], name: &str| {
            let parts = [std::slice::from_ref(&crate_name), module, &[name.to_owned()]].concat();
            parts.join("::")
        };
        let mut all = Modules::new();
        for (name, file) in &sources {
            all.entry(name.clone()).or_default().visit_file(file);
        }
        let mut impl_files: BTreeMap<String, BTreeSet<&[String]>> = BTreeMap::new();
        for (own, module) in &all {
            let large = module.fields.iter().filter(|(_, fields)| *fields > FIELDS);
            self.fields.extend(large.map(|(name, fields)| (full(own, name), *fields)));
            for (at, name) in module.impls.iter().filter_map(|path| definition(&all, own, path, 8)) {
                impl_files.entry(full(&at, &name)).or_default().insert(own);
            }
        }
        let counts = impl_files.into_iter().map(|(name, files)| (name, files.len()));
        self.impl_files.extend(counts.filter(|(_, files)| *files > IMPL_FILES));
        let graph = graph(&sources);
        let circles = circles(&graph);
        if !circles.is_empty() {
            println!("{crate_name}: {circles:#?}");
            let mut sizes: Vec<usize> = circles.iter().map(BTreeSet::len).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            self.circles.insert(crate_name, sizes);
        }
    }

    /// That of all crates, found once for the tests of this program.
    fn of_all() -> &'static Self {
        static ALL: OnceLock<Beyond> = OnceLock::new();
        ALL.get_or_init(|| {
            let mut beyond = Self::default();
            crates().iter().for_each(|folder| beyond.add_crate(folder));
            beyond
        })
    }
}

#[test]
fn files_have_at_most_700_lines() {
    let mut all = Vec::new();
    for folder in ["crates", "tests", "benches", "examples"] {
        files(&root().join(folder), &["rs", "c"], &mut all);
    }
    let lines = |file: &Path| fs::read_to_string(file).expect("a source").lines().count();
    let long: Vec<_> = all.iter().map(|file| (file, lines(file))).filter(|(_, lines)| *lines > LINES).collect();
    assert!(long.is_empty(), "files with more lines: {long:?}");
}

#[test]
fn structs_have_at_most_20_fields() {
    let given = GIVEN_STRUCTS.iter().map(|(name, fields)| ((*name).to_owned(), *fields)).collect();
    assert_eq!(Beyond::of_all().fields, given, "structs and their fields");
}

#[test]
fn types_are_implemented_in_at_most_3_files() {
    assert_eq!(Beyond::of_all().impl_files, BTreeMap::new(), "types and the files with an impl of them");
}

#[test]
fn circles_of_imports_have_at_most_8_files() {
    assert_eq!(Beyond::of_all().circles, BTreeMap::new(), "crates and the files of their circles");
}
