//! The general services interface (IBA 13.5.1), QP 1, as Vervain's libibverbs offers it to its librdmacm: one table of
//! functions, found by name. Management datagrams (MADs) go out and come in by it, to processes of this host and of
//! others; what they say is the business of the connection manager.
//!
//! A host has one QP 1, and each process may be the one that a MAD is for: the MAD says so itself. An answer carries
//! the communication identifier that its receiver has chosen, whose upper [`SLOT_BITS`] bits are the receiver's process
//! slot; a REQ or SIDR_REQ carries the service ID that its receiver has claimed.

use std::ffi::{CStr, c_int, c_void};

/// The symbol of libibverbs, in its version node [`NODE`]: a function without arguments that returns the [`Table`].
pub const SYMBOL: &CStr = c"vervain_gsi";

/// The version node, for dlvsym(3).
pub const NODE: &CStr = c"VERVAIN_PRIVATE_1";

/// Version of [`Table`]; a table of another one is not used.
pub const VERSION: u32 = 1;

/// Bytes of a MAD (IBA 13.4.2).
pub const MAD_BYTES: usize = 256;

/// A MAD, as it is on the wire.
pub type Mad = [u8; MAD_BYTES];

/// Upper bits of a communication identifier that are the process slot.
pub const SLOT_BITS: u32 = 10;

/// A wildcard in place of an address.
pub const ANY: [u8; 16] = [0; 16];

/// The way of a MAD: from whom to whom.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The device's place in the list of devices.
    pub device: u32,
    /// From 0 to 2^20 - 1.
    pub flow_label: u32,
    /// The port of this host, from 1.
    pub port: u8,
    /// Index of `sgid` in the port's table.
    pub sgid_index: u8,
    /// The traffic class of a GRH.
    pub traffic_class: u8,
    /// The hop limit of a GRH; 0 in a MAD from this host.
    pub hop_limit: u8,
    /// The address here, of what has come too.
    pub sgid: [u8; 16],
    /// The address of the other end.
    pub dgid: [u8; 16],
}

/// The receiver of MADs: functions with `user` as first argument. They are called by one thread at a time, with no lock
/// held that sending needs. They may send and ask for the slot; they may not call functions that may wait, which are
/// [`Table::attach`], [`Table::claim`], [`Table::release`], [`Table::resolve`] and verbs, and take no lock that a
/// caller of those or of fork(2) holds meanwhile.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Passed to each function.
    pub user: *mut c_void,
    /// A MAD has come.
    pub receive: unsafe extern "C" fn(user: *mut c_void, path: *const Path, mad: *const Mad),
    /// Time has come, or [`Table::wake`] was called. When it wants to be called next (CLOCK_MONOTONIC, ns); `u64::MAX`:
    /// not by the clock.
    pub tick: unsafe extern "C" fn(user: *mut c_void, now: u64) -> u64,
    /// The process of this host that had `slot` has ended.
    pub gone: unsafe extern "C" fn(user: *mut c_void, slot: u32),
}

/// The functions of libibverbs for QP 1. They return 0 or an errno value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of the table.
    pub size: u32,
    /// MADs for this process go to `client` from now on; once a process (EBUSY). A child of fork(2) begins anew.
    pub attach: unsafe extern "C" fn(client: *const Client) -> c_int,
    /// The process slot that communication identifiers begin with; 0 before [`Table::attach`].
    pub slot: extern "C" fn() -> u32,
    /// REQs and SIDR_REQs for this service ID that come to `address`, a GID, or to any with [`ANY`], are for this
    /// process from now on. EADDRINUSE where another has it, or this one; EADDRNOTAVAIL for an address that this host
    /// has not.
    pub claim: unsafe extern "C" fn(service: u64, address: *const [u8; 16]) -> c_int,
    /// Takes that back.
    pub release: unsafe extern "C" fn(service: u64, address: *const [u8; 16]),
    /// Sends. ECONNREFUSED: the other end is on this host, and no process has claimed the service, or the one that had
    /// the identifier has ended. EAGAIN: it has no room now. Others as of `ibv_create_ah`.
    pub send: unsafe extern "C" fn(path: *const Path, mad: *const Mad) -> c_int,
    /// Finds out whether the host at the other end can be reached, which may take so many milliseconds, but a second at
    /// least: ENETUNREACH, EHOSTUNREACH, ETIMEDOUT.
    pub resolve: unsafe extern "C" fn(path: *const Path, patience_ms: u32) -> c_int,
    /// Has [`Client::tick`] called by the progress thread soon.
    pub wake: extern "C" fn(),
}
