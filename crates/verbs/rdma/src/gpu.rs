//! Memory of NVIDIA GPUs, for devices that reach it (GPUDirect RDMA): the CUDA driver API, which the dynamic linker is
//! asked for when the first GPU is. The one module that resolves its symbols; [`Pd::gpu_region`](crate::Pd::gpu_region)
//! registers what is allocated here.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use libloading::os::unix::{Library as Dynamic, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, Result};

/// The driver's library. It comes with the driver; libcuda.so, without the number, with the developer's package.
const SONAME: &str = "libcuda.so.1";

/// A page as the driver pins it for other devices (NVIDIA's "GPUDirect RDMA", "Pinning GPU memory"): access to one of
/// its bytes is access to all of it.
const GPU_PAGE: u64 = 64 << 10;

const CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: c_int = 6;
const CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD: c_int = 1;

type CuResult = c_int;
type CuDevice = c_int;
type CuContext = *mut c_void;
type CuDevicePtr = u64;

/// The functions of the library, by the types of `<cuda.h>` on systems of 64 bits.
#[allow(missing_docs, reason = "NVIDIA's CUDA Driver API has a section for each")]
struct Cuda {
    init: unsafe extern "C" fn(c_uint) -> CuResult,
    get_error_name: unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult,
    device_get_count: unsafe extern "C" fn(*mut c_int) -> CuResult,
    device_get: unsafe extern "C" fn(*mut CuDevice, c_int) -> CuResult,
    device_get_name: unsafe extern "C" fn(*mut c_char, c_int, CuDevice) -> CuResult,
    device_get_pci_bus_id: unsafe extern "C" fn(*mut c_char, c_int, CuDevice) -> CuResult,
    primary_ctx_retain: unsafe extern "C" fn(*mut CuContext, CuDevice) -> CuResult,
    primary_ctx_release: unsafe extern "C" fn(CuDevice) -> CuResult,
    ctx_push_current: unsafe extern "C" fn(CuContext) -> CuResult,
    ctx_pop_current: unsafe extern "C" fn(*mut CuContext) -> CuResult,
    mem_alloc: unsafe extern "C" fn(*mut CuDevicePtr, usize) -> CuResult,
    mem_free: unsafe extern "C" fn(CuDevicePtr) -> CuResult,
    memset_d8: unsafe extern "C" fn(CuDevicePtr, c_uchar, usize) -> CuResult,
    pointer_set_attribute: unsafe extern "C" fn(*const c_void, c_int, CuDevicePtr) -> CuResult,
    /// Since CUDA 11.7.
    mem_get_handle: Option<unsafe extern "C" fn(*mut c_void, CuDevicePtr, usize, c_int, u64) -> CuResult>,
    // Last, so that it is dropped after the functions that live in it.
    _library: Dynamic,
}

impl Cuda {
    /// The process's driver, loaded and initialised at the first call. A failure is not kept; the next call tries
    /// again.
    fn load() -> Result<&'static Cuda> {
        static LOADED: OnceLock<Cuda> = OnceLock::new();
        if let Some(cuda) = LOADED.get() {
            return Ok(cuda);
        }
        let cuda = Self::find()?;
        // SAFETY: any number of calls, from any thread, is allowed; 0 is the one value there is.
        cuda.check(unsafe { (cuda.init)(0) }, || "cuInit failed".into())?;
        Ok(LOADED.get_or_init(|| cuda))
    }

    fn find() -> Result<Cuda> {
        // SAFETY: loading runs the library's constructors, which the GPU's driver is trusted with, as in any program
        // that is linked to it.
        let library = unsafe { Dynamic::open(Some(SONAME), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| Error::gpu(format!("no GPU can be had, since the CUDA driver cannot be loaded: {e}"), None))?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the field's type repeats the function's declaration in <cuda.h>; the field is dropped before
                // the library.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|_| {
                    Error::gpu(format!("{SONAME} is no CUDA driver of 11.0 or later: no {}", $name), None)
                })?
            };
        }
        Ok(Cuda {
            init: symbol!("cuInit"),
            get_error_name: symbol!("cuGetErrorName"),
            device_get_count: symbol!("cuDeviceGetCount"),
            device_get: symbol!("cuDeviceGet"),
            device_get_name: symbol!("cuDeviceGetName"),
            device_get_pci_bus_id: symbol!("cuDeviceGetPCIBusId"),
            primary_ctx_retain: symbol!("cuDevicePrimaryCtxRetain"),
            primary_ctx_release: symbol!("cuDevicePrimaryCtxRelease_v2"),
            ctx_push_current: symbol!("cuCtxPushCurrent_v2"),
            ctx_pop_current: symbol!("cuCtxPopCurrent_v2"),
            mem_alloc: symbol!("cuMemAlloc_v2"),
            mem_free: symbol!("cuMemFree_v2"),
            memset_d8: symbol!("cuMemsetD8_v2"),
            pointer_set_attribute: symbol!("cuPointerSetAttribute"),
            // SAFETY: as of the macro's.
            mem_get_handle: unsafe { library.get(b"cuMemGetHandleForAddressRange\0") }.ok().map(|symbol| *symbol),
            _library: library,
        })
    }

    /// Makes an error of what is not CUDA_SUCCESS: `what` failed, then its name and number.
    fn check(&self, result: CuResult, what: impl FnOnce() -> String) -> Result<()> {
        if result == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: the place is `name`; what is put there lives as long as the library, null for numbers unknown to it.
        unsafe { (self.get_error_name)(result, &raw mut name) };
        let name = if name.is_null() {
            "an unknown error".into()
        } else {
            // SAFETY: not null, and then a string of the library's own.
            unsafe { CStr::from_ptr(name) }.to_string_lossy()
        };
        Err(Error::gpu(format!("{}: {name} ({result})", what()), None))
    }

    fn count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the place is `count`.
        self.check(unsafe { (self.device_get_count)(&raw mut count) }, || "cuDeviceGetCount failed".into())?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
}

