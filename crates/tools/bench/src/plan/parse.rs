//! The text of a plan, from its first byte to a checked [`Plan`] or to all of its mistakes.

use toml::de::{DeTable, Error};

use super::block::{Keys, Template, unknown};
use super::environments::{self, Environments};
use super::error::{Mistakes, PlanErrors, SHOWN};
use super::quantity::Quantity;
use super::read::{Field, GPUS, Item, NODES, Node};
use super::{Pin, Pinning, Plan, TEXT_MOST};

/// Cases of a plan. At the pace of the built-in plans that many take a day for each round.
const CASES_MOST: u64 = 100_000;
const ROUNDS: Quantity = Quantity::count(1, 1000);
/// TOML's integers are signed.
const SEED: Quantity = Quantity::count(0, i64::MAX as u64);

const TOP_KEYS: &[&str] = &["title", "rounds", "seed", "spread", "pinning", "environment", "defaults", "case"];
const PINNING_KEYS: &[&str] = &["client", "server", "background_client", "background_server", "memory_node", "gpu"];

/// Mistakes of TOML after which the parser still knows where it is, as it words them: they hide no others.
const HARMLESS: [&str; 2] = ["string values must be quoted", "duplicate key"];

/// Reads the text of a plan. `name` is for messages and for [`Plan::name`].
///
/// # Errors
/// All mistakes, in the order of the text. Only the first one if the rest of the TOML cannot be read.
pub fn parse(name: &str, text: &str) -> Result<Plan, PlanErrors> {
    if text.len() > TEXT_MOST {
        let what = format!("expected a plan of at most {} KiB, found a longer text", TEXT_MOST >> 10);
        return Err(PlanErrors::unreadable(name, what));
    }
    let mut mistakes = Mistakes::new(text);
    let (tree, errors) = DeTable::parse_recoverable(text);
    let goes_on = note_syntax(text, errors, &mut mistakes);
    if !goes_on {
        return Err(mistakes.into_errors(name));
    }
    let plan = walk(name, text, tree.get_ref(), &mut mistakes);
    if mistakes.is_empty() { Ok(plan) } else { Err(mistakes.into_errors(name)) }
}

/// For a file whose byte `at` begins no character.
pub(super) fn not_utf8(name: &str, text: &[u8], at: usize) -> PlanErrors {
    // Up to there it is what it was.
    let shown = String::from_utf8_lossy(text);
    let mut mistakes = Mistakes::new(&shown);
    let what = format!("expected text in UTF-8, found the byte {:#04x}", text[at]);
    mistakes.add(at..at, key_near(&shown, at), what);
    mistakes.into_errors(name)
}

/// Notes what is not TOML; false where the rest cannot be made out, or is too much to look at.
fn note_syntax(text: &str, mut errors: Vec<Error>, mistakes: &mut Mistakes<'_>) -> bool {
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    let goes_on = errors.len() <= SHOWN;
    for error in errors.into_iter().take(SHOWN) {
        let span = error.span().unwrap_or_default();
        let found = mistakes.quote(span.clone());
        let harmless = HARMLESS.iter().position(|message| error.message().starts_with(message));
        let what = match harmless {
            Some(0) if span.is_empty() => "expected a value, found nothing".to_owned(),
            Some(0) => format!("expected text in quotes, as \"{found}\", found {found}"),
            Some(_) => format!("expected each key once, found {found} again"),
            None => format!("expected TOML, found a mistake: {}", error.message()),
        };
        mistakes.add(span.clone(), key_near(text, span.start), what);
        if harmless.is_none() {
            return false;
        }
    }
    goes_on
}

/// The key of the line that has this byte, with the way to it, as far as the text shows it without a parser.
fn key_near(text: &str, at: usize) -> String {
    let mut table = String::new();
    let mut blocks = 0;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.len();
        let code = line.split('#').next().unwrap_or_default().trim();
        if code == "[[case]]" {
            blocks += 1;
            table = format!("case[{blocks}]");
        } else if let Some(header @ ("defaults" | "pinning")) = code.strip_prefix('[').and_then(|c| c.strip_suffix(']'))
        {
            table = header.to_owned();
        }
        if at < end || end == text.len() {
            let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            let key =
                code.split_once('=').map(|(key, _)| key.trim()).filter(|key| key.chars().all(bare) && !key.is_empty());
            return match key {
                Some(key) if table.is_empty() => key.to_owned(),
                Some(key) => format!("{table}.{key}"),
                None => table,
            };
        }
        start = end;
    }
    table
}

