//! The other side of PMIx: this process as the host of a server of libpmix, for a job of which only some ranks are
//! processes.
//!
//! For who measures how a rank does in a large job. Each process that is started is a rank of its own and a real
//! client; it may answer for others, whose values are then its own.

#![allow(non_camel_case_types, reason = "the standard's names")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::abi::*;
use super::{Functions, SONAMES, c_string, copy_text, key_array, open, text};
use crate::{Error, Result};

type pmix_op_cbfunc_t = Option<extern "C" fn(c_int, *mut c_void)>;
type pmix_release_cbfunc_t = Option<extern "C" fn(*mut c_void)>;
type pmix_modex_cbfunc_t =
    Option<extern "C" fn(c_int, *const c_char, usize, *mut c_void, pmix_release_cbfunc_t, *mut c_void)>;
type pmix_dmodex_response_fn_t = extern "C" fn(c_int, *mut c_char, usize, *mut c_void);

/// `pmix_server_module_t`: its functions are in this order in all versions, and later ones have more behind. Functions
/// that are not served are null.
#[repr(C)]
pub(super) struct pmix_server_module_t {
    client_connected: extern "C" fn(*const pmix_proc_t, *mut c_void, pmix_op_cbfunc_t, *mut c_void) -> c_int,
    client_finalized: extern "C" fn(*const pmix_proc_t, *mut c_void, pmix_op_cbfunc_t, *mut c_void) -> c_int,
    abort: *const c_void,
    fence_nb: extern "C" fn(
        *const pmix_proc_t,
        usize,
        *const pmix_info_t,
        usize,
        *mut c_char,
        usize,
        pmix_modex_cbfunc_t,
        *mut c_void,
    ) -> c_int,
    direct_modex:
        extern "C" fn(*const pmix_proc_t, *const pmix_info_t, usize, pmix_modex_cbfunc_t, *mut c_void) -> c_int,
    others: [*const c_void; 59],
}

// SAFETY: functions, which are the same for all threads, and null pointers.
unsafe impl Sync for pmix_server_module_t {}

static MODULE: pmix_server_module_t = pmix_server_module_t {
    client_connected: client_changed,
    client_finalized: client_changed,
    abort: ptr::null(),
    fence_nb: fenced,
    direct_modex: asked,
    others: [ptr::null(); 59],
};

/// The server's functions, by the names of <pmix_server.h>.
struct ServerFunctions {
    init: unsafe extern "C" fn(*const pmix_server_module_t, *mut pmix_info_t, usize) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    register_nspace: unsafe extern "C" fn(
        *const c_char,
        c_int,
        *mut pmix_info_t,
        usize,
        extern "C" fn(c_int, *mut c_void),
        *mut c_void,
    ) -> c_int,
    register_client: unsafe extern "C" fn(
        *const pmix_proc_t,
        u32,
        u32,
        *mut c_void,
        extern "C" fn(c_int, *mut c_void),
        *mut c_void,
    ) -> c_int,
    setup_fork: unsafe extern "C" fn(*const pmix_proc_t, *mut *mut *mut c_char) -> c_int,
    dmodex_request: unsafe extern "C" fn(*const pmix_proc_t, pmix_dmodex_response_fn_t, *mut c_void) -> c_int,
}

fn server_functions() -> Result<ServerFunctions> {
    let library = open(SONAMES[0]).or_else(|first| open(SONAMES[1]).map_err(|_| first)).map_err(|e| {
        Error::new(format!("libpmix cannot be loaded ({e}): install it (libpmix2 on Debian and Ubuntu)"))
    })?;
    macro_rules! symbol {
        ($name:literal) => {
            // SAFETY: the field's type repeats the function's declaration in <pmix_server.h>, and the library is never
            // unloaded.
            *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                .map_err(|_| Error::new(concat!("this libpmix has no server: it lacks ", $name)))?
        };
    }
    let functions = ServerFunctions {
        init: symbol!("PMIx_server_init"),
        finalize: symbol!("PMIx_server_finalize"),
        register_nspace: symbol!("PMIx_server_register_nspace"),
        register_client: symbol!("PMIx_server_register_client"),
        setup_fork: symbol!("PMIx_server_setup_fork"),
        dmodex_request: symbol!("PMIx_server_dmodex_request"),
    };
    std::mem::forget(library);
    Ok(functions)
}

