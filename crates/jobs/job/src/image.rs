//! The part of CRIU's images that is read here: the processes, the regular files, the contents of pipes, the time of a
//! dump. Only these messages are declared, with only these fields; protobuf has readers skip the rest, so a later CRIU
//! may add some.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use prost::Message;

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct Process {
    /// Its number.
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    /// The numbers of its threads.
    #[prost(uint32, repeated, packed = "false", tag = "5")]
    pub threads: Vec<u32>,
}

/// Facts about a process or thread beside its memory and files.
#[derive(Clone, PartialEq, Message)]
struct Core {
    /// For a process.
    #[prost(message, optional, tag = "3")]
    task: Option<TaskCore>,
    /// For a thread.
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadCore>,
}

#[derive(Clone, PartialEq, Message)]
struct TaskCore {
    #[prost(message, optional, tag = "7")]
    timers: Option<Timers>,
    #[prost(message, optional, tag = "10")]
    pending: Option<Signals>,
}

#[derive(Clone, PartialEq, Message)]
struct ThreadCore {
    #[prost(message, optional, tag = "9")]
    pending: Option<Signals>,
}

#[derive(Clone, PartialEq, Message)]
struct Signals {
    #[prost(message, repeated, tag = "1")]
    all: Vec<SigInfo>,
}

/// The bytes of a siginfo_t; the number comes first.
#[derive(Clone, PartialEq, Message)]
struct SigInfo {
    #[prost(bytes, tag = "1")]
    siginfo: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Timers {
    #[prost(message, optional, tag = "1")]
    real: Option<ITimer>,
    #[prost(message, optional, tag = "2")]
    prof: Option<ITimer>,
    #[prost(message, optional, tag = "3")]
    virt: Option<ITimer>,
    #[prost(message, repeated, tag = "4")]
    posix: Vec<PosixTimer>,
}

#[derive(Clone, PartialEq, Message)]
struct ITimer {
    #[prost(uint64, tag = "1")]
    interval_s: u64,
    #[prost(uint64, tag = "2")]
    interval_us: u64,
}

#[derive(Clone, PartialEq, Message)]
struct PosixTimer {
    #[prost(uint32, tag = "3")]
    signal: u32,
    #[prost(uint64, tag = "7")]
    interval_s: u64,
    #[prost(uint64, tag = "8")]
    interval_ns: u64,
}

/// Signals as bits, as /proc/PID/status has them: number 1 is the lowest.
pub type SignalSet = u64;

/// Signals of a thread in an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pending {
    /// Those that are pending for the thread, or, of the thread that its process is named by, for that.
    pub signals: SignalSet,
    /// Those that timers send again and again.
    pub periodic: SignalSet,
}

fn bit(signal: u32) -> SignalSet {
    signal.checked_sub(1).and_then(|shift| 1u64.checked_shl(shift)).unwrap_or(0)
}

fn set_of(signals: Option<&Signals>) -> SignalSet {
    let number = |info: &SigInfo| Some(u32::from_ne_bytes(info.siginfo.get(..4)?.try_into().ok()?));
    signals.map_or(0, |signals| signals.all.iter().filter_map(number).map(bit).fold(0, |all, one| all | one))
}

/// Signals in the image of a process or thread.
pub fn pending(dir: &Path, thread: u32) -> Result<Pending> {
    let cores: Vec<(Core, _)> = entries(dir, &format!("core-{thread}.img"))?;
    let Some((core, _)) = cores.into_iter().next() else { bail!("core-{thread}.img of CRIU is empty") };
    Ok(core.pending())
}

impl Core {
    fn pending(&self) -> Pending {
        let timers = self.task.as_ref().and_then(|task| task.timers.as_ref());
        let each = |timer: &Option<ITimer>, signal: Signal| {
            let again = timer.as_ref().is_some_and(|timer| timer.interval_s != 0 || timer.interval_us != 0);
            if again { bit(signal as u32) } else { 0 }
        };
        let periodic = timers.map_or(0, |timers| {
            let posix = timers.posix.iter().filter(|timer| timer.interval_s != 0 || timer.interval_ns != 0);
            posix.map(|timer| bit(timer.signal)).fold(0, |all, one| all | one)
                | each(&timers.real, Signal::SIGALRM)
                | each(&timers.prof, Signal::SIGPROF)
                | each(&timers.virt, Signal::SIGVTALRM)
        });
        let of_task = set_of(self.task.as_ref().and_then(|task| task.pending.as_ref()));
        let of_thread = set_of(self.thread.as_ref().and_then(|thread| thread.pending.as_ref()));
        Pending { signals: of_task | of_thread, periodic }
    }
}

