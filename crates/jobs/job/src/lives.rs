//! The decision after a job has ended: its supervisor ends too, or resumes it from the newest checkpoint.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::manifest::Manifest;
use crate::place::Name;
use crate::space::End;
use crate::store::find;
use crate::supervisor::Setting;

/// How often a job is resumed that makes no new checkpoint meanwhile.
const RESUMED_IN_VAIN: u32 = 3;

/// The lives of a job until now.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    in_vain: u32,
    resumed_from: Option<PathBuf>,
}

/// The decision.
pub(crate) enum Next {
    /// The supervisor ends with this status.
    Over(u8),
    /// After this time the job is resumed from this checkpoint.
    Resume(Duration, PathBuf, Box<Manifest>),
}

impl Lives {
    /// Decides after an end; `wanted` is true if a user or signal has asked for the end.
    ///
    /// # Errors
    /// It was killed, and cannot be resumed.
    pub fn next(&mut self, name: &Name, end: End, setting: &Setting, wanted: bool) -> Result<Next> {
        let killed = match end {
            End::Status(code) => (129..=192).contains(&code),
            End::Signal(_) | End::Killed => true,
        };
        let how = match end {
            End::Status(code) => format!("ended with status {code}"),
            End::Signal(signal) => format!("was killed by {}", signal_name(signal)),
            End::Killed => "was killed as a whole".to_owned(),
        };
        let wait = setting.upkeep.restart.filter(|_| killed && !wanted);
        let (Some(wait), Some(dir)) = (wait, &setting.upkeep.dir) else {
            if end == End::Killed && !wanted {
                (setting.note)(&format!("job {name} {how}"));
            }
            return Ok(Next::Over(match end {
                End::Status(code) => (code & 0xff) as u8,
                End::Signal(signal) => 128 + (signal & 0x7f) as u8,
                End::Killed => 128 + Signal::SIGKILL as u8,
            }));
        };
        let (path, manifest, _) =
            find(dir, setting.note).with_context(|| format!("job {name} {how}, and cannot be resumed"))?;
        self.in_vain = if self.resumed_from.as_ref() == Some(&path) { self.in_vain + 1 } else { 1 };
        ensure!(
            self.in_vain <= RESUMED_IN_VAIN,
            "job {name} {how} and is given up: it was resumed {RESUMED_IN_VAIN} times without a new checkpoint"
        );
        (setting.note)(&format!(
            "job {name} {how}; it is resumed from {} in {}",
            path.display(),
            humantime::format_duration(wait)
        ));
        self.resumed_from = Some(path.clone());
        Ok(Next::Resume(wait, path, manifest.into()))
    }
}

fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}
