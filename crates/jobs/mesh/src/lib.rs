//! Connections between the ranks of a job: made on first use by a handshake of datagrams, kept in a pool of fixed size,
//! and closed, drained at both ends, when others need the place. Nothing here grows with the number of ranks.
//!
//! A connection is two RC QPs at each end. The *data* lane carries RDMA, and messages without bytes that the protocol
//! above has reserved a receive for; it never waits for software at the other end. The *commands* lane carries Sends
//! into receives that all connections share; where there is none, the device of the sender waits (RNR). Since what a
//! command asks for is answered by the other lane, full queues cannot wait for each other in a circle.
//!
//! Each process has a UD QP at each of its devices, its *door*: there it is asked for connections. Where a rank's door
//! is, the *leader* of its block of 1,024 ranks knows. Leaders alone put their addresses into the job's store, and they
//! alone fetch those of other leaders, for all ranks of their blocks and a share of them for 31 other leaders. So most
//! processes fetch two values: what rank 0 puts, and where their own leader is.
//!
//! [`protocol`] has all that without I/O; [`Mesh`] drives it over verbs. Ranks of one job trust each other: datagrams
//! carry a random key, which the store tells to them only, so that strays and strangers are not heard; still, every
//! field of them is checked.
//!
//! ```no_run
//! # use std::time::Instant;
//! use vervain_mesh::{Event, Mesh, Options};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let job = vervain_bootstrap::Job::join()?;
//! let mut mesh = Mesh::open(&job, job.rank(), 0, &Options::default(), b"settings", b"hello".to_vec())?;
//! job.fence()?;
//! mesh.introduce(Mesh::find_leader(&job, job.rank(), 0)?)?;
//! mesh.want((job.rank() + 1) % job.size(), 0);
//! let mut commands = Vec::new();
//! loop {
//!     mesh.poll_service(0, &mut commands)?;
//!     mesh.progress(Instant::now());
//!     match mesh.next_event() {
//!         Some(Event::Opened(link)) => println!("{:?} says {:?}", mesh.peer(link), mesh.hello(link)),
//!         Some(Event::Failed { error, .. }) => return Err(error.into()),
//!         _ => {}
//!     }
//! }
//! # }
//! ```

mod address;
mod devices;
mod door;
mod error;
mod introduction;
mod mesh;
mod options;
pub mod parts;
mod port;
pub mod protocol;
mod sizes;
mod table;

pub use address::{Door, Doors, Lanes, MAX_DEVICES, Site};
pub use error::{Error, Result};
pub use introduction::Introduction;
pub use mesh::{Command, Mesh};
pub use options::{Event, Link, MAX_HELLO, Options};
pub use port::Port;
pub use sizes::{Holding, Kind, memory};
