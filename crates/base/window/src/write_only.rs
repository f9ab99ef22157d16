//! A window in a folder with one file for each node's region. A process opens the files of other nodes, and its own a
//! second time, for writing only, so the kernel itself refuses every read of remote memory (EBADF of pread(2), EACCES
//! of mmap(2)). It proves that no layer above reads what it may not; one system call for each put makes it several
//! times as slow as a file.
//!
//! The header is a file too, which all nodes map. Puts are pwrite(2) and become visible in the order of the kernel's
//! copies. Words stay whole where the processor has no reason to copy byte by byte: see [`Scratch`].

use crate::claims::Claims;
use crate::device::{Bounds, Channel, Facts, Origin, Put, PutDevice, Refused, Region};
use crate::error::{Error, Result};
use crate::file::{check_node, join};
use crate::found::{Found, HARMLESS};
use crate::layout::HEADER;
use crate::make::{self, Options};
use crate::mapping::{Mapping, reopen};
use crate::medium::Medium;
use crate::nodes::Identity;
use crate::ofd::Ofd;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

const HEADER_FILE: &str = "header";

fn region_file(node: u32) -> String {
    format!("region{node}")
}

/// A window in a folder.
#[derive(Debug)]
pub struct WriteOnlyDevice {
    facts: Facts,
    own: Region,
    claims: Arc<Claims>,
    /// The regions, open for writing only.
    regions: Vec<Arc<OwnedFd>>,
}

impl WriteOnlyDevice {
    /// Opens the window in the folder `path`, and makes it if nothing is there.
    ///
    /// # Errors
    /// Those of [`crate::FileDevice::open`].
    pub fn open(path: &Path, options: &Options) -> Result<WriteOnlyDevice> {
        let identity = Identity::own()?;
        if !path.join(HEADER_FILE).exists() {
            make_folder(path, options)?;
        }
        let header = open(path, HEADER_FILE, OFlags::RDWR)?;
        let (layout, uuid) = header.header()?;
        header.check_size(HEADER)?;
        options.check(layout, &header.name)?;
        let header_region = Mapping::new(&header.fd, HEADER)?.region(0, HEADER);
        let kernel = Box::new(Ofd::new(reopen(&header.fd, OFlags::RDWR)?)?);
        let node = join(&header_region, layout, &*kernel, identity, options.node, &header.name)?;
        let regions = (0..layout.nodes()).map(|n| {
            let file = open(path, &region_file(n), OFlags::WRONLY)?;
            file.check_size(layout.region_len())?;
            Ok(Arc::new(file.fd))
        });
        let regions = regions.collect::<Result<Vec<_>>>()?;
        let file = open(path, &region_file(node), OFlags::RDWR)?;
        file.check_size(layout.region_len())?;
        let own = Mapping::new(&file.fd, layout.region_len())?.region(0, layout.region_len());
        let claims = Claims::new((node, identity), layout, (header_region, own.clone()), kernel);
        Ok(WriteOnlyDevice {
            facts: Facts { node, layout, uuid, coherent: true, whole: 8, medium: Medium::File, read_speed: None },
            own,
            claims,
            regions,
        })
    }
}

fn open(folder: &Path, name: &str, way: OFlags) -> Result<Found> {
    let path = folder.join(name);
    let fd = rustix::fs::open(&path, way | HARMLESS, Mode::empty())
        .map_err(|e| Error::of(format_args!("the window {} cannot be opened", path.display()), e))?;
    Found::check(fd, &path)
}

/// Makes a folder with all its files appear at `path`, unless something is there.
fn make_folder(path: &Path, options: &Options) -> Result<()> {
    let layout = options.layout()?;
    let cannot = |e| Error::of(format_args!("the window {} cannot be made", path.display()), e);
    make::check_place(make::folder_of(path), path)?;
    let other = make::other_name(path)?;
    rustix::fs::mkdir(&other, Mode::RWXU).map_err(cannot)?;
    let fill = || {
        make::file(&other.join(HEADER_FILE), HEADER, &make::first_words(layout)?)?;
        (0..layout.nodes())
            .try_for_each(|n| make::file(&other.join(region_file(n)), layout.region_len(), &[]).map(drop))
    };
    let done = fill().and_then(|()| match rustix::fs::renameat_with(CWD, &other, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) if path.join(HEADER_FILE).exists() => Ok(()),
        Err(Errno::EXIST) if path.is_dir() => {
            let name = path.display();
            let inner = path.join("window");
            Err(Error::invalid(format!(
                "the window {name} is a folder without a window: name another one in it, as in {}/",
                inner.display()
            )))
        }
        Ok(()) => Ok(()),
        Err(e) => Err(cannot(e)),
    });
    // After the rename nothing is left under this name.
    let _ = std::fs::remove_dir_all(&other);
    done
}

