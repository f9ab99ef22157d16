//! Jobs that can be checkpointed and restarted: the supervisor of a job, its namespaces, CRIU, and checkpoints as
//! files. It knows no command line, and nothing of verbs but the names of Vervain's sockets.
//!
//! A job is a process tree below an init of ours, in a pid and a mount namespace of its own, so that after a restart
//! pids, indices of terminals and what lies in `/dev/shm` are what they were. The supervisor stands outside: it starts
//! the init, has CRIU run inside, and owns the job's standard streams.
//!
//! Where that may not be, a job has no namespaces and saves itself when it is asked ([`cooperative`]); checkpoints,
//! requests and what becomes of a job that was killed are alike.

pub mod addresses;
pub mod agent;
pub mod checkpoint;
pub mod control;
pub mod cooperative;
pub mod criu;
mod desk;
mod freezer;
pub mod gang;
mod hold;
pub mod hosts;
mod image;
mod life;
mod lives;
pub mod manifest;
pub mod park;
mod part;
pub mod place;
mod queues;
pub mod remote;
pub mod rsh;
pub mod scratch;
pub mod space;
pub mod starter;
pub mod store;
mod streams;
pub mod supervisor;
mod threads;
pub mod tree;
pub mod trust;
pub mod word;