/// Which process answers for a rank, by that process's own rank.
type Holder = Box<dyn Fn(u32) -> Option<u32> + Send + Sync>;

/// A request that a callback hands to the thread that answers, since callbacks must return before they are answered.
enum Request {
    Done(pmix_op_cbfunc_t, *mut c_void),
    Fenced(pmix_modex_cbfunc_t, *mut c_void),
    Asked(Box<pmix_proc_t>, pmix_modex_cbfunc_t, *mut c_void),
}

// SAFETY: the pointers are the library's, which takes them back from any thread.
unsafe impl Send for Request {}

/// The library's callbacks have no argument of the host's, so that there is one host in a process.
static REQUESTS: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();

/// `PMIX_ERR_NOT_SUPPORTED`.
const ERR_NOT_SUPPORTED: c_int = -47;
/// `PMIX_SERVER_TMPDIR`, `PMIX_SYSTEM_TMPDIR`: directories.
const SERVER_TMPDIR: &str = "pmix.srvr.tmpdir";
const SYSTEM_TMPDIR: &str = "pmix.sys.tmpdir";
/// `PMIX_UNIV_SIZE`, `PMIX_MAX_PROCS`: ranks that there are, and that there can be.
const UNIV_SIZE: &str = "pmix.univ.size";
const MAX_PROCS: &str = "pmix.max.size";
/// `PMIX_LOCAL_SIZE`, `PMIX_NODE_SIZE`: ranks of the job, and of all jobs, on this host.
const LOCAL_SIZE: &str = "pmix.local.size";
const NODE_SIZE: &str = "pmix.node.size";
/// `PMIX_PROC_DATA`, `PMIX_RANK`, `PMIX_APPNUM`: what is known of a rank, which rank, which program of the job.
const PROC_DATA: &str = "pmix.pdata";
const RANK: &str = "pmix.rank";
const APPNUM: &str = "pmix.appnum";
/// Time for the library to take note of something.
const PROMPT: Duration = Duration::from_secs(60);

fn hand_on(request: Request) -> c_int {
    let requests = REQUESTS.get().map(|requests| requests.lock().unwrap_or_else(PoisonError::into_inner));
    match requests.map(|requests| requests.send(request)) {
        Some(Ok(())) => SUCCESS,
        _ => ERR_NOT_SUPPORTED,
    }
}

extern "C" fn client_changed(
    _: *const pmix_proc_t,
    _: *mut c_void,
    then: pmix_op_cbfunc_t,
    data: *mut c_void,
) -> c_int {
    hand_on(Request::Done(then, data))
}

extern "C" fn fenced(
    _: *const pmix_proc_t,
    _: usize,
    _: *const pmix_info_t,
    _: usize,
    _: *mut c_char,
    _: usize,
    then: pmix_modex_cbfunc_t,
    data: *mut c_void,
) -> c_int {
    hand_on(Request::Fenced(then, data))
}

extern "C" fn asked(
    whom: *const pmix_proc_t,
    _: *const pmix_info_t,
    _: usize,
    then: pmix_modex_cbfunc_t,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the library passes a process, which is its own until this function returns.
    let whom = unsafe { &*whom };
    hand_on(Request::Asked(Box::new(pmix_proc_t { nspace: whom.nspace, rank: whom.rank }), then, data))
}

/// The asker, for the callback that brings the answer.
struct Waiting {
    then: pmix_modex_cbfunc_t,
    data: *mut c_void,
}

