//! A file, or memory without a name, that all nodes map: containers of one machine, say; or a device that is memory, which the
//! machines of its nodes share.
//!
//! Whoever maps it can write all of it, so the file is one that only this user may write. That it is long enough is checked when
//! it is opened; to make it shorter while it is in use ends the processes that use it by SIGBUS. Memory that is sealed cannot
//! be made shorter.

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

/// How often a file is looked for that comes and goes.
const TRIES: usize = 16;

/// A window in a file.
#[derive(Debug)]
pub struct FileDevice {
    facts: Facts,
    own: Region,
    claims: Arc<Claims>,
    mapping: Arc<Mapping>,
    header: Region,
    /// Whether the kernel knows threads by words that lie there.
    has_futexes: bool,
}

impl FileDevice {
    /// Opens the window at `path`, and makes it if nothing is there. Another process that does so at the same time gets the same
    /// window. `ivshmem` and `ivshmem:DDDD:BB:DD.F` are the device of that kind, and the one with this PCI address.
    ///
    /// # Errors
    /// * of the file: EINVAL where it is no window, has another size than its header says or than is asked for, or is no regular
    ///   file; EPROTO for another version; EPERM where others may write it; ENOSPC and EFBIG where it cannot be made; and what
    ///   open(2) says
    /// * of the device: ENODEV, ENXIO, EIO and EACCES, as it is not there, has no memory, that does not answer, or is not this user's;
    ///   EINVAL for another one, or where it begins with the data of somebody else; EBUSY where a driver has it
    /// * of the node: EINVAL, EBUSY and ENOSPC, as the window is full, or the node that is asked for somebody else
    pub fn open(path: &Path, options: &Options) -> Result<FileDevice> {
        Self::open_as(path, options, Identity::own()?)
    }

    /// As the node with this identity.
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
        // Only a file with a name appears with its header; what is a device, or sealed memory, may begin with zeros yet.
        let said = if is_file && !file.is_sealed { Some(file.header()?) } else { None };
        if let Some((layout, _)) = said {
            file.check_size(layout.size())?;
            options.check(layout, &file.name)?;
        }
        // The mapping keeps its open file description, hence locks are taken by another one.
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

    /// The header, which all nodes see.
    pub(crate) fn header(&self) -> &Region {
        &self.header
    }

    /// Where the region of a node is mapped.
    ///
    /// # Panics
    /// There is no such node.
    pub(crate) fn base_of(&self, node: u32) -> NonNull<u8> {
        let layout = self.facts.layout;
        self.mapping.at(layout.region(node), layout.region_len())
    }

    /// The file, by an open file description of its own, and the offset at which the region of this node begins there: for
    /// mappings beside those of the device.
    ///
    /// # Errors
    /// What open(2) says. ESRCH: this is a forked child. EOPNOTSUPP: pages of the device cannot be mapped.
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

/// ENOENT: a link to nothing. A file that was made could not take its name.
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

/// [`nodes::join`], with the window's name before what it says.
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

/// EINVAL: the window has no such node.
pub(crate) fn check_node(layout: Layout, node: u32) -> Result<()> {
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
        // A futex of shared memory is known by file and place, whoever maps them; another kernel knows nothing of it.
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
        // Whatever it says, who has slept looks again.
        let _ = futex::wait(half(self.own.word(offset)), futex::Flags::empty(), seen, None);
    }

    fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }
}

/// Whether a thread can sleep on this word: not where the kernel has no pages for it, as of memory of a PCI device.
fn has_futexes(word: &AtomicU64) -> bool {
    let other = !(word.load(Ordering::Relaxed) as u32);
    // At once another value than the one slept on, and if it changes just now no time to sleep in.
    let now = futex::Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(futex::wait(half(word), futex::Flags::empty(), other, Some(&now)), Err(Errno::FAULT))
}

/// The lower half of a word: what a futex is.
fn half(word: &AtomicU64) -> &AtomicU32 {
    let halves = std::ptr::from_ref(word).cast::<AtomicU32>();
    // SAFETY: inside of the word, and aligned; what may be put there at any time are atomics only.
    unsafe { &*halves.add(usize::from(cfg!(target_endian = "big"))) }
}

/// Puts by plain stores.
struct Mapped {
    /// Where the node's region is.
    base: NonNull<u8>,
    bounds: Bounds,
    medium: Medium,
    _mapping: Arc<Mapping>,
}

// SAFETY: an address in a shared mapping that `_mapping` keeps, where this only stores.
unsafe impl Send for Mapped {}

impl Channel for Mapped {
    fn put(&mut self, chain: &[Put<'_>]) -> std::result::Result<(), Refused> {
        self.bounds.check(chain)?;
        for put in chain {
            // What was put before is visible before this.
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
                // SAFETY: as many bytes are inside, and no reference is to them but to atomics.
                Origin::Source(source) => unsafe { source.store_to(to.as_ptr()) }.map_err(Refused::Faulted)?,
            }
        }
        // Nor does the last one wait until others fill the buffer that it is in.
        self.medium.drain();
        Ok(())
    }

    fn wake(&mut self, offset: u64) {
        if self.bounds.check(&[Put { to: offset, from: Origin::Words(&[0]) }]).is_ok() {
            // SAFETY: the bounds have been checked; the kernel takes the address, and nobody reads what is there.
            let word = unsafe { self.base.add(offset as usize).cast::<AtomicU64>().as_ref() };
            // At most one thread of the process sleeps there.
            let _ = futex::wake(half(word), futex::Flags::empty(), 1);
        }
    }
}
