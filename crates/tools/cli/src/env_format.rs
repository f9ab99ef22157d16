//! `vervain env`: the variables of `vervain run` in the form of a shell, a Dockerfile, GitHub Actions or JSON; and the
//! list of all variables.

use std::ffi::OsString;
use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use vervain_config::{Setter, Syntax, TABLE, Variable};

use crate::cli::{EnvArgs, EnvFormat};
use crate::environment::Variables;
use crate::settings::{self, Settings, WrongSetting};
use crate::{output, run};

/// The folder into which examples/Dockerfile installs Vervain.
const IN_THE_IMAGE: &str = "/opt/vervain";

pub fn env(args: &EnvArgs) -> Result<ExitCode> {
    if args.list {
        return list(args);
    }
    if args.format == EnvFormat::Docker {
        // An image is for other machines: nothing of this one's addresses, paths and environment belongs in it.
        if args.device.lib_dir.is_some() {
            let said = "--lib-dir is a place on this machine; --prefix is the one in the image";
            return Err(WrongSetting(said.to_owned()).into());
        }
        let prefix = args.prefix.as_deref().unwrap_or(IN_THE_IMAGE);
        return output::print(&docker(prefix, &args.device.settings.variables())?);
    }
    if args.prefix.is_some() {
        return Err(WrongSetting("--prefix needs --format docker".to_owned()).into());
    }
    let (_, variables) = run::prepare(&args.device, !args.no_preload)?;
    output::print(&match args.format {
        EnvFormat::Fish => lines(&variables, |name, value| format!("set -gx {name} {}", fish_quote(value)))?,
        EnvFormat::Github => lines(&variables, |name, value| format!("{name}={value}"))?,
        EnvFormat::Json => {
            let object: serde_json::Map<_, _> =
                texts(&variables)?.into_iter().map(|(n, v)| (n.to_owned(), v.into())).collect();
            serde_json::to_string_pretty(&object)? + "\n"
        }
        _ => lines(&variables, |name, value| format!("export {name}={}", sh_quote(value)))?,
    })
}

/// A variable in the list.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    option: Option<String>,
    /// Its value for a program under `vervain run` with these options.
    value: Option<String>,
    default: &'static str,
    meaning: &'static str,
    /// The values that it can have.
    values: String,
    /// The meaning of each word, if its values are words.
    words: Vec<(&'static str, &'static str)>,
    read_by: Vec<&'static str>,
}

fn list(args: &EnvArgs) -> Result<ExitCode> {
    let json = match args.format {
        EnvFormat::Sh => false,
        EnvFormat::Json => true,
        _ => bail!("--list has no form but a table, and JSON with --format json"),
    };
    let listed = listed(&args.device.settings, Variable::value);
    output::print(&if json { serde_json::to_string_pretty(&listed)? + "\n" } else { table(&listed) })?;
    settings::tell_unknown();
    args.device.settings.in_force(Variable::value)?;
    Ok(ExitCode::SUCCESS)
}

/// The variables but those of the tests, and those that each rank of a job has values of its own of.
fn listed(settings: &Settings, current: impl Fn(&Variable) -> Option<OsString>) -> Vec<Listed> {
    let of_users = TABLE.into_iter().filter(|variable| !matches!(variable.setter, Setter::Tester | Setter::Launch));
    let describe = |variable: &'static Variable| Listed {
        name: variable.name(),
        option: variable.option.map(|option| format!("--{}", option.long)),
        value: settings.value(variable, &current).map(|value| value.to_string_lossy().into_owned()),
        default: variable.default,
        meaning: variable.meaning,
        values: variable.syntax.to_string(),
        words: match variable.syntax {
            Syntax::Words(words) => words.iter().map(|choice| (choice.word, choice.meaning)).collect(),
            _ => Vec::new(),
        },
        read_by: variable.readers.iter().map(|reader| reader.word()).collect(),
    };
    of_users.map(describe).collect()
}

fn table(listed: &[Listed]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["variable", "value", "default", "meaning"]);
    for l in listed {
        let value = l.value.as_deref().unwrap_or("-");
        table.add_row([l.name, value, l.default, &format!("{}: {}", l.meaning, l.values)]);
    }
    format!("{table}\n")
}

/// The values as text on one line; anything else has no place in these formats.
fn texts(variables: &Variables) -> Result<Vec<(&'static str, &str)>> {
    variables
        .iter()
        .map(|(name, value)| match value.to_str() {
            Some(text) if !text.contains('\n') => Ok((*name, text)),
            _ => bail!("the value of {name} is no line of UTF-8 text: {}", value.to_string_lossy()),
        })
        .collect()
}

fn lines(variables: &Variables, line: impl Fn(&str, &str) -> String) -> Result<String> {
    Ok(texts(variables)?.iter().map(|(name, value)| line(name, value) + "\n").collect())
}

fn sh_quote(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

fn fish_quote(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

/// The value of --prefix, if LD_LIBRARY_PATH and a Dockerfile can express it.
pub fn prefix(text: &str) -> Result<String, &'static str> {
    if !text.starts_with('/') || text.contains([':', ';', '$', '"', '\\']) || text.contains(char::is_control) {
        return Err("it can be an absolute path without any of : ; $ \" \\");
    }
    Ok(text.trim_end_matches('/').to_owned())
}

fn docker(prefix: &str, device_variables: &Variables) -> Result<String> {
    let mut out = format!(
        "# Vervain is in {prefix} of the image (`make install PREFIX={prefix}`, or a COPY of it). Programs that also look\n\
         # into /sys/class/infiniband (UCX, NCCL) need the view that `vervain run` makes: put it into ENTRYPOINT.\n",
    );
    writeln!(out, "ENV LD_LIBRARY_PATH=\"{prefix}/lib/vervain${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"")?;
    for (name, value) in texts(device_variables)? {
        writeln!(out, "ENV {name}=\"{value}\"")?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive_the_shells() {
        assert_eq!(sh_quote("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(fish_quote(r"it's \o/"), r"'it\'s \\o/'");
    }

    #[test]
    fn a_dockerfile_keeps_what_the_image_had() {
        let text = docker("/usr/local", &vec![("VERVAIN_DEVICES", "2".into())]).unwrap();
        assert!(text.contains("ENV LD_LIBRARY_PATH=\"/usr/local/lib/vervain${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"\n"));
        assert!(text.contains("ENV VERVAIN_DEVICES=\"2\"\n"));
    }

    #[test]
    fn a_newline_in_a_value_is_refused() {
        assert!(texts(&vec![("LD_LIBRARY_PATH", "a\nb".into())]).is_err());
    }
}
