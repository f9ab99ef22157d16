//! A process as its peers see it: its mapped arena, the way to wake it, and what its keys and QP numbers stand for.
//! One's own process is a peer too, so that a QP looped back inside one process takes the same path as any other.

use crate::arena::layout::{self, Header, KeyEntry, QpShared, RqShared};
use crate::arena::{ArenaRef, View};
use crate::error::{Error, Result};
use crate::host::bits::bits;
use crate::host::cancel::Descriptor;
use crate::process::gate;
use crate::process::imports::{Mapped, Wanted};
use crate::process::peer_channels::PeerChannels;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use vervain_config::{Config, FAULTS, INTERFACE, LINK, PCAP};
use vervain_share::checkers;

/// A process by its id, 0 for one of another PID namespace.
pub fn name_of(pid: i32) -> String {
    if pid == 0 { "a process of another PID namespace".to_owned() } else { format!("process {pid}") }
}

/// Says once that what was asked for packets of sockets has no effect on a peer, which is `reached` otherwise.
#[cold]
pub fn warn_of_settings_for_packets(reached: &str, is_within_host: bool) {
    static ONCE: Once = Once::new();
    let Ok(config) = Config::of_process() else { return };
    let set = [(&FAULTS, config.faults.is_some()), (&PCAP, config.pcap.is_some())];
    let names: Vec<_> = set.iter().filter(|(_, is_set)| *is_set).map(|(variable, _)| variable.name()).collect();
    if !names.is_empty() {
        let (names, have) = (names.join(" and "), if names.len() == 1 { "has" } else { "have" });
        let interface = if is_within_host { format!(" {}=lo", INTERFACE.name()) } else { String::new() };
        ONCE.call_once(|| {
            let link = LINK.name();
            log::warn!("{names} {have} no effect: {reached}, without packets. For packets set {link}=roce{interface}");
        });
    }
}

/// [`warn_of_settings_for_packets`] for process `pid`, which is reached by memory.
pub fn warn_of_memory(pid: i32) {
    warn_of_settings_for_packets(&format!("{} is reached by memory", name_of(pid)), true);
}

/// A process and its arena.
pub struct PeerProcess {
    /// The mapped arena.
    pub view: View,
    /// Its header.
    pub header: ArenaRef<Header>,
    /// Its key table.
    pub keys: ArenaRef<[KeyEntry; layout::KEYS]>,
    attention: ArenaRef<[AtomicU64]>,
    mapped: Mapped,
    /// None for the calling process itself.
    ask: Option<AskForObject>,
    own: bool,
    /// The process in our pid namespace; 0 when it is not visible from here.
    pub pid: i32,
    wake: Descriptor,
    dead: AtomicBool,
    vm: AtomicU8,
    /// Its completion channels.
    pub channels: PeerChannels,
    /// True after it was logged that the peer is reached by memory.
    told: AtomicBool,
}

/// The place of memory named by a key, seen from the calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Mapped here, and contiguous for [`crate::process::imports::SLACK`] bytes at least, if it is as long.
    Mapped(*mut u8),
    /// In the other process only, at this address of its own.
    Unmapped(u64),
    /// The null MR.
    Null,
}

/// Asks the owner of a shared object for it, see [`crate::process::rendezvous::Rendezvous::ask_for_object`].
pub type AskForObject = fn(&PeerProcess, &Wanted) -> bool;

impl PeerProcess {
    /// Takes a mapped arena for what it says it is; refused with one clear sentence when it is not an arena of this
    /// version. `ask` is how its shared objects are asked for; none for the calling process itself.
    pub fn new(view: View, ask: Option<AskForObject>, pid: i32, wake: OwnedFd) -> Result<PeerProcess> {
        let own = ask.is_none();
        let header = view.hold::<Header>(0).ok_or_else(|| Error::invalid("an arena is too small for its header"))?;
        if header.magic.load(Ordering::Acquire) != layout::MAGIC {
            return Err(Error::invalid("a peer's shared memory is not a Vervain arena"));
        }
        let version = header.version.load(Ordering::Relaxed);
        if version != layout::VERSION {
            return Err(Error::new(
                libc::EPROTO,
                format!(
                    "a peer's arena has version {version}, this library has {}; use one Vervain for both",
                    layout::VERSION
                ),
            ));
        }
        let keys = view.hold_array(header.keys.load(Ordering::Relaxed));
        let attention = view.hold_slice(header.attention.load(Ordering::Relaxed), layout::ATTENTION / 64);
        let objects = view.hold_slice(header.objects.load(Ordering::Relaxed), layout::OBJECTS);
        let (Some(keys), Some(attention), Some(objects)) = (keys, attention, objects) else {
            return Err(Error::invalid("a peer's arena has tables outside of itself"));
        };
        if checkers::memcheck() {
            // Its leak search reads what can be written to, and would bring all 64 MiB of the table to life.
            view.read_only(header.keys.load(Ordering::Relaxed), (layout::KEYS * size_of::<KeyEntry>()) as u64);
        }
        // One's own objects need no second mapping.
        let mapped = Mapped::new((!own).then_some(objects));
        let (dead, vm, told) = (AtomicBool::new(false), AtomicU8::new(0), AtomicBool::new(false));
        let channels = PeerChannels::default();
        let wake = wake.into();
        Ok(PeerProcess { view, header, keys, attention, mapped, ask, own, pid, wake, dead, vm, channels, told })
    }