/// The value of a rank's has come: its blob goes to who has asked.
extern "C" fn came(status: c_int, blob: *mut c_char, len: usize, waiting: *mut c_void) {
    // SAFETY: the pointer is that of `answer`, which left the box to this call.
    let Waiting { then, data } = *unsafe { Box::from_raw(waiting.cast::<Waiting>()) };
    let Some(then) = then else { return };
    if status != SUCCESS || blob.is_null() {
        return then(status, ptr::null(), 0, data, None, ptr::null_mut());
    }
    // SAFETY: the blob is the library's until this function returns.
    let copy: Box<Vec<u8>> = Box::new(unsafe { std::slice::from_raw_parts(blob.cast::<u8>(), len) }.to_vec());
    let (start, copy) = (copy.as_ptr(), Box::into_raw(copy));
    then(SUCCESS, start.cast(), len, data, Some(release), copy.cast());
}

extern "C" fn release(copy: *mut c_void) {
    // SAFETY: the box that `came` has left to this call.
    drop(unsafe { Box::from_raw(copy.cast::<Vec<u8>>()) });
}

/// Called by the library when it has taken note of something.
extern "C" fn noted(status: c_int, told: *mut c_void) {
    // SAFETY: the pointer is that of `wait_for`, which left the box to this call.
    let told = unsafe { Box::from_raw(told.cast::<Sender<c_int>>()) };
    let _ = told.send(status);
}

fn answer(requests: &Receiver<Request>, functions: &ServerFunctions, holder: &Holder) {
    while let Ok(request) = requests.recv() {
        match request {
            Request::Done(then, data) => {
                if let Some(then) = then {
                    then(SUCCESS, data);
                }
            }
            Request::Fenced(then, data) => {
                if let Some(then) = then {
                    then(SUCCESS, ptr::null(), 0, data, None, ptr::null_mut());
                }
            }
            Request::Asked(mut whom, then, data) => {
                let Some(rank) = holder(whom.rank) else {
                    if let Some(then) = then {
                        then(ERR_NOT_FOUND, ptr::null(), 0, data, None, ptr::null_mut());
                    }
                    continue;
                };
                whom.rank = rank;
                let waiting = Box::into_raw(Box::new(Waiting { then, data }));
                // SAFETY: the library copies the process; `came` gets the box.
                let status = unsafe { (functions.dmodex_request)(&raw const *whom, came, waiting.cast()) };
                if status != SUCCESS {
                    came(status, ptr::null_mut(), 0, waiting.cast());
                }
            }
        }
    }
}

/// The host of a server of libpmix, until it is dropped. One in a process, ever.
pub struct Host {
    functions: &'static ServerFunctions,
    client: &'static Functions,
}

impl Host {
    /// Starts the server, with its files in the directory `files`. PMIX_MCA_gds is `hash` in this process's
    /// environment, since libpmix's other stores would want to know something of every rank. `holder`: of which rank's
    /// process the values are that a rank asks for which is no process itself; the value is the same, under the same
    /// key.
    ///
    /// # Errors
    /// One sentence: no libpmix, or one without a server; a host in this process before.
    pub fn start(files: &Path, holder: impl Fn(u32) -> Option<u32> + Send + Sync + 'static) -> Result<Host> {
        let functions: &'static ServerFunctions = Box::leak(Box::new(server_functions()?));
        let client = super::functions()?;
        let (sender, receiver) = channel();
        if REQUESTS.set(Mutex::new(sender)).is_err() {
            return Err(Error::new("this process has been the host of a PMIx server before"));
        }
        let holder: Holder = Box::new(holder);
        std::thread::Builder::new()
            .name("pmix-host".into())
            .spawn(move || answer(&receiver, functions, &holder))
            .map_err(|error| Error::new(format!("no thread for the PMIx server: {error}")))?;
        let place = c_string(&files.to_string_lossy())?;
        let mut infos = [info(SERVER_TMPDIR, Value::Text(&place)), info(SYSTEM_TMPDIR, Value::Text(&place))];
        // SAFETY: the module is static; the library copies the infos before it returns.
        let status = unsafe { (functions.init)(&raw const MODULE, infos.as_mut_ptr(), infos.len()) };
        client.done("PMIx_server_init", status)?;
        Ok(Host { functions, client })
    }

