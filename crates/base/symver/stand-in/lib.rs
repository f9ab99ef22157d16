//! The library of every stand-in for one of rdma-core's provider libraries: the exports that its build script read in
//! the package's exports.txt, and nothing else.

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
