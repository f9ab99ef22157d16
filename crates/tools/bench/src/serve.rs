//! `vervain bench serve`: the far host. Each TCP connection gets a worker process of its own, whose orders come over it
//! from the coordinator; all results end up there.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::protocol::PORT;
use crate::run::watch;

/// Workers at a time: four for a run, and some runs.
const MOST: usize = 32;
/// How often the workers are looked after.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Serves coordinators at `address`, or at port 4790 of all addresses, until SIGINT or SIGTERM; `worker` makes the
/// command of a worker, which finds the connection as its standard input. `say` gets a sentence for each coordinator
/// that comes or goes.
///
/// # Errors
/// The address cannot be listened at.
pub fn serve(address: Option<SocketAddr>, worker: &dyn Fn() -> Command, say: &dyn Fn(&str)) -> Result<()> {
    // A host without IPv6 has the latter only.
    let all = [(Ipv6Addr::UNSPECIFIED, PORT).into(), (Ipv4Addr::UNSPECIFIED, PORT).into()];
    let addresses = address.as_ref().map_or(&all[..], std::slice::from_ref);
    let listener = TcpListener::bind(addresses).with_context(|| format!("cannot listen at {}", addresses[0]))?;
    listener.set_nonblocking(true)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, ended.clone())?;
    }
    say(&format!("serving at {}", listener.local_addr()?));
    let mut workers: Vec<(SocketAddr, Child)> = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        // A signal ends the wait.
        let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&LOOK));
        workers.retain_mut(|(from, child)| match child.try_wait() {
            Ok(Some(status)) => {
                say(&format!("{from}: worker {} is done ({status})", child.id()));
                false
            }
            _ => true,
        });
        while let Ok((stream, from)) = listener.accept() {
            if workers.len() >= MOST {
                say(&format!("{from}: refused, {MOST} workers are at work"));
                continue;
            }
            match start(stream, worker()) {
                Ok(child) => {
                    say(&format!("{from}: worker {}", child.id()));
                    workers.push((from, child));
                }
                Err(e) => say(&format!("{from}: cannot start a worker: {e}")),
            }
        }
    }
    for (_, child) in &mut workers {
        let _ = child.kill();
        let _ = child.wait();
    }
    Ok(())
}

fn start(stream: TcpStream, mut command: Command) -> io::Result<Child> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    watch(&stream)?;
    command.stdin(OwnedFd::from(stream)).stdout(Stdio::null()).process_group(0).spawn()
}
