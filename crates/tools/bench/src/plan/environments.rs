//! The tables `[environment.NAME]`.

use std::collections::BTreeMap;

use toml::Spanned;

use super::block::unknown;
use super::error::Mistakes;
use super::read::{NO_ENVIRONMENT, Node};
use crate::case::EnvironmentName;
use crate::environment::{Environment, PaperDevice};

/// By name.
pub(super) type Environments = BTreeMap<EnvironmentName, Environment>;

/// The keys of a table, in the order of the guide.
pub(super) const KEYS: &[&str] = &["variables", "note", "paper"];

/// Reads all of them.
pub(super) fn read(node: &Node<'_, '_>, mistakes: &mut Mistakes<'_>) -> Environments {
    let mut environments = Environments::new();
    let Some(table) = node.table() else {
        node.wrong(mistakes, "tables [environment.NAME]");
        return environments;
    };
    for (key, value) in table {
        let value = Node::new(&node.key, key.get_ref(), value);
        let environment = read_one(&value, mistakes);
        match named(key.get_ref()) {
            Some(name) => {
                environments.insert(name, environment);
            }
            None => {
                let found = mistakes.quote(key.span());
                let most = EnvironmentName::new().capacity();
                let what = format!(
                    "expected a name of 1 to {most} bytes on one line, but \"{NO_ENVIRONMENT}\", found {found}"
                );
                mistakes.add(key.span(), &value.key, what);
            }
        }
    }
    environments
}

fn named(key: &str) -> Option<EnvironmentName> {
    let is_line = !key.trim().is_empty() && !key.chars().any(char::is_control);
    EnvironmentName::from(key).ok().filter(|_| is_line && key != NO_ENVIRONMENT)
}

fn read_one(node: &Node<'_, '_>, mistakes: &mut Mistakes<'_>) -> Environment {
    let mut environment = Environment::default();
    if node.table().is_none() {
        node.wrong(mistakes, format!("a table [{}]", node.key));
    }
    for (key, value) in node.table().into_iter().flatten() {
        let value = Node::new(&node.key, key.get_ref(), value);
        match &**key.get_ref() {
            "variables" if value.table().is_some() => environment.variables = read_variables(&value, mistakes),
            "variables" => value.wrong(mistakes, "a table of variables, as { NAME = \"value\" }"),
            "note" => environment.note = value.one(mistakes, Node::line).value().cloned(),
            "paper" => {
                let device = value.one(mistakes, |v| v.word(PaperDevice::ALL, PaperDevice::word));
                environment.paper = device.value().and_then(|devices| devices.first()).copied();
            }
            _ => unknown(mistakes, key, &value.key, KEYS),
        }
    }
    environment
}

fn read_variables(node: &Node<'_, '_>, mistakes: &mut Mistakes<'_>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for (key, value) in node.table().into_iter().flatten() {
        let value = Node::new(&node.key, key.get_ref(), value);
        check_name(key, &value, mistakes);
        if let Some(text) = value.one(mistakes, Node::variable).value() {
            variables.insert(key.get_ref().to_string(), text.clone());
        }
    }
    variables
}

fn check_name(key: &Spanned<impl AsRef<str>>, value: &Node<'_, '_>, mistakes: &mut Mistakes<'_>) {
    let name = key.get_ref().as_ref();
    if name.is_empty() || name.contains(['=', '\0']) {
        let found = mistakes.quote(key.span());
        mistakes.add(key.span(), &value.key, format!("expected the name of a variable, found {found}"));
    }
}
