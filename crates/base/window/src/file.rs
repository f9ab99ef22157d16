//! A window that all nodes map: a file or memory without a name, for containers of one machine, say; or a device that
//! is memory, which several machines share.
//!
//! Every process that maps it can write all of it, so only this user may have the right to write the file. Its length
//! is checked at opening. If it is shortened while it is in use, SIGBUS ends the processes that use it; sealed memory
//! cannot be shortened.

use crate::claims::Claims;
use crate::device::{Bounds, Channel, Facts, Origin, Put, PutDevice, Refused, Region};
use crate::error::{Error, Result};
use crate::found::{Found, HARMLESS};
use crate::inscription;
use crate::ivshmem;
use crate::layout::{HEADER, Header, Layout};
use crate::locks::Kernel;
use crate::make::{self, Options};
use crate::mapping::{Mapping, reopen};
use crate::medium::{self, Medium};
use crate::nodes::{self, Identity, PATIENCE};
use crate::ofd::Ofd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::futex;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Attempts to open or make a file that appears and disappears.
const TRIES: usize = 16;

/// A window in a file.
#[derive(Debug)]
pub struct FileDevice {
    facts: Facts,
    own: Region,
    claims: Arc<Claims>,
    mapping: Arc<Mapping>,
    header: Region,
    /// True if the kernel supports futexes in the window's memory.
    has_futexes: bool,
}

impl FileDevice {
    /// Opens the window at `path`, and makes it if nothing is there. Another process that does so at the same time gets
    /// the same window. `ivshmem` is the machine's ivshmem device, `ivshmem:DDDD:BB:DD.F` the one with this PCI
    /// address.
    ///
    /// # Errors
    /// * of the file: EINVAL: it is no window or no regular file, or its size is not that of its header or the one
    ///   asked for; EPROTO: another version; EPERM: others may write it; ENOSPC or EFBIG: no room to make it; and the
    ///   errors of open(2)
    /// * of the device: ENODEV: there is none; ENXIO: it has no memory; EIO: its memory does not answer; EACCES: it is
    ///   not this user's; EINVAL: it is a device of another kind, or holds other data; EBUSY: a driver has it
    /// * of the node: EINVAL: there is no such node, or none was named where kernels differ; EBUSY: another has the
    ///   node; ENOSPC: the window is full
    pub fn open(path: &Path, options: &Options) -> Result<FileDevice> {
        Self::open_as(path, options, Identity::own()?)
    }

    /// Opens the window as the node with this identity.
    pub(crate) fn open_as(path: &Path, options: &Options, identity: Identity) -> Result<FileDevice> {
        if let Some(address) = ivshmem::named(path) {
            return Self::attach(&ivshmem::open(Path::new(ivshmem::PCI_DEVICES), address)?, options, identity);
        }
        for _ in 0..TRIES {
            match rustix::fs::open(path, OFlags::RDWR | HARMLESS, Mode::empty()) {
                Ok(fd) => return Self::attach(&Found::check(fd, path)?, options, identity),
                Err(Errno::NOENT) => {
                    check_link(path)?;
                    let layout = options.layout()?;
                    make::file(path, layout.size(), &make::first_words(layout)?)?;
                }
                Err(e) => return Err(Error::of(format_args!("the window {} cannot be opened", path.display()), e)),
            }
        }
        let name = path.display();
        Err(Error::new(libc::ENOENT, format!("the window {name} cannot be made: it comes and goes")))
    }

    pub(crate) fn attach(file: &Found, options: &Options, identity: Identity) -> Result<FileDevice> {
        let is_file = file.medium == Medium::File;
        // Only a named file appears together with its header. Devices and sealed memory may still begin with zeros.
        let said = if is_file && !file.is_sealed { Some(file.header()?) } else { None };
        if let Some((layout, _)) = said {
            file.check_size(layout.size())?;
            options.check(layout, &file.name)?;
        }
        // The mapping keeps its open file description alive, hence locks are taken by another one.
        let mapping = Mapping::new(&file.fd, file.size).map_err(|e| file.cannot_be_mapped(e))?;
        if is_file && !file.is_sealed {
            file.check_size(file.size)?;
        }
        let kernel = Box::new(Ofd::new(reopen(&file.fd, OFlags::RDWR)?)?);
        let (layout, uuid) = match said {
            Some(said) => said,
            None => inscription::of(&mapping, file, options, &*kernel)?,
        };
        let header = mapping.region(0, HEADER);
        let node = join(&header, layout, &*kernel, identity, options.node, &file.name)?;
        let own = mapping.region(layout.region(node), layout.region_len());
        let read_speed = (!is_file).then(|| medium::read_speed(&own));
        if let Some(speed) = read_speed.filter(|speed| medium::is_uncached(*speed)) {
            medium::warn_of_slow(&file.name, speed);
        }
        let facts = Facts { node, layout, uuid, coherent: true, whole: 8, medium: file.medium, read_speed };
        let has_futexes = has_futexes(own.word(layout.doors()));
        let claims = Claims::new((node, identity), layout, (header.clone(), own.clone()), kernel);
        Ok(FileDevice { facts, own, claims, mapping, header, has_futexes })
    }

    /// The header, which all nodes can write.
    pub(crate) fn header(&self) -> &Region {
        &self.header
    }

    /// Address at which the region of a node is mapped.
    ///
    /// # Panics
    /// There is no such node.
    pub(crate) fn base_of(&self, node: u32) -> NonNull<u8> {
        let layout = self.facts.layout;
        self.mapping.at(layout.region(node), layout.region_len())
    }