/// Reads the tree. If it has noted mistakes, the returned plan must not be used.
fn walk(name: &str, text: &str, top: &DeTable<'_>, mistakes: &mut Mistakes<'_>) -> Plan {
    let (mut title, mut rounds, mut seed, mut spread) = Default::default();
    let (mut pinning, mut defaults) = (Pinning::default(), Keys::default());
    let mut blocks = None;
    // First: cases name them.
    let environments = match top.iter().find(|(name, _)| name.get_ref() == "environment") {
        Some((name, value)) => environments::read(&Node::new("", name.get_ref(), value), mistakes),
        None => Environments::default(),
    };
    for (name, value) in top {
        let value = Node::new("", name.get_ref(), value);
        match &**name.get_ref() {
            "title" => title = value.one(mistakes, Node::line),
            "rounds" => rounds = value.one(mistakes, |v| v.count(ROUNDS)),
            "seed" => seed = value.one(mistakes, |v| v.count(SEED)),
            "spread" => spread = value.one(mistakes, |v| v.share(0.001, 1.0)),
            "pinning" if value.table().is_some() => pinning = read_pinning(&value, mistakes),
            "pinning" => value.wrong(mistakes, "a table [pinning]"),
            "environment" => {}
            "defaults" if value.table().is_some() => defaults = Keys::read(&value, &environments, mistakes),
            "defaults" => value.wrong(mistakes, "a table [defaults]"),
            "case" => blocks = Some(value),
            _ => unknown(mistakes, name, &value.key, TOP_KEYS),
        }
    }

    let mut templates = Vec::new();
    let mut cases = 0u64;
    for block in blocks.iter().flat_map(|blocks| blocks.elements().into_iter().flatten()) {
        if block.table().is_none() {
            block.wrong(mistakes, "a block [[case]]");
            continue;
        }
        let template = Template::read(&block, &defaults, &environments, mistakes);
        let before = cases;
        cases = cases.saturating_add(template.count());
        if before <= CASES_MOST && cases > CASES_MOST {
            template.too_many(CASES_MOST, cases, mistakes);
        }
        templates.push(template);
    }
    match &blocks {
        Some(blocks) if templates.is_empty() => blocks.wrong(mistakes, "blocks that begin with [[case]]"),
        Some(_) => {}
        None => mistakes.add(text.len()..text.len(), "case", "expected at least one block [[case]], found none"),
    }

    // Only now is it known that nothing unfolds beyond measure.
    let blocks = if mistakes.is_empty() { templates.iter().flat_map(Template::unfold).collect() } else { Vec::new() };
    let number = |field: &Field<Item<u64>>| field.value().copied();
    Plan {
        name: name.to_owned(),
        title: title.value().cloned().unwrap_or_else(|| name.to_owned()),
        text: text.to_owned(),
        rounds: number(&rounds).map_or(5, |rounds| rounds as u32),
        seed: number(&seed),
        spread: spread.value().copied().unwrap_or(0.1),
        pinning,
        environments,
        blocks,
    }
}

fn read_pinning(node: &Node<'_, '_>, mistakes: &mut Mistakes<'_>) -> Pinning {
    let mut pinning = Pinning::default();
    for (name, value) in node.table().into_iter().flatten() {
        let value = Node::new(&node.key, name.get_ref(), value);
        let mut pin = |place: &mut Pin| *place = value.one(mistakes, Node::pin).value().copied().unwrap_or_default();
        match &**name.get_ref() {
            "client" => pin(&mut pinning.client),
            "server" => pin(&mut pinning.server),
            "background_client" => pin(&mut pinning.background_client),
            "background_server" => pin(&mut pinning.background_server),
            "memory_node" => {
                let node = value.one(mistakes, |v| v.count(NODES));
                pinning.memory_node = node.value().map(|node| *node as u32);
            }
            "gpu" => {
                let gpu = value.one(mistakes, |v| v.count(GPUS));
                pinning.gpu = gpu.value().map(|gpu| *gpu as u32);
            }
            _ => unknown(mistakes, name, &value.key, PINNING_KEYS),
        }
    }
    pinning
}

/// All keys, with the table that they belong to; what the guide must name.
#[cfg(test)]
pub(super) fn all_keys() -> impl Iterator<Item = &'static str> {
    TOP_KEYS.iter().chain(PINNING_KEYS).chain(environments::KEYS).chain(super::block::KEYS).copied()
}
