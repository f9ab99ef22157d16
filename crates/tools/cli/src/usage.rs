//! A mistake in the command line, said in one line as all other errors are. clap's own text has half a page.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::process::exit;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use crate::cli::Cli;
use crate::{output, run, settings};

/// The command line, or the end of the command.
pub fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| match sentence(&error, env::args_os()) {
        Some(sentence) => {
            output::note(&sentence);
            exit(run::WRONG_SETTING.into())
        }
        None => error.exit(),
    })
}

/// The sentence about a mistake; None if help or version is asked for.
fn sentence(error: &clap::Error, words: impl Iterator<Item = OsString>) -> Option<String> {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let one = |kind| of(kind).first().cloned();
    let (command, name) = subcommand(words);
    let unknown = |what: &str, word: String, meant: Option<String>| {
        let all = || format!("`{name} --help` lists all");
        let ending = meant.map_or_else(all, |meant| format!("did you mean '{meant}'?"));
        format!("unknown {what} '{word}'; {ending}")
    };
    Some(match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return None;
        }
        ErrorKind::UnknownArgument => {
            let word = one(ContextKind::InvalidArg)?;
            let what = if word.starts_with('-') { "option" } else { "argument" };
            unknown(what, word, one(ContextKind::SuggestedArg))
        }
        ErrorKind::InvalidSubcommand => {
            let word = one(ContextKind::InvalidSubcommand)?;
            // clap finds none for a short word with two letters in the other order.
            let shown =
                command.get_subcommands().filter(|command| !command.is_hide_set()).map(|command| command.get_name());
            let near = vervain_config::nearest(&word, shown).map(str::to_owned);
            unknown("command", word, of(ContextKind::SuggestedSubcommand).pop().or(near))
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let argument = bare(&one(ContextKind::InvalidArg)?);
            let value = one(ContextKind::InvalidValue)?;
            let words = of(ContextKind::ValidValue);
            let variable = argument.strip_prefix("--").and_then(settings::of_option);
            match variable.and_then(|variable| settings::mistake(variable, value.as_ref())) {
                Some(mistake) => format!("{argument}{mistake}"),
                None if value.is_empty() => format!("{argument} needs a value"),
                None if words.is_empty() => format!("{argument} is '{value}'; {}", error.source()?),
                None => format!("{argument} is '{value}'; it can be {}", alternatives(&words)),
            }
        }
        ErrorKind::ArgumentConflict => {
            let [one, other] = [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| of(kind).pop());
            format!("{} cannot be used with {}", bare(&one?), bare(&other?))
        }
        ErrorKind::MissingRequiredArgument => {
            let missing: Vec<_> = of(ContextKind::InvalidArg).iter().map(|argument| bare(argument)).collect();
            format!("{} is missing; `{name} --help` says more", missing.join(", "))
        }
        _ => error.to_string().lines().next()?.trim_start_matches("error: ").to_owned(),
    })
}

/// An argument as it is typed: `--link` of `--link <LINK>`, and the name of one that has no dashes.
fn bare(argument: &str) -> String {
    argument.split(' ').next().unwrap_or_default().trim_matches(['<', '>', '[', ']', '.']).to_owned()
}

fn alternatives(words: &[String]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => words.concat(),
    }
}

/// The command that the words begin with, and its name with that of the commands it is one of.
fn subcommand(words: impl Iterator<Item = OsString>) -> (clap::Command, String) {
    let mut command = Cli::command();
    let mut name = command.get_name().to_owned();
    for word in words.skip(1) {
        let Some(next) = command.find_subcommand(&word).cloned() else { break };
        name = format!("{name} {}", next.get_name());
        command = next;
    }
    (command, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words = || line.split(' ').map(OsString::from);
        let error = Cli::try_parse_from(words()).unwrap_err();
        sentence(&error, words()).unwrap_or_else(|| panic!("help for {line}"))
    }

    #[test]
    fn each_mistake_is_one_sentence() {
        for (line, wanted) in [
            ("vervain run --device 2 -- ls", "unknown option '--device'; did you mean '--devices'?"),
            ("vervain run --frobnicate ls", "unknown option '--frobnicate'; `vervain run --help` lists all"),
            ("vervain run -q ls", "unknown option '-q'; `vervain run --help` lists all"),
            ("vervain bench run --per h", "unknown option '--per'; did you mean '--peer'?"),
            ("vervain device", "unknown command 'device'; did you mean 'devices'?"),
            ("vervain ibv_devinfo", "unknown command 'ibv_devinfo'; `vervain --help` lists all"),
            ("vervain doctor all", "unknown argument 'all'; `vervain doctor --help` lists all"),
            ("vervain run", "PROGRAM is missing; `vervain run --help` says more"),
            ("vervain launch ls", "--ranks is missing; `vervain launch --help` says more"),
            ("vervain launch -n 2", "PROGRAM is missing; `vervain launch --help` says more"),
            ("vervain launch -n 0 ls", "--ranks is '0'; it can be 1 to 4096"),
            ("vervain launch -n 2 --verbs rxe ls", "--verbs is 'rxe'; it can be vervain or system"),
            ("vervain launch -n 2 --no-prefx ls", "unknown option '--no-prefx'; did you mean '--no-prefix'?"),
            ("vervain lanch -n 2 ls", "unknown command 'lanch'; did you mean 'launch'?"),
            ("vervain rnu ls", "unknown command 'rnu'; did you mean 'run'?"),
            ("vervain job rnu ls", "unknown command 'rnu'; did you mean 'run'?"),
            ("vervain run --link", "--link needs a value"),
            ("vervain run --link air ls", "--link is 'air'; it can be auto, local, roce or window"),
            ("vervain run --devices 17 ls", "--devices is '17'; it can be 1 to 16"),
            ("vervain run --faults drop=1 ls", "--faults: 'drop=1': drop takes a percentage, as in drop=1%"),
            (
                "vervain run --window f,size=1x ls",
                "--window is 'f,size=1x'; 'size=1x': size takes a number of bytes, as in size=512M or size=4G",
            ),
            ("vervain env --format csh", "--format is 'csh'; it can be sh, fish, docker, github or json"),
            ("vervain env --list --no-preload", "--list cannot be used with --no-preload"),
            ("vervain completions tcl", "SHELL is 'tcl'; it can be bash, elvish, fish, powershell or zsh"),
            ("vervain acp memory --ranks 0", "--ranks is '0'; it can be 1 to 2097152"),
            ("vervain bench run --rounds 0", "--rounds is '0'; 0 is not in 1..=1000"),
        ] {
            assert_eq!(said(line), wanted);
        }
    }

    #[test]
    fn help_and_version_are_no_mistake() {
        for line in ["vervain", "vervain --help", "vervain run --version"] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(sentence(&error, std::iter::empty()), None, "{line}");
        }
    }
}
