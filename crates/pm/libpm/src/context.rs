//! Contexts: opened and closed, attached and detached, their nodes, and composites of them.

use std::ffi::{c_char, c_int};
use std::slice;
use std::sync::Arc;

use vervain_pm::{Composite, Error};

use crate::device::{self, Device};
use crate::error::{null, status};

/// The object behind `pmContext *`.
pub struct Context {
    pub way: Way,
    /// The device, where pmAttachContext has opened it and pmDetachContext closes it.
    own: Option<Device>,
}

/// One of the two kinds.
pub enum Way {
    /// One that sends and receives itself.
    One(Arc<vervain_pm::Context>),
    /// One that has others do it. It keeps its device.
    Composite(Composite, #[expect(dead_code, reason = "counted")] Arc<()>),
}

/// Calls a function that both kinds of context have.
#[macro_export]
macro_rules! of_either {
    ($context:expr, $name:ident => $call:expr) => {
        match &$context.way {
            $crate::context::Way::One($name) => $call,
            $crate::context::Way::Composite($name, _) => $call,
        }
    };
}

impl Context {
    /// Opens a context on a device.
    pub fn open(device: &Device) -> Result<Context, Error> {
        let way = match device {
            Device::Verbs(device) => Way::One(Arc::new(vervain_pm::Context::open(device)?)),
            Device::Composite(device) => Way::Composite(Composite::new()?, device.clone()),
        };
        Ok(Context { way, own: None })
    }

    /// Closes it. All that is not in use any more is closed in any case.
    pub fn close(self) -> Result<(), Error> {
        let closed = match self.way {
            Way::One(context) => Arc::into_inner(context).map_or(Ok(()), vervain_pm::Context::close),
            Way::Composite(..) => Ok(()),
        };
        let device = match self.own {
            Some(Device::Verbs(device)) => device.close(),
            _ => Ok(()),
        };
        closed.and(device)
    }

    fn is_used(&self) -> bool {
        matches!(&self.way, Way::One(context) if Arc::strong_count(context) > 1)
    }

    fn composite(&self) -> Result<&Composite, Error> {
        match &self.way {
            Way::Composite(composite, _) => Ok(composite),
            Way::One(_) => Err(Error::new(libc::EINVAL, "nodes are added to a composite context, and this is none")),
        }
    }

    fn member(&self) -> Result<&Arc<vervain_pm::Context>, Error> {
        match &self.way {
            Way::One(context) => Ok(context),
            Way::Composite(..) => Err(Error::new(libc::EINVAL, "a composite context is no member of another")),
        }
    }
}

/// The context of a call.
///
/// # Safety
/// It is null or open.
pub unsafe fn context<'a>(pmc: *mut Context) -> Result<&'a Context, Error> {
    // SAFETY: the caller's promise.
    unsafe { pmc.as_ref() }.ok_or_else(|| null("pmc"))
}

/// The number of a node as Rust has it.
pub fn node(node: c_int) -> Result<u32, Error> {
    u32::try_from(node).map_err(|_| Error::new(libc::EINVAL, format!("there is no node {node}")))
}

/// The place that a result goes to.
///
/// # Safety
/// It is null or valid for a write.
pub unsafe fn put<T>(place: *mut T, name: &str, value: impl FnOnce() -> Result<T, Error>) -> Result<(), Error> {
    if place.is_null() {
        return Err(null(name));
    }
    let value = value()?;
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Opens a context.
///
/// # Safety
/// `device` is null or open, `pmcp` is null or a place for a pointer.
pub unsafe extern "C" fn pmOpenContext(device: *mut Device, pmcp: *mut *mut Context) -> c_int {
    status("pmOpenContext", || {
        // SAFETY: the caller's promise.
        let device = unsafe { device.as_ref() }.ok_or_else(|| null("pmd"))?;
        // SAFETY: the caller's promise.
        unsafe { put(pmcp, "pmcp", || Ok(Box::into_raw(Box::new(Context::open(device)?)))) }
    })
}

/// Closes a context.
///
/// # Safety
/// `pmc` is null or open, and no other thread uses it.
pub unsafe extern "C" fn pmCloseContext(pmc: *mut Context) -> c_int {
    // SAFETY: the caller's promise.
    status("pmCloseContext", || unsafe { close(pmc) })
}

/// # Safety
/// As [`pmCloseContext`].
unsafe fn close(pmc: *mut Context) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    if unsafe { context(pmc) }?.is_used() {
        return Err(Error::new(libc::EBUSY, "the context is a member of a composite one"));
    }
    // SAFETY: made by a function of this file, and closed once.
    unsafe { Box::from_raw(pmc) }.close()
}

/// Opens a device, and a context on it.
///
/// # Safety
/// `kind` is null or a string, `pmcp` is null or a place for a pointer.
pub unsafe extern "C" fn pmAttachContext(kind: *const c_char, fd: c_int, pmcp: *mut *mut Context) -> c_int {
    status("pmAttachContext", || {
        if fd != -1 {
            return Err(Error::new(libc::EINVAL, format!("descriptor {fd} is that of no context; -1 is the job's")));
        }
        let attach = || {
            // SAFETY: the caller's promise.
            let device = Device::open(unsafe { device::kind(kind) }?, &[])?;
            let context = Context { own: None, ..Context::open(&device)? };
            Ok(Box::into_raw(Box::new(Context { own: Some(device), ..context })))
        };
        // SAFETY: the caller's promise.
        unsafe { put(pmcp, "pmcp", attach) }
    })
}

/// Closes a context, and the device if pmAttachContext has opened it.
///
/// # Safety
/// As [`pmCloseContext`].
pub unsafe extern "C" fn pmDetachContext(pmc: *mut Context) -> c_int {
    // SAFETY: the caller's promise.
    status("pmDetachContext", || unsafe { close(pmc) })
}

/// The number of nodes.
///
/// # Safety
/// `pmc` is null or open, `nodes` is null or a place for a number.
pub unsafe extern "C" fn pmGetNodeCount(pmc: *mut Context, nodes: *mut c_int) -> c_int {
    status("pmGetNodeCount", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        // SAFETY: the caller's promise.
        unsafe { put(nodes, "nodesp", || Ok(of_either!(context, c => c.nodes()).cast_signed())) }
    })
}

