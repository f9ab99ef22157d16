//! A launcher that speaks PMIx: libpmix, loaded when it is needed, so that programs do without it everywhere else.
//!
//! A value goes this way: Put, Commit, Fence without collection of data; then a peer that asks for it fetches it from
//! the server of the rank that has put it. The fence is needed: a get that comes before the commit may be answered at
//! once that there is nothing (PMIX_ERR_NOT_FOUND, by Open MPI 4.1's servers in one of eight runs).

mod abi;
pub mod host;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use self::abi::*;
use crate::{Error, Exchange, Joined, Result, error};

/// The names that libpmix has had since version 2; the second comes with its development package.
const SONAMES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];
/// Time for the launcher's server on this host to give its facts about the job.
const PROMPT: Duration = Duration::from_secs(60);

struct Client {
    functions: &'static Functions,
    me: pmix_proc_t,
}

pub fn join() -> Result<Joined> {
    let functions = functions()?;
    let mut me = pmix_proc_t { nspace: [0; NSPACE], rank: 0 };
    // SAFETY: `me` is a pmix_proc_t to be filled; no info is given.
    let status = unsafe { (functions.init)(&raw mut me, std::ptr::null_mut(), 0) };
    if status != SUCCESS {
        return Err(Error::new(format!(
            "PMIX_RANK or PMIX_NAMESPACE is set, but libpmix finds no server of a launcher (PMIx_Init: {}): only a process that \
             the launcher itself has started is a rank, and libpmix must not be older than the launcher's",
            functions.says(status)
        )));
    }
    let client = Client { functions, me };
    let id = client.namespace();
    let rank = client.me.rank;
    let Some(Value::Number(size)) = client.fetch(RANK_WILDCARD, JOB_SIZE, PROMPT)? else {
        return Err(Error::new("the launcher's PMIx server does not say how many ranks there are (PMIX_JOB_SIZE)"));
    };
    if rank >= size {
        return Err(Error::new(format!("the launcher's PMIx server says that this is rank {rank} of {size}")));
    }
    let local = match client.fetch(RANK_WILDCARD, LOCAL_PEERS, PROMPT) {
        Ok(Some(Value::Text(list))) => ranks(&list, rank, size),
        _ => None,
    };
    Ok(Joined { rank, size, id, local, exchange: Box::new(client) })
}

/// The ranks in a list with commas, if it makes sense.
fn ranks(list: &str, own: u32, size: u32) -> Option<Vec<u32>> {
    let mut ranks = list.split(',').map(|rank| rank.trim().parse().ok()).collect::<Option<Vec<u32>>>()?;
    ranks.sort_unstable();
    ranks.dedup();
    (ranks.contains(&own) && ranks.last().is_some_and(|last| *last < size)).then_some(ranks)
}

/// libpmix, loaded once.
fn functions() -> Result<&'static Functions> {
    static LOADED: OnceLock<Functions> = OnceLock::new();
    if let Some(functions) = LOADED.get() {
        return Ok(functions);
    }
    let functions = load()?;
    Ok(LOADED.get_or_init(|| functions))
}

/// Loads a library by its name.
fn open(name: &str) -> std::result::Result<Library, libloading::Error> {
    // Global, for libpmix loads plugins that use its functions.
    // SAFETY: loading runs libpmix's constructors, which are trusted as in any program that is linked to it.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }
}

fn load() -> Result<Functions> {
    let library = open(SONAMES[0]).or_else(|first| open(SONAMES[1]).map_err(|_| first)).map_err(|e| {
        Error::new(format!(
            "a launcher with PMIx has started this process, but libpmix cannot be loaded ({e}): install it (libpmix2 on Debian \
             and Ubuntu), or start the program with `vervain launch -n N`"
        ))
    })?;
    macro_rules! symbol {
        ($name:literal) => {
            // SAFETY: the field's type repeats the function's declaration in <pmix.h>, and the library is never
            // unloaded.
            *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                .map_err(|_| Error::new(concat!("libpmix has no ", $name, "; PMIx 3 or later is needed")))?
        };
    }
    let functions = Functions {
        init: symbol!("PMIx_Init"),
        finalize: symbol!("PMIx_Finalize"),
        abort: symbol!("PMIx_Abort"),
        put: symbol!("PMIx_Put"),
        commit: symbol!("PMIx_Commit"),
        fence: symbol!("PMIx_Fence"),
        get_nb: symbol!("PMIx_Get_nb"),
        error_string: symbol!("PMIx_Error_string"),
        get_version: symbol!("PMIx_Get_version"),
    };
    // It has threads and handlers of atexit(3).
    std::mem::forget(library);
    // SAFETY: it takes nothing, and what it returns is static.
    let version = text(unsafe { (functions.get_version)() });
    match major(&version) {
        Some(major) if major < 3 => Err(Error::new(format!("libpmix is '{version}'; PMIx 3 or later is needed"))),
        _ => Ok(functions),
    }
}

