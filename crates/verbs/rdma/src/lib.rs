//! Safe Rust over the public verbs API of libibverbs, as the dynamic linker finds it: a vendor's on a machine with an
//! RNIC, Vervain's under `vervain run`. `vervain bench`, ACP and PM are written over it.
//!
//! The crates `ibverbs` and `rdma-sys` run bindgen over the headers of an installed or bundled rdma-core, and `sideway`
//! wants CMake and a C shim for the header's inline functions (`rdma-mummy-sys`), so each of them requires on the
//! machine that builds a program what only the machine that runs it needs. The layouts exist already and are checked
//! against the header (`vervain-abi`); the functions are about two dozen, and are looked up when the program runs.
//!
//! # What keeps it safe
//!
//! * An object keeps what it was made of: a QP its CQs, its SRQ and its domain, a domain its device, a device the
//!   library.
//! * Memory belongs to its domain ([`Pd`]). It stays registered and mapped until it is deregistered, after which no
//!   device touches it, or until the domain and all its QPs are gone. Posting therefore needs no `unsafe`: a request
//!   that outlives the handles of its memory still finds the memory.
//! * No reference into registered memory is ever made ([`Region`]), since peers may store into it at any time.
//! * A request names memory by a key, which the devices check. It names an address handle by a pointer, and borrows it;
//!   only a UD QP of the same domain accepts it.
//!
//! # Speed
//!
//! [`Qp::post`], [`Qp::receive`] and their lists and [`Cq::poll`] are one indirect call each, without locks of their
//! own and without allocation unless they fail.
//!
//! ```no_run
//! use vervain_rdma::*;
//!
//! # fn exchange(mine: Endpoint) -> Endpoint { mine }
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let context = Context::open(&Library::load()?, None)?;
//! let pd = Pd::new(&context)?;
//! let cq = Cq::new(&context, 16, None, 0)?;
//! let region = pd.region(4096, Access::REMOTE)?;
//! let qp = Qp::builder(Transport::Rc, &pd, &cq, &cq).build()?;
//! let path = PathOptions::of(&context, 1)?;
//! qp.init(&path, Access::REMOTE)?;
//! let peer = exchange(Endpoint { memory: Some(region.remote()), ..qp.endpoint(&path)? });
//! qp.connect(&peer, &path)?;
//!
//! region.write(0, b"hello");
//! let there = peer.memory.ok_or("the peer shares no memory")?.at(0);
//! qp.post(SendRequest::write(&[region.slice(0..5)], there).id(1).signaled())?;
//! let mut done = [Completion::default(); 1];
//! while cq.poll(&mut done)? == 0 {}
//! println!("{}", done[0].status());
//! # Ok(())
//! # }
//! ```

mod ah;
mod completion;
mod cq;
mod device;
mod error;
mod event;
mod gid;
mod gpu;
mod library;
mod path;
mod pd;
mod port;
mod post;
mod qp;
mod qp_attr;
mod receive;
mod region;
mod srq;
mod standing;
mod transport;
mod window;

pub use ah::{AddressVector, Ah, Route};
pub use completion::{Completion, Opcode, Status};
pub use cq::{CompChannel, Cq, CqEvent, CqId};
pub use device::{AtomicCap, Capabilities, Context, Device, DeviceAttr, DeviceIdentity, OnDemand, SrqLimits};
pub use error::{Error, PostError, Result};
pub use event::{AsyncEvent, EventKind, EventSource};
pub use gid::{GRH_BYTES, Gid, GidEntry, GidType, best as best_gid, of_sender as sender_gid};
pub use gpu::Gpu;
pub use library::{Library, SONAME};
pub use path::{Endpoint, PathOptions};
pub use pd::{Access, Pd};
pub use port::{LinkLayer, Mtu, PortAttr, PortState};
pub use post::{RecvList, RecvRequest, SendList, SendRequest};
pub use qp::{Qp, QpBuilder};
pub use qp_attr::{QpAttr, QpCapacity, QpState};
pub use region::{Foreign, Part, Region, RemoteAddr, RemoteMemory, Sge, StillRegistered};
pub use srq::{Srq, SrqAttr, SrqId};
pub use standing::StandsStill;
pub use transport::Transport;
pub use vervain_abi as abi;
pub use window::{BindRequest, Window, WindowType};
