//! `rdma_getaddrinfo(3)`, and what is asked so in the background: names by the system's resolver.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{addrinfo, sockaddr, socklen_t};
use vervain_abi::*;

use crate::abi::*;
use crate::connect::waiting;
use crate::errno::fail;
use crate::ids::id_of;
use crate::reports::Report;

/// Bytes of the stack of a thread that resolves a name: getaddrinfo(3) and what it loads.
const RESOLVER_STACK: usize = 1 << 20;

/// A question, apart from the program's memory.
struct Question {
    node: Option<CString>,
    service: Option<CString>,
    hints: Option<Hints>,
}

/// The part of a program's hints that is looked at. Addresses are as C has them, and none is empty.
struct Hints {
    flags: c_int,
    family: c_int,
    qp_type: ibv_qp_type,
    space: rdma_port_space,
    from: Vec<u8>,
    to: Vec<u8>,
}

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// An errno value.
    Errno(c_int),
    /// One of getaddrinfo(3)'s.
    Name(c_int),
}

/// The answer. Its memory is malloc(3)'s, since rdma_freeaddrinfo(3) gives it back.
pub(crate) struct Answer(NonNull<rdma_addrinfo>);

// SAFETY: memory that nobody else has.
unsafe impl Send for Answer {}

/// The state of an identifier's question (`rdma_resolve_addrinfo(3)`).
#[derive(Default)]
pub(crate) enum Resolution {
    #[default]
    Idle,
    UnderWay,
    /// The program has not asked for it yet.
    Answered(Answer),
}

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: just as it was made.
        unsafe { rdma_freeaddrinfo(self.0.as_ptr()) };
    }
}

impl Answer {
    /// The program's from now on.
    fn into_raw(self) -> *mut rdma_addrinfo {
        let at = self.0.as_ptr();
        std::mem::forget(self);
        at
    }
}

impl Failure {
    /// The errno value that says so; those of getaddrinfo(3) are not among them.
    fn errno(self) -> c_int {
        match self {
            Failure::Errno(errno) => errno,
            Failure::Name(libc::EAI_AGAIN) => libc::EAGAIN,
            Failure::Name(libc::EAI_FAMILY) => libc::EAFNOSUPPORT,
            Failure::Name(libc::EAI_MEMORY) => libc::ENOMEM,
            Failure::Name(libc::EAI_NONAME | libc::EAI_NODATA | libc::EAI_SERVICE) => libc::ENOENT,
            Failure::Name(_) => libc::EINVAL,
        }
    }
}

/// `rdma_getaddrinfo(3)`: 0, -1 with errno, or an error of getaddrinfo(3).
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    if res.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: of the man page.
    let question = unsafe { Question::read(node, service, hints) };
    match question.map_err(Failure::Errno).and_then(|question| question.answer()) {
        Ok(answer) => {
            // SAFETY: room for the result.
            unsafe { *res = answer.into_raw() };
            0
        }
        Err(Failure::Errno(errno)) => fail(errno),
        Err(Failure::Name(error)) => error,
    }
}

/// `rdma_resolve_addrinfo(3)`: what `rdma_getaddrinfo` finds, as an event. EBUSY until an earlier answer is asked for;
/// EOPNOTSUPP for the services of a subnet administrator, which there is none of.
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        waiting(id, |manager, object| {
            let question = Question::read(node, service, hints)?;
            let (handle, resolution) = (object.handle, Arc::clone(&object.resolution));
            {
                let mut now = lock(&resolution);
                if !matches!(*now, Resolution::Idle) {
                    return Err(libc::EBUSY);
                }
                *now = Resolution::UnderWay;
            }
            // A name server may take seconds, and the call is to return.
            let ask = move || {
                let (next, report) = match question.answer() {
                    Ok(answer) => (Resolution::Answered(answer), Report::plain(RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0)),
                    Err(why) => (Resolution::Idle, Report::plain(RDMA_CM_EVENT_ADDRINFO_ERROR, -why.errno())),
                };
                *lock(&resolution) = next;
                // The program may have destroyed it meanwhile.
                let _ = manager.report(handle, report);
            };
            vervain_scheduler::spawn("rdma-addrinfo", RESOLVER_STACK, ask).map(drop).map_err(|_| {
                *lock(&object.resolution) = Resolution::Idle;
                libc::ENOMEM
            })
        })
    }
}

/// `rdma_query_addrinfo(3)`: the answer, once. ENOENT where there is none.
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    if id.is_null() || info.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: of the man page.
    let mut now = lock(unsafe { &id_of(id).resolution });
    match std::mem::take(&mut *now) {
        Resolution::Answered(answer) => {
            // SAFETY: room for the result.
            unsafe { *info = answer.into_raw() };
            0
        }
        other => {
            *now = other;
            fail(libc::ENOENT)
        }
    }
}

