//! `results.json`: everything that a run measured, with what is needed to judge it and to repeat it. docs/bench.md
//! documents the fields for readers in other languages; a change that would mislead such a reader raises [`SCHEMA`].

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::case::{Case, Interference, Measure};
use crate::environment::Environment;

/// The version of the layout.
pub const SCHEMA: u32 = 1;

/// A whole run, or what there is of one that was cut off.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The facts that are the same for all cases.
    pub header: Header,
    /// When the last measurement ended; RFC 3339, UTC.
    pub ended: String,
    /// True if every case of the plan was measured as often as the plan says, or failed.
    pub complete: bool,
    /// The reason why it is not complete, in one sentence.
    pub interrupted: Option<String>,
    /// The machine's own figures, each round.
    pub raw: Vec<RawFigures>,
    /// The measurements, in the plan's order.
    pub cases: Vec<CaseResult>,
    /// Cases of the plan that this device or this set-up cannot carry out.
    pub skipped: Vec<Skipped>,
}

/// The conditions of a run; written before the first measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Header {
    /// The version of `vervain`.
    pub version: String,
    /// When the run began; RFC 3339, UTC.
    pub started: String,
    /// The name of the plan, and its text.
    pub plan: PlanText,
    /// The order of the cases and the bootstrap follow from it.
    pub seed: u64,
    /// How often each case is measured.
    pub rounds: u32,
    /// The environments of the plan, by name.
    #[serde(default)]
    pub environments: BTreeMap<String, Environment>,
    /// The host of the requester.
    pub host: Host,
    /// The host of the responder of [`Placement::Peer`](crate::case::Placement::Peer); None if there is none.
    pub peer: Option<Host>,
    /// The meaning of `peer` placement if there is no other host: "RoCE packets over this host's own network".
    pub peer_note: Option<String>,
    /// Facts to know when reading the numbers: CPUs shared by processes that both spin, and the like.
    pub notes: Vec<String>,
}

/// The plan as it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanText {
    /// `paper`, or the path of a file.
    pub name: String,
    /// Its title.
    pub title: String,
    /// The TOML.
    pub text: String,
}

/// A machine and its device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The CPU's, as the kernel says it.
    pub cpu: String,
    /// CPUs that the process may use.
    pub cpus: u32,
    /// NUMA nodes.
    pub nodes: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Frequency governor; None if the kernel shows none (virtual machines).
    pub governor: Option<String>,
    /// The file of the libibverbs that served.
    pub library: String,
    /// The device.
    pub device: DeviceFacts,
    /// The GPU whose memory was measured, by its number and name; None if none was.
    pub gpu: Option<String>,
    /// Which CPU each worker was pinned to, by its role; None: not pinned.
    pub pinned: BTreeMap<String, Option<u32>>,
}

/// The device's facts about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceFacts {
    /// As in `ibv_devices`.
    pub name: String,
    /// From 1.
    pub port: u8,
    /// The firmware's version.
    pub firmware: String,
    /// The vendor's PCI number.
    pub vendor: u32,
    /// The vendor's part number.
    pub part: u32,
    /// "InfiniBand" or "Ethernet".
    pub link_layer: String,
    /// Data rate of the port in Gbit/s; 0 where it is not known.
    pub gbps: f64,
    /// Bytes of payload in a packet.
    pub mtu: u32,
    /// Reads and atomics that a QP can have under way.
    pub max_rd_atomic: u8,
    /// NUMA node; None if it has none.
    pub node: Option<u32>,
}

/// The machine's own figures without the device, measured in one round between the CPUs of requester and responder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RawFigures {
    /// Which round, from 0.
    pub round: u32,
    /// One way for a cache line between the two CPUs, in ns: half the round trip of a store; None if both run on one.
    pub cross_core_ns: Option<f64>,
    /// memcpy by one CPU of blocks of this many bytes, in bytes per second.
    pub memcpy: Vec<(u64, f64)>,
    /// The time of reading the clock, in ns; it is part of every latency.
    pub clock_ns: f64,
}

/// A case and what came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CaseResult {
    /// The case.
    pub case: Case,
    /// Iterations that each run was to make.
    pub iterations: u64,
    /// One measurement each; as many as rounds where nothing failed.
    pub runs: Vec<Run>,
    /// Runs that came to nothing.
    pub failures: Vec<Failure>,
    /// The summary of the runs; None without a run.
    pub summary: Option<Summary>,
}