/// This process's number.
///
/// # Safety
/// As [`pmGetNodeCount`].
pub unsafe extern "C" fn pmGetSelf(pmc: *mut Context, own: *mut c_int) -> c_int {
    status("pmGetSelf", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let number = || match &context.way {
            Way::One(context) => Ok(context.node()),
            Way::Composite(composite, _) => composite.node(),
        };
        // SAFETY: the caller's promise.
        unsafe { put(own, "selfp", || Ok(number()?.cast_signed())) }
    })
}

/// The longest message to a node.
///
/// # Safety
/// `pmc` is null or open, `mtu` is null or a place for a size.
pub unsafe extern "C" fn pmGetMtu(pmc: *mut Context, node: c_int, mtu: *mut usize) -> c_int {
    status("pmGetMtu", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let node = self::node(node)?;
        let longest = || match &context.way {
            Way::One(context) if node < context.nodes() => Ok(context.mtu()),
            Way::One(context) => {
                let nodes = context.nodes();
                Err(Error::new(libc::EINVAL, format!("there is no node {node}: the context has {nodes}")))
            }
            Way::Composite(composite, _) => composite.mtu(node),
        };
        // SAFETY: the caller's promise.
        unsafe { put(mtu, "mtup", longest) }
    })
}

/// Has a member of a composite context reach a node.
///
/// # Safety
/// Both contexts are null or open.
pub unsafe extern "C" fn pmAddNode(pmc: *mut Context, node: c_int, member: *mut Context) -> c_int {
    status("pmAddNode", || {
        // SAFETY: the caller's promise.
        let (context, member) = unsafe { (context(pmc)?, context(member)?) };
        let node = self::node(node)?;
        context.composite()?.add(node, member.member()?, node)
    })
}

/// Has a member of a composite context reach nodes, under other numbers.
///
/// # Safety
/// Both contexts are null or open; `nodes` has `n` numbers.
pub unsafe extern "C" fn pmAssociateNodes(
    pmc: *mut Context,
    n: c_int,
    nodes: *const c_int,
    member: *mut Context,
) -> c_int {
    status("pmAssociateNodes", || {
        // SAFETY: the caller's promise.
        let (context, member) = unsafe { (context(pmc)?, context(member)?) };
        let count = usize::try_from(n).map_err(|_| Error::new(libc::EINVAL, format!("{n} nodes")))?;
        if nodes.is_null() {
            return Err(null("nodes"));
        }
        // SAFETY: the caller's promise.
        let nodes = unsafe { slice::from_raw_parts(nodes, count) };
        let numbers = nodes.iter().map(|number| node(*number)).collect::<Result<Vec<_>, _>>()?;
        let (composite, member) = (context.composite()?, member.member()?);
        if count > member.nodes() as usize {
            return Err(Error::new(libc::EINVAL, format!("{n} nodes: the member has {}", member.nodes())));
        }
        numbers.into_iter().zip(0..).try_for_each(|(number, there)| composite.add(number, member, there))
    })
}