impl PutDevice for WriteOnlyDevice {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn own(&self) -> &Region {
        &self.own
    }

    fn channel(&self, node: u32) -> Result<Box<dyn Channel>> {
        check_node(self.facts.layout, node)?;
        let region = self.regions[node as usize].clone();
        Ok(Box::new(WriteOnly { region, bounds: Bounds::of(self.facts.layout), scratch: Scratch::default() }))
    }

    fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }
}

/// Puts by pwrite(2).
struct WriteOnly {
    region: Arc<OwnedFd>,
    bounds: Bounds,
    scratch: Scratch,
}

/// Bytes modulo which a processor compares source and destination before it copies.
const PAGE: usize = 4096;

/// Distance in bytes from a page that is not present within which Intel's processors (FSRM) copy byte by byte.
const EDGE: usize = 64;

/// Buffer for the bytes of one put: half a page from their destination modulo a page, and [`EDGE`] before the end of
/// the memory that is present.
///
/// The kernel copies by `rep movsb`, which is only specified to copy whole bytes. Processors copy more at once unless
/// source and destination may overlap, and they compare only the offsets in the pages for that: an AMD EPYC (Zen 4)
/// copies byte by byte if the destination is 1 to 15 bytes behind the source there. A reader then finds 2 to 13 torn
/// words in 100 puts of 64 bytes; at all other distances none in 30 million. Words put one by one, by a system call or
/// an iovec each, are torn as often.
#[derive(Default)]
struct Scratch(Vec<u8>);

impl Scratch {
    /// The `len` bytes for a put to `to`.
    fn bytes_for(&mut self, to: u64, len: usize) -> &mut [u8] {
        if self.0.len() < PAGE + len + EDGE {
            self.0.resize(PAGE + len + EDGE, 0);
        }
        let from = (to as usize + PAGE / 2).wrapping_sub(self.0.as_ptr().addr()) % PAGE;
        &mut self.0[from..from + len]
    }
}