/// A GPU that can give memory. Nothing is held of it until memory is.
#[derive(Clone)]
pub struct Gpu {
    cuda: &'static Cuda,
    device: CuDevice,
    index: u32,
    name: String,
}

impl Gpu {
    /// The GPU with the number `index`, from 0, as CUDA counts those that the process may use (CUDA_VISIBLE_DEVICES).
    ///
    /// # Errors
    /// The dynamic linker's sentence where there is no libcuda.so.1, or it is older than CUDA 11.0; the driver's error
    /// with its name and number; there is no such GPU.
    pub fn open(index: u32) -> Result<Gpu> {
        let cuda = Cuda::load()?;
        let count = cuda.count()?;
        let wanted = c_int::try_from(index).ok().filter(|_| index < count);
        let wanted = wanted.ok_or_else(|| Error::gpu(format!("there is no GPU {index}: CUDA counts {count}"), None))?;
        let mut device = 0;
        // SAFETY: the place is `device`.
        let result = unsafe { (cuda.device_get)(&raw mut device, wanted) };
        cuda.check(result, || format!("cuDeviceGet failed for GPU {index}"))?;
        let name = text(|to, len| {
            // SAFETY: at most `len` bytes are written, with a NUL at the end.
            let result = unsafe { (cuda.device_get_name)(to, len, device) };
            cuda.check(result, || format!("cuDeviceGetName failed for GPU {index}"))
        })?;
        Ok(Gpu { cuda, device, index, name })
    }

    /// The first GPU on a NUMA node, that of an RDMA device, since what passes between two nodes is slower; the first
    /// of all where there is none on it, or the node is not known.
    ///
    /// # Errors
    /// As [`open`](Gpu::open).
    pub fn nearest(node: Option<u32>) -> Result<Gpu> {
        let first = Self::open(0)?;
        if node.is_none() || first.numa_node() == node {
            return Ok(first);
        }
        for index in 1..first.cuda.count()? {
            let gpu = Self::open(index)?;
            if gpu.numa_node() == node {
                return Ok(gpu);
            }
        }
        Ok(first)
    }

    /// Its number, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The driver's name for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The NUMA node of the GPU, by sysfs; None if there is one node only.
    pub fn numa_node(&self) -> Option<u32> {
        let address = text(|to, len| {
            // SAFETY: at most `len` bytes are written, with a NUL at the end.
            let result = unsafe { (self.cuda.device_get_pci_bus_id)(to, len, self.device) };
            self.cuda.check(result, String::new)
        });
        // CUDA writes capitals, the kernel does not.
        let path = format!("/sys/bus/pci/devices/{}/numa_node", address.ok()?.to_ascii_lowercase());
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

impl std::fmt::Display for Gpu {
    /// "GPU 0 (NVIDIA H100)".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {} ({})", self.index, self.name)
    }
}

/// The text that a function writes, which takes an address and a length.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
    let mut bytes = [0u8; 256];
    // One less: the last byte stays NUL.
    write(bytes.as_mut_ptr().cast(), 255)?;
    let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
    Ok(text.unwrap_or_default().into_owned())
}

/// The primary context of a GPU, which all of a process share; memory belongs to it.
struct Primary {
    gpu: Gpu,
    raw: CuContext,
}

impl Primary {
    fn retain(gpu: &Gpu) -> Result<Primary> {
        let mut raw = ptr::null_mut();
        // SAFETY: the place is `raw`; a device that the driver named.
        let result = unsafe { (gpu.cuda.primary_ctx_retain)(&raw mut raw, gpu.device) };
        gpu.cuda.check(result, || format!("cuDevicePrimaryCtxRetain failed for {gpu}"))?;
        Ok(Primary { gpu: gpu.clone(), raw })
    }