    /// Announces a job of `size` ranks, of which `local` will be processes of this host. Its name is `name`.
    ///
    /// # Errors
    /// What the library says.
    pub fn announce(&self, name: &str, size: u32, local: &[u32]) -> Result<()> {
        let name = c_string(name)?;
        let peers = local.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let peers = c_string(&peers)?;
        let count = u32::try_from(local.len()).unwrap_or(u32::MAX);
        // The library's table of jobs wants to know something of the last rank (4.2.2).
        let mut last = [info(RANK, Value::Rank(size - 1)), info(APPNUM, Value::Number(0))];
        let mut last = pmix_data_array_t { kind: INFO, size: last.len(), array: last.as_mut_ptr().cast() };
        let mut infos = [
            info(PROC_DATA, Value::Array(&raw mut last)),
            info(JOB_SIZE, Value::Number(size)),
            info(UNIV_SIZE, Value::Number(size)),
            info(MAX_PROCS, Value::Number(size)),
            info(LOCAL_SIZE, Value::Number(count)),
            info(NODE_SIZE, Value::Number(count)),
            info(LOCAL_PEERS, Value::Text(&peers)),
        ];
        wait_for(|told| {
            let count = count.cast_signed();
            // SAFETY: all that is passed outlives the call and the wait for its end; `noted` gets `told`.
            let status = unsafe {
                (self.functions.register_nspace)(name.as_ptr(), count, infos.as_mut_ptr(), infos.len(), noted, told)
            };
            self.client.done("PMIx_server_register_nspace", status)
        })
        .and_then(|status| self.client.done("PMIx_server_register_nspace", status))?;
        // SAFETY: they take nothing, and cannot fail.
        let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
        for rank in local {
            let process = process(&name, *rank);
            wait_for(|told| {
                // SAFETY: as above.
                let status = unsafe {
                    (self.functions.register_client)(&raw const process, user, group, ptr::null_mut(), noted, told)
                };
                self.client.done("PMIx_server_register_client", status)
            })
            .and_then(|status| self.client.done("PMIx_server_register_client", status))?;
        }
        Ok(())
    }

    /// The variables for the process that is to be `rank` of the job `name`.
    ///
    /// # Errors
    /// What the library says.
    pub fn environment(&self, name: &str, rank: u32) -> Result<Vec<(String, String)>> {
        let process = process(&c_string(name)?, rank);
        let mut list: *mut *mut c_char = ptr::null_mut();
        // SAFETY: the library makes the list anew where it is null.
        let status = unsafe { (self.functions.setup_fork)(&raw const process, &raw mut list) };
        self.client.done("PMIx_server_setup_fork", status)?;
        let mut variables = Vec::new();
        let mut at = list;
        // SAFETY: a list of C strings that ends with a null pointer.
        while !at.is_null() && !unsafe { *at }.is_null() {
            // SAFETY: as above.
            let variable = text(unsafe { *at });
            if let Some((name, value)) = variable.split_once('=') {
                variables.push((name.to_owned(), value.to_owned()));
            }
            // SAFETY: not the last of the list.
            at = unsafe { at.add(1) };
        }
        Ok(variables)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: it takes nothing; callbacks that come until it returns find what is static.
        let _ = unsafe { (self.functions.finalize)() };
    }
}

/// The value of an info.
enum Value<'a> {
    Number(u32),
    Rank(u32),
    Text(&'a CStr),
    Array(*mut pmix_data_array_t),
}