fn lock(resolution: &Mutex<Resolution>) -> MutexGuard<'_, Resolution> {
    resolution.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Question {
    /// Reads the question of a C program. EINVAL for nothing at all, EOPNOTSUPP for a subnet administrator's services.
    ///
    /// # Safety
    /// Texts that end with 0 and a struct whose addresses are as long as it says, or null.
    unsafe fn read(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> Result<Question, c_int> {
        if node.is_null() && service.is_null() && hints.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's.
        let text = |at: *const c_char| (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_owned());
        let bytes = |at: *const sockaddr, length: socklen_t| {
            if at.is_null() {
                return Vec::new();
            }
            // SAFETY: the caller's.
            unsafe { std::slice::from_raw_parts(at.cast::<u8>(), length as usize) }.to_vec()
        };
        // SAFETY: the caller's.
        let hints = unsafe { hints.as_ref() }.map(|hints| Hints {
            flags: hints.ai_flags,
            family: hints.ai_family,
            qp_type: hints.ai_qp_type as ibv_qp_type,
            space: hints.ai_port_space as rdma_port_space,
            from: bytes(hints.ai_src_addr, hints.ai_src_len),
            to: bytes(hints.ai_dst_addr, hints.ai_dst_len),
        });
        if hints.as_ref().is_some_and(|hints| hints.flags & RAI_SA != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        Ok(Question { node: text(node), service: text(service), hints })
    }

    fn answer(&self) -> Result<Answer, Failure> {
        // SAFETY: a struct of integers and pointers.
        let room = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
        let answer = Answer(NonNull::new(room).ok_or(Failure::Errno(libc::ENOMEM))?);
        let named = if self.node.is_none() && self.service.is_none() { None } else { Some(self.look_up()?) };
        // SAFETY: just made, and nobody else's; and what getaddrinfo(3) has made.
        let put = unsafe { self.put(&mut *room, named.and_then(|named| named.as_ref())) };
        if let Some(named) = named {
            // SAFETY: as above.
            unsafe { libc::freeaddrinfo(named) };
        }
        put.map(|()| answer).map_err(Failure::Errno)
    }

    /// The answer of getaddrinfo(3) about the names.
    fn look_up(&self) -> Result<*mut addrinfo, Failure> {
        // SAFETY: a struct of integers and pointers.
        let mut asked: addrinfo = unsafe { std::mem::zeroed() };
        asked.ai_socktype = libc::SOCK_STREAM;
        if let Some(hints) = &self.hints {
            for (ours, theirs) in [(RAI_PASSIVE, libc::AI_PASSIVE), (RAI_NUMERICHOST, libc::AI_NUMERICHOST)] {
                if hints.flags & ours != 0 {
                    asked.ai_flags |= theirs;
                }
            }
            if hints.flags & RAI_FAMILY != 0 {
                asked.ai_family = if hints.family == AF_IB { libc::AF_UNSPEC } else { hints.family };
            }
            if matches!((hints.qp_type, hints.space), (IBV_QPT_UD, _) | (0, RDMA_PS_UDP | RDMA_PS_IPOIB)) {
                asked.ai_socktype = libc::SOCK_DGRAM;
            }
        }
        let text = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let mut found = ptr::null_mut();
        // SAFETY: texts that end with 0 or null, and room for the result.
        match unsafe { libc::getaddrinfo(text(&self.node), text(&self.service), &raw const asked, &raw mut found) } {
            0 => Ok(found),
            libc::EAI_SYSTEM => Err(Failure::Errno(crate::device::last_errno())),
            error => Err(Failure::Name(error)),
        }
    }

    /// Fills the answer in. ENOMEM.
    fn put(&self, info: &mut rdma_addrinfo, named: Option<&addrinfo>) -> Result<(), c_int> {
        let hints = self.hints.as_ref();
        info.ai_flags = hints.map_or(0, |hints| hints.flags);
        info.ai_family = named.map(|named| named.ai_family).or(hints.map(|hints| hints.family)).unwrap_or(0);
        if let Some(named) = named {
            let length = named.ai_addrlen as usize;
            // SAFETY: getaddrinfo(3)'s, of that length.
            let address = copy(unsafe { std::slice::from_raw_parts(named.ai_addr.cast::<u8>(), length) })?;
            let canonical = if named.ai_canonname.is_null() {
                ptr::null_mut()
            } else {
                // SAFETY: a text that ends with 0.
                unsafe { libc::strdup(named.ai_canonname) }
            };
            if info.ai_flags & RAI_PASSIVE != 0 {
                (info.ai_src_addr, info.ai_src_len) = address;
                info.ai_src_canonname = canonical;
            } else {
                (info.ai_dst_addr, info.ai_dst_len) = address;
                info.ai_dst_canonname = canonical;
            }
        }
        if let Some(hints) = hints {
            if info.ai_src_addr.is_null() && !hints.from.is_empty() {
                (info.ai_src_addr, info.ai_src_len) = copy(&hints.from)?;
            }
            if info.ai_dst_addr.is_null() && !hints.to.is_empty() {
                (info.ai_dst_addr, info.ai_dst_len) = copy(&hints.to)?;
            }
        }
        for (address, length) in [(info.ai_src_addr, info.ai_src_len), (info.ai_dst_addr, info.ai_dst_len)] {
            if info.ai_family == 0 && length as usize >= size_of::<libc::sa_family_t>() {
                // SAFETY: copied above, and long enough for its family.
                info.ai_family = unsafe { address.cast::<libc::sa_family_t>().read() }.into();
            }
        }
        let kind = hints.map_or(0, |hints| hints.qp_type);
        let space = match hints.map_or(0, |hints| hints.space) {
            0 if kind == IBV_QPT_UD => RDMA_PS_UDP,
            0 => RDMA_PS_TCP,
            space => space,
        };
        info.ai_port_space = space as c_int;
        info.ai_qp_type = if kind == 0 { crate::ids::qp_type_of(space) } else { kind } as c_int;
        Ok(())
    }
}

/// An address in memory of malloc(3). ENOMEM.
fn copy(address: &[u8]) -> Result<(*mut sockaddr, socklen_t), c_int> {
    // SAFETY: a size.
    let to = unsafe { libc::malloc(address.len()) };
    if to.is_null() {
        return Err(libc::ENOMEM);
    }
    // SAFETY: room for it.
    unsafe { ptr::copy_nonoverlapping(address.as_ptr(), to.cast::<u8>(), address.len()) };
    Ok((to.cast(), address.len() as socklen_t))
}

/// `rdma_freeaddrinfo(3)`.
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    // SAFETY: made by rdma_getaddrinfo, whose parts are malloc's.
    unsafe {
        while let Some(info) = next.as_ref() {
            let at = std::mem::replace(&mut next, info.ai_next);
            for part in [
                info.ai_src_addr.cast::<c_void>(),
                info.ai_dst_addr.cast(),
                info.ai_src_canonname.cast(),
                info.ai_dst_canonname.cast(),
                info.ai_route,
                info.ai_connect,
            ] {
                libc::free(part);
            }
            libc::free(at.cast());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(node: Option<&CStr>, hints: Hints) -> Result<Answer, Failure> {
        Question { node: node.map(CStr::to_owned), service: Some(c"7471".to_owned()), hints: Some(hints) }.answer()
    }

    fn hints(flags: c_int, qp_type: ibv_qp_type, space: rdma_port_space) -> Hints {
        Hints { flags, family: libc::AF_INET, qp_type, space, from: Vec::new(), to: Vec::new() }
    }

    #[test]
    fn an_answer_has_the_side_and_the_kind_that_were_asked_for() {
        for (flags, qp_type, space, found_type, found_space) in [
            (0, 0, 0, IBV_QPT_RC, RDMA_PS_TCP),
            (0, IBV_QPT_UD, 0, IBV_QPT_UD, RDMA_PS_UDP),
            (0, 0, RDMA_PS_UDP, IBV_QPT_UD, RDMA_PS_UDP),
            (RAI_PASSIVE, IBV_QPT_UC, RDMA_PS_IB, IBV_QPT_UC, RDMA_PS_IB),
        ] {
            let answer = ask(None, hints(flags | RAI_FAMILY, qp_type, space)).unwrap_or_else(|e| panic!("{e:?}"));
            // SAFETY: just made.
            let info = unsafe { answer.0.as_ref() };
            let is_passive = flags & RAI_PASSIVE != 0;
            assert_eq!((info.ai_src_addr.is_null(), info.ai_dst_addr.is_null()), (!is_passive, is_passive));
            let address = if is_passive { info.ai_src_addr } else { info.ai_dst_addr };
            // SAFETY: getaddrinfo's.
            let address = unsafe { crate::address::read(address) }.unwrap();
            let ip = if is_passive { "0.0.0.0" } else { "127.0.0.1" };
            assert_eq!(address.to_string(), format!("{ip}:7471"));
            assert_eq!((info.ai_qp_type, info.ai_port_space), (found_type as c_int, found_space as c_int));
        }
    }

    #[test]
    fn what_the_hints_say_besides_is_kept() {
        let from = [2, 0, 0, 0, 127, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
        let asked = Hints { from: from.to_vec(), ..hints(0, 0, 0) };
        let answer =
            Question { node: None, service: None, hints: Some(asked) }.answer().unwrap_or_else(|e| panic!("{e:?}"));
        // SAFETY: just made, with an address of that length.
        let info = unsafe { answer.0.as_ref() };
        assert_eq!((info.ai_family, info.ai_src_len, info.ai_dst_len), (libc::AF_INET, 16, 0));
        // SAFETY: as above.
        assert_eq!(unsafe { std::slice::from_raw_parts(info.ai_src_addr.cast::<u8>(), 16) }, from);
    }

    #[test]
    fn a_failure_has_an_errno_value() {
        let why = ask(Some(c"no.number"), hints(RAI_NUMERICHOST, 0, 0)).err().expect("no address");
        assert_eq!(why, Failure::Name(libc::EAI_NONAME));
        assert_eq!(why.errno(), libc::ENOENT);
    }
}
