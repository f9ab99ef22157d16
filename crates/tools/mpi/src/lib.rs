//! A few functions of whatever MPI library is installed, loaded at run time: enough for messages between the ranks of a
//! job. A program that uses them needs neither a compiler nor an MPI where it is built.
//!
//! The standard gives names and meanings (MPI 3.1), and leaves types and constants to each library. Two ABIs are known
//! here: that of Open MPI, whose handles are addresses, and that of MPICH, whose handles are numbers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// The tag of all messages.
const TAG: c_int = 1;
/// Room for the text of MPI_Get_library_version: the longest of MPI_MAX_LIBRARY_VERSION_STRING, MPICH's, is 8192.
const VERSION_ROOM: usize = 16 << 10;

/// An MPI library that can be loaded, by its ABI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Open MPI 4 and 5.
    OpenMpi,
    /// MPICH from 3.1 on, and what has its ABI.
    Mpich,
}

impl Flavour {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        }
    }

    /// Names of its library: Debian's first, then that of its own build.
    fn sonames(self) -> &'static [&'static str] {
        match self {
            Self::OpenMpi => &["libmpi.so.40"],
            Self::Mpich => &["libmpich.so.12", "libmpi.so.12"],
        }
    }
}

/// The reason of a failure: a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// The result of calls that may fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The functions and constants of a library whose handles are of type `H`.
struct Functions<H> {
    init: unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    version: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int,
    rank: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    size: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    barrier: unsafe extern "C" fn(H) -> c_int,
    send: unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut c_void) -> c_int,
    exchange: Exchange<H>,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H) -> c_int,
    constants: Constants<H>,
}

/// MPI_Sendrecv: what is sent, how much, its type, to whom, with which tag; then the same of what is received; the
/// communicator, the status.
type Exchange<H> = unsafe extern "C" fn(
    *const c_void,
    c_int,
    H,
    c_int,
    c_int,
    *mut c_void,
    c_int,
    H,
    c_int,
    c_int,
    H,
    *mut c_void,
) -> c_int;

/// The constants of a library's <mpi.h>.
struct Constants<H> {
    /// MPI_COMM_WORLD.
    world: H,
    /// MPI_BYTE.
    byte: H,
    /// MPI_DOUBLE.
    double: H,
    /// MPI_SUM, whose type is as wide as that of the others.
    sum: H,
    /// MPI_STATUS_IGNORE.
    ignore: *mut c_void,
}

/// MPI_SUCCESS is 0 by the standard. By default a library ends the job rather than return anything else.
fn succeeded(result: c_int, what: &str) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(Error(format!("{what} failed ({result})"))) }
}

fn count_of(bytes: usize) -> Result<c_int> {
    c_int::try_from(bytes)
        .map_err(|_| Error(format!("a message of {bytes} bytes is too long: 2147483647 are the most")))
}

