//! The machine that the numbers belong to, and the two processors that the measured processes are kept on. Says what
//! makes numbers comparable; nothing that names the host, its user or its paths.

use std::fmt;
use std::fs;
use std::time::SystemTime;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use vervain_bench::machine::{cpu, memory};
use vervain_bench::topology::Topology;

/// Facts that go into the report.
#[derive(Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Processor, as the kernel names it.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Caches of a processor, such as "L3 32768K".
    pub caches: Vec<String>,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Transparent huge pages: for anonymous memory and for shared memory, as the kernel words it.
    pub huge_pages: [String; 2],
    /// Kernel release.
    pub kernel: String,
    /// Machine word of uname.
    pub architecture: String,
    /// Runnable tasks over the last minute when the run began: above `cpus`, others disturbed it.
    pub load: f64,
    /// Day of the run, UTC.
    pub date: String,
    /// Version of these benchmarks, and so of Vervain.
    pub vervain: String,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Vervain {} on {} ({} processors, {}), Linux {} {}, load {:.1}, {}",
            self.vervain,
            self.cpu,
            self.cpus,
            self.caches.join(", "),
            self.kernel,
            self.architecture,
            self.load,
            self.date
        )
    }
}

/// Asks the machine.
pub fn describe() -> Result<Machine> {
    let uname = rustix::system::uname();
    let mut date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    date.truncate("2025-01-02".len());
    Ok(Machine {
        cpu: cpu(),
        cpus: Topology::read()?.cpus().len(),
        caches: caches(),
        memory_mib: memory() / (1 << 20),
        huge_pages: ["enabled", "shmem_enabled"].map(huge_pages),
        kernel: uname.release().to_string_lossy().into_owned(),
        architecture: uname.machine().to_string_lossy().into_owned(),
        load: load(),
        date,
        vervain: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

fn caches() -> Vec<String> {
    let indices = (0..8).map(|i| format!("/sys/devices/system/cpu/cpu0/cache/index{i}"));
    let read = |directory: &str, file| Some(fs::read_to_string(format!("{directory}/{file}")).ok()?.trim().to_owned());
    let cache = |directory: String| {
        let kind = read(&directory, "type").filter(|kind| kind != "Unified").unwrap_or_default();
        let initial = kind.chars().next().map(|c| c.to_ascii_lowercase().to_string()).unwrap_or_default();
        Some(format!("L{}{initial} {}", read(&directory, "level")?, read(&directory, "size")?))
    };
    indices.filter_map(cache).collect()
}

/// The word in brackets.
fn huge_pages(file: &str) -> String {
    let text = fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{file}")).unwrap_or_default();
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or_else(|| "not there".to_owned(), |(word, _)| word.to_owned())
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

/// The processors of the two sides.
#[derive(Debug, Clone, Copy)]
pub struct Cpus {
    /// The one that posts.
    pub client: u32,
    /// The one that is written to.
    pub server: u32,
}

impl Cpus {
    /// The first two processors of this process.
    pub fn two() -> Result<Cpus> {
        let topology = Topology::read()?;
        let cpus = topology.cpus();
        ensure!(
            cpus.len() >= 2,
            "two processors are needed: on one, two processes that poll take turns of milliseconds"
        );
        Ok(Cpus { client: cpus[0], server: cpus[1] })
    }

    /// Their numbers as programs take them, the client's first.
    pub fn words(self) -> [String; 2] {
        [self.client, self.server].map(|cpu| cpu.to_string())
    }
}