    /// The file, by an open file description of its own, and the offset of this node's region in it, for mappings
    /// besides those of the device.
    ///
    /// # Errors
    /// ESRCH: this is a forked child; EOPNOTSUPP: single pages of the device cannot be mapped; and the errors of
    /// open(2).
    pub fn file(&self) -> Result<(OwnedFd, u64)> {
        if let medium @ Medium::Dax { align } = self.facts.medium
            && !medium.maps_pages()
        {
            let what = format!(
                "heap=on is not for device-DAX of which nothing smaller than {} KiB can be mapped: make it with --align=4k (ndctl \
                 create-namespace, daxctl create-device)",
                align >> 10
            );
            return Err(Error::new(libc::EOPNOTSUPP, what));
        }
        let own = self.claims.descriptor().ok_or_else(|| Error::new(libc::ESRCH, "the window is another process's"))?;
        Ok((reopen(&own, OFlags::RDWR)?, self.facts.layout.region(self.facts.node)))
    }
}

/// ENOENT: `path` is a link to nothing. A new file could not take its name.
fn check_link(path: &Path) -> Result<()> {
    match path.read_link() {
        Ok(target) if !path.exists() => Err(Error::new(
            libc::ENOENT,
            format!(
                "the window {} is a link to {}, which is not there: remove the link, or name a file",
                path.display(),
                target.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// Calls [`nodes::join`], and prefixes its error with the window's name.
pub(crate) fn join(
    header: &Region,
    layout: Layout,
    kernel: &dyn Kernel,
    identity: Identity,
    wanted: Option<u32>,
    name: &str,
) -> Result<u32> {
    nodes::join(Header::of(header), layout, kernel, identity, wanted, PATIENCE)
        .map_err(|e| Error::new(e.errno(), format!("{name}: {e}")))
}

/// Checks that a window has this node.
///
/// # Errors
/// EINVAL: it has not.
pub fn check_node(layout: Layout, node: u32) -> Result<()> {
    if node < layout.nodes() {
        return Ok(());
    }
    Err(Error::invalid(format!("the window has nodes 0 to {}, not {node}", layout.nodes() - 1)))
}

impl PutDevice for FileDevice {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn own(&self) -> &Region {
        &self.own
    }

    fn channel(&self, node: u32) -> Result<Box<dyn Channel>> {
        let layout = self.facts.layout;
        check_node(layout, node)?;
        Ok(Box::new(Mapped {
            base: self.base_of(node),
            bounds: Bounds::of(layout),
            medium: self.facts.medium,
            _mapping: self.mapping.clone(),
        }))
    }

    fn wakes(&self, node: u32) -> bool {
        // A futex of shared memory is identified by file and offset in every mapping of one kernel; other kernels do
        // not know it.
        let kernel = |node: u32| {
            Header::of(&self.header)
                .table
                .get(node as usize)
                .and_then(Identity::of_entry)
                .map(|identity| identity.kernel)
        };
        self.has_futexes && kernel(node).is_some_and(|there| Some(there) == kernel(self.facts.node))
    }

    fn sleep(&self, offset: u64, seen: u32) {
        // The result is of no use: the caller looks again after each sleep.
        let _ = futex::wait(half(self.own.word(offset)), futex::Flags::empty(), seen, None);
    }

    fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }
}

/// Returns true if a thread can sleep on this word. The kernel refuses where it has no pages, as in memory of PCI
/// devices.
fn has_futexes(word: &AtomicU64) -> bool {
    let other = !(word.load(Ordering::Relaxed) as u32);
    // The value differs from the one slept on, so it returns at once; if it changes just now, the timeout is zero.
    let now = futex::Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(futex::wait(half(word), futex::Flags::empty(), other, Some(&now)), Err(Errno::FAULT))
}

/// The lower half of a word, on which a futex is waited for.
fn half(word: &AtomicU64) -> &AtomicU32 {
    let halves = std::ptr::from_ref(word).cast::<AtomicU32>();
    // SAFETY: inside the word, and aligned; only atomics are ever stored there.
    unsafe { &*halves.add(usize::from(cfg!(target_endian = "big"))) }
}

/// Puts by plain stores.
struct Mapped {
    /// Address of the node's region.
    base: NonNull<u8>,
    bounds: Bounds,
    medium: Medium,
    _mapping: Arc<Mapping>,
}

// SAFETY: the address is in a shared mapping that `_mapping` keeps; this type only stores there.
unsafe impl Send for Mapped {}

impl Channel for Mapped {
    fn put(&mut self, chain: &[Put<'_>]) -> std::result::Result<(), Refused> {
        self.bounds.check(chain)?;
        for put in chain {
            // Earlier puts become visible before this one.
            self.medium.drain();
            // SAFETY: the bounds have been checked.
            let to = unsafe { self.base.add(put.to as usize) };
            match put.from {
                Origin::Words(words) => {
                    let to = to.cast::<AtomicU64>();
                    for (i, word) in words.iter().enumerate() {
                        // SAFETY: inside, at a multiple of 8; all references to these bytes are to atomics.
                        unsafe { to.add(i).as_ref() }.store(*word, Ordering::Relaxed);
                    }
                }
                // SAFETY: as many bytes are inside, and the only references to them are to atomics.
                Origin::Source(source) => unsafe { source.store_to(to.as_ptr()) }.map_err(Refused::Faulted)?,
            }
        }
        // The last put, too, becomes visible without waiting for others to fill its write-combining buffer.
        self.medium.drain();
        Ok(())
    }

    fn wake(&mut self, offset: u64) {
        if self.bounds.check(&[Put { to: offset, from: Origin::Words(&[0]) }]).is_ok() {
            // SAFETY: the bounds have been checked; the kernel takes the address only, and the word is not read.
            let word = unsafe { self.base.add(offset as usize).cast::<AtomicU64>().as_ref() };
            // At most one thread of the process sleeps there.
            let _ = futex::wake(half(word), futex::Flags::empty(), 1);
        }
    }
}
