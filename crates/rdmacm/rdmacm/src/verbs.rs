//! libibverbs, as the program has it: its functions, and Vervain's QP 1. The one module that resolves symbols.

use std::ffi::{CStr, OsStr, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use vervain_abi::*;
use vervain_gsi::Table;

/// The functions that this library calls, and rsockets; `context::ops` has the rest.
#[allow(missing_docs, reason = "section 3 of the manual has a page for each")]
#[derive(Clone, Copy)]
pub struct Verbs {
    pub get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    pub free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    pub get_device_guid: unsafe extern "C" fn(*mut ibv_device) -> u64,
    pub open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    pub query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
    pub query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
    pub query_gid_table: unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize,
    pub alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
    pub dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    pub reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    pub dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    pub create_ah: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah,
    pub destroy_ah: unsafe extern "C" fn(*mut ibv_ah) -> c_int,
    pub create_comp_channel: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel,
    pub destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
    pub create_cq:
        unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
    pub destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    pub get_cq_event: unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
    pub ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, c_uint),
    pub destroy_srq: unsafe extern "C" fn(*mut ibv_srq) -> c_int,
    pub modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    pub destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    pub attach_mcast: unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
    pub detach_mcast: unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
    pub gsi: &'static Table,
}

const SONAME: &CStr = c"libibverbs.so.1";

/// The library that the dynamic linker finds, loaded at the first call. ENODEV where it is not Vervain's: the system's
/// librdmacm goes with the system's libibverbs.
///
/// # Errors
/// ENODEV.
pub fn verbs() -> Result<&'static Verbs, c_int> {
    static LOADED: OnceLock<Option<Verbs>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().ok_or(libc::ENODEV)
}

fn load() -> Option<Verbs> {
    let shown = SONAME.to_string_lossy();
    // SAFETY: loading runs constructors, which are trusted as in any program that is linked to the library.
    let library = unsafe { Library::open(Some(OsStr::from_bytes(SONAME.to_bytes())), RTLD_NOW | RTLD_LOCAL) };
    // It is never unloaded: this library's functions and QP 1 call each other.
    let library = ManuallyDrop::new(library.inspect_err(|e| log::warn!("librdmacm finds no {shown}: {e}")).ok()?);
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the type that is wanted repeats the declaration in <infiniband/verbs.h>, of the newest version,
            // which dlsym gives.
            *unsafe { library.get($name.to_bytes_with_nul()) }
                .inspect_err(|_| log::warn!("{shown} is not Vervain's: it has no {}", $name.to_string_lossy()))
                .ok()?
        };
    }
    // SAFETY: as its documentation says, a function without arguments that returns the table.
    let gsi: unsafe extern "C" fn() -> *const Table = function!(c"vervain_gsi");
    // SAFETY: as above; the table is static.
    let gsi: &'static Table = unsafe { gsi().as_ref()? };
    if gsi.version != vervain_gsi::VERSION {
        log::warn!("librdmacm and {shown} are of different versions of Vervain");
        return None;
    }
    Some(Verbs {
        get_device_list: function!(c"ibv_get_device_list"),
        free_device_list: function!(c"ibv_free_device_list"),
        get_device_guid: function!(c"ibv_get_device_guid"),
        open_device: function!(c"ibv_open_device"),
        query_device: function!(c"ibv_query_device"),
        query_port: function!(c"ibv_query_port"),
        query_gid_table: function!(c"_ibv_query_gid_table"),
        alloc_pd: function!(c"ibv_alloc_pd"),
        dealloc_pd: function!(c"ibv_dealloc_pd"),
        reg_mr: function!(c"ibv_reg_mr"),
        dereg_mr: function!(c"ibv_dereg_mr"),
        create_ah: function!(c"ibv_create_ah"),
        destroy_ah: function!(c"ibv_destroy_ah"),
        create_comp_channel: function!(c"ibv_create_comp_channel"),
        destroy_comp_channel: function!(c"ibv_destroy_comp_channel"),
        create_cq: function!(c"ibv_create_cq"),
        destroy_cq: function!(c"ibv_destroy_cq"),
        get_cq_event: function!(c"ibv_get_cq_event"),
        ack_cq_events: function!(c"ibv_ack_cq_events"),
        destroy_srq: function!(c"ibv_destroy_srq"),
        modify_qp: function!(c"ibv_modify_qp"),
        destroy_qp: function!(c"ibv_destroy_qp"),
        attach_mcast: function!(c"ibv_attach_mcast"),
        detach_mcast: function!(c"ibv_detach_mcast"),
        gsi,
    })
}