    /// Says once that this process is reached by memory; QP `qpn` was the first to be led there.
    #[cold]
    pub(crate) fn tell_of_way(&self, qpn: u32) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        let name = if self.own { "its own process".to_owned() } else { name_of(self.pid) };
        log::info!("QP {qpn:#x} is connected to {name} by memory");
        warn_of_memory(self.pid);
    }

    /// Returns true if this is the calling process.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// The descriptor that wakes its progress thread.
    pub fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Returns true if the process has ended (or has replaced itself by `exec`).
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) || gate::has_ended(&self.header.switch)
    }

    /// Notes that the process has ended.
    pub fn mark_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Returns true if an initiator needs a full barrier after its mark, see `barrier`.
    pub(crate) fn needs_full_barrier(&self) -> bool {
        self.header.heavy.load(Ordering::Relaxed) == 0 || !crate::host::barrier::is_registered()
    }

    /// Returns true if process_vm calls may be tried on it.
    pub fn vm_allowed(&self) -> bool {
        self.pid > 0 && self.vm.load(Ordering::Relaxed) == 0
    }

    /// Notes that the kernel refused a process_vm call on it.
    pub fn deny_vm(&self) {
        self.vm.store(1, Ordering::Relaxed);
    }

    /// Asks the owner to look at its object `number`, and wakes its progress thread if it sleeps.
    pub fn raise(&self, number: u32) {
        let n = number as usize % layout::ATTENTION;
        self.attention[n / 64].fetch_or(1 << (n % 64), Ordering::SeqCst);
        self.header.attention_summary[n / 4096].fetch_or(1 << (n / 64 % 64), Ordering::SeqCst);
        self.header.attention_any.store(1, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the progress thread if it sleeps.
    pub fn wake(&self) {
        // Written before the mark is taken: a peer that is stopped in between leaves the mark for others. Each sleep
        // has a mark of its own, so that a late taker does not take that of the next one.
        let sleep = self.header.sleeping.load(Ordering::SeqCst);
        if sleep != 0 {
            crate::host::eventfd::wake(&self.wake);
            let _ = self.header.sleeping.compare_exchange(sleep, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Returns true if any object of the own process asks for attention.
    #[inline]
    pub fn wants_attention(&self) -> bool {
        self.header.attention_any.load(Ordering::SeqCst) != 0
    }

    /// Takes the numbers of all objects that asked for attention.
    pub fn take_attention(&self, mut each: impl FnMut(u32)) {
        if self.header.attention_any.swap(0, Ordering::SeqCst) == 0 {
            return;
        }
        for (s, summary) in self.header.attention_summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for w in bits(summary.swap(0, Ordering::SeqCst)) {
                let word = s * 64 + w as usize;
                for b in bits(self.attention[word].swap(0, Ordering::SeqCst)) {
                    each(word as u32 * 64 + b);
                }
            }
        }
    }

    fn slot(&self, number: u32) -> Option<&layout::SlotEntry> {
        let slot = layout::slot_of(number);
        if slot == 0 {
            return None;
        }
        self.header.slots.iter().find(|s| s.slot.load(Ordering::Acquire) == slot)
    }

    /// The QP with this number, if it exists here.
    pub fn qp(&self, qpn: u32) -> Option<&QpShared> {
        let table = self.slot(qpn)?.qps.load(Ordering::Acquire);
        let offset =
            self.view.slice::<AtomicU64>(table, layout::PER_SLOT)?[layout::index_of(qpn)].load(Ordering::Acquire);
        if offset == 0 {
            return None;
        }
        self.view.get::<QpShared>(offset).filter(|qp| qp.qpn.load(Ordering::Relaxed) == qpn)
    }

    /// The XRC SRQ with this number, if it exists here.
    pub fn xrc_srq(&self, srqn: u32) -> Option<&RqShared> {
        let table = self.slot(srqn)?.srqs.load(Ordering::Acquire);
        let offset =
            self.view.slice::<AtomicU64>(table, layout::PER_SLOT)?[layout::index_of(srqn)].load(Ordering::Acquire);
        if offset == 0 { None } else { self.view.get(offset) }
    }

    /// The address here of byte `offset` of the memory of `entry`, if it is mapped; contiguous as for
    /// [`Location::Mapped`].
    #[inline(always)]
    pub(crate) fn mapped_at(&self, entry: &KeyEntry, offset: u64, len: u64) -> Option<*mut u8> {
        let at = entry.at.load(Ordering::Relaxed);
        let start = (at & ((1 << layout::OFFSET_BITS) - 1)).checked_add(offset)?;
        match (at >> layout::OFFSET_BITS) as usize {
            0 => self.view.at(start, len),
            number => self.mapped.locate(number, entry.generation.load(Ordering::Relaxed), start, len),
        }
    }

    /// Finds the memory `[addr, addr + len)` that `key` names, if the key is good, covers it, grants `need`, and
    /// belongs to the protection domain (or, for a type 2 window, to the QP). IBA 10.6.3, 11.2.8, 9.7.4.1.5.
    #[inline(always)]
    pub fn resolve(&self, key: u32, addr: u64, len: u64, need: u32, pd: u32, qpn: u32) -> Option<Location> {
        let entry = self.keys.get((key >> 8) as usize)?;
        if entry.key.load(Ordering::Acquire) != u64::from(key) {
            return None;
        }
        let flags = entry.flags();
        if entry.access.load(Ordering::Relaxed) & need != need {
            return None;
        }
        if flags & layout::KEY_WINDOW2 != 0 {
            if entry.qpn.load(Ordering::Relaxed) != qpn {
                return None;
            }
        } else if entry.pd() != pd {
            return None;
        }
        if flags & layout::KEY_WINDOW != 0 {
            let parent = entry.parent.load(Ordering::Relaxed);
            let under = self.keys.get((parent >> 8) as usize)?;
            if under.key.load(Ordering::Acquire) != u64::from(parent) {
                return None;
            }
        }
        if flags & layout::KEY_NULL != 0 {
            return Some(Location::Null);
        }
        let offset = addr.wrapping_sub(entry.iova.load(Ordering::Relaxed));
        let size = entry.len.load(Ordering::Relaxed);
        if offset > size || len > size - offset {
            return None;
        }
        if self.own {
            return Some(Location::Mapped((entry.host.load(Ordering::Relaxed).wrapping_add(offset)) as *mut u8));
        }
        if let Some(p) = self.mapped_at(entry, offset, len) {
            return Some(Location::Mapped(p));
        }
        self.ask_for(entry, offset, len)?;
        Some(Location::Unmapped(entry.host.load(Ordering::Relaxed).wrapping_add(offset)))
    }

    /// The entry of `key` is going to be written to, by a process that may not be its owner.
    pub(crate) fn write_key(&self, key: u32) {
        if checkers::memcheck() {
            // Read only as a part of the table (`new`). If this fails, the write there faults.
            let offset = self.header.keys.load(Ordering::Relaxed) + u64::from(key >> 8) * size_of::<KeyEntry>() as u64;
            self.view.writable(offset, size_of::<KeyEntry>() as u64);
        }
    }

    /// Has the owner asked for the object that `entry` lies in, which is not mapped here, without waiting. None if it
    /// should lie in the arena, and does not.
    #[cold]
    fn ask_for(&self, entry: &KeyEntry, offset: u64, len: u64) -> Option<()> {
        let at = entry.at.load(Ordering::Relaxed);
        let (number, start) = ((at >> layout::OFFSET_BITS) as usize, at & ((1 << layout::OFFSET_BITS) - 1));
        if number == 0 {
            return None;
        }
        if at != layout::NOT_SHARED
            && let Some(ask) = self.ask
            && let Some(wanted) =
                self.mapped.want(number, entry.generation.load(Ordering::Relaxed), start.checked_add(offset)?, len)
            && !ask(self, &wanted)
        {
            self.mapped.not_asked(&wanted);
        }
        Some(())
    }

    /// The heap of the process, if it has one: worth mapping before the first use.
    pub fn heap(&self) -> Option<Wanted> {
        let entry: &layout::ObjectEntry = self
            .view
            .slice(self.header.objects.load(Ordering::Relaxed), layout::OBJECTS)?
            .get(layout::HEAP as usize)?;
        self.mapped.want(layout::HEAP as usize, entry.generation.load(Ordering::Acquire), 0, 1)
    }

    /// Maps an object that the owner granted. Called by the link, on the progress thread.
    pub fn map_object(&self, wanted: &Wanted, fd: Option<OwnedFd>) {
        self.mapped.map(wanted, fd);
    }

    /// The owner has withdrawn an object. Called by the link, on the progress thread.
    pub fn forget_object(&self, number: u32, generation: u32) {
        self.mapped.forget(number, generation);
    }

    /// Lets go of objects that the owner has withdrawn without our having heard of it, or of all when it has ended.
    /// Called by the link, on the progress thread.
    pub fn sweep_objects(&self) {
        if self.is_dead() { self.mapped.forget_all() } else { self.mapped.sweep() }
    }
}

/// The region that `key` names: its entry, and the offset of `addr` in it. None for a window, which
/// [`PeerProcess::resolve`] knows too, and if the key does not allow the access.
#[inline(always)]
pub(crate) fn plain_region(
    keys: &[KeyEntry; layout::KEYS],
    key: u32,
    addr: u64,
    len: u64,
    need: u32,
    pd: u32,
) -> Option<(&KeyEntry, u64)> {
    let entry = keys.get((key >> 8) as usize)?;
    Some((entry, entry.plain_offset(key, addr, len, need, pd)?))
}
