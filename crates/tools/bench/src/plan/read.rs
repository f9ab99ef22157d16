//! Values of the TOML tree as what a key takes. Each reader says what it expected where it finds anything else.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Pin;
use super::environments::Environments;
use super::error::{Mistakes, did_you_mean, one_of};
use super::quantity::{Quantity, SIZE};
use crate::case::{EnvironmentName, Grid, Interface, Interference, Operation};

/// CPUs that Linux can number (NR_CPUS), and NUMA nodes (MAX_NUMNODES).
const CPUS: Quantity = Quantity::count(0, 8191);
pub(super) const NODES: Quantity = Quantity::count(0, 1023);
/// GPUs that a host can have, with room to spare.
pub(super) const GPUS: Quantity = Quantity::count(0, 1023);

/// In place of an environment's name: the usual one.
pub(super) const NO_ENVIRONMENT: &str = "none";

/// A value with the way to it.
#[derive(Clone)]
pub(super) struct Node<'a, 't> {
    pub key: String,
    pub value: &'a Spanned<DeValue<'t>>,
}

/// The value of a key, and its place.
#[derive(Debug, Clone)]
pub(super) struct Item<T> {
    pub value: T,
    pub key: String,
    pub span: Range<usize>,
}

/// The result of reading a key.
#[derive(Debug, Clone, Default)]
pub(super) enum Field<T> {
    /// It is not in the file.
    #[default]
    Absent,
    /// It is, and is a mistake that was noted.
    Wrong,
    /// Its value.
    Is(T),
}

impl<T> Field<T> {
    pub(super) fn get(&self) -> Option<&T> {
        match self {
            Field::Is(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Field::Absent)
    }

    /// This, or `[defaults]` where the block does not have the key.
    pub(super) fn or<'a>(&'a self, default: &'a Field<T>) -> &'a Field<T> {
        if self.is_absent() { default } else { self }
    }
}

impl<T> Field<Item<T>> {
    pub(super) fn value(&self) -> Option<&T> {
        self.get().map(|item| &item.value)
    }
}

/// The expected values, and a word of help after the found one.
pub(super) struct Expected(pub String, pub String);

impl<S: Into<String>> From<S> for Expected {
    fn from(what: S) -> Self {
        Expected(what.into(), String::new())
    }
}

impl<'a, 't> Node<'a, 't> {
    pub(super) fn new(parent: &str, key: &str, value: &'a Spanned<DeValue<'t>>) -> Self {
        let key = if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") };
        Node { key, value }
    }

    /// The elements of an array, with keys that count from 1.
    pub(super) fn elements(&self) -> Option<impl Iterator<Item = Node<'a, 't>>> {
        let elements = self.value.get_ref().as_array()?.iter().enumerate();
        Some(elements.map(|(i, value)| Node { key: format!("{}[{}]", self.key, i + 1), value }))
    }

    pub(super) fn table(&self) -> Option<&'a DeTable<'t>> {
        self.value.get_ref().as_table()
    }

    fn text(&self) -> Option<&'a str> {
        self.value.get_ref().as_str()
    }

