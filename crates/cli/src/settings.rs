//! The options that stand for environment variables, as `vervain_config`'s table has them, and what is said of variables
//! that are set: wrong values, and names that nobody reads.

use std::ffi::OsString;
use std::fmt;

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use vervain_config::{Setter, Syntax, TABLE, Variable, Wrong};

use crate::environment::Variables;
use crate::output;

/// The options that were given, and their values. An option that was not given leaves its variable as it is.
#[derive(Debug, Clone, Default)]
pub struct Settings(Vec<(&'static Variable, String)>);

/// The variables that have an option.
fn offered() -> impl Iterator<Item = (&'static Variable, vervain_config::Opt)> {
    TABLE.into_iter().filter_map(|variable| Some((variable, variable.option?)))
}

/// The option of a variable.
fn argument((variable, option): (&'static Variable, vervain_config::Opt)) -> Arg {
    let help = format!("{} [default: {}] [env: {}]", variable.meaning, variable.default, variable.name());
    let arg = Arg::new(option.long).long(option.long).value_name(option.value).help(help);
    match variable.syntax {
        Syntax::Words(words) => {
            let values = words.iter().map(|choice| PossibleValue::new(choice.word).help(choice.meaning));
            arg.value_parser(PossibleValuesParser::new(values)).ignore_case(true)
        }
        _ => arg.value_parser(move |value: &str| match variable.check(value.as_bytes()) {
            Ok(()) => Ok(value.to_owned()),
            Err(_) => Err(format!("it can be {}", variable.syntax)),
        }),
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        command.args(offered().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Settings::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Settings::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (variable, option) in offered() {
            let value = matches.try_get_one::<String>(option.long);
            let value = value.map_err(|e| clap::Error::raw(ErrorKind::UnknownArgument, e))?;
            self.0.extend(value.map(|value| (variable, value.clone())));
        }
        Ok(())
    }
}

impl Settings {
    /// The value that was given for a variable.
    fn given(&self, variable: &Variable) -> Option<&str> {
        self.0.iter().find(|(v, _)| v.name() == variable.name()).map(|(_, value)| value.as_str())
    }

    /// The options that were given, as variables.
    pub fn variables(&self) -> Variables {
        self.0.iter().map(|(variable, value)| (variable.name(), value.into())).collect()
    }

    /// The value that a variable has for a program: the option's, else the one that it has in the environment (`current`).
    pub fn value(&self, variable: &Variable, current: impl Fn(&Variable) -> Option<OsString>) -> Option<OsString> {
        self.given(variable).map(OsString::from).or_else(|| current(variable))
    }

    /// The values that programs get by options and by the environment.
    ///
    /// # Errors
    /// [`WrongSetting`]: a variable has a value that it cannot have.
    pub fn in_force(&self, current: impl Fn(&Variable) -> Option<OsString>) -> Result<Variables> {
        let mut variables = Variables::new();
        for (variable, _) in offered() {
            if let Some(value) = self.value(variable, &current) {
                // An option without a value unsets the variable.
                if !value.is_empty() {
                    variable.check(value.as_encoded_bytes()).map_err(WrongSetting::from)?;
                }
                variables.push((variable.name(), value));
            }
        }
        Ok(variables)
    }
}

/// A variable has a value that it cannot have: what the library would say, or has said. The command ends with status 2.
#[derive(Debug)]
pub struct WrongSetting(pub String);

impl From<Wrong<'_>> for WrongSetting {
    fn from(wrong: Wrong<'_>) -> Self {
        WrongSetting(wrong.to_string())
    }
}

impl fmt::Display for WrongSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongSetting {}

/// The sentence about a wrong value that stands at the end of what the library has said, if there is one.
pub fn told_by_the_library(said: &str) -> Option<WrongSetting> {
    let at = if said.starts_with(PREFIX) { 0 } else { said.find(&format!(": {PREFIX}"))? + 2 };
    let sentence = &said[at..];
    let (name, rest) = sentence.split_at(sentence.find(|c: char| !c.is_ascii_uppercase() && c != '_')?);
    vervain_config::find(name)?;
    (rest.starts_with(" is ") || rest.starts_with(": ")).then(|| WrongSetting(sentence.to_owned()))
}

/// What the names of all variables of Vervain's begin with.
const PREFIX: &str = "VERVAIN_";
/// What the names begin with by which tests talk to their own processes.
const OF_TESTS: &str = "VERVAIN_TEST";

/// Tells of variables that look like Vervain's and are not.
pub fn tell_unknown() {
    for unknown in unknown(std::env::vars_os().map(|(name, _)| name)) {
        output::note(&format!("warning: {unknown}"));
    }
}

/// A sentence for each name that begins as Vervain's do and that nobody reads.
pub fn unknown(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let names = names.filter_map(|name| name.into_string().ok());
    let mut unknown: Vec<_> = names
        .filter(|name| name.starts_with(PREFIX) && !name.starts_with(OF_TESTS) && vervain_config::find(name).is_none())
        .collect();
    unknown.sort();
    let sentence = |name: String| match near(&name) {
        Some(meant) => format!("there is no variable {name}; did you mean {meant}?"),
        None => format!("there is no variable {name}; `vervain env --list` says which there are"),
    };
    unknown.into_iter().map(sentence).collect()
}

/// The variable that users set whose name differs least from this one, by a third of its letters at most.
fn near(name: &str) -> Option<&'static str> {
    let written = name.strip_prefix(PREFIX)?;
    let users = TABLE.into_iter().filter(|variable| variable.setter == Setter::User);
    let names = users.filter_map(|variable| Some((variable.name(), variable.name().strip_prefix(PREFIX)?)));
    let distances = names.map(|(name, own)| (strsim::osa_distance(written, own), own.len(), name));
    distances.filter(|(distance, length, _)| distance * 3 <= *length).min().map(|(_, _, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_config::{DEVICES, LINK, MEMORY};

    fn given(set: &[(&'static Variable, &str)]) -> Settings {
        Settings(set.iter().map(|(variable, value)| (*variable, (*value).to_owned())).collect())
    }

    fn shown(variables: &Variables) -> Vec<String> {
        variables.iter().map(|(name, value)| format!("{name}={}", value.display())).collect()
    }

    #[test]
    fn only_given_options_become_variables() {
        let settings = given(&[(&DEVICES, "2"), (&MEMORY, "owner")]);
        assert_eq!(shown(&settings.variables()), ["VERVAIN_DEVICES=2", "VERVAIN_MEMORY=owner"]);
    }

    #[test]
    fn options_come_before_the_environment_which_is_held_against_the_table() {
        let in_force =
            |settings: &Settings, value: &str| settings.in_force(|v| (v.name() == LINK.name()).then(|| value.into()));
        let settings = given(&[(&DEVICES, "2")]);
        assert_eq!(shown(&in_force(&settings, "local").unwrap()), ["VERVAIN_DEVICES=2", "VERVAIN_LINK=local"]);
        let wrong = in_force(&settings, "air").unwrap_err();
        assert!(wrong.is::<WrongSetting>());
        assert_eq!(wrong.to_string(), "VERVAIN_LINK is 'air'; it can be auto, local or roce");
        assert_eq!(shown(&in_force(&given(&[(&LINK, "roce")]), "air").unwrap()), ["VERVAIN_LINK=roce"]);
    }

    #[test]
    fn a_name_that_nobody_reads_is_told_with_the_one_that_was_meant() {
        let said = |name: &str| unknown([OsString::from(name)].into_iter()).pop();
        for (name, meant) in [
            ("VERVAIN_DEVCIES", "VERVAIN_DEVICES"),
            ("VERVAIN_PORT", "VERVAIN_PORTS"),
            ("VERVAIN_LINKLAYER", "VERVAIN_LINK_LAYER"),
            ("VERVAIN_INTERFACES", "VERVAIN_INTERFACE"),
        ] {
            assert_eq!(said(name), Some(format!("there is no variable {name}; did you mean {meant}?")));
        }
        let other = said("VERVAIN_FOO").unwrap();
        assert!(other.ends_with("`vervain env --list` says which there are"), "{other}");
        for known in ["VERVAIN_LINK", "VERVAIN_SYSFS", "VERVAIN_SEED", "VERVAIN_TEST_ALONE", "VERVAINE", "PATH"] {
            assert_eq!(said(known), None);
        }
    }

    #[test]
    fn the_librarys_sentence_is_found_in_what_it_says() {
        let found = |said: &str| told_by_the_library(said).map(|wrong| wrong.0);
        let sentence = "VERVAIN_INTERFACE is 'x'; it can be some of lo";
        assert_eq!(found(sentence).as_deref(), Some(sentence));
        assert_eq!(found(&format!("no device: {sentence}")).as_deref(), Some(sentence));
        assert_eq!(found("cannot open: VERVAIN_PCAP: /x: denied").as_deref(), Some("VERVAIN_PCAP: /x: denied"));
        assert_eq!(found("no device: UDP port 4791 is taken: VERVAIN_LINK=local does without"), None);
        assert_eq!(found("no device"), None);
    }
}