impl Channel for WriteOnly {
    fn put(&mut self, chain: &[Put<'_>]) -> std::result::Result<(), Refused> {
        self.bounds.check(chain)?;
        for put in chain {
            let bytes = self.scratch.bytes_for(put.to, put.from.len() as usize);
            match put.from {
                Origin::Words(words) => {
                    let (places, _) = bytes.as_chunks_mut();
                    places.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_ne_bytes());
                }
                // SAFETY: the buffer has as many bytes.
                Origin::Source(source) => unsafe { source.store_to(bytes.as_mut_ptr()) }.map_err(Refused::Faulted)?,
            }
            let mut done = 0;
            while done < bytes.len() {
                // Earlier puts become visible before this one, which the kernel stores without a barrier.
                fence(Ordering::Release);
                let rest = &bytes[done..];
                done += retry_on_intr(|| rustix::io::pwrite(&self.region, rest, put.to + done as u64))
                    .map_err(|e| Refused::Device(e.raw_os_error()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    use std::sync::atomic::AtomicU64;

    fn devices(folder: &tempfile::TempDir) -> [WriteOnlyDevice; 2] {
        let options = |node| Options { size: Some(4 << 20), nodes: Some(2), node: Some(node), peach2: None };
        [0, 1].map(|node| WriteOnlyDevice::open(&folder.path().join("window"), &options(node)).unwrap())
    }

    #[test]
    fn the_kernel_refuses_to_read_regions_but_the_own_mapping() {
        let folder = tempfile::tempdir().unwrap();
        let [a, _b] = devices(&folder);
        for region in &a.regions {
            assert_eq!(rustix::io::pread(region, &mut [0; 8], 0), Err(Errno::BADF));
            for rights in [ProtFlags::READ, ProtFlags::WRITE] {
                // SAFETY: at a place of the kernel's choice.
                let mapped = unsafe { mmap(std::ptr::null_mut(), 4096, rights, MapFlags::SHARED, region, 0) };
                assert_eq!(mapped, Err(Errno::ACCESS));
            }
        }
    }

    #[test]
    fn what_is_put_is_there_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = devices(&folder);
        let first = a.facts().layout.doors();
        let text = &b"nineteen bytes of it"[..19];
        let chain = [
            Put { to: first + 3, from: Origin::Source(&text) },
            Put { to: first + 64, from: Origin::Words(&[1, u64::MAX]) },
        ];
        for (device, node) in [(&b, 1), (&a, 0)] {
            a.channel(node).unwrap().put(&chain).unwrap();
            let mut expected = vec![0; 96];
            expected[3..22].copy_from_slice(text);
            expected[64] = 1;
            expected[72..80].fill(255);
            let there = (0..12).flat_map(|n| device.own().word(first + 8 * n).load(Ordering::Acquire).to_ne_bytes());
            assert_eq!(there.collect::<Vec<_>>(), expected);
        }
        let mut channel = a.channel(1).unwrap();
        let last = a.facts().layout.region_len();
        assert_eq!(channel.put(&[Put { to: last, from: Origin::Words(&[1]) }]), Err(Refused::Outside));
        assert_eq!(channel.put(&[Put { to: 0, from: Origin::Words(&[1]) }]), Err(Refused::Outside));
        assert_eq!(std::fs::metadata(folder.path().join("window/region1")).unwrap().len(), last);
        assert!(a.channel(2).is_err());
    }

    #[test]
    fn words_are_seen_whole_and_after_what_was_put_before() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = devices(&folder);
        let at = a.facts().layout.doors();
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                let mut channel = a.channel(1).unwrap();
                for n in 1..60_000 {
                    let (data, flag) = ([n * 0x0001_0001_0001_0001; 8], [n]);
                    let data = Put { to: at + 64, from: Origin::Words(&data) };
                    channel.put(&[data, Put { to: at, from: Origin::Words(&flag) }]).unwrap();
                }
            });
            while !writer.is_finished() {
                let n = b.own().word(at).load(Ordering::Acquire);
                for i in 0..8 {
                    let word = b.own().word(at + 64 + 8 * i).load(Ordering::Acquire);
                    assert_eq!(word, (word & 0xffff) * 0x0001_0001_0001_0001, "half a word");
                    assert!(word & 0xffff >= n & 0xffff, "{word:x} before {n:x}");
                }
            }
        });
    }

    #[test]
    fn words_are_whole_wherever_in_a_page_they_are_put() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = devices(&folder);
        let first = a.facts().layout.doors();
        let to = AtomicU64::new(first);
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                let mut channel = a.channel(1).unwrap();
                for at in (first..).step_by(8).take(PAGE / 8) {
                    to.store(at, Ordering::Relaxed);
                    for n in 0..400 {
                        let data = [(n & 0xff) * 0x0101_0101_0101_0101; 8];
                        channel.put(&[Put { to: at, from: Origin::Words(&data) }]).unwrap();
                    }
                }
            });
            while !writer.is_finished() {
                let at = to.load(Ordering::Relaxed);
                for word in b.own().words_at::<8>(at) {
                    let word = word.load(Ordering::Relaxed);
                    assert_eq!(word, (word & 0xff) * 0x0101_0101_0101_0101, "part of a word, at {at:#x}");
                }
            }
        });
    }

    #[test]
    fn a_folder_that_is_no_good_window_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("window");
        let refused = |options: &Options, errno, says: &str| {
            let error = WriteOnlyDevice::open(&path, options).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.errno(), errno, "{error}");
        };
        drop(devices(&folder));
        let options = Options::default();
        refused(&Options { nodes: Some(3), ..options }, libc::EINVAL, "has 2 nodes, not 3");
        let region = path.join("region1");
        std::fs::File::options().write(true).open(&region).unwrap().set_len(4096).unwrap();
        refused(&options, libc::EINVAL, "region1 has 4096 bytes, and its header says");
        std::fs::remove_file(&region).unwrap();
        refused(&options, libc::ENOENT, "region1 cannot be opened");
        std::fs::write(path.join("header"), "no").unwrap();
        refused(&options, libc::EINVAL, "is none");
        std::fs::remove_file(path.join("header")).unwrap();
        refused(&options, libc::EINVAL, "is a folder without a window");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }
}
