//! Making the header of a window in a device, where no file system makes it appear complete and machines without a
//! common kernel start at the same time; and in sealed memory without a name, which its owner hands out empty.
//!
//! Processes of one kernel take turns by the lock of the table. Kernels share no lock, and no instruction is sure to be
//! atomic between them, so timing decides which maker is first (Fischer's algorithm). A maker that finds no name stores
//! its own, waits for [`SETTLED`], and goes on only if its name still stands. It clears tables and doors, writes the
//! header with the magic word last, and waits once more before it removes its name.
//!
//! A machine that finds a name waits until it is gone; a name that does not change for [`DEAD`] is a dead maker's. Two
//! machines make the window at once only if one stands still for [`SETTLED`] between its look and its store. Even then
//! all but the last to store a name notice that before they are done.

use crate::error::{Error, Result};
use crate::found::Found;
use crate::layout::{GRANULE, HEADER, Header, Layout, MAGIC, MAX_SIZE};
use crate::locks::{self, Kernel, Locked};
use crate::make::{self, Options};
use crate::mapping::Mapping;
use crate::nodes::PATIENCE;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// Time that is longer than a machine stands still between a look and the store after it.
const SETTLED: Duration = Duration::from_millis(250);
/// Time without a change of its name after which a maker is dead. A living one changes it more often.
const DEAD: Duration = Duration::from_secs(2);
/// Interval of the looks for a maker's end.
const LOOK: Duration = Duration::from_millis(5);
/// Attempts to make a window or to wait for its maker.
const TRIES: usize = 16;
/// Bits of a maker's name that count its steps.
const BEATS: u64 = 0xffff;

/// The layout and uuid in the header; makes the header if there is none.
///
/// # Errors
/// EINVAL: the memory is no window, or the window's size is not the device's or the one asked for; EPROTO: the window
/// has another version; EIO: stores to the memory do not stay; EBUSY: other machines begin to make the window and do
/// not finish.
pub(crate) fn of(
    mapping: &Arc<Mapping>,
    device: &Found,
    options: &Options,
    kernel: &dyn Kernel,
) -> Result<(Layout, [u8; 16])> {
    let place = Place { mapping, device, options, kernel };
    if let Some(said) = place.read()? {
        return Ok(said);
    }
    if !locks::lock_soon(kernel, locks::TABLE, PATIENCE)? {
        return Err(locks::stuck("the window's header"));
    }
    let _one_of_this_kernel = Locked::of(kernel, locks::TABLE);
    for _ in 0..TRIES {
        if let Some(said) = place.read()? {
            return Ok(said);
        }
        if place.wait_for_maker() {
            place.make()?;
        }
    }
    let what = "other machines begin to make the window and do not get done: end the programs there";
    Err(Error::new(libc::EBUSY, format!("{}: {what}", device.name)))
}

struct Place<'a> {
    mapping: &'a Arc<Mapping>,
    device: &'a Found,
    options: &'a Options,
    kernel: &'a dyn Kernel,
}