impl<H: Copy> Functions<H> {
    /// The functions of `library`, with its constants.
    ///
    /// # Safety
    /// `H` is the type of the library's MPI_Comm, MPI_Datatype and MPI_Op, and the constants are its own.
    unsafe fn of(library: &Library, constants: Constants<H>) -> Result<Self> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the field's type repeats the declaration in <mpi.h>, with the caller's word on `H`. The
                // library is never unloaded (`Mpi::init`).
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                    .map_err(|e| Error(format!("the MPI library has no {}: {e}", $name)))?
            };
        }
        Ok(Self {
            init: symbol!("MPI_Init"),
            finalize: symbol!("MPI_Finalize"),
            version: symbol!("MPI_Get_library_version"),
            rank: symbol!("MPI_Comm_rank"),
            size: symbol!("MPI_Comm_size"),
            barrier: symbol!("MPI_Barrier"),
            send: symbol!("MPI_Send"),
            receive: symbol!("MPI_Recv"),
            exchange: symbol!("MPI_Sendrecv"),
            all_reduce: symbol!("MPI_Allreduce"),
            constants,
        })
    }

    /// MPI_Init, then what the library says of itself and of this rank: its version, the rank's number, how many there
    /// are.
    fn begin(&self) -> Result<(String, u32, u32)> {
        // SAFETY: both may be null (MPI 3.1, 8.7). `Mpi::init` sees to it that this is the first call of the process.
        succeeded(unsafe { (self.init)(ptr::null_mut(), ptr::null_mut()) }, "MPI_Init")?;
        let (mut text, mut length) = (vec![0; VERSION_ROOM], 0);
        // SAFETY: the room is as long as any library's longest text, and zero behind what is written.
        succeeded(unsafe { (self.version)(text.as_mut_ptr(), &raw mut length) }, "MPI_Get_library_version")?;
        // SAFETY: the room ends with zeros, and lives until the text is copied.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
        let version = text.lines().next().unwrap_or_default().trim().to_owned();
        let number = |ask: unsafe extern "C" fn(H, *mut c_int) -> c_int, what| {
            let mut number = 0;
            // SAFETY: MPI is initialised; the place is `number`.
            succeeded(unsafe { ask(self.constants.world, &raw mut number) }, what)?;
            u32::try_from(number).map_err(|_| Error(format!("{what} says {number}")))
        };
        Ok((version, number(self.rank, "MPI_Comm_rank")?, number(self.size, "MPI_Comm_size")?))
    }

    fn end(&self) -> Result<()> {
        // SAFETY: MPI is initialised, and `Mpi::finalize` takes the only value by which it can be called.
        succeeded(unsafe { (self.finalize)() }, "MPI_Finalize")
    }

    fn barrier(&self) -> Result<()> {
        // SAFETY: between MPI_Init and MPI_Finalize, on the thread of both.
        succeeded(unsafe { (self.barrier)(self.constants.world) }, "MPI_Barrier")
    }

    #[inline]
    fn send(&self, message: &[u8], to: c_int) -> Result<()> {
        let count = count_of(message.len())?;
        let Constants { world, byte, .. } = self.constants;
        // SAFETY: as of `barrier`; the bytes are there until it returns.
        let sent = unsafe { (self.send)(message.as_ptr().cast(), count, byte, to, TAG, world) };
        succeeded(sent, "MPI_Send")
    }

    #[inline]
    fn receive(&self, message: &mut [u8], from: c_int) -> Result<()> {
        let count = count_of(message.len())?;
        let to = message.as_mut_ptr().cast();
        let Constants { world, byte, ignore, .. } = self.constants;
        // SAFETY: as of `barrier`; at most `count` bytes are written, all of them the caller's until it returns.
        let came = unsafe { (self.receive)(to, count, byte, from, TAG, world, ignore) };
        succeeded(came, "MPI_Recv")
    }

    fn exchange(&self, message: &[u8], into: &mut [u8], with: c_int) -> Result<()> {
        let (sent, received) = (count_of(message.len())?, count_of(into.len())?);
        let (from, to) = (message.as_ptr().cast(), into.as_mut_ptr().cast());
        let Constants { world, byte, ignore, .. } = self.constants;
        let done =
            // SAFETY: as of `send` and `receive`; the two do not overlap.
            unsafe { (self.exchange)(from, sent, byte, with, TAG, to, received, byte, with, TAG, world, ignore) };
        succeeded(done, "MPI_Sendrecv")
    }

    fn sum(&self, value: f64) -> Result<f64> {
        let Constants { world, double, sum, .. } = self.constants;
        let mut whole = 0.0;
        let (from, to) = ((&raw const value).cast(), (&raw mut whole).cast());
        // SAFETY: as of `barrier`; both are one MPI_DOUBLE.
        succeeded(unsafe { (self.all_reduce)(from, to, 1, double, sum, world) }, "MPI_Allreduce")?;
        Ok(whole)
    }
}

enum Abi {
    Addresses(Functions<*const c_void>),
    Numbers(Functions<c_int>),
}

/// Does the same with either.
macro_rules! either {
    ($mpi:expr, $functions:ident => $what:expr) => {
        match &$mpi.abi {
            Abi::Addresses($functions) => $what,
            Abi::Numbers($functions) => $what,
        }
    };
}

/// This process as a rank of an MPI job, from MPI_Init to MPI_Finalize. It stays on the thread that made it.
pub struct Mpi {
    abi: Abi,
    version: String,
    rank: u32,
    ranks: u32,
    /// MPI_Init gives MPI_THREAD_SINGLE at least: one thread calls.
    _thread: PhantomData<*const ()>,
}

