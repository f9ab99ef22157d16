//! `vervain env`: the variables of `vervain run` in the form of a shell, a Dockerfile, GitHub Actions or JSON.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cli::{EnvArgs, EnvFormat};
use crate::environment::{self, Variables};
use crate::{libs, output, run};

pub fn env(args: &EnvArgs) -> Result<ExitCode> {
    if args.format == EnvFormat::Docker {
        // An image is for other machines: nothing of this one's addresses and of its environment belongs in it.
        let dir = libs::directory(args.device.lib_dir.as_deref())?;
        return output::print(&docker(&dir, &environment::device_variables(&args.device))?);
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

fn docker(dir: &Path, device_variables: &Variables) -> Result<String> {
    let mut out = String::from(
        "# For programs that use libibverbs. Those that also look into /sys/class/infiniband (UCX, NCCL) need the view\n\
         # that `vervain run` makes when it starts them: put it into ENTRYPOINT.\n",
    );
    let dir = dir.to_str().filter(|d| !d.contains(['\n', '"', '\\']));
    let Some(dir) = dir else { bail!("the library directory's path cannot stand in a Dockerfile") };
    writeln!(out, "ENV LD_LIBRARY_PATH=\"{dir}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"")?;
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
        let text = docker(Path::new("/usr/local/lib/vervain"), &vec![("VERVAIN_DEVICES", "2".into())]).unwrap();
        assert!(text.contains("ENV LD_LIBRARY_PATH=\"/usr/local/lib/vervain${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"\n"));
        assert!(text.contains("ENV VERVAIN_DEVICES=\"2\"\n"));
    }

    #[test]
    fn a_newline_in_a_value_is_refused() {
        assert!(texts(&vec![("LD_LIBRARY_PATH", "a\nb".into())]).is_err());
    }
}
