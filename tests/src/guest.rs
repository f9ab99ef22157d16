//! Guests: machines that QEMU emulates, with a kernel of Debian's and the file system of this machine, read-only, so that all its
//! programs run there. They share memory of this process, as an ivshmem device and as an NVDIMM, and have a cable, each end of which
//! is a socket, for what programs agree about by TCP. Commands go over a serial line.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vervain_skip::skip;

use crate::{Job, fetched, have, libraries, vervain};

/// Bytes of the memory that guests share, of each kind.
const SHARED: u64 = 512 << 20;
/// How long a guest may take to boot. It takes 13 s on a machine with nothing else to do.
const BOOT: Duration = Duration::from_secs(180);
/// What of the kernel is not built in, as far as it is there: the PCI devices, the file system, the cable, the NVDIMM.
const MODULES: &[&str] = &[
    "virtio",
    "virtio_ring",
    "virtio_pci",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "failover",
    "net_failover",
    "virtio_net",
    "netfs",
    "fscache",
    "9pnet",
    "9pnet_virtio",
    "9p",
    "libnvdimm",
    "nd_btt",
    "nd_pmem",
    "nfit",
    "device_dax",
    "dax_pmem",
];
/// The first program of a guest. Modules need each other, so those that fail are tried again.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sysfs /sys; $b mount -t devtmpfs devtmpfs /dev
for round in 1 2 3 4; do for module in /modules/*; do $b insmod $module 2>/dev/null && $b rm $module; done; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 root /new || exec $b poweroff -f
for kind in proc sysfs devtmpfs; do $b mount -t $kind $kind /new/$($b echo $kind | $b sed 's/fs$//; s/devtmp/dev/'); done
$b mkdir -p /new/dev/shm /new/dev/pts
$b mount -t tmpfs tmpfs /new/dev/shm; $b mount -t devpts devpts /new/dev/pts
$b mount -t tmpfs tmpfs /new/tmp; $b mount -t tmpfs tmpfs /new/run
$b ifconfig lo 127.0.0.1 up
$b ifconfig eth0 $($b sed 's/.* address=\([0-9.]*\).*/\1/' /proc/cmdline) netmask 255.255.255.0 up
exec 3<>/dev/ttyS1
$b stty -F /dev/ttyS1 raw -echo
echo the guest is ready
$b chroot /new /bin/bash -c 'while IFS= read -r line; do eval "$line"; done' <&3 >&3 2>&1
"#;

/// Two guests with what they share.
pub struct Guests {
    kernel: PathBuf,
    first_files: PathBuf,
    /// The memory, by a path in /proc.
    shared: [(OwnedFd, String); 2],
    place: TempDir,
}

/// A guest that runs.
pub struct Guest {
    machine: Job,
    line: UnixStream,
    /// Its number among the two.
    number: usize,
    commands: usize,
    /// What has come and is not of a command that is over.
    came: String,
}

impl Guests {
    /// What two guests need; None, with a printed reason, where they cannot be had.
    ///
    /// # Panics
    /// When what is there does not work.
    pub fn prepare() -> Option<Guests> {
        if !have(&["qemu-system-x86_64", "busybox", "cpio", "bash", "ndctl", "xz"]) {
            return None;
        }
        if cfg!(not(target_arch = "x86_64")) {
            skip("the emulated machines are x86-64, and run the programs of this one");
            return None;
        }
        if [vervain(), libraries()].iter().any(|path| path.canonicalize().is_ok_and(|path| path.starts_with("/tmp"))) {
            skip("Vervain is built below /tmp, where a guest has files of its own");
            return None;
        }
        let package = fetched("kernel")?;
        let image = one_of(&package.join("boot"), "vmlinuz-");
        let place = tempfile::tempdir().expect("a folder");
        let first_files = place.path().join("initramfs");
        pack(&package, &place.path().join("first"), &first_files);
        Some(Guests { kernel: image, first_files, shared: [memory(), memory()], place })
    }

    /// Address of a guest on the cable.
    pub fn address(number: usize) -> String {
        format!("10.47.92.{}", number + 1)
    }

    /// Starts a guest.
    pub fn start(&self, number: usize) -> Starting {
        let path = |what: &str, number: usize| self.place.path().join(format!("{what}{number}")).display().to_string();
        let line = path("line", number);
        // Those of an earlier life.
        let _ = std::fs::remove_file(&line);
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-M", "pc,nvdimm=on", "-accel", "tcg", "-cpu", "max", "-smp", "1"]);
        command.args([
            "-m",
            "512M,slots=1,maxmem=2G",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.first_files);
        let address = Guests::address(number);
        command.args(["-append", &format!("console=ttyS0 panic=-1 mitigations=off address={address} quiet")]);
        command.args(["-serial", "stdio", "-serial", "chardev:line"]);
        command.args(["-chardev", &format!("socket,id=line,path={line},server=on,wait=off")]);
        command.args(["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"]);
        command.args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]);
        let [own, other] = [number, 1 - number].map(|number| path("cable", number));
        let cable = "local.type=unix,remote.type=unix";
        command.args(["-netdev", &format!("dgram,id=cable,{cable},local.path={own},remote.path={other}")]);
        command.args(["-device", &format!("virtio-net-pci,netdev=cable,romfile=,mac=52:54:00:47:92:0{number}")]);
        for ((_, memory), id) in self.shared.iter().zip(["ivshmem", "nvdimm"]) {
            let object = format!("memory-backend-file,id={id},share=on,mem-path={memory},size={SHARED},align=2M");
            command.args(["-object", &object]);
        }
        command.args(["-device", "ivshmem-plain,memdev=ivshmem", "-device", "nvdimm,memdev=nvdimm,id=nvdimm0"]);
        Starting { machine: Job::start(&mut command), line: line.into(), number }
    }
}

