//! A process, or a thread of it, that has no CPU for a while does not take that for silence of its peers.

#[path = "hostile_packets/world.rs"]
#[allow(dead_code)]
mod world;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vervain_hca::{Data, Opcode, QpAttr, QpState, QpType, SendRequest, Status, attr, send_flags};
use vervain_skip::skip;
use world::{Pair, RECEIVE, World, alone};

/// Many times an ACK timeout of [`impatient`].
const LONG: Duration = Duration::from_millis(150);
const PAGE: u64 = 4096;

/// A pair whose first QP gives up after one ACK timeout of 4.2 ms.
fn impatient(world: &World) -> &Pair {
    let pair = world.pair(QpType::Rc);
    let new = QpAttr { qp_state: QpState::Sqd, timeout: 10, retry_cnt: 0, ..QpAttr::default() };
    pair.a.modify(&new, attr::STATE).unwrap();
    pair.a.modify(&new, attr::STATE | attr::TIMEOUT | attr::RETRY_CNT).unwrap();
    pair.a.modify(&QpAttr { qp_state: QpState::Rts, ..new }, attr::STATE).unwrap();
    pair
}

/// The progress thread keeps away from a program that polls, which takes packets in itself.
fn poll_for_a_while(pair: &Pair) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(20) {
        pair.poll();
    }
}

/// An RDMA Write from the beginning of the memory.
fn write(pair: &Pair, remote_addr: u64) {
    let sge = [pair.memory.sge(0, 8)];
    let request = SendRequest {
        opcode: Opcode::Write,
        flags: send_flags::SIGNALED,
        remote_addr,
        rkey: pair.memory.mr.rkey(),
        data: Data::Sges(&sge),
        ..SendRequest::default()
    };
    pair.a.post_send(|p| p.push(&request)).unwrap();
}

/// Polls until the write has completed; its status.
fn completion(pair: &Pair) -> u32 {
    let begin = Instant::now();
    loop {
        let mut status = None;
        pair.send_cq.poll(1, &mut |c| status = Some(c.status));
        if let Some(status) = status {
            return status;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "no completion came");
    }
}

/// Two pages at whose first access a thread stands still until [`Trap::release`]: a userfaultfd (`man 2 userfaultfd`).
struct Trap {
    faults: File,
    at: u64,
}

/// `linux/userfaultfd.h`.
const API: u64 = 0xaa;
const IOCTL_API: libc::Ioctl = 0xc018_aa3f;
const IOCTL_REGISTER: libc::Ioctl = 0xc020_aa00;
const IOCTL_ZEROPAGE: libc::Ioctl = 0xc020_aa04;
const USER_MODE_ONLY: i32 = 1;
const MODE_MISSING: u64 = 1;

impl Trap {
    /// Around `addr`; None where the kernel has no such thing.
    ///
    /// # Safety
    /// Nobody needs what lies up to a page before and two behind.
    unsafe fn set(addr: u64) -> Option<Trap> {
        let at = addr / PAGE * PAGE;
        // SAFETY: a new descriptor; and pages whose content nobody needs are given back.
        let faults = unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY);
            if fd < 0 {
                return None;
            }
            assert_eq!(libc::madvise(at as *mut libc::c_void, 2 * PAGE as usize, libc::MADV_DONTNEED), 0);
            File::from_raw_fd(fd as i32)
        };
        let trap = Trap { faults, at };
        trap.call(IOCTL_API, &mut [API, 0, 0]);
        trap.call(IOCTL_REGISTER, &mut [at, 2 * PAGE, MODE_MISSING, 0]);
        Some(trap)
    }

    fn call<const N: usize>(&self, request: libc::Ioctl, argument: &mut [u64; N]) {
        // SAFETY: the struct of this request is `N` words.
        let rc = unsafe { libc::ioctl(self.faults.as_raw_fd(), request, argument.as_mut_ptr()) };
        assert_eq!(rc, 0, "{request:#x}: {}", std::io::Error::last_os_error());
    }

    /// Until somebody stands there.
    fn wait(&self) {
        // One message.
        assert_eq!((&self.faults).read(&mut [0; 32]).unwrap(), 32);
    }

    /// The pages are there, of zeros.
    fn release(&self) {
        self.call(IOCTL_ZEROPAGE, &mut [self.at, 2 * PAGE, 0, 0]);
    }
}

/// A request behind a datagram: the thread that has received the datagram stands still while it stores it into its
/// receive.
#[test]
fn a_request_behind_which_a_thread_stands_still_is_not_unanswered() {
    alone("a_request_behind_which_a_thread_stands_still_is_not_unanswered", || {
        let mut world = World::new(&[QpType::Rc, QpType::Ud]);
        while world.pair(QpType::Ud).next < 4 {
            world.works();
        }
        let (pair, datagrams) = (impatient(&world), world.pair(QpType::Ud));
        let receive = datagrams.receives.addr() + 4 * RECEIVE as u64;
        // SAFETY: receives of 16 KiB, of which the one in the middle is used once more.
        let Some(trap) = (unsafe { Trap::set(receive) }) else { return skip("no userfaultfd") };
        std::thread::scope(|scope| {
            let polls = scope.spawn(|| {
                poll_for_a_while(pair);
                datagrams.post_message();
                write(pair, pair.memory.addr());
                completion(pair)
            });
            trap.wait();
            std::thread::sleep(LONG);
            trap.release();
            assert_eq!(polls.join().unwrap(), Status::Success.to_verbs());
        });
    });
}

/// Lets this process go on, some time after it has stopped itself.
struct Waker(Child);

impl Waker {
    fn new() -> Waker {
        let stopped = "until grep -q '^State:[[:space:]]*T' /proc/$0/status; do sleep 0.01; done";
        let script = format!("while read -r _; do {stopped}; sleep {}; kill -CONT $0; done", LONG.as_secs_f64());
        let mut command = Command::new("sh");
        command.args(["-c", &script, &std::process::id().to_string()]).stdin(Stdio::piped());
        Waker(command.spawn().unwrap())
    }

    /// Stops this process, with all its threads.
    fn stop(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        // SAFETY: a signal to this thread, which stops them all, and itself before it returns.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn what_lies_in_the_sockets_of_a_process_that_was_stopped_is_not_late() {
    alone("what_lies_in_the_sockets_of_a_process_that_was_stopped_is_not_late", || {
        let world = World::new(&[QpType::Rc]);
        let pair = impatient(&world);
        let mut waker = Waker::new();
        poll_for_a_while(pair);
        for round in 0..10 {
            write(pair, pair.memory.addr());
            waker.stop();
            assert_eq!(completion(pair), Status::Success.to_verbs(), "round {round}");
        }
    });
}
