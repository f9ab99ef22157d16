//! libibverbs, found by the dynamic linker: its functions, by the types of `<infiniband/verbs.h>`. The one module that
//! resolves symbols; what the others call is a field of [`Functions`].

use std::ffi::{OsStr, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library as Dynamic, RTLD_LOCAL, RTLD_NOW};
use vervain_abi::*;

use crate::error::{Error, Result};

/// The name that the dynamic linker is asked for; libibverbs has had no other since 2005.
pub const SONAME: &str = "libibverbs.so.1";

/// A loaded libibverbs. Everything made through it keeps it loaded.
#[derive(Clone)]
pub struct Library(pub(crate) Arc<Functions>);

vervain_abi::functions! {
    /// Functions about devices, and of what is open.
    pub(crate) struct DeviceFunctions {
        get_list = "ibv_get_device_list": unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
        free_list = "ibv_free_device_list": unsafe extern "C" fn(*mut *mut ibv_device),
        open = "ibv_open_device": unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
        close = "ibv_close_device": unsafe extern "C" fn(*mut ibv_context) -> c_int,
        query = "ibv_query_device": unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
        /// Fills the first [`COMPAT_PORT_ATTR_LEN`] bytes only.
        query_port = "ibv_query_port": unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
        query_pkey = "ibv_query_pkey": unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int,
        query_gid_table = "_ibv_query_gid_table":
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize,
        get_async_event = "ibv_get_async_event": unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int,
        ack_async_event = "ibv_ack_async_event": unsafe extern "C" fn(*mut ibv_async_event),
    }

    /// Protection domains and memory regions.
    pub(crate) struct MemoryFunctions {
        alloc_pd = "ibv_alloc_pd": unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
        dealloc_pd = "ibv_dealloc_pd": unsafe extern "C" fn(*mut ibv_pd) -> c_int,
        reg_mr = "ibv_reg_mr": unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
        /// Takes addresses for the device, and drops optional rights where the kernel does not know them.
        reg_mr_iova2 = "ibv_reg_mr_iova2":
            unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr,
        dereg_mr = "ibv_dereg_mr": unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    }

    /// Completion queues and channels.
    pub(crate) struct CqFunctions {
        create_channel = "ibv_create_comp_channel": unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel,
        destroy_channel = "ibv_destroy_comp_channel": unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
        create = "ibv_create_cq":
            unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
        destroy = "ibv_destroy_cq": unsafe extern "C" fn(*mut ibv_cq) -> c_int,
        get_event = "ibv_get_cq_event":
            unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
        ack_events = "ibv_ack_cq_events": unsafe extern "C" fn(*mut ibv_cq, u32),
    }

    /// Shared receive queues.
    pub(crate) struct SrqFunctions {
        create = "ibv_create_srq": unsafe extern "C" fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq,
        modify = "ibv_modify_srq": unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int,
        query = "ibv_query_srq": unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int,
        destroy = "ibv_destroy_srq": unsafe extern "C" fn(*mut ibv_srq) -> c_int,
    }

    /// Queue pairs.
    pub(crate) struct QpFunctions {
        create = "ibv_create_qp": unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
        modify = "ibv_modify_qp": unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
        query = "ibv_query_qp":
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int,
        destroy = "ibv_destroy_qp": unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    }

    /// Address handles.
    pub(crate) struct AhFunctions {
        create = "ibv_create_ah": unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah,
        init_from_wc = "ibv_init_ah_from_wc":
            unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_wc, *mut ibv_grh, *mut ibv_ah_attr) -> c_int,
        destroy = "ibv_destroy_ah": unsafe extern "C" fn(*mut ibv_ah) -> c_int,
    }
}

/// The functions of one libibverbs; `context::ops` has the rest.
pub(crate) struct Functions {
    pub device: DeviceFunctions,
    pub memory: MemoryFunctions,
    pub cq: CqFunctions,
    pub srq: SrqFunctions,
    pub qp: QpFunctions,
    pub ah: AhFunctions,
    /// Since v34 (2021).
    pub reg_dmabuf_mr: Option<unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr>,
    /// Functions of Vervain's library only, as `vervain.h` declares them.
    pub vervain_stop: Option<unsafe extern "C" fn(*mut ibv_context, *const c_void) -> c_int>,
    pub vervain_go: Option<unsafe extern "C" fn(*mut ibv_context) -> c_int>,
    // Last, so that it is dropped after the functions that live in it.
    _library: Dynamic,
}

impl Library {
    /// The process's libibverbs: the library that the dynamic linker finds under [`SONAME`], loaded at the first call.
    /// Under `vervain run` that is Vervain's, else the system's.
    ///
    /// # Errors
    /// The dynamic linker's sentence, where there is none or it is older than v31 (2020): `_ibv_query_gid_table` is
    /// asked for. A failure is not kept; the next call tries again.
    pub fn load() -> Result<Library> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LOADED.get() {
            return Ok(library.clone());
        }
        let library = Self::find(OsStr::new(SONAME))?;
        Ok(LOADED.get_or_init(|| library).clone())
    }

    /// The library in the file `path`, beside any other that the process has: RTLD_LOCAL.
    ///
    /// # Errors
    /// As [`load`](Library::load).
    pub fn open(path: &Path) -> Result<Library> {
        Self::find(path.as_os_str())
    }

    fn find(name: &OsStr) -> Result<Library> {
        let shown = name.to_string_lossy();
        // SAFETY: loading runs the library's constructors, which libibverbs and what it needs are trusted with, as in
        // any program that is linked to it.
        let library = unsafe { Dynamic::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| Error::library(format!("cannot load libibverbs: {e}")))?;
        let absent = |name: &str| Error::library(format!("{shown} is no libibverbs of v31 or later: no {name}"));
        macro_rules! found {
            ($table:ident) => {
                // SAFETY: it was loaded as libibverbs, and is dropped after the tables.
                unsafe { $table::find(&library, absent)? }
            };
        }
        Ok(Library(Arc::new(Functions {
            device: found!(DeviceFunctions),
            memory: found!(MemoryFunctions),
            cq: found!(CqFunctions),
            srq: found!(SrqFunctions),
            qp: found!(QpFunctions),
            ah: found!(AhFunctions),
            // SAFETY: as of the tables' fields.
            reg_dmabuf_mr: unsafe { library.get(b"ibv_reg_dmabuf_mr\0") }.ok().map(|symbol| *symbol),
            // SAFETY: as above, by the declaration in vervain.h.
            vervain_stop: unsafe { library.get(b"vervain_stop\0") }.ok().map(|symbol| *symbol),
            // SAFETY: as above.
            vervain_go: unsafe { library.get(b"vervain_go\0") }.ok().map(|symbol| *symbol),
            _library: library,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_absent_and_one_that_is_another_are_told_apart() {
        let absent = Library::open(Path::new("/nowhere/libibverbs.so.1")).err().expect("no such file");
        assert!(absent.is_library() && absent.errno().is_none());
        assert!(absent.to_string().contains("/nowhere/libibverbs.so.1"), "{absent}");
        let other = Library::open(Path::new("libc.so.6")).err().expect("not libibverbs");
        assert_eq!(other.to_string(), "libc.so.6 is no libibverbs of v31 or later: no ibv_get_device_list");
    }
}