impl Place<'_> {
    /// The layout and uuid of a complete header; None: there is none yet.
    fn read(&self) -> Result<Option<(Layout, [u8; 16])>> {
        let name = &self.device.name;
        if self.device.size < HEADER {
            let size = self.device.size;
            return Err(Error::invalid(format!("{name} has {size} bytes, too few for a window: make it larger")));
        }
        let region = self.mapping.region(0, HEADER);
        let header = Header::of(&region);
        let words: Vec<u64> = region.words().iter().map(|word| word.load(Ordering::Acquire)).collect();
        let is_made = header.maker.load(Ordering::Acquire) == 0;
        let magic = words[0];
        if (magic == MAGIC && !is_made) || (magic == 0 && words[8..].iter().all(|word| *word == 0)) {
            return Ok(None);
        }
        if magic == u64::MAX && words.iter().all(|word| *word == u64::MAX) {
            let what = "nothing answers (all bits are ones): is the device's memory enabled, and on the same host?";
            return Err(Error::new(libc::EIO, format!("{name}: {what}")));
        }
        let first = words[..6].try_into().expect("six words");
        let (layout, uuid) = Layout::of_first_words(first, name).map_err(|e| {
            Error::new(e.errno(), format!("{e}; to make a new one, clear its first 64 KiB while no program uses it"))
        })?;
        let fits = Layout::new(layout.nodes(), self.size())?;
        if fits != layout {
            return Err(Error::invalid(format!(
                "{name} has {} bytes, and its header is that of a window of {}: the machines do not share the same device, or, to make a \
                 new one, clear its first 64 KiB while no program uses it",
                self.device.size,
                layout.size()
            )));
        }
        self.options.check(layout, name)?;
        Ok(Some((layout, uuid)))
    }

    fn size(&self) -> u64 {
        self.device.size.min(MAX_SIZE)
    }

    /// Stores a word after all stores before, and before all accesses that follow.
    fn store(&self, word: &AtomicU64, value: u64) {
        self.device.medium.drain();
        word.store(value, Ordering::Release);
        self.device.medium.drain();
        // Later loads wait, too, until others can see the store.
        fence(Ordering::SeqCst);
    }

    /// Waits while another machine makes the window. Returns true if this one may begin.
    fn wait_for_maker(&self) -> bool {
        let region = self.mapping.region(0, HEADER);
        let header = Header::of(&region);
        let (mut seen, mut waited) = (header.maker.load(Ordering::Acquire), Duration::ZERO);
        while seen != 0 {
            self.kernel.pause(LOOK);
            waited += LOOK;
            let now = header.maker.load(Ordering::Acquire);
            if now != seen {
                (seen, waited) = (now, Duration::ZERO);
            } else if waited >= DEAD {
                // With a complete header, removal of the name was all that was left for the maker to do.
                if header.magic.load(Ordering::Acquire) == MAGIC {
                    self.store(&header.maker, 0);
                    return false;
                }
                return true;
            }
        }
        header.magic.load(Ordering::Acquire) != MAGIC
    }

    /// Makes the window, unless another machine turns out to do so too.
    fn make(&self) -> Result<()> {
        let (name, nodes) = (&self.device.name, self.options.nodes.unwrap_or(8));
        let layout = Layout::new(nodes, self.size()).map_err(|e| Error::new(e.errno(), format!("{name}: {e}")))?;
        self.options.check(layout, name)?;
        if self.device.is_sealed {
            let size = layout.size();
            make::allocate_all(&self.device.fd, size)
                .map_err(|e| Error::of(format_args!("{name}: there is no room for a window of {size} bytes"), e))?;
        }
        let words = make::first_words(layout)?;
        let region = self.mapping.region(0, HEADER);
        let header = Header::of(&region);
        let me = self.kernel.random()? | 1 << 63 | BEATS;
        let is_mine = || header.maker.load(Ordering::Acquire) & !BEATS == me & !BEATS;
        self.store(&header.maker, me);
        self.kernel.pause(SETTLED);
        let there = header.maker.load(Ordering::Acquire);
        if there == 0 || there == u64::MAX {
            // Another maker's name would be neither.
            let what = "what is written there does not stay: is it read-only, or its memory not enabled?";
            let is_done = header.magic.load(Ordering::Acquire) == MAGIC;
            return if is_done { Ok(()) } else { Err(Error::new(libc::EIO, format!("{name}: {what}"))) };
        }
        if !is_mine() {
            return Ok(());
        }
        let doors_end = u64::from(layout.granules().start) * GRANULE;
        for node in 0..nodes {
            let tables = self.mapping.region(layout.region(node), doors_end);
            tables.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
            if !is_mine() {
                return Ok(());
            }
            self.store(&header.maker, me - u64::from(node) - 1);
        }
        region.words()[8..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for (word, value) in region.words().iter().zip(words).skip(1) {
            word.store(value, Ordering::Relaxed);
        }
        if !is_mine() {
            return Ok(());
        }
        self.store(&header.magic, MAGIC);
        self.kernel.pause(SETTLED);
        if is_mine() && header.uuid.each_ref().map(|half| half.load(Ordering::Acquire)) == [words[4], words[5]] {
            self.store(&header.maker, 0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Origin, Put, PutDevice};
    use crate::file::FileDevice;
    use crate::mapping::reopen;
    use crate::medium::Medium;
    use crate::nodes::Identity;
    use crate::ofd::Ofd;
    use rustix::fs::OFlags;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::time::Instant;

    const SIZE: u64 = 5 << 20;
    const TWO: Options = Options { size: None, nodes: Some(2), node: None, peach2: None };

    /// A device's memory, in which something stands.
    fn memory(fill: u8) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![fill; SIZE as usize], 0).unwrap();
        file
    }

    fn device(memory: &File, medium: Medium) -> Found {
        let fd = reopen(memory, OFlags::RDWR).unwrap();
        Found { fd, name: "the window W".to_owned(), size: SIZE, medium, driver: None, is_sealed: false }
    }

    /// Opens the window like a machine of its own: with locks that no other machine sees.
    fn from_another_machine(memory: &File, options: &Options) -> Result<(Layout, [u8; 16])> {
        let device = device(memory, Medium::Ivshmem);
        let mapping = Mapping::new(&device.fd, SIZE)?;
        of(&mapping, &device, options, &Ofd::new(tempfile::tempfile().unwrap().into())?)
    }

    fn word(memory: &File, at: u64) -> u64 {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn machines_that_come_at_the_same_time_make_one_window() {
        std::thread::scope(|scope| {
            for round in 0..8_u64 {
                scope.spawn(move || {
                    let memory = memory(0);
                    let one = |n: u64| {
                        // Within the time in which a second one has to be noticed.
                        std::thread::sleep(Duration::from_millis(round * n * 15));
                        from_another_machine(&memory, &TWO).unwrap()
                    };
                    let found: Vec<_> = std::thread::scope(|scope| {
                        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || one(n))).collect();
                        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
                    });
                    assert!(found.iter().all(|other| *other == found[0]), "{found:?}");
                    assert_eq!(from_another_machine(&memory, &TWO).unwrap(), found[0]);
                    assert_eq!(word(&memory, 48), 0, "nobody makes it any more");
                });
            }
        });
    }

    #[test]
    fn who_dies_while_it_makes_a_window_keeps_nobody_from_making_it() {
        let memory = memory(0);
        memory.write_all_at(&77_u64.to_ne_bytes(), 48).unwrap();
        let begin = Instant::now();
        let made = from_another_machine(&memory, &TWO).unwrap();
        assert!(begin.elapsed() >= DEAD);
        // It was complete, but for that.
        memory.write_all_at(&77_u64.to_ne_bytes(), 48).unwrap();
        assert_eq!(from_another_machine(&memory, &TWO).unwrap(), made);
        assert_eq!(word(&memory, 48), 0);
    }

    #[test]
    fn what_is_no_window_or_another_one_is_refused_and_stays_as_it_is() {
        let refused = |memory: &File, options: &Options, errno: i32, says: &str| {
            let before = (0..16).map(|n| word(memory, 8 * n)).collect::<Vec<_>>();
            let error = from_another_machine(memory, options).unwrap_err();
            assert!(error.errno() == errno && error.to_string().contains(says), "{error}");
            assert_eq!((0..16).map(|n| word(memory, 8 * n)).collect::<Vec<_>>(), before);
        };
        refused(&memory(7), &TWO, libc::EINVAL, "no header; to make a new one, clear its first 64 KiB");
        refused(&memory(0xff), &TWO, libc::EIO, "all bits are ones");
        let someone = memory(0);
        someone.write_all_at(b"a file system's superblock", 1024).unwrap();
        refused(&someone, &TWO, libc::EINVAL, "is none: what it begins with is no header");
        refused(&memory(0), &Options { size: Some(1 << 30), ..TWO }, libc::EINVAL, "not 1073741824");
        refused(
            &memory(0),
            &Options { nodes: Some(64), ..TWO },
            libc::EINVAL,
            "the window W: a window of 5242880 bytes cannot be",
        );
        let made = memory(0);
        from_another_machine(&made, &TWO).unwrap();
        refused(&made, &Options { nodes: Some(3), ..TWO }, libc::EINVAL, "has 2 nodes, not 3");
        made.write_all_at(&2_u64.to_ne_bytes(), 8).unwrap();
        refused(&made, &TWO, libc::EPROTO, "has version 2 of the layout");
        made.write_all_at(&1_u64.to_ne_bytes(), 8).unwrap();
        let len = word(&made, 24);
        made.write_all_at(&(len - GRANULE).to_ne_bytes(), 24).unwrap();
        refused(&made, &TWO, libc::EINVAL, "has 5242880 bytes, and its header is that of a window of");
    }

    #[test]
    fn a_device_is_a_window_as_a_file_is_with_what_it_cannot_do_left_out() {
        let dax = |align| Medium::Dax { align };
        for medium in [dax(4096), dax(2 << 20), Medium::Ivshmem] {
            // Old data lies everywhere but where the header belongs.
            let memory = memory(7);
            memory.write_all_at(&vec![0; HEADER as usize], 0).unwrap();
            let open = |node| {
                let options = Options { node: Some(node), ..TWO };
                FileDevice::attach(&device(&memory, medium), &options, Identity::own().unwrap()).unwrap()
            };
            let [a, b] = [0, 1].map(open);
            assert_eq!((a.facts().uuid, a.facts().medium), (b.facts().uuid, medium));
            assert!(a.facts().read_speed.is_some_and(|speed| speed > 0));
            let layout = a.facts().layout;
            assert_eq!(layout, Layout::new(2, SIZE).unwrap());
            for node in 0..2 {
                let doors_end = u64::from(layout.granules().start) * GRANULE;
                let begin = layout.region(node);
                assert!((begin..begin + doors_end).step_by(8).all(|at| word(&memory, at) == 0), "node {node}");
            }
            let at = layout.doors();
            a.channel(1).unwrap().put(&[Put { to: at, from: Origin::Words(&[5]) }]).unwrap();
            assert_eq!(b.own().word(at).load(Ordering::Acquire), 5);
            assert_eq!(a.claims().process().unwrap().claim(1).unwrap().granules().len(), 1);
            // The heap maps single pages.
            match a.file() {
                Ok((_, first)) => assert!(medium != dax(2 << 20) && first == layout.region(0), "{medium:?} {first}"),
                Err(e) => {
                    assert_eq!((medium, e.errno()), (dax(2 << 20), libc::EOPNOTSUPP));
                    assert!(e.to_string().contains("nothing smaller than 2048 KiB"), "{e}");
                }
            }
        }
    }

    #[test]
    fn a_device_that_cannot_be_mapped_is_told_with_what_helps() {
        let memory = memory(0);
        let open = |driver: Option<&str>, size| {
            let found = Found { driver: driver.map(str::to_owned), size, ..device(&memory, Medium::Ivshmem) };
            let error = FileDevice::attach(&found, &TWO, Identity::own().unwrap()).unwrap_err();
            (error.errno(), error.to_string())
        };
        // More than an address has bits.
        let (errno, says) = open(Some("vfio-pci"), 1 << 60);
        assert!(errno == libc::EBUSY && says.contains("is in use by the driver vfio-pci: "), "{says}");
        let (errno, says) = open(None, 0);
        assert!(errno == libc::EBUSY && says.contains("somebody else has it"), "{says}");
        let (errno, says) = open(None, 4096);
        assert!(errno == libc::EINVAL && says.contains("has 4096 bytes, too few"), "{says}");
    }
}
