//! The machine that the numbers belong to, and the two processors that the measured processes are kept on. Says what
//! makes numbers comparable; nothing that names the host, its user or its paths.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

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
pub fn describe() -> Machine {
    let uname = rustix::system::uname();
    Machine {
        cpu: cpu_model(),
        cpus: allowed_cpus().len(),
        caches: caches(),
        memory_mib: rustix::system::sysinfo().totalram as u64 / (1 << 20),
        huge_pages: ["enabled", "shmem_enabled"].map(huge_pages),
        kernel: uname.release().to_string_lossy().into_owned(),
        architecture: uname.machine().to_string_lossy().into_owned(),
        load: load(),
        date: today(),
        vervain: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split_once(':'))
        .map_or_else(|| "unknown".to_owned(), |(_, model)| model.trim().to_owned())
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

fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// Year, month and day of a day counted from 1970-01-01 (Gregorian; the year is taken to begin in March, so that the leap
/// day is its last).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

fn allowed_cpus() -> Vec<usize> {
    sched_getaffinity(None).map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()).unwrap_or_default()
}

/// The processors of the two sides.
#[derive(Debug, Clone, Copy)]
pub struct Cpus {
    /// The one that posts.
    pub client: usize,
    /// The one that is written to.
    pub server: usize,
}

/// The first two processors of this process.
pub fn two_cpus() -> Result<Cpus> {
    let cpus = allowed_cpus();
    ensure!(cpus.len() >= 2, "two processors are needed: on one, two processes that poll take turns of milliseconds");
    Ok(Cpus { client: cpus[0], server: cpus[1] })
}

/// Runs `f` with this thread on `cpu`, so that the children it starts are born there.
pub fn on_cpu<T>(cpu: Option<usize>, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(cpu) = cpu else { return f() };
    let before = sched_getaffinity(None).context("reading the processor affinity")?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).with_context(|| format!("moving to processor {cpu}"))?;
    let result = f();
    sched_setaffinity(None, &before).context("restoring the processor affinity")?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(11_017), (2000, 3, 1));
        assert_eq!(civil(20_453), (2025, 12, 31));
    }
}