/// The object that a descriptor leads to.
#[derive(Clone, PartialEq, Message)]
pub struct FileEntry {
    /// A regular file, a device or a folder.
    #[prost(message, optional, tag = "3")]
    pub regular: Option<Regular>,
}

/// A file with a path.
#[derive(Clone, PartialEq, Message)]
pub struct Regular {
    /// The flags of open(2).
    #[prost(uint32, tag = "2")]
    pub flags: u32,
    /// Its path.
    #[prost(string, tag = "6")]
    pub name: String,
    /// Its size at that time.
    #[prost(uint64, optional, tag = "8")]
    pub size: Option<u64>,
    /// Its kind and rights.
    #[prost(uint32, optional, tag = "10")]
    pub mode: Option<u32>,
}

/// The contents of a pipe, but for the bytes, which follow.
#[derive(Clone, PartialEq, Message)]
struct PipeData {
    #[prost(uint32, tag = "1")]
    pipe: u32,
    #[prost(uint32, tag = "2")]
    bytes: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Stats {
    #[prost(message, optional, tag = "1")]
    dump: Option<DumpStats>,
}

/// The times of a dump.
#[derive(Clone, PartialEq, Message)]
pub struct DumpStats {
    /// Microseconds until all stood still.
    #[prost(uint32, tag = "1")]
    pub freezing: u32,
    /// Microseconds in which they did.
    #[prost(uint32, tag = "2")]
    pub frozen: u32,
    /// Pages of memory.
    #[prost(uint64, tag = "7")]
    pub pages_written: u64,
}

/// The processes of an image.
pub fn processes(dir: &Path) -> Result<Vec<Process>> {
    Ok(entries(dir, "pstree.img")?.into_iter().map(|(process, _)| process).collect())
}

/// The files with a path that are open.
pub fn files(dir: &Path) -> Result<Vec<Regular>> {
    let files: Vec<(FileEntry, _)> = entries(dir, "files.img")?;
    Ok(files.into_iter().filter_map(|(file, _)| file.regular).collect())
}

/// The contents of a pipe that the job reads.
pub fn in_pipe(dir: &Path, inode: u32) -> Result<Vec<u8>> {
    if !dir.join("pipes-data.img").exists() {
        return Ok(Vec::new());
    }
    let all = read_with(dir, "pipes-data.img", |data: &PipeData| data.bytes as usize)?;
    Ok(all.into_iter().find(|(data, _)| data.pipe == inode).map_or_else(Vec::new, |(_, bytes)| bytes))
}

/// The times of a dump.
pub fn dump_stats(dir: &Path) -> Result<DumpStats> {
    let stats: Vec<(Stats, _)> = entries(dir, "stats-dump")?;
    stats.into_iter().find_map(|(stats, _)| stats.dump).context("stats-dump of CRIU says nothing of a dump")
}

fn entries<M: Message + Default>(dir: &Path, name: &str) -> Result<Vec<(M, Vec<u8>)>> {
    read_with(dir, name, |_| 0)
}

/// The messages of an image. Behind each come as many bytes as `behind` says.
fn read_with<M: Message + Default>(dir: &Path, name: &str, behind: impl Fn(&M) -> usize) -> Result<Vec<(M, Vec<u8>)>> {
    let bytes = fs::read(dir.join(name)).with_context(|| format!("cannot read {name} of CRIU"))?;
    parse(&bytes, behind).with_context(|| format!("{name} of CRIU cannot be understood"))
}

fn parse<M: Message + Default>(bytes: &[u8], behind: impl Fn(&M) -> usize) -> Result<Vec<(M, Vec<u8>)>> {
    let mut found = Vec::new();
    each_message(bytes, |message, rest| {
        let message = M::decode(message)?;
        let data = rest.get(..behind(&message)).context("it is cut off")?;
        found.push((message, data.to_vec()));
        Ok(data.len())
    })?;
    Ok(found)
}

/// The bytes of an image that come before the first message.
pub(crate) const BEFORE: usize = 8;

/// Takes each message of an image, as its bytes, with what is behind it, and says how much of that belongs to it.
///
/// # Errors
/// It is no image, or one that is cut off; what `take` says.
pub(crate) fn each_message(bytes: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Result<usize>) -> Result<()> {
    /// IMG_COMMON_MAGIC and IMG_SERVICE_MAGIC; a word for the kind of image follows.
    const MAGIC: [u32; 2] = [0x5456_4319, 0x5510_5940];
    ensure!(word(bytes, 0).is_some_and(|magic| MAGIC.contains(&magic)) && bytes.len() >= BEFORE, "no image");
    let mut rest = &bytes[BEFORE..];
    while !rest.is_empty() {
        let Some(length) = word(rest, 0) else { bail!("it is cut off") };
        let (message, behind) = rest[4..].split_at_checked(length as usize).context("it is cut off")?;
        rest = behind.get(take(message, behind)?..).context("it is cut off")?;
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(messages: &[(Vec<u8>, &[u8])]) -> Vec<u8> {
        let mut bytes = [0x5456_4319_u32, 0x5645_3709].map(u32::to_le_bytes).concat();
        for (message, behind) in messages {
            bytes.extend(u32::try_from(message.len()).unwrap().to_le_bytes());
            bytes.extend(message);
            bytes.extend(*behind);
        }
        bytes
    }

    #[test]
    fn messages_are_read_with_what_is_behind_them() {
        let tmp = tempfile::tempdir().unwrap();
        let data = |pipe, bytes: &'static [u8]| {
            (PipeData { pipe, bytes: u32::try_from(bytes.len()).unwrap() }.encode_to_vec(), bytes)
        };
        std::fs::write(tmp.path().join("pipes-data.img"), image(&[data(7, b""), data(9, b"abc"), data(8, b"z")]))
            .unwrap();
        assert_eq!(in_pipe(tmp.path(), 9).unwrap(), b"abc");
        assert_eq!(in_pipe(tmp.path(), 7).unwrap(), b"");
        assert_eq!(in_pipe(tmp.path(), 1).unwrap(), b"");
    }

    #[test]
    fn signals_that_are_pending_and_those_of_periodic_timers_are_known() {
        let signals = |numbers: &[u32]| Signals {
            all: numbers.iter().map(|n| SigInfo { siginfo: [n.to_ne_bytes(), [0; 4]].concat() }).collect(),
        };
        let timer = |interval_us| Some(ITimer { interval_s: 0, interval_us });
        let posix = |signal, interval_ns| PosixTimer { signal, interval_s: 0, interval_ns };
        let timers = Timers { real: timer(0), prof: timer(10), virt: None, posix: vec![posix(34, 5), posix(35, 0)] };
        let core = Core {
            task: Some(TaskCore { timers: Some(timers), pending: Some(signals(&[1, 14])) }),
            thread: Some(ThreadCore { pending: Some(signals(&[64])) }),
        };
        let tmp = tempfile::tempdir().unwrap();
        std::fs::write(tmp.path().join("core-7.img"), image(&[(core.encode_to_vec(), b"")])).unwrap();
        let found = pending(tmp.path(), 7).unwrap();
        assert_eq!(found.signals, 1 | 1 << 13 | 1 << 63);
        assert_eq!(found.periodic, bit(Signal::SIGPROF as u32) | 1 << 33);
        assert!(pending(tmp.path(), 8).is_err());
    }

    #[test]
    fn an_image_that_is_cut_off_anywhere_is_an_error_and_no_panic() {
        let process = Process { pid: 300, threads: vec![300, 301] };
        let whole = image(&[(process.encode_to_vec(), b""), (process.encode_to_vec(), b"")]);
        let parsed = |bytes: &[u8]| parse::<Process>(bytes, |_| 0).map(|all| all.len());
        assert_eq!(parsed(&whole).unwrap(), 2);
        for length in 0..whole.len() {
            let between = length == 8 || length == 8 + (whole.len() - 8) / 2;
            assert_eq!(parsed(&whole[..length]).is_err(), !between, "{length}");
        }
    }
}