impl Mpi {
    /// Loads the library and calls MPI_Init; it waits for the other ranks as the library sees fit. A process can be a
    /// rank once.
    ///
    /// # Errors
    /// The library is not installed or not that ABI; the process has been a rank before. An error in MPI_Init itself
    /// ends the process, by default.
    pub fn init(flavour: Flavour) -> Result<Mpi> {
        static DONE: AtomicBool = AtomicBool::new(false);
        let library = load(flavour)?;
        let abi = match flavour {
            Flavour::OpenMpi => {
                let address = |name: &str| {
                    // SAFETY: only the address is taken, of an object whose type nobody needs to know.
                    let object = unsafe { library.get::<*const c_void>(name.as_bytes()) };
                    object
                        .map(|o| o.as_raw_ptr().cast_const())
                        .map_err(|e| Error(format!("no {name} in Open MPI: {e}")))
                };
                let constants = Constants {
                    world: address("ompi_mpi_comm_world")?,
                    byte: address("ompi_mpi_byte")?,
                    double: address("ompi_mpi_double")?,
                    sum: address("ompi_mpi_op_sum")?,
                    ignore: ptr::null_mut(),
                };
                // SAFETY: Open MPI's <mpi.h>: handles are addresses of these objects, MPI_STATUS_IGNORE is null.
                Abi::Addresses(unsafe { Functions::of(&library, constants) }?)
            }
            Flavour::Mpich => {
                let constants = Constants {
                    world: 0x4400_0000,
                    byte: 0x4c00_010d,
                    double: 0x4c00_080b,
                    sum: 0x5800_0003,
                    ignore: ptr::without_provenance_mut(1),
                };
                // SAFETY: MPICH's <mpi.h> and its ABI initiative: handles are these numbers, MPI_STATUS_IGNORE is the
                // address 1.
                Abi::Numbers(unsafe { Functions::of(&library, constants) }?)
            }
        };
        // Threads and handlers that MPI has started may outlive MPI_Finalize.
        std::mem::forget(library);
        if DONE.swap(true, Ordering::Relaxed) {
            return Err(Error("this process has been an MPI rank already".into()));
        }
        let mut mpi = Mpi { abi, version: String::new(), rank: 0, ranks: 0, _thread: PhantomData };
        (mpi.version, mpi.rank, mpi.ranks) = either!(mpi, functions => functions.begin())?;
        Ok(mpi)
    }

    /// The library's description of itself, in one line.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Waits until all ranks have come here (MPI_Barrier).
    ///
    /// # Errors
    /// As the library says.
    pub fn barrier(&self) -> Result<()> {
        either!(self, functions => functions.barrier())
    }

    /// Sends bytes to a rank (MPI_Send); it may wait for the receive.
    ///
    /// # Errors
    /// More than 2^31 - 1 bytes; as the library says.
    #[inline]
    pub fn send(&self, message: &[u8], to: u32) -> Result<()> {
        either!(self, functions => functions.send(message, to.cast_signed()))
    }

    /// Receives a message of a rank, of as many bytes or fewer (MPI_Recv).
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    #[inline]
    pub fn receive(&self, message: &mut [u8], from: u32) -> Result<()> {
        either!(self, functions => functions.receive(message, from.cast_signed()))
    }

    /// Sends a message to a rank and receives one of it, neither of which waits for the other (MPI_Sendrecv).
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    pub fn exchange(&self, message: &[u8], into: &mut [u8], with: u32) -> Result<()> {
        either!(self, functions => functions.exchange(message, into, with.cast_signed()))
    }

    /// The sum of the values of all ranks, each of which calls this (MPI_Allreduce).
    ///
    /// # Errors
    /// As the library says.
    pub fn sum(&self, value: f64) -> Result<f64> {
        either!(self, functions => functions.sum(value))
    }

    /// Leaves the job (MPI_Finalize); it may wait for the other ranks.
    ///
    /// # Errors
    /// As the library says.
    pub fn finalize(self) -> Result<()> {
        either!(self, functions => functions.end())
    }
}

fn load(flavour: Flavour) -> Result<Library> {
    let mut why = String::new();
    for name in flavour.sonames() {
        // SAFETY: loading runs the library's constructors, which the user's MPI is trusted with, as in any program that
        // is linked to it. Global, since Open MPI's components find it so.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return Ok(library),
            Err(e) => why = e.to_string(),
        }
    }
    Err(Error(format!("the library of {} cannot be loaded: {why}", flavour.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_longer_than_an_int_is_refused() {
        assert_eq!(count_of(2_147_483_647), Ok(c_int::MAX));
        assert!(count_of(2_147_483_648).is_err_and(|e| e.to_string().contains("2147483648 bytes")));
    }

    #[test]
    fn a_failure_has_its_function_and_number() {
        assert_eq!(succeeded(0, "MPI_Send"), Ok(()));
        assert_eq!(succeeded(15, "MPI_Send"), Err(Error("MPI_Send failed (15)".into())));
    }
}
