//! The options that stand for environment variables, as `vervain_config`'s table has them, and what is said of wrong
//! values.

use std::ffi::{OsStr, OsString};

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use vervain_config::{FAULTS, PREFIX, Syntax, TABLE, Unknown, Variable, WINDOW, WindowSpec};
use vervain_fault::{Faults, GRAMMAR};

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
    let mut arg = Arg::new(option.long).long(option.long).value_name(option.value).help(help.clone());
    if variable.name() == FAULTS.name() {
        arg = arg.long_help(format!("{help}\n\n{GRAMMAR}"));
    }
    match variable.syntax {
        Syntax::Words(words) => {
            let values = words.iter().map(|choice| PossibleValue::new(choice.word).help(choice.meaning));
            let unset = PossibleValue::new("").hide(true);
            arg.value_parser(PossibleValuesParser::new(values.chain([unset]))).ignore_case(true)
        }
        _ => arg.value_parser(move |value: &str| match mistake(variable, value.as_ref()) {
            None => Ok(value.to_owned()),
            Some(mistake) => Err(mistake),
        }),
    }
}

/// The variable that an option stands for.
pub fn of_option(long: &str) -> Option<&'static Variable> {
    offered().find(|(_, option)| option.long == long).map(|(variable, _)| variable)
}

/// The mistake in a value, as the rest of a sentence behind the name of the variable or of its option; None for a good
/// value. Only the library can find out which interfaces exist and whether a file can be written.
pub fn mistake(variable: &'static Variable, value: &OsStr) -> Option<String> {
    // An empty value unsets the variable.
    if value.is_empty() {
        return None;
    }
    if let Err(wrong) = variable.check(value.as_encoded_bytes()) {
        return Some(wrong.to_string().split_off(variable.name().len()));
    }
    if variable.name() == FAULTS.name() {
        return value.to_string_lossy().parse::<Faults>().err().map(|unclear| format!(": {unclear}"));
    }
    if variable.name() == WINDOW.name() {
        let value = value.as_encoded_bytes();
        let wrong = WindowSpec::parse(value).err().map(|word| variable.wrong(value).by(word));
        return wrong.map(|wrong| wrong.to_string().split_off(variable.name().len()));
    }
    None
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

    /// The first option that was given, without its dashes.
    pub fn first_option(&self) -> Option<&'static str> {
        self.0.first().and_then(|(variable, _)| variable.option).map(|option| option.long)
    }

    /// The value that a variable has for a program: the option's, else the one that it has in the environment
    /// (`current`).
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
                if let Some(mistake) = mistake(variable, &value) {
                    return Err(WrongSetting(format!("{}{mistake}", variable.name())).into());
                }
                variables.push((variable.name(), value));
            }
        }
        Ok(variables)
    }

    /// An error that names the option where it names a variable whose value came by one.
    pub fn by_option(&self, error: anyhow::Error) -> anyhow::Error {
        let Some(WrongSetting(sentence)) = error.downcast_ref() else { return error };
        let (name, rest) = sentence.split_at(sentence.find([' ', ':']).unwrap_or(sentence.len()));
        let option = self.0.iter().find(|(variable, _)| variable.name() == name).and_then(|(v, _)| v.option);
        option.map(|option| WrongSetting(format!("--{}{rest}", option.long)).into()).unwrap_or(error)
    }
}

/// A variable or an option has a value that it cannot have: the command's own sentence, or the library's. The command
/// ends with status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongSetting(pub String);

/// The sentence about a wrong value that stands at the end of what the library has said, if there is one.
pub fn told_by_the_library(said: &str) -> Option<WrongSetting> {
    let at = if said.starts_with(PREFIX) { 0 } else { said.find(&format!(": {PREFIX}"))? + 2 };
    let sentence = &said[at..];
    let (name, rest) = sentence.split_at(sentence.find(|c: char| !c.is_ascii_uppercase() && c != '_')?);
    vervain_config::find(name)?;
    (rest.starts_with(" is ") || rest.starts_with(": ")).then(|| WrongSetting(sentence.to_owned()))
}

/// Tells of variables that look like Vervain's and are not.
pub fn tell_unknown() {
    for unknown in Unknown::of_process() {
        output::note(&format!("warning: {unknown}"));
    }
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
        assert_eq!(wrong.to_string(), "VERVAIN_LINK is 'air'; it can be auto, local, roce or window");
        assert_eq!(shown(&in_force(&given(&[(&LINK, "roce")]), "air").unwrap()), ["VERVAIN_LINK=roce"]);
    }

    #[test]
    fn a_value_that_came_by_an_option_is_told_by_the_options_name() {
        let settings = given(&[(&LINK, "roce")]);
        let told = |sentence: &str| settings.by_option(WrongSetting(sentence.into()).into()).to_string();
        assert_eq!(told("VERVAIN_LINK is 'roce', which"), "--link is 'roce', which");
        assert_eq!(told("VERVAIN_LINK_LAYER is 'x'"), "VERVAIN_LINK_LAYER is 'x'");
        assert_eq!(settings.by_option(anyhow::anyhow!("VERVAIN_LINK is")).to_string(), "VERVAIN_LINK is");
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
