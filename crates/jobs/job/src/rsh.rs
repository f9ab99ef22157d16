//! `vervain job rsh`: a program on another host that is part of the job, as `ssh HOST COMMAND` would start it outside
//! of the job. The supervisor has it started there; its streams and its status come by TCP connections that belong to
//! the job like all others, so a checkpoint has them with what stands in them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::control::{Reply, Request, ask_at};
use crate::hosts::{Host, own_addresses};
use crate::starter::RemoteCommand;
use crate::word::Word;

/// Time for the other side to connect.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which one address is tried.
const EACH: Duration = Duration::from_secs(2);
/// Random bytes by which both sides know each other.
const SECRET: usize = 32;
/// The exit status of ssh where the command was not started.
const FAILED: u8 = 255;

/// The script that runs the command there. Launchers such as Hydra pass the environment of the first host on to their
/// ranks, with the place of its view of devices: that has to lead to the view of this host too. Its words: that place,
/// the command, the variable that has the place.
const SHELL: &str = r#"[ -z "$0" ] || [ -e "$0" ] || ln -s "$(printenv "$2")" "$0"; exec sh -c "$1""#;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Role {
    /// The status, at the end.
    Control,
    Input,
    Output,
    Error,
}

impl Role {
    const ALL: [Role; 4] = [Role::Control, Role::Input, Role::Output, Role::Error];
}

/// The parameters of the shell on the other host.
#[derive(Debug, Serialize, Deserialize)]
struct Shell {
    addresses: Vec<SocketAddr>,
    secret: [u8; SECRET],
    command: Word,
    folder: Word,
    /// The place of the view of devices on the first host, empty if there is none, and the variable that names it.
    view: Word,
    variable: String,
    /// Vervain's command, which gives the program its devices.
    vervain: Word,
}

/// Runs a command, the words of which are joined as ssh does, on another host of the job that this process is in; its
/// exit status. `variable` is the one that has the place of the view of devices.
///
/// # Errors
/// It cannot be started there.
pub fn rsh(private: &Path, host: &Host, words: &[OsString], variable: &str) -> Result<u8> {
    let command = words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>().join(&b' ');
    let any = [IpAddr::from(Ipv6Addr::UNSPECIFIED), Ipv4Addr::UNSPECIFIED.into()];
    let listener = any.iter().find_map(|ip| TcpListener::bind((*ip, 0)).ok()).context("cannot listen")?;
    let port = listener.local_addr()?.port();
    let mut secret = [0; SECRET];
    getrandom::fill(&mut secret).map_err(|e| anyhow!("no random numbers: {e}"))?;
    let exe = env::current_exe()?;
    let shell = Shell {
        addresses: reachable()?.into_iter().map(|ip| SocketAddr::new(ip, port)).collect(),
        secret,
        command: Word(command),
        view: Word(env::var_os(variable).unwrap_or_default().into_vec()),
        variable: variable.to_owned(),
        folder: Word(env::current_dir().unwrap_or_else(|_| "/".into()).into_os_string().into_vec()),
        vervain: Word(exe.clone().into_os_string().into_vec()),
    };
    let word = |text: &OsStr| Word(text.as_bytes().to_vec());
    let of_devices = |(name, value): (OsString, OsString)| {
        name.as_bytes().starts_with(b"VERVAIN_").then(|| (word(&name), word(&value)))
    };
    let program = RemoteCommand {
        words: [exe.as_os_str(), OsStr::new("inside"), OsStr::new("shell")].map(word).into(),
        environment: env::vars_os().filter_map(of_devices).collect(),
        input: serde_json::to_vec(&shell)?,
    };
    match ask_at(private, &Request::Start { host: host.clone(), program })? {
        Reply::Started => {}
        other => bail!("an odd answer: {other:?}"),
    }
    let [control, input, output, error] = accept(&listener, &secret)?;
    drop(listener);
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut &input);
        let _ = input.shutdown(std::net::Shutdown::Write);
    });
    let out = thread::spawn(move || io::copy(&mut &output, &mut io::stdout().lock()));
    let err = thread::spawn(move || io::copy(&mut &error, &mut io::stderr().lock()));
    let mut status = [FAILED];
    (&control).read_exact(&mut status).context("the program on the other host is gone")?;
    let _ = (out.join(), err.join());
    Ok(status[0])
}

/// The addresses at which other hosts may find this one. Two parts of a job may be on one host, so loopback is the last
/// to be tried.
fn reachable() -> Result<Vec<IpAddr>> {
    let of_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut all = own_addresses()?;
    all.retain(|ip| !of_link(ip));
    all.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    Ok(all)
}

