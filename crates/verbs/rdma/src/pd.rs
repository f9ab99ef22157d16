//! Protection domains: they own the registered memory, so that it outlives whatever may still use it.

use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vervain_abi::*;

use crate::device::Context;
use crate::error::{Error, Result, check};
use crate::gpu::{Allocation, Gpu};
use crate::region::{Foreign, Mapping, Region};

bitflags::bitflags! {
    /// The rights of a registration; `enum ibv_access_flags` of `ibv_reg_mr(3)`. The device itself can always read.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Access: u32 {
        /// The device may write: receives, what Read and atomics bring. The remote rights but reading need it.
        const LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE;
        /// Peers may write.
        const REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE;
        /// Peers may read.
        const REMOTE_READ = IBV_ACCESS_REMOTE_READ;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC;
        /// Windows may be bound to it ([`Qp::bind`](crate::Qp::bind)).
        const WINDOW_BIND = IBV_ACCESS_MW_BIND;
        /// The memory is not pinned: the device fetches pages when it needs them. Only for devices that can do this
        /// ([`Context::on_demand`](crate::Context::on_demand)).
        const ON_DEMAND = IBV_ACCESS_ON_DEMAND;
        /// The memory is of huge pages, which on-demand paging wants to know.
        const HUGE_PAGES = IBV_ACCESS_HUGETLB;
        /// Writes may overtake each other on the bus. A hint: devices and kernels that do not know it ignore it.
        const RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING;
        /// All that peers can do.
        const REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
    }
}

impl Access {
    pub(crate) fn raw(self) -> c_int {
        // The highest bit is 20.
        self.bits().cast_signed()
    }
}

/// A protection domain: a key gives access to memory to the QPs of its domain only. Objects that are made in it keep it
/// alive.
#[derive(Clone)]
pub struct Pd(pub(crate) Arc<PdInner>);

pub(crate) struct PdInner {
    pub raw: *mut ibv_pd,
    pub context: Context,
    /// All memory that is registered here. Dropping a handle does not deregister its memory, since requests that were
    /// posted, and peers, may still use it. QPs, SRQs and windows keep the domain alive, so none is left when this is
    /// dropped.
    registrations: Mutex<Vec<Arc<Registration>>>,
}

// SAFETY: the functions of libibverbs may be called from any thread; `raw` itself is only read.
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.registrations().clear();
        // SAFETY: allocated once, given back once; what was made in it held an Arc of this, and the registrations,
        // whose handles did too, went above. One that would not go makes this fail with EBUSY, which leaves the domain.
        unsafe { (self.context.0.library.0.memory.dealloc_pd)(self.raw) };
    }
}

impl PdInner {
    fn registrations(&self) -> MutexGuard<'_, Vec<Arc<Registration>>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, registration: Registration) -> Arc<Registration> {
        let kept = Arc::new(registration);
        self.registrations().push(kept.clone());
        kept
    }

    /// Deregisters at once what a handle gave up; keeps it as before where that fails.
    pub fn take_back(&self, registration: Arc<Registration>) -> Result<(), (Arc<Registration>, Error)> {
        self.registrations().retain(|r| !Arc::ptr_eq(r, &registration));
        // The list and the handle were its only owners.
        let Some(mut registration) = Arc::into_inner(registration) else { return Ok(()) };
        registration.deregister().map_err(|error| (self.keep(registration), error))
    }
}

/// The memory that a registration frees after the device has forgotten it.
pub(crate) enum Memory {
    Mapping(Mapping),
    Gpu(#[expect(dead_code, reason = "kept to be freed")] Allocation),
    /// Memory of another owner, which frees it.
    Foreign,
}

/// Memory that the device knows, with the memory itself where it is our own.
pub(crate) struct Registration {
    context: Context,
    raw: *mut ibv_mr,
    pub lkey: u32,
    pub rkey: u32,
    pub memory: Memory,
}

// SAFETY: `raw` is passed to dereg_mr once, by the last owner, and before that only to calls that read it. A mapping is
// accessed by atomics, and an allocation only freed, which any thread may do.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// # Safety
    /// `raw` was registered with this device, and is not deregistered anywhere else.
    unsafe fn new(context: &Context, raw: *mut ibv_mr) -> Self {
        // SAFETY: the library's, by the caller's word; both fields stay as they are.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        Self { context: context.clone(), raw, lkey, rkey, memory: Memory::Foreign }
    }