/// A guest that boots.
pub struct Starting {
    machine: Job,
    line: PathBuf,
    number: usize,
}

impl Starting {
    /// Waits until it takes commands.
    ///
    /// # Panics
    /// When it does not.
    pub fn ready(mut self) -> Guest {
        // What is said before somebody listens there would be lost, or a part of it.
        if !self.machine.wait_output("the guest is ready", BOOT) {
            panic!("it does not boot: {}", self.machine.finish(Duration::ZERO).describe());
        }
        let line = UnixStream::connect(&self.line).expect("the serial line");
        line.set_read_timeout(Some(Duration::from_millis(50))).expect("a time");
        let mut guest = Guest { machine: self.machine, line, number: self.number, commands: 0, came: String::new() };
        assert!(guest.answers(BOOT), "its shell does not answer: {}", guest.machine.output());
        let path = std::env::var("PATH").unwrap_or_default();
        guest.must(&format!("export HOME=/tmp LC_ALL=C PATH='{path}:/usr/sbin:/sbin'"));
        guest
    }
}

impl Guest {
    /// Whether the shell answers. Bytes that come while the line is set up may be lost, so it is asked by words that are harmless
    /// in any part, until it does.
    fn answers(&mut self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut buffer = [0; 4096];
        while Instant::now() < until && !self.came.contains("up42") {
            self.line.write_all(b"\necho up$((6*7))\n").expect("the serial line");
            let next = Instant::now() + Duration::from_millis(500);
            while Instant::now() < next {
                if let Ok(n) = self.line.read(&mut buffer) {
                    self.came.push_str(&String::from_utf8_lossy(&buffer[..n]));
                }
            }
        }
        self.came.contains("up42")
    }

    /// Runs a line of the shell; its exit status and output. None when it does not end in time.
    ///
    /// # Panics
    /// When the serial line is gone.
    pub fn try_run(&mut self, line: &str, limit: Duration) -> Option<(i32, String)> {
        self.commands += 1;
        let (begin, end) = (format!("<{}>", self.commands), format!("</{}>", self.commands));
        // In pieces, so that the marks are not in what a terminal might send back.
        let text = format!(
            "echo '<''{}>'; {{ {line}; }} </dev/null; status=$?; echo; echo '</''{}>' $status\n",
            self.commands, self.commands
        );
        self.line.write_all(text.as_bytes()).expect("the serial line");
        let until = Instant::now() + limit;
        let mut buffer = [0; 4096];
        loop {
            if let Some((_, rest)) = self.came.rsplit_once(&begin)
                && let Some((output, status)) = rest.split_once(&end)
                && let Some((status, _)) = status.split_once('\n')
            {
                let answer = (status.trim().parse().unwrap_or(-1), output.replace('\r', ""));
                self.came.clear();
                return Some(answer);
            }
            match self.line.read(&mut buffer) {
                Ok(0) => panic!("guest {} is gone: {}", self.number, self.machine.output()),
                Ok(n) => self.came.push_str(&String::from_utf8_lossy(&buffer[..n])),
                Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => {}
                Err(e) => panic!("the serial line of guest {}: {e}", self.number),
            }
            if Instant::now() > until {
                return None;
            }
        }
    }

    /// The output of a line of the shell.
    ///
    /// # Panics
    /// When it fails, or takes longer than a minute.
    pub fn must(&mut self, line: &str) -> String {
        match self.try_run(line, Duration::from_secs(60)) {
            Some((0, output)) => output,
            other => panic!("guest {}: {line}: {other:?}\n{}", self.number, self.machine.output()),
        }
    }

    /// Bytes that its interface has received and sent.
    ///
    /// # Panics
    /// When it has none.
    pub fn bytes_on_cable(&mut self) -> u64 {
        let files = "/sys/class/net/eth0/statistics";
        let said = self.must(&format!("cat {files}/rx_bytes {files}/tx_bytes"));
        said.split_whitespace().map(|n| n.parse::<u64>().expect("a number")).sum()
    }

    /// Ends the machine as a loss of power does.
    pub fn kill(self) {
        self.machine.signal_group(libc::SIGKILL);
        self.machine.finish(Duration::ZERO);
    }
}

/// Zeros, in memory that has no name but one in /proc.
fn memory() -> (OwnedFd, String) {
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(c"vervain-guests".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: made just now.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    std::fs::File::from(fd.try_clone().expect("a descriptor")).set_len(SHARED).expect("memory");
    let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    (fd, path)
}

/// The file in a folder whose name begins so.
fn one_of(folder: &Path, begin: &str) -> PathBuf {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let mut files = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(begin));
    files.next().unwrap_or_else(|| panic!("no {begin} in {}", folder.display())).path()
}

/// The files that a kernel begins with, as one archive: a shell, modules, and the first program.
fn pack(package: &Path, folder: &Path, archive: &Path) {
    let script = format!(
        "set -e; mkdir -p bin modules dev proc sys new; cp \"$(command -v busybox)\" bin/busybox
        for name in {}; do find '{}' \\( -name $name.ko -o -name $name.ko.xz \\) -exec cp {{}} modules/ \\;; done
        if ls modules/*.xz >/dev/null 2>&1; then xz -d modules/*.xz; fi
        chmod +x init; find . | cpio -o -H newc > '{}'",
        MODULES.join(" "),
        package.display(),
        archive.display(),
    );
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join("init"), INIT).expect("a file");
    let packed =
        Job::start(Command::new("sh").args(["-c", &script]).current_dir(folder)).finish(Duration::from_secs(30));
    assert!(packed.success(), "{}", packed.describe());
}