/// An info whose text or array, if it is one, outlives it.
fn info(key: &str, value: Value<'_>) -> pmix_info_t {
    let value = match value {
        Value::Number(number) => pmix_value_t { kind: UINT32, data: pmix_value_data { uint32: number } },
        Value::Rank(rank) => pmix_value_t { kind: PROC_RANK, data: pmix_value_data { uint32: rank } },
        Value::Array(array) => pmix_value_t { kind: DATA_ARRAY, data: pmix_value_data { array } },
        Value::Text(text) => pmix_value_t { kind: STRING, data: pmix_value_data { string: text.as_ptr() } },
    };
    pmix_info_t { key: key_array(key), flags: 0, value }
}

fn process(name: &CString, rank: u32) -> pmix_proc_t {
    let mut nspace = [0; NSPACE];
    copy_text(&mut nspace[..NSPACE - 1], name.as_bytes());
    pmix_proc_t { nspace, rank }
}

/// Waits for the status that the library calls back with.
fn wait_for(begin: impl FnOnce(*mut c_void) -> Result<()>) -> Result<c_int> {
    let (told, status) = channel::<c_int>();
    let told = Box::into_raw(Box::new(told));
    if let Err(error) = begin(told.cast()) {
        // SAFETY: the library has refused, so that nobody else has it.
        drop(unsafe { Box::from_raw(told) });
        return Err(error);
    }
    status.recv_timeout(PROMPT).map_err(|_| Error::new("the PMIx server does not answer"))
}

/// Expressions of C, with the values that they have here.
#[cfg(test)]
pub(super) fn layout() -> Vec<(&'static str, usize)> {
    use std::mem::offset_of;
    vec![
        ("offsetof(pmix_server_module_t, client_connected)", offset_of!(pmix_server_module_t, client_connected)),
        ("offsetof(pmix_server_module_t, client_finalized)", offset_of!(pmix_server_module_t, client_finalized)),
        ("offsetof(pmix_server_module_t, abort)", offset_of!(pmix_server_module_t, abort)),
        ("offsetof(pmix_server_module_t, fence_nb)", offset_of!(pmix_server_module_t, fence_nb)),
        ("offsetof(pmix_server_module_t, direct_modex)", offset_of!(pmix_server_module_t, direct_modex)),
        ("sizeof(pmix_data_array_t)", size_of::<pmix_data_array_t>()),
        ("offsetof(pmix_data_array_t, type)", offset_of!(pmix_data_array_t, kind)),
        ("offsetof(pmix_data_array_t, size)", offset_of!(pmix_data_array_t, size)),
        ("offsetof(pmix_data_array_t, array)", offset_of!(pmix_data_array_t, array)),
        ("PMIX_INFO", INFO.into()),
        ("PMIX_DATA_ARRAY", DATA_ARRAY.into()),
        ("PMIX_PROC_RANK", PROC_RANK.into()),
        ("-(PMIX_ERR_NOT_SUPPORTED)", ERR_NOT_SUPPORTED.unsigned_abs() as usize),
        // Room for more than this version has.
        ("sizeof(pmix_server_module_t) > sizeof(char[512])", usize::from(size_of::<pmix_server_module_t>() < 512)),
    ]
}

/// Names of the header, and what they stand for here.
#[cfg(test)]
pub(super) const KEYS: [(&str, &str); 9] = [
    ("PMIX_PROC_DATA", PROC_DATA),
    ("PMIX_RANK", RANK),
    ("PMIX_APPNUM", APPNUM),
    ("PMIX_SERVER_TMPDIR", SERVER_TMPDIR),
    ("PMIX_SYSTEM_TMPDIR", SYSTEM_TMPDIR),
    ("PMIX_UNIV_SIZE", UNIV_SIZE),
    ("PMIX_MAX_PROCS", MAX_PROCS),
    ("PMIX_LOCAL_SIZE", LOCAL_SIZE),
    ("PMIX_NODE_SIZE", NODE_SIZE),
];
