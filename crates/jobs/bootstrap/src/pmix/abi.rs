//! libpmix's C interface, as far as it is used here: PMIx standard 4.1, chapters 3 (data structures) and 5 (put, get,
//! fence).
//!
//! The layouts are those of PMIx 3 and later; version 2 has a smaller `pmix_value_t`. a test holds them against the
//! installed header, if there is one.

#![allow(non_camel_case_types, reason = "the standard's names")]

use std::ffi::{c_char, c_int, c_void};

/// `PMIX_MAX_NSLEN` and the NUL.
pub const NSPACE: usize = 256;
/// `PMIX_MAX_KEYLEN` and the NUL.
pub const KEY: usize = 512;

/// `PMIX_SUCCESS`.
pub const SUCCESS: c_int = 0;
/// `PMIX_ERR_TIMEOUT`.
pub const ERR_TIMEOUT: c_int = -24;
/// `PMIX_ERR_NOT_FOUND`.
pub const ERR_NOT_FOUND: c_int = -46;

/// `PMIX_RANK_WILDCARD`: the job itself, where a rank is expected.
pub const RANK_WILDCARD: u32 = u32::MAX - 1;
/// `PMIX_GLOBAL`: for ranks on this host and on others.
pub const GLOBAL: u8 = 3;

/// `PMIX_STRING`.
pub const STRING: u16 = 3;
/// `PMIX_INT`.
pub const INT: u16 = 6;
/// `PMIX_UINT32`.
pub const UINT32: u16 = 14;
/// `PMIX_BYTE_OBJECT`.
pub const BYTE_OBJECT: u16 = 27;

/// `PMIX_INFO`.
pub const INFO: u16 = 24;
/// `PMIX_DATA_ARRAY`.
pub const DATA_ARRAY: u16 = 39;
/// `PMIX_PROC_RANK`.
pub const PROC_RANK: u16 = 40;

/// `PMIX_JOB_SIZE`.
pub const JOB_SIZE: &str = "pmix.job.size";
/// `PMIX_LOCAL_PEERS`.
pub const LOCAL_PEERS: &str = "pmix.lpeers";
/// `PMIX_TIMEOUT`, in seconds.
pub const TIMEOUT: &str = "pmix.timeout";

/// A job and a rank of it.
#[repr(C)]
pub struct pmix_proc_t {
    pub nspace: [c_char; NSPACE],
    pub rank: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct pmix_byte_object_t {
    pub bytes: *mut c_char,
    pub size: usize,
}

#[repr(C)]
pub struct pmix_data_array_t {
    pub kind: u16,
    pub size: usize,
    pub array: *mut c_void,
}

/// The members of the union that are used, and its size: that of `pmix_envar_t`.
#[repr(C)]
pub union pmix_value_data {
    pub integer: c_int,
    pub uint32: u32,
    pub string: *const c_char,
    pub bo: pmix_byte_object_t,
    pub array: *mut pmix_data_array_t,
    pub size: [usize; 3],
}

#[repr(C)]
pub struct pmix_value_t {
    pub kind: u16,
    pub data: pmix_value_data,
}

#[repr(C)]
pub struct pmix_info_t {
    pub key: [c_char; KEY],
    pub flags: u32,
    pub value: pmix_value_t,
}

/// `pmix_value_cbfunc_t`; the value is the library's.
pub type pmix_value_cbfunc_t = extern "C" fn(c_int, *mut pmix_value_t, *mut c_void);

/// The functions, by the names of <pmix.h>.
pub struct Functions {
    pub init: unsafe extern "C" fn(*mut pmix_proc_t, *mut pmix_info_t, usize) -> c_int,
    pub finalize: unsafe extern "C" fn(*const pmix_info_t, usize) -> c_int,
    pub abort: unsafe extern "C" fn(c_int, *const c_char, *mut pmix_proc_t, usize) -> c_int,
    pub put: unsafe extern "C" fn(u8, *const c_char, *mut pmix_value_t) -> c_int,
    pub commit: unsafe extern "C" fn() -> c_int,
    pub fence: unsafe extern "C" fn(*const pmix_proc_t, usize, *const pmix_info_t, usize) -> c_int,
    pub get_nb: unsafe extern "C" fn(
        *const pmix_proc_t,
        *const c_char,
        *const pmix_info_t,
        usize,
        pmix_value_cbfunc_t,
        *mut c_void,
    ) -> c_int,
    pub error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub get_version: unsafe extern "C" fn() -> *const c_char,
}