    /// None for negative numbers too.
    fn integer(&self) -> Option<u64> {
        let integer = self.value.get_ref().as_integer()?;
        u64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    fn item<T>(&self, value: T) -> Item<T> {
        Item { value, key: self.key.clone(), span: self.value.span() }
    }

    /// Notes that something else was expected here.
    pub(super) fn wrong(&self, mistakes: &mut Mistakes<'_>, expected: impl Into<Expected>) {
        let Expected(expected, help) = expected.into();
        let span = self.value.span();
        if self.text().is_some() && !mistakes.is_quoted(&span) {
            // The TOML parser has reported it already.
            return;
        }
        let found = match self.value.get_ref() {
            DeValue::Table(_) => "a table".to_owned(),
            DeValue::Array(array) if array.is_empty() => "an empty list".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            _ => mistakes.quote(span.clone()),
        };
        mistakes.add(span, &self.key, format!("expected {expected}, found {found}{help}"));
    }

    /// One value.
    pub(super) fn one<T>(
        &self,
        mistakes: &mut Mistakes<'_>,
        read: impl Fn(&Self) -> Result<T, Expected>,
    ) -> Field<Item<T>> {
        match read(self) {
            Ok(value) => Field::Is(self.item(value)),
            Err(expected) => {
                self.wrong(mistakes, expected);
                Field::Wrong
            }
        }
    }

    /// One value or a list of them, each of which may mean several.
    pub(super) fn list<T>(
        &self,
        mistakes: &mut Mistakes<'_>,
        read: impl Fn(&Self) -> Result<Vec<T>, Expected>,
    ) -> Field<Vec<Item<T>>> {
        let mut items = Vec::new();
        let mut take = |node: &Self, mistakes: &mut Mistakes<'_>| match read(node) {
            Ok(values) => items.extend(values.into_iter().map(|value| node.item(value))),
            Err(expected) => node.wrong(mistakes, expected),
        };
        match self.elements() {
            // Read as one value, an array is none: what is expected is said by the reader.
            Some(elements) if self.value.get_ref().as_array().is_some_and(|array| !array.is_empty()) => {
                elements.for_each(|element| take(&element, mistakes));
            }
            _ => take(self, mistakes),
        }
        if items.is_empty() { Field::Wrong } else { Field::Is(items) }
    }

    /// A line of text.
    pub(super) fn line(&self) -> Result<String, Expected> {
        let text = self.text().map(str::trim).filter(|text| !text.is_empty() && !text.chars().any(char::is_control));
        text.map(str::to_owned).ok_or_else(|| "one line of text".into())
    }

    /// Text that may be empty, without what no variable has.
    pub(super) fn variable(&self) -> Result<String, Expected> {
        let text = self.text().filter(|text| !text.contains('\0'));
        text.map(str::to_owned).ok_or_else(|| "text, the variable's value".into())
    }

    /// "none", or the name of an environment of the plan.
    pub(super) fn environment(&self, known: &Environments) -> Result<Vec<Option<EnvironmentName>>, Expected> {
        let text = self.text().unwrap_or_default();
        if let Some((name, _)) = known.get_key_value(text) {
            return Ok(vec![Some(*name)]);
        }
        if text == NO_ENVIRONMENT {
            return Ok(vec![None]);
        }
        let names = || known.keys().map(EnvironmentName::as_str).chain([NO_ENVIRONMENT]);
        let help = if known.is_empty() { "; there is no table [environment.NAME]".to_owned() } else { String::new() };
        Err(Expected(one_of(names()), help + &did_you_mean(text, names())))
    }

    /// A grid of ranks.
    pub(super) fn grid(&self) -> Result<Vec<Option<Grid>>, Expected> {
        let grid = self.text().and_then(|text| text.parse().ok());
        let expected = || format!("a grid of ranks as \"2x4\", up to {0}x{0}", Grid::MOST);
        grid.map(|grid| vec![Some(grid)]).ok_or_else(|| Expected(expected(), String::new()))
    }

    /// true or false.
    pub(super) fn flag(&self) -> Result<bool, Expected> {
        self.value.get_ref().as_bool().ok_or_else(|| "true or false".into())
    }

    /// One of the words of an enum.
    pub(super) fn word<T: Copy>(&self, all: &[T], word: fn(T) -> &'static str) -> Result<Vec<T>, Expected> {
        let text = self.text();
        if let Some(value) = all.iter().find(|value| Some(word(**value)) == text) {
            return Ok(vec![*value]);
        }
        let words = || all.iter().map(|value| word(*value));
        Err(Expected(one_of(words()), did_you_mean(text.unwrap_or_default(), words())))
    }

    /// A number without a unit.
    pub(super) fn count(&self, quantity: Quantity) -> Result<u64, Expected> {
        self.integer().and_then(|n| quantity.allowed(n)).ok_or_else(|| quantity.range().into())
    }

    /// A number or a series of them, with units where the quantity has any.
    pub(super) fn series(&self, quantity: Quantity) -> Result<Vec<u64>, Expected> {
        let values = match self.text() {
            Some(text) => quantity.series(text),
            None => self.integer().and_then(|n| quantity.allowed(n)).map(|n| vec![n]),
        };
        values.ok_or_else(|| quantity.forms().into())
    }