/// The first number of a version such as "OpenPMIx 4.2.2, repo rev: v4.2.2 (PMIx Standard: …)".
fn major(version: &str) -> Option<u32> {
    let number = version.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty())?;
    number.parse().ok()
}

/// A C string's text; a null pointer's is empty.
fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the library's strings end with a NUL.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

impl Functions {
    /// The meaning of a status, in the library's words.
    fn says(&self, status: c_int) -> String {
        // SAFETY: any number may be asked for, and what is returned is static.
        format!("{} ({status})", text(unsafe { (self.error_string)(status) }))
    }

    fn done(&self, call: &str, status: c_int) -> Result<()> {
        if status == SUCCESS { Ok(()) } else { Err(Error::new(format!("{call}: {}", self.says(status)))) }
    }
}

/// A value of another rank or of the job.
enum Value {
    Bytes(Vec<u8>),
    Number(u32),
    Text(String),
    /// One of another type.
    Other,
}

/// The state of a get that waits, shared with the callback that brings the value.
struct Pending {
    answer: Mutex<Option<(c_int, Option<Value>)>>,
    came: Condvar,
    /// The arguments of the library, which it may read until it calls back.
    key: CString,
    peer: pmix_proc_t,
    info: pmix_info_t,
}

// SAFETY: the pointers in `info` are not used (it has an integer); everything else may be shared.
unsafe impl Send for Pending {}
// SAFETY: as above; what is not behind the lock is never written after it was made.
unsafe impl Sync for Pending {}

/// The library's callback.
extern "C" fn came(status: c_int, value: *mut pmix_value_t, pending: *mut c_void) {
    // SAFETY: the pointer is that of `fetch`, which left one reference to this call, the only one for it.
    let pending = unsafe { Arc::from_raw(pending.cast_const().cast::<Pending>()) };
    let value = if status == SUCCESS && !value.is_null() {
        // SAFETY: the value is the library's until this function returns.
        Some(unsafe { read(&*value) })
    } else {
        None
    };
    *pending.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some((status, value));
    pending.came.notify_one();
}

/// A copy of a value.
///
/// # Safety
/// The value is one that libpmix has made.
unsafe fn read(value: &pmix_value_t) -> Value {
    // SAFETY: `kind` says which member of the union was written; a byte object has as many bytes as it says.
    unsafe {
        match value.kind {
            BYTE_OBJECT if value.data.bo.bytes.is_null() || value.data.bo.size == 0 => Value::Bytes(Vec::new()),
            BYTE_OBJECT => {
                Value::Bytes(std::slice::from_raw_parts(value.data.bo.bytes.cast(), value.data.bo.size).to_vec())
            }
            UINT32 => Value::Number(value.data.uint32),
            STRING => Value::Text(text(value.data.string)),
            _ => Value::Other,
        }
    }
}

/// Copies as much of `from` as there is room for. A `char` is signed on some processors and not on others.
fn copy_text(to: &mut [c_char], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = c_char::from_ne_bytes([*from]);
    }
}

/// A key in the array that the library wants. The rest of it stays 0.
fn key_array(key: &str) -> [c_char; KEY] {
    let mut array = [0; KEY];
    copy_text(&mut array[..KEY - 1], key.as_bytes());
    array
}

/// Keys have been looked at before.
fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(format!("'{}' has a NUL in it", text.escape_debug())))
}

