//! The device's counters, of the programs of one test only: what `vervain run` keeps for them lies in a directory of the test's
//! own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::{Job, under_vervain};

const LIMIT: Duration = Duration::from_secs(20);

/// Counters that begin at 0.
pub struct Counters {
    /// Removed when they are no longer needed.
    _directory: TempDir,
    variables: Vec<(String, String)>,
}

impl Counters {
    /// Those of the device that `variables` configure.
    ///
    /// # Panics
    /// Where no directory can be made.
    pub fn new(variables: &[(&str, &str)]) -> Self {
        // Of one that others may enter, `vervain run` would make no use.
        let only_mine = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().permissions(only_mine).tempdir().expect("a directory");
        let path = directory.path().to_str().expect("a plain path");
        let variables = [variables, &[("XDG_RUNTIME_DIR", path)]].concat();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Counters { _directory: directory, variables }
    }

    /// What makes the programs of a command use that device, and count here.
    pub fn variables(&self) -> Vec<(&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// A program under Vervain that counts here and reads from here.
    pub fn command(&self, program: &str) -> Command {
        let mut command = under_vervain(program);
        command.envs(self.variables());
        command
    }

    /// The value of a counter of port 1 of `vervain0`, as a program of other people reads it.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn read(&self, name: &str) -> u64 {
        self.read_of_port(name, 1)
    }

    /// What is wrong with the way that the data took, if most of it did not take the one that the name of
    /// [`way`](crate::way) says.
    ///
    /// # Panics
    /// When a counter cannot be read.
    pub fn not_by(&self, way: &str) -> Option<String> {
        let names = ["memory_bytes", "memory_vm_bytes", "memory_owner_bytes", "sent_pkts"];
        let [memory, vm, owner, packets] = names.map(|name| self.read(name));
        let window = ["window_direct_bytes", "window_ring_bytes", "window_staged_bytes"];
        let [put, ring, staged] = window.map(|name| self.read(name));
        let mapped = memory.saturating_sub(vm + owner);
        let all = memory + put + ring + staged;
        // A run has one mechanism, so a way that is not taken cannot pass for another.
        let ways: &[&str] = if all == 0 && packets > 0 {
            &["roce"]
        } else if memory == 0 && ring > 0 {
            &["window", "write_only"]
        } else if mapped > all / 2 {
            &["auto", "local", "shared", "adopt"]
        } else if vm > all / 2 {
            &["vm"]
        } else if owner > all / 2 {
            &["owner"]
        } else {
            &[]
        };
        let went = format!(
            "{mapped} bytes by mapped memory, {vm} by process_vm calls, {owner} by the owner, {put} put, {ring} by rings, \
            {staged} staged, {packets} packets"
        );
        (!ways.contains(&way)).then(|| format!("not by {way}: {went}"))
    }

    /// A counter of port `port`.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn read_of_port(&self, name: &str, port: u8) -> u64 {
        let counter = vervain_counters::find(name).unwrap_or_else(|| panic!("there is no counter {name}"));
        let file = format!("/sys/class/infiniband/vervain0/ports/{port}/{}/{name}", counter.directory.name());
        let read = Job::start(self.command("cat").arg(&file)).finish(LIMIT);
        read.output.trim().parse().unwrap_or_else(|e| panic!("{e}: {}", read.describe()))
    }
}