/// The connections of the shell, by their roles.
fn accept(listener: &TcpListener, secret: &[u8; SECRET]) -> Result<[TcpStream; 4]> {
    let until = Instant::now() + PATIENCE;
    listener.set_nonblocking(true)?;
    let mut found: [Option<TcpStream>; 4] = [const { None }; 4];
    while found.iter().any(Option::is_none) {
        ensure!(Instant::now() < until, "the other host does not connect within {PATIENCE:?}");
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(EACH))?;
        let mut said = [0; SECRET + 1];
        // A stranger may have found the port.
        if (&stream).read_exact(&mut said).is_err() || !same(&said[..SECRET], secret) {
            continue;
        }
        stream.set_read_timeout(None)?;
        stream.set_nodelay(true)?;
        if let Some(place) = found.get_mut(usize::from(said[SECRET])) {
            *place = Some(stream);
        }
    }
    found
        .map(|stream| stream.context("a stream is missing"))
        .into_iter()
        .collect::<Result<Vec<_>>>()?
        .try_into()
        .map_err(|_| anyhow!("a stream is missing"))
}

/// Returns true if they are the same, in a time that does not say where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// The shell on the other host: what it is to do stands on its standard input.
///
/// # Errors
/// The other side cannot be reached.
pub fn shell() -> Result<()> {
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text)?;
    let shell: Shell = serde_json::from_slice(&text).context("this program is for the inside of a job")?;
    let at = find(&shell)?;
    let mut streams = Vec::new();
    for role in Role::ALL {
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.write_all(&shell.secret)?;
        stream.write_all(&[role as u8])?;
        streams.push(stream);
    }
    let [mut control, input, output, error]: [TcpStream; 4] =
        streams.try_into().map_err(|_| anyhow!("a stream is missing"))?;
    let path = |words: &Word| PathBuf::from(OsStr::from_bytes(&words.0));
    let mut command = Command::new(path(&shell.vervain));
    command
        .args(["run", "--", "sh", "-c", SHELL])
        .args([&shell.view, &shell.command].map(|word| OsStr::from_bytes(&word.0)));
    command.arg(&shell.variable);
    let folder = path(&shell.folder);
    command.current_dir(if folder.is_dir() { folder } else { "/".into() });
    let stdio = |stream: TcpStream| Stdio::from(OwnedFd::from(stream));
    command.stdin(stdio(input)).stdout(stdio(output)).stderr(stdio(error)).process_group(0);
    let started = command.spawn();
    // It has the streams for itself, and closes them at its end.
    drop(command);
    let status = match started {
        Ok(mut child) => {
            let group = Pid::from_raw(child.id().cast_signed());
            let listens = control.try_clone()?;
            thread::spawn(move || {
                // The end of input: the process that has asked is gone, and the program ends as with a terminal that is
                // closed.
                if (&listens).read(&mut [0]).is_ok_and(|length| length == 0) {
                    let _ = killpg(group, Signal::SIGHUP);
                }
            });
            let status = child.wait()?;
            status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) as u8
        }
        Err(_) => FAILED,
    };
    Ok(control.write_all(&[status])?)
}

/// The first of the addresses at which somebody answers.
fn find(shell: &Shell) -> Result<SocketAddr> {
    let mut last = None;
    for at in &shell.addresses {
        match TcpStream::connect_timeout(at, EACH) {
            Ok(_) => return Ok(*at),
            Err(e) => last = Some(e),
        }
    }
    bail!("no address of the other host can be reached: {last:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_the_secret_are_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let secret = [7; SECRET];
        let others = thread::spawn(move || {
            let mut kept = Vec::new();
            for (first, role) in [(8, 0), (7, 9), (7, 3), (7, 2), (7, 1), (7, 0)] {
                let mut stream = TcpStream::connect(at).unwrap();
                let mut said = [7; SECRET + 1];
                (said[0], said[SECRET]) = (first, role);
                stream.write_all(&said).unwrap();
                if first == 7 && role < 4 {
                    stream.write_all(&[role]).unwrap();
                }
                kept.push(stream);
            }
            kept
        });
        let streams = accept(&listener, &secret).unwrap();
        for (role, mut stream) in streams.iter().enumerate() {
            let mut said = [0];
            stream.read_exact(&mut said).unwrap();
            assert_eq!(usize::from(said[0]), role);
        }
        drop(others.join().unwrap());
    }

    #[test]
    fn loopback_is_tried_last() {
        let own = reachable().unwrap();
        let first = own.iter().position(IpAddr::is_loopback).unwrap_or(own.len());
        assert!(own[first..].iter().all(IpAddr::is_loopback), "{own:?}");
    }
}