/// The reason why a run has no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Failure {
    /// Which round, from 0.
    pub round: u32,
    /// A sentence.
    pub why: String,
}

/// One measurement of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Run {
    /// Which round, from 0.
    pub round: u32,
    /// Seconds since the run began.
    pub at: f64,
    /// Operations that were done.
    pub iterations: u64,
    /// Seconds that they took together.
    pub seconds: f64,
    /// The run in parts of about as many iterations each, in their order: iterations and seconds of each. For drift and
    /// spread.
    pub segments: Vec<(u64, f64)>,
    /// Latency only: values in picoseconds and how often each came, ascending; buckets of an HDR histogram of three
    /// digits. Halved already where the latency is half a round trip. By ranks of a job a value is the mean of 20
    /// iterations, and of one from 64 KiB on.
    pub histogram: Vec<(u64, u64)>,
    /// Messages that were sent and did not come; UC and UD.
    pub lost: u64,
    /// The stream that ran beside, if there was to be one.
    pub interference: Option<InterferenceProof>,
}

/// The proof that the interfering stream ran throughout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InterferenceProof {
    /// The operation that it posted.
    pub stream: Interference,
    /// Operations that it completed between the first and the last moment of the measurement.
    pub operations: u64,
    /// Operations per second.
    pub rate: f64,
    /// Operations in each slice of the measurement, in order.
    pub slices: Vec<u32>,
    /// Milliseconds of one slice.
    pub slice_ms: f64,
    /// The longest time within the measurement without a completion of the stream, in ms.
    pub longest_pause_ms: f64,
    /// True if it ran throughout: from before the first post, with no pause longer than a scheduler explains (a tenth
    /// of the measurement, or 20 ms, whichever is more).
    pub throughout: bool,
}

/// The summary of the runs of a case. Latencies in ns, bandwidths in bytes per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Summary {
    /// The value of the case: the median over the runs of each run's value, which is the median of its iterations
    /// (latency) or all its bytes by all its time (bandwidth).
    pub value: f64,
    /// Bootstrap interval of `value`, 95 %: runs are drawn, then segments within each (bandwidth) or its median by the
    /// spread of its histogram (latency); wider than what was drawn where there are few runs ([`crate::stats`]).
    pub interval: (f64, f64),
    /// Lower and upper quartile, of all iterations (latency) or of all segments (bandwidth).
    pub quartiles: (f64, f64),
    /// The smallest and the largest iteration or segment.
    pub range: (f64, f64),
    /// Arithmetic mean over all iterations (latency) or over all time (bandwidth).
    pub mean: f64,
    /// 99th percentile of all iterations; latency only.
    pub p99: Option<f64>,
    /// 99.9th percentile of all iterations; latency only, with 10,000 iterations or more.
    pub p999: Option<f64>,
    /// Messages per second; bandwidth only.
    pub rate: Option<f64>,
    /// The largest value of a run less the smallest, as a share of `value`.
    pub spread: f64,
    /// The change of the value from the first third of the runs to the last, as a share of `value`, negative if it
    /// fell; 0 with fewer than three.
    pub drift: f64,
    /// The excess time of the first segment of the runs over the others, as a share: the rest of warming up. Negative
    /// if it was faster.
    pub warm_up: f64,
    /// The reasons why the value is doubtful.
    pub flags: Vec<Flag>,
}

/// A reason why a value is doubtful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Flag {
    /// The runs differ by more than the plan's `spread`, and by more than one step of the clock: a comparison with
    /// another case that is closer than that means nothing.
    Noisy,
    /// The value wandered by more than half of that over the run.
    Drifting,
    /// The first segments were slower by more than a tenth: longer warm-up needed.
    ColdStart,
    /// Fewer runs than planned.
    Incomplete,
    /// Fewer than three runs, or an interval that ends above twice the value: it says no more than the order of
    /// magnitude.
    TooFewRounds,
    /// The interfering stream paused in at least one run.
    InterferencePaused,
    /// Messages were lost.
    Lossy,
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Noisy => "noisy",
            Self::Drifting => "drifting",
            Self::ColdStart => "cold start",
            Self::Incomplete => "incomplete",
            Self::TooFewRounds => "too few rounds",
            Self::InterferencePaused => "interference paused",
            Self::Lossy => "messages lost",
        })
    }
}