    /// Calls `f` with this context current on the calling thread, which afterwards has the one that it had.
    fn enter<R>(&self, f: impl FnOnce(&Cuda) -> Result<R>) -> Result<R> {
        let cuda = self.gpu.cuda;
        // SAFETY: the context is retained as long as this.
        let result = unsafe { (cuda.ctx_push_current)(self.raw) };
        cuda.check(result, || format!("cuCtxPushCurrent failed for {}", self.gpu))?;
        let done = f(cuda);
        let mut popped = ptr::null_mut();
        // SAFETY: the place is `popped`; what is taken from the thread's stack was put there above.
        unsafe { (cuda.ctx_pop_current)(&raw mut popped) };
        done
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: retained once, released once.
        unsafe { (self.gpu.cuda.primary_ctx_release)(self.gpu.device) };
    }
}

/// Memory of a GPU, freed on drop.
pub(crate) struct Allocation {
    primary: Primary,
    base: CuDevicePtr,
    start: u64,
    len: usize,
}

impl Allocation {
    /// `len` bytes of zeros in GPU pages of their own, since memory is pinned and opened to peers by whole pages.
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        let room = (len as u64).checked_next_multiple_of(GPU_PAGE).and_then(|len| len.checked_add(GPU_PAGE));
        let Some(room) = room.filter(|_| len > 0).and_then(|room| usize::try_from(room).ok()) else {
            return Err(Error::invalid(format!("a region of {len} bytes cannot be")));
        };
        let primary = Primary::retain(gpu)?;
        let base = primary.enter(|cuda| {
            let mut base = 0;
            // SAFETY: the place is `base`.
            let result = unsafe { (cuda.mem_alloc)(&raw mut base, room) };
            cuda.check(result, || format!("cuMemAlloc failed for {room} bytes of {gpu}"))?;
            Ok(base)
        })?;
        let start = base.next_multiple_of(GPU_PAGE);
        // If anything fails from here on, dropping this frees the memory.
        let memory = Self { primary, base, start, len };
        memory.prepare()?;
        Ok(memory)
    }

    /// Has CUDA wait for its own copies and fills of this memory, as NVIDIA asks for where other devices reach it (its
    /// "GPUDirect RDMA", "Synchronization and Memory Ordering"), and then fills it: without that a fill returns before
    /// it is done.
    fn prepare(&self) -> Result<()> {
        let gpu = &self.primary.gpu;
        self.primary.enter(|cuda| {
            let on: c_uint = 1;
            // SAFETY: the attribute's value is an unsigned int; the memory is allocated.
            let result = unsafe {
                (cuda.pointer_set_attribute)((&raw const on).cast(), CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, self.base)
            };
            cuda.check(result, || format!("cuPointerSetAttribute failed for memory of {gpu}"))?;
            // SAFETY: these bytes are part of the allocation, which is longer by a page than they are.
            let result = unsafe { (cuda.memset_d8)(self.start, 0, self.len) };
            cuda.check(result, || format!("cuMemsetD8 failed for {} bytes of {gpu}", self.len))
        })
    }

    /// The address of the first byte, at the start of a GPU's page: not one that the CPU can use.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The pages as a dma-buf, from the first byte on; None if the driver has no such function (CUDA before 11.7).
    pub fn dma_buf(&self) -> Option<Result<OwnedFd>> {
        let get_handle = self.primary.gpu.cuda.mem_get_handle?;
        let pages = self.len.next_multiple_of(GPU_PAGE as usize);
        let handle = self.primary.enter(|cuda| {
            let mut fd: c_int = -1;
            let (handle, kind) = ((&raw mut fd).cast(), CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
            // SAFETY: a handle of this type is an int; the pages are part of the allocation.
            let result = unsafe { get_handle(handle, self.start, pages, kind, 0) };
            cuda.check(result, || "cuMemGetHandleForAddressRange failed".into())?;
            // SAFETY: a descriptor that was made just now, for this call.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        });
        Some(handle)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // An error here cannot be returned; the end of the context then frees the memory.
        let _ = self.primary.enter(|cuda| {
            // SAFETY: allocated once, freed once.
            unsafe { (cuda.mem_free)(self.base) };
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_writes_is_read_up_to_its_end_whatever_it_writes() {
        let fill = |with: &'static [u8]| {
            text(move |to, len| {
                let count = with.len().min(len as usize);
                // SAFETY: `text` gives a place of `len` bytes.
                unsafe { ptr::copy_nonoverlapping(with.as_ptr(), to.cast(), count) };
                Ok(())
            })
        };
        assert_eq!(fill(b"NVIDIA H100\0rest").expect("text"), "NVIDIA H100");
        assert_eq!(fill(&[b'x'; 300]).expect("text").len(), 255);
        assert!(text(|_, _| Err(Error::gpu("no".into(), None))).is_err());
    }
}