    /// One size.
    pub(super) fn size(&self, quantity: Quantity) -> Result<u64, Expected> {
        let size = match self.text() {
            Some(text) => quantity.number(text),
            None => self.integer(),
        };
        size.and_then(|n| quantity.allowed(n)).ok_or_else(|| quantity.range().into())
    }

    /// A share of a value.
    pub(super) fn share(&self, least: f64, most: f64) -> Result<f64, Expected> {
        let number = match self.value.get_ref() {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(_) => self.integer().map(|n| n as f64),
            _ => None,
        };
        number
            .filter(|n| (least..=most).contains(n))
            .ok_or_else(|| format!("a share from {least} to {most}, as 0.1 for 10 %").into())
    }

    /// A time with its unit.
    pub(super) fn duration(&self, least: Duration, most: Duration) -> Result<Duration, Expected> {
        let time = self.text().and_then(|text| humantime::parse_duration(text).ok());
        time.filter(|time| (least..=most).contains(time)).ok_or_else(|| {
            let (least, most) = (humantime::format_duration(least), humantime::format_duration(most));
            format!(r#"a time from {least} to {most}, written "20ms" or "1.5s""#).into()
        })
    }

    /// "auto", or a number of bytes; "auto" is None.
    pub(super) fn inline(&self, quantity: Quantity) -> Result<Option<u32>, Expected> {
        let size = match self.text() {
            Some("auto") => return Ok(None),
            Some(text) => quantity.number(text).and_then(|n| quantity.allowed(n)),
            None => self.integer().and_then(|n| quantity.allowed(n)),
        };
        let size = size.ok_or_else(|| format!("\"auto\" or {}", quantity.range()))?;
        u32::try_from(size).map(Some).map_err(|_| quantity.range().into())
    }

    /// The CPU of a process.
    pub(super) fn pin(&self) -> Result<Pin, Expected> {
        match (self.text(), self.integer().and_then(|n| CPUS.allowed(n))) {
            (Some("auto"), _) => Ok(Pin::Auto),
            (Some("free"), _) => Ok(Pin::Free),
            (_, Some(cpu)) => Ok(Pin::Cpu(cpu as u32)),
            _ => Err(format!("\"auto\", \"free\" or the number of a CPU, {}", CPUS.range()).into()),
        }
    }

    /// The stream that runs beside: "none", or a size and an operation, as tables and pages show it.
    pub(super) fn interference(&self) -> Result<Vec<Option<Interference>>, Expected> {
        let text = self.text().unwrap_or_default().trim();
        if text == "none" {
            return Ok(vec![None]);
        }
        let words = || text.split_whitespace();
        let verbs = Operation::of(Interface::Verbs);
        let operation = words().find_map(|word| verbs.iter().copied().find(|o| o.word() == word));
        let size = words().rev().skip(1).collect::<Vec<_>>().into_iter().rev().collect::<String>();
        let size = SIZE.number(&size).and_then(|size| SIZE.allowed(size));
        let expected = || r#""none" or a size and an operation, as "8 B write""#.to_owned();
        match (operation, size) {
            (Some(operation), Some(size)) if text.ends_with(operation.word()) => {
                if operation.is_atomic() && size != 8 {
                    return Err(Expected(format!("\"8 B {operation}\""), "; atomics are of 8 bytes".to_owned()));
                }
                Ok(vec![Some(Interference { operation, size })])
            }
            _ if words().any(|word| ["rc", "uc", "ud"].contains(&word.to_lowercase().as_str())) => {
                Err(Expected(expected(), "; what runs beside is RC always".to_owned()))
            }
            (Some(operation), _) => Err(Expected(expected(), format!("; did you mean \"8 B {operation}\"?"))),
            (None, _) => {
                let last = words().next_back().unwrap_or_default();
                Err(Expected(expected(), did_you_mean(last, verbs.iter().map(|o| o.word()))))
            }
        }
    }
}