impl Client {
    fn namespace(&self) -> String {
        let bytes: Vec<u8> =
            self.me.nspace.iter().flat_map(|c| c.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// PMIx_Get. The limit is kept by a clock here too, since it is only advice to the servers.
    fn fetch(&self, rank: u32, key: &str, limit: Duration) -> Result<Option<Value>> {
        let until = Instant::now().checked_add(limit);
        // 0 would mean without an end. The servers get a moment more, so that an answer at the last moment is not lost.
        let seconds = limit.as_secs().saturating_add(1).min(i32::MAX.unsigned_abs().into());
        let pending = Arc::new(Pending {
            answer: Mutex::new(None),
            came: Condvar::new(),
            key: c_string(key)?,
            peer: pmix_proc_t { nspace: self.me.nspace, rank },
            info: pmix_info_t {
                key: key_array(TIMEOUT),
                flags: 0,
                value: pmix_value_t {
                    kind: INT,
                    data: pmix_value_data { integer: i32::try_from(seconds).unwrap_or(i32::MAX) },
                },
            },
        });
        let theirs = Arc::into_raw(Arc::clone(&pending));
        // SAFETY: all that it is given lies in `pending`, to which the callback has a reference of its own.
        let status = unsafe {
            let functions = self.functions;
            (functions.get_nb)(
                &raw const pending.peer,
                pending.key.as_ptr(),
                &raw const pending.info,
                1,
                came,
                theirs.cast_mut().cast(),
            )
        };
        if status != SUCCESS {
            // SAFETY: the library has refused the request, so its callback does not come and the reference is still
            // ours.
            drop(unsafe { Arc::from_raw(theirs) });
            return self.judge(key, rank, status, None);
        }
        let mut answer = pending.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((status, value)) = answer.take() {
                return self.judge(key, rank, status, value);
            }
            let left = until.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                // A server that waits for the rank to put it, and has a second more.
                return Ok(None);
            }
            answer = pending.came.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn judge(&self, key: &str, rank: u32, status: c_int, value: Option<Value>) -> Result<Option<Value>> {
        match status {
            SUCCESS => Ok(value),
            ERR_NOT_FOUND | ERR_TIMEOUT => Ok(None),
            _ if rank == RANK_WILDCARD => {
                Err(Error::new(format!("PMIx_Get of '{key}': {}", self.functions.says(status))))
            }
            _ => Err(Error::new(format!("PMIx_Get of '{key}' of rank {rank}: {}", self.functions.says(status)))),
        }
    }
}

impl Exchange for Client {
    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = c_string(key)?;
        let bytes = pmix_byte_object_t { bytes: value.as_ptr().cast_mut().cast(), size: value.len() };
        let mut value = pmix_value_t { kind: BYTE_OBJECT, data: pmix_value_data { bo: bytes } };
        // SAFETY: the library copies key and value before it returns, and writes to neither.
        let status = unsafe { (self.functions.put)(GLOBAL, key.as_ptr(), &raw mut value) };
        self.functions.done("PMIx_Put", status)
    }

    fn fence(&self) -> Result<()> {
        // SAFETY: it takes nothing.
        self.functions.done("PMIx_Commit", unsafe { (self.functions.commit)() })?;
        // SAFETY: no processes means all of the job; no info means without data.
        let status = unsafe { (self.functions.fence)(std::ptr::null(), 0, std::ptr::null(), 0) };
        self.functions.done("PMIx_Fence", status)
    }

    fn get(&self, rank: u32, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        match self.fetch(rank, key, timeout)? {
            None => Ok(None),
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            Some(_) => Err(Error::new(format!("what rank {rank} has under '{key}' was not put by this library"))),
        }
    }

    fn abort(&self, status: i32, sentence: &str) {
        // Launchers print at most that somebody has aborted.
        let printable = sentence.replace(char::is_control, " ");
        error::print(&format!("rank {} aborted the job with status {status}: {printable}", self.me.rank));
        let sentence = c_string(&sentence.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the sentence outlives the call; no processes means all of the job.
        let _ = unsafe { (self.functions.abort)(status, sentence.as_ptr(), std::ptr::null_mut(), 0) };
    }

    /// Launchers differ: if a process ends with status 0 and without PMIx_Finalize, Open MPI's ends the job, Slurm's
    /// does not.
    fn desert(&self, sentence: &str) {
        self.abort(1, sentence);
    }

    fn finalize(&self) -> Result<()> {
        // SAFETY: it takes nothing.
        let status = unsafe { (self.functions.finalize)(std::ptr::null(), 0) };
        self.functions.done("PMIx_Finalize", status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_local_ranks_is_read_if_it_makes_sense() {
        assert_eq!(ranks("2,0,1", 1, 4), Some(vec![0, 1, 2]));
        assert_eq!(ranks("0", 0, 1), Some(vec![0]));
        for wrong in ["", "0,x", "0,2", "1,4"] {
            assert_eq!(ranks(wrong, 1, 4), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_version_is_read() {
        assert_eq!(major("OpenPMIx 4.2.2, repo rev: v4.2.2 (PMIx Standard: 4.1)"), Some(4));
        assert_eq!(major("PMIx 2.1.0"), Some(2));
        assert_eq!(major(""), None);
    }

    /// Expressions of C, with the values that they have here.
    fn layout() -> Vec<(&'static str, usize)> {
        use std::mem::{offset_of, size_of};
        let number = |n: c_int| n.unsigned_abs() as usize;
        vec![
            ("sizeof(pmix_proc_t)", size_of::<pmix_proc_t>()),
            ("offsetof(pmix_proc_t, rank)", offset_of!(pmix_proc_t, rank)),
            ("sizeof(pmix_value_t)", size_of::<pmix_value_t>()),
            ("offsetof(pmix_value_t, type)", offset_of!(pmix_value_t, kind)),
            ("offsetof(pmix_value_t, data)", offset_of!(pmix_value_t, data)),
            (
                "offsetof(pmix_value_t, data.bo.bytes)",
                offset_of!(pmix_value_t, data) + offset_of!(pmix_byte_object_t, bytes),
            ),
            (
                "offsetof(pmix_value_t, data.bo.size)",
                offset_of!(pmix_value_t, data) + offset_of!(pmix_byte_object_t, size),
            ),
            ("sizeof(pmix_info_t)", size_of::<pmix_info_t>()),
            ("offsetof(pmix_info_t, flags)", offset_of!(pmix_info_t, flags)),
            ("offsetof(pmix_info_t, value)", offset_of!(pmix_info_t, value)),
            ("sizeof(pmix_status_t)", size_of::<c_int>()),
            ("sizeof(pmix_scope_t)", size_of::<u8>()),
            ("sizeof(pmix_data_type_t)", size_of::<u16>()),
            ("sizeof(pmix_rank_t)", size_of::<u32>()),
            ("-(PMIX_ERR_TIMEOUT)", number(ERR_TIMEOUT)),
            ("-(PMIX_ERR_NOT_FOUND)", number(ERR_NOT_FOUND)),
            ("(PMIX_RANK_WILDCARD)", RANK_WILDCARD as usize),
            ("PMIX_GLOBAL", GLOBAL.into()),
            ("PMIX_STRING", STRING.into()),
            ("PMIX_INT", INT.into()),
            ("PMIX_UINT32", UINT32.into()),
            ("PMIX_BYTE_OBJECT", BYTE_OBJECT.into()),
        ]
    }

    #[test]
    fn layout_and_constants_are_those_of_the_header() {
        use std::fmt::Write;
        use std::process::Command;
        let mut source = String::from("#include <stddef.h>\n#include <pmix.h>\n#include <pmix_server.h>\n");
        for (expression, value) in layout().into_iter().chain(host::layout()) {
            writeln!(source, "_Static_assert(({expression}) == {value}ul, \"{expression}\");").unwrap();
        }
        let keys = [("PMIX_JOB_SIZE", JOB_SIZE), ("PMIX_LOCAL_PEERS", LOCAL_PEERS), ("PMIX_TIMEOUT", TIMEOUT)];
        for (name, key) in keys.into_iter().chain(host::KEYS) {
            writeln!(source, "_Static_assert(__builtin_strcmp({name}, \"{key}\") == 0, \"{name}\");").unwrap();
        }
        // The declarations of the functions, which a definition of another type would contradict.
        source.push_str(
            "int PMIx_Init(pmix_proc_t *, pmix_info_t *, size_t);\n\
             int PMIx_Finalize(const pmix_info_t *, size_t);\n\
             int PMIx_Abort(int, const char *, pmix_proc_t *, size_t);\n\
             int PMIx_Put(unsigned char, const char *, pmix_value_t *);\n\
             int PMIx_Commit(void);\n\
             int PMIx_Fence(const pmix_proc_t *, size_t, const pmix_info_t *, size_t);\n\
             int PMIx_Get_nb(const pmix_proc_t *, const char *, const pmix_info_t *, size_t,\n\
                             void (*)(int, pmix_value_t *, void *), void *);\n\
             const char *PMIx_Error_string(int);\n\
             const char *PMIx_Get_version(void);\n\
             int PMIx_server_init(pmix_server_module_t *, pmix_info_t *, size_t);\n\
             int PMIx_server_finalize(void);\n\
             int PMIx_server_register_nspace(const char *, int, pmix_info_t *, size_t, void (*)(int, void *), void *);\n\
             int PMIx_server_register_client(const pmix_proc_t *, unsigned, unsigned, void *, void (*)(int, void *),\n\
                                             void *);\n\
             int PMIx_server_setup_fork(const pmix_proc_t *, char ***);\n\
             int PMIx_server_dmodex_request(const pmix_proc_t *, void (*)(int, char *, size_t, void *), void *);\n",
        );
        let libraries = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let folders = ["pmix2/include", "pmix/include"].map(|folder| format!("{libraries}/{folder}"));
        let Some(folder) = folders
            .iter()
            .map(String::as_str)
            .chain(["/usr/include"])
            .find(|folder| std::fs::exists(format!("{folder}/pmix.h")).unwrap_or(false))
        else {
            return vervain_skip::skip(format_args!("this machine has no header of PMIx (libpmix-dev)"));
        };
        let mut file = tempfile::Builder::new().suffix(".c").tempfile().unwrap();
        std::io::Write::write_all(&mut file, source.as_bytes()).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-fsyntax-only", "-I", folder]).arg(file.path());
        let output = compiler.output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
