//! The table that a stand-in is made of.

use std::fmt::Write as _;

/// The exports of a stand-in, and the answer of each.
///
/// A file of lines; a line that begins with `#` is a comment. `node NAME` or `node NAME after PARENT` begins a version
/// node, and each line below it names an answer of [`ANSWERS`] and the functions that give it. With `compat` in front
/// they are older versions of functions that a later node has too (`name@NODE`).
#[derive(Debug)]
pub struct Table<'a> {
    nodes: Vec<(&'a str, &'a str)>,
    exports: Vec<Export<'a>>,
}

#[derive(Debug)]
struct Export<'a> {
    binding: &'static str,
    node: &'a str,
    answer: &'a str,
    names: Vec<&'a str>,
}

/// The functions of `unsupported` that a line may name.
pub const ANSWERS: [&str; 8] =
    ["unsupported", "not_permitted", "minus_one", "no_pointer", "is_false", "nothing", "absent_16", "absent_24"];

impl<'a> Table<'a> {
    /// Reads a table.
    ///
    /// # Errors
    /// Says which line is none of these.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let mut table = Table { nodes: Vec::new(), exports: Vec::new() };
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                ["node", name] => table.nodes.push((name, "")),
                ["node", name, "after", parent] if table.nodes.iter().any(|n| n.0 == parent) => {
                    table.nodes.push((name, parent));
                }
                ["compat", answer, ref names @ ..] => table.add("compat", answer, names, number)?,
                [answer, ref names @ ..] => table.add("default", answer, names, number)?,
            }
        }
        Ok(table)
    }

    fn add(&mut self, binding: &'static str, answer: &'a str, names: &[&'a str], number: u32) -> Result<(), String> {
        let Some(&(node, _)) = self.nodes.last() else { return Err(format!("line {number} is under no node")) };
        if !ANSWERS.contains(&answer) {
            return Err(format!("line {number}: '{answer}' is not one of {}", ANSWERS.join(", ")));
        }
        if names.is_empty() {
            return Err(format!("line {number} names no function"));
        }
        self.exports.push(Export { binding, node, answer, names: names.to_vec() });
        Ok(())
    }

    /// Each node and the one that it follows, or "".
    pub fn nodes(&self) -> Vec<(&'a str, &'a str)> {
        self.nodes.clone()
    }

    /// The exports in Rust.
    pub fn source(&self) -> String {
        let mut source = String::new();
        for Export { binding, node, answer, names } in &self.exports {
            let names = names.join(", ");
            let _ =
                writeln!(source, "vervain_symver::export!({binding} \"{node}\" => vervain_symver::{answer}: {names});");
        }
        source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_nodes_and_exports() {
        let table = Table::parse("# said of it\n\nnode A_1\n  compat no_pointer f\nnode A_2 after A_1\nis_false f g\n")
            .unwrap();
        assert_eq!(table.nodes(), [("A_1", ""), ("A_2", "A_1")]);
        assert_eq!(
            table.source(),
            "vervain_symver::export!(compat \"A_1\" => vervain_symver::no_pointer: f);\n\
             vervain_symver::export!(default \"A_2\" => vervain_symver::is_false: f, g);\n"
        );
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (text, said) in [
            ("unsupported f", "line 1 is under no node"),
            ("node A\nsucceeds f", "line 2: 'succeeds' is not one of"),
            ("node A\nunsupported", "line 2 names no function"),
            ("node A after B\n", "line 1"),
        ] {
            let e = Table::parse(text).unwrap_err();
            assert!(e.contains(said), "{text:?}: {e}");
        }
    }
}