    /// For requests that name the region itself: binds.
    pub fn raw(&self) -> *mut ibv_mr {
        self.raw
    }

    /// Deregisters once. Where that fails the device may still reach the memory, and all is as before.
    fn deregister(&mut self) -> Result<()> {
        // SAFETY: registered once, and null once it is no more.
        let rc = unsafe { (self.context.0.library.0.memory.dereg_mr)(self.raw) };
        if rc == 0 {
            self.raw = ptr::null_mut();
        }
        check(rc, "ibv_dereg_mr", || format!("the region with rkey {:#x} on {}", self.rkey, self.context.name()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Drop cannot return an error; the memory is then never freed.
        if !self.raw.is_null() && self.deregister().is_err() {
            mem::forget(mem::replace(&mut self.memory, Memory::Foreign));
        }
    }
}

impl Pd {
    /// Allocates a protection domain; `ibv_alloc_pd(3)`.
    ///
    /// # Errors
    /// ENOMEM, and the driver's.
    pub fn new(context: &Context) -> Result<Pd> {
        // SAFETY: an open context.
        let raw = unsafe { (context.0.library.0.memory.alloc_pd)(context.0.raw) };
        if raw.is_null() {
            return Err(Error::last("ibv_alloc_pd", context.name()));
        }
        Ok(Pd(Arc::new(PdInner { raw, context: context.clone(), registrations: Mutex::default() })))
    }

    /// The device it is on.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Maps `len` bytes of zeros, from the start of a page, and registers them; `ibv_reg_mr(3)`.
    ///
    /// The memory stays until [`Region::deregister`], or else until this domain and every QP and SRQ in it are gone,
    /// also when the handle is dropped before.
    ///
    /// # Errors
    /// ENOMEM: no memory, or more than RLIMIT_MEMLOCK allows. EINVAL: rights that do not go together. A length of 0.
    pub fn region(&self, len: usize, access: Access) -> Result<Region> {
        let mapping = Mapping::new(len)?;
        // SAFETY: the mapping goes into the registration, which unmaps it only once it is deregistered.
        let mut registration = unsafe { self.register(mapping.start().cast(), len, mapping.start() as u64, access)? };
        registration.memory = Memory::Mapping(mapping);
        Ok(Region::new(self.clone(), self.0.keep(registration)))
    }

    /// Allocates `len` bytes of zeros in the memory of a GPU, from the start of a page of 64 KiB, and registers them:
    /// by `ibv_reg_mr(3)`, which works if the kernel module nvidia-peermem is loaded, or else as a dma-buf
    /// (`ibv_reg_dmabuf_mr(3)`), if driver and library have that.
    ///
    /// The memory lives as long as that of [`region`](Pd::region). The CPU cannot access it: an inline request that
    /// names it ends the process by SIGSEGV, and so does a library that has the CPU copy received data (mlx5 does not
    /// with MLX5_SCATTER_TO_CQE=0).
    ///
    /// # Errors
    /// The driver's if it has no memory. A sentence about it, with the errno of `ibv_reg_mr`, if the device cannot
    /// access the memory. A length of 0.
    pub fn gpu_region(&self, gpu: &Gpu, len: usize, access: Access) -> Result<Foreign> {
        let memory = Allocation::new(gpu, len)?;
        let start = memory.start();
        // SAFETY: the allocation goes into the registration, which frees it only once it is deregistered.
        let by_address = unsafe { self.register(start as *mut c_void, len, start, access) };
        let mut registration = by_address.or_else(|refused| {
            // SAFETY: as above.
            let other = unsafe { self.register_dma_buf(&memory, len, access) };
            let why = match other {
                Some(Ok(registration)) => return Ok(registration),
                Some(Err(also)) => format!("{}; {}", refused.cause(), also.cause()),
                None => refused.cause(),
            };
            let device = self.0.context.name();
            let what = format!("{device} cannot reach GPU memory: {why}; is nvidia-peermem loaded?");
            Err(Error::gpu(what, refused.errno()))
        })?;
        registration.memory = Memory::Gpu(memory);
        Ok(Foreign::new(self.clone(), self.0.keep(registration), start, len))
    }

    /// Registers memory that this crate did not map: the program's own, an allocation of another library, a file's
    /// mapping.
    ///
    /// # Safety
    /// The `len` bytes at `start` stay allocated until [`Foreign::deregister`] has succeeded, or else until this domain
    /// and every QP and SRQ in it are gone. If the registration gives any right to write, there is no Rust reference
    /// into them meanwhile. The CPU can read them, or no request that names them is inline.
    ///
    /// # Errors
    /// As [`region`](Pd::region); EFAULT if the device cannot access such memory; EOPNOTSUPP or EINVAL for
    /// [`Access::ON_DEMAND`] if it does not support that.
    pub unsafe fn register_foreign(&self, start: *mut c_void, len: usize, access: Access) -> Result<Foreign> {
        // SAFETY: handed on to the caller.
        unsafe { self.register_foreign_at(start, len, start as u64, access) }
    }

    /// As [`register_foreign`](Pd::register_foreign), with the address `iova` for the first byte in requests of this
    /// side and of peers, so that the address that a peer names need not be one of this process; `ibv_reg_mr_iova` in
    /// `ibv_reg_mr(3)`. Atomics require that 8 divides both the address in the process and the one in requests, so
    /// `iova` and `start` should have the same offset in a page; many devices accept no other.
    ///
    /// # Safety
    /// The rules of [`register_foreign`](Pd::register_foreign). If `iova` is not the address of `start`, no request
    /// that names the memory is inline: the CPU would read at `iova`.
    ///
    /// # Errors
    /// Those of [`register_foreign`](Pd::register_foreign); an `iova` from which `len` bytes would pass the end of all
    /// addresses.
    pub unsafe fn register_foreign_at(
        &self,
        start: *mut c_void,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Foreign> {
        if iova.checked_add(len as u64).is_none() {
            return Err(Error::invalid(format!("{len} bytes from iova {iova:#x} on pass the end of all addresses")));
        }
        // SAFETY: handed on to the caller.
        let registration = unsafe { self.register(start, len, iova, access)? };
        Ok(Foreign::new(self.clone(), self.0.keep(registration), iova, len))
    }

    /// # Safety
    /// The memory stays until the registration is dropped.
    unsafe fn register(&self, start: *mut c_void, len: usize, iova: u64, access: Access) -> Result<Registration> {
        let (context, library) = (&self.0.context, &self.0.context.0.library.0);
        // As the macro in the header does: the older call if it has the same meaning, since a kernel that lacks an
        // optional right refuses that right in the older call and drops it in the newer one.
        let plain = iova == start as u64 && access.bits() & IBV_ACCESS_OPTIONAL_RANGE == 0;
        let (call, raw) = if plain {
            // SAFETY: an allocated domain; that the memory is there and stays, the caller answers for.
            ("ibv_reg_mr", unsafe { (library.memory.reg_mr)(self.0.raw, start, len, access.raw()) })
        } else {
            // SAFETY: as above.
            ("ibv_reg_mr_iova2", unsafe { (library.memory.reg_mr_iova2)(self.0.raw, start, len, iova, access.bits()) })
        };
        if raw.is_null() {
            let about = format!("{len} bytes with {access:?} on {}", context.name());
            return Err(Error::last(call, about));
        }
        // SAFETY: registered just now.
        Ok(unsafe { Registration::new(context, raw) })
    }

    /// None if the library or the driver has no such function.
    ///
    /// # Safety
    /// As of [`register`](Pd::register).
    unsafe fn register_dma_buf(&self, memory: &Allocation, len: usize, access: Access) -> Option<Result<Registration>> {
        let context = &self.0.context;
        let reg_dmabuf_mr = context.0.library.0.reg_dmabuf_mr?;
        // The device keeps the buffer; the descriptor is closed at the end.
        let buffer = match memory.dma_buf()? {
            Ok(buffer) => buffer,
            Err(error) => return Some(Err(error)),
        };
        // SAFETY: an allocated domain; a buffer of at least `len` bytes that begins at `start`.
        let raw = unsafe { reg_dmabuf_mr(self.0.raw, 0, len, memory.start(), buffer.as_raw_fd(), access.raw()) };
        if raw.is_null() {
            return Some(Err(Error::last("ibv_reg_dmabuf_mr", context.name())));
        }
        // SAFETY: registered just now.
        Some(Ok(unsafe { Registration::new(context, raw) }))
    }
}