/// A case that was not measured at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Skipped {
    /// The case that the plan asked for.
    pub case: Case,
    /// The reason why it is impossible, in a sentence.
    pub why: String,
}

impl Run {
    /// The run's own value: ns for latency, bytes per second for bandwidth.
    pub fn value(&self, case: &Case) -> f64 {
        match case.measure {
            Measure::Latency => self.percentile(0.5),
            Measure::Bandwidth => self.iterations as f64 * case.size as f64 / self.seconds,
        }
    }

    /// Latency in ns below which this share of the iterations lies; NaN without a histogram.
    pub fn percentile(&self, share: f64) -> f64 {
        percentile(&self.histogram, share)
    }
}

/// The value in ns below which this share of all counts lies; NaN where there are none. Buckets as in
/// [`Run::histogram`], ascending.
pub fn percentile(buckets: &[(u64, u64)], share: f64) -> f64 {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let rank = (share * total as f64).ceil().max(1.0) as u64;
    let mut seen = 0;
    let found = buckets.iter().find(|(_, count)| {
        seen += count;
        seen >= rank
    });
    found.map_or(f64::NAN, |(ps, _)| *ps as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types' own words, without what only rustdoc makes links of.
    fn schema() -> serde_json::Value {
        fn plain(value: &mut serde_json::Value) {
            match value {
                serde_json::Value::Object(fields) => {
                    if let Some(serde_json::Value::String(text)) = fields.get_mut("description") {
                        let links = text.replace("[`", "`").split("`]").map(str::to_owned).collect::<Vec<_>>();
                        let target = |part: &str| match part.strip_prefix("(crate::").and_then(|p| p.split_once(')')) {
                            Some((_, rest)) => rest.to_owned(),
                            None => part.to_owned(),
                        };
                        *text = links.iter().map(|part| target(part)).collect::<Vec<_>>().join("`").replace('\n', " ");
                    }
                    fields.values_mut().for_each(plain);
                }
                serde_json::Value::Array(elements) => elements.iter_mut().for_each(plain),
                _ => {}
            }
        }
        let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
        let mut schema = settings.into_generator().into_root_schema_for::<Results>().to_value();
        plain(&mut schema);
        schema
    }

    #[test]
    fn the_schema_is_that_of_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/results.schema.json");
        if std::env::var_os("VERVAIN_WRITE_SCHEMA").is_some() {
            let text = serde_json::to_string_pretty(&schema()).expect("text") + "\n";
            std::fs::write(path, text).expect("written");
        }
        let kept = std::fs::read_to_string(path).expect("the file");
        let kept: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
        assert!(
            kept == schema(),
            "{path} is not that of the types: run this test with VERVAIN_WRITE_SCHEMA=1, look at git diff, and raise \
             SCHEMA where a reader of the old layout would be misled"
        );
    }

    /// Every field and every word is in the guide, in a table of its own type.
    #[test]
    fn the_guide_names_every_field_of_the_results() {
        let guide = include_str!("../../../../docs/bench.md");
        let guide = guide.split_once("\n## results.json\n").expect("its section").1;
        let section = |title: &str| {
            let (_, rest) =
                guide.split_once(&format!("\n### {title}\n")).unwrap_or_else(|| panic!("no section {title}"));
            rest.split("\n### ").next().unwrap_or_default()
        };
        let schema = schema();
        let types = schema["$defs"].as_object().expect("types").iter().map(|(name, of)| (name.as_str(), of));
        let mut missing = Vec::new();
        for (name, of) in types.chain([("Results", &schema)]) {
            let text = section(name);
            let fields = of["properties"].as_object().into_iter().flatten().map(|(field, _)| field.as_str());
            let words = of["oneOf"].as_array().into_iter().flatten().filter_map(|word| word["const"].as_str());
            let names = fields.chain(words).filter(|field| !text.contains(&format!("| `{field}` |")));
            missing.extend(names.map(|field| format!("{name}: {field}")));
        }
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn a_percentile_is_the_bucket_that_reaches_it() {
        let buckets = [(1000, 50), (2000, 49), (9000, 1)];
        let at = |share| percentile(&buckets, share);
        assert_eq!([at(0.0), at(0.5), at(0.501), at(0.99), at(0.991), at(1.0)], [1.0, 1.0, 2.0, 2.0, 9.0, 9.0]);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
