//! libibverbs, as the program has it: its functions, and Vervain's QP 1. The one module that resolves symbols.

use std::ffi::{CStr, OsStr, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use vervain_abi::*;
use vervain_gsi::Table;

vervain_abi::functions! {
    /// Functions about devices, and of what is open.
    pub struct DeviceFunctions {
        get_list = "ibv_get_device_list": unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
        free_list = "ibv_free_device_list": unsafe extern "C" fn(*mut *mut ibv_device),
        get_guid = "ibv_get_device_guid": unsafe extern "C" fn(*mut ibv_device) -> u64,
        open = "ibv_open_device": unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
        query = "ibv_query_device": unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
        query_port = "ibv_query_port": unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
        query_gid_table = "_ibv_query_gid_table":
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize,
    }

    /// Protection domains and memory regions.
    pub struct MemoryFunctions {
        alloc_pd = "ibv_alloc_pd": unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
        dealloc_pd = "ibv_dealloc_pd": unsafe extern "C" fn(*mut ibv_pd) -> c_int,
        reg_mr = "ibv_reg_mr": unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
        dereg_mr = "ibv_dereg_mr": unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    }

    /// Address handles.
    pub struct AhFunctions {
        create = "ibv_create_ah": unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah,
        destroy = "ibv_destroy_ah": unsafe extern "C" fn(*mut ibv_ah) -> c_int,
    }

    /// Completion queues and channels.
    pub struct CqFunctions {
        create_channel = "ibv_create_comp_channel": unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel,
        destroy_channel = "ibv_destroy_comp_channel": unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
        create = "ibv_create_cq":
            unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
        destroy = "ibv_destroy_cq": unsafe extern "C" fn(*mut ibv_cq) -> c_int,
        get_event = "ibv_get_cq_event":
            unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
        ack_events = "ibv_ack_cq_events": unsafe extern "C" fn(*mut ibv_cq, c_uint),
    }

    /// Queue pairs, and the receive queues that they share.
    pub struct QpFunctions {
        modify = "ibv_modify_qp": unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
        destroy = "ibv_destroy_qp": unsafe extern "C" fn(*mut ibv_qp) -> c_int,
        attach_mcast = "ibv_attach_mcast": unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
        detach_mcast = "ibv_detach_mcast": unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
        destroy_srq = "ibv_destroy_srq": unsafe extern "C" fn(*mut ibv_srq) -> c_int,
    }
}

/// The functions that this library calls, and rsockets; `context::ops` has the rest.
#[derive(Clone, Copy)]
pub struct Verbs {
    /// Functions about devices, and of what is open.
    pub device: DeviceFunctions,
    /// Protection domains and memory regions.
    pub memory: MemoryFunctions,
    /// Address handles.
    pub ah: AhFunctions,
    /// Completion queues and channels.
    pub cq: CqFunctions,
    /// Queue pairs, and the receive queues that they share.
    pub qp: QpFunctions,
    /// QP 1.
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
    let absent = |name: &str| log::warn!("{shown} is not Vervain's: it has no {name}");
    macro_rules! found {
        ($table:ident) => {
            // SAFETY: it was loaded as libibverbs, and is never unloaded.
            unsafe { $table::find(&library, absent) }.ok()?
        };
    }
    // SAFETY: as its documentation says, a function without arguments that returns the table.
    let gsi: unsafe extern "C" fn() -> *const Table =
        *unsafe { library.get(b"vervain_gsi\0") }.inspect_err(|_| absent("vervain_gsi")).ok()?;
    // SAFETY: as above; the table is static.
    let gsi: &'static Table = unsafe { gsi().as_ref()? };
    if gsi.version != vervain_gsi::VERSION {
        log::warn!("librdmacm and {shown} are of different versions of Vervain");
        return None;
    }
    Some(Verbs {
        device: found!(DeviceFunctions),
        memory: found!(MemoryFunctions),
        ah: found!(AhFunctions),
        cq: found!(CqFunctions),
        qp: found!(QpFunctions),
        gsi,
    })
}
