//! The engine of `vervain bench`: any verbs device measured through the public verbs API, with interference.
//!
//! A plan ([`plan`]) unfolds into cases ([`case`]). The coordinator ([`run`]) starts worker processes ([`worker`]) here
//! and, through `vervain bench serve`, on the far host, has them measure one case at a time in interleaved rounds, and
//! keeps each measurement in a journal at once. The summary of the runs of a case is [`stats`]' business; [`results`]
//! is the file that comes out. What is made of it is the business of `vervain_bench_report`, which writes numbers and
//! tables as [`number`] and [`terminal`] do. The project's own `make bench` shares [`machine`], [`topology`],
//! [`terminal`] and the statistics' median.

// The unsafe code that PM needs to be measured is in a module of its own (`worker`).
#![deny(unsafe_code)]

pub mod case;
mod control;
pub mod environment;
pub mod machine;
pub mod number;
pub mod plan;
mod protocol;
mod raw;
pub mod results;
pub mod run;
#[doc(hidden)]
pub mod sample;
pub mod serve;
pub mod stats;
pub mod terminal;
pub mod topology;
pub mod worker;
