//! The memory of a rank of ACP in a job that is larger than the machine: by the library's types and constants
//! ([`memory`]), and measured ([`measure`]) beside simulated ranks, many of which are one process.
//!
//! The command that calls this starts itself again, as `vervain acp weigh`, `bare`, `rank` and `simulated-ranks`, which
//! call the functions of these names. Users know the processes of simulated ranks as farms, by the option `--farms` and
//! by the results.

mod control_group;
mod footprint;
mod measure;
mod part;
mod processes;
mod rank_pool;
mod simulated_ranks;
mod sizes;
mod words;

pub use measure::{Ended, Measurement, Plan, measure};
pub use processes::{Variables, bare, rank, simulated_ranks, weigh, weighed};
pub use sizes::{Memory, Objects, memory};
