//! The holders of names. The kernel reports them by sock_diag(7), for sockets of all kinds and without a connection to
//! them. If that is refused, /proc/net/unix still shows the names that are taken.

use rustix::fd::{AsFd, AsRawFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, socket_with, sockopt};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::time::Duration;

/// A socket that has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The name.
    pub name: String,
    /// The user that made the socket, as seen from this user namespace; None if the kernel does not report it (before
    /// Linux 5.3).
    pub uid: Option<u32>,
    /// The socket's number in /proc.
    pub inode: u32,
}

/// The sockets of this kind whose names begin with `prefix`, in the network namespace of this thread.
///
/// Sockets that come or go meanwhile may be missing, so that a name is not here does not mean that nobody has it.
///
/// # Errors
/// Neither sock_diag nor /proc/net/unix can be read.
pub fn holders(kind: SocketType, prefix: &str) -> io::Result<Vec<Holder>> {
    let mut found = ask_the_kernel(kind).or_else(|_| {
        let table = fs::read_to_string("/proc/thread-self/net/unix")?;
        Ok::<_, io::Error>(table.lines().filter_map(|line| row(line, kind)).collect())
    })?;
    found.retain(|holder| holder.name.starts_with(prefix));
    Ok(found)
}

/// A user other than this one who has names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// The user, as seen from this user namespace.
    pub uid: u32,
    /// The number of names that it holds.
    pub names: usize,
    /// A process that has one of them: its number and the name of its program. Only root, as a rule, can see that.
    pub process: Option<(i32, String)>,
}

impl Other {
    /// The process at the other end of a connection, from the result of [`peer`].
    pub fn of_peer((pid, uid): (i32, u32)) -> Other {
        Other { uid, names: 1, process: (pid > 0).then(|| (pid, program(pid))) }
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.uid)?;
        self.process.as_ref().map_or(Ok(()), |(pid, program)| write!(f, ", process {pid} ({program})"))
    }
}

/// The users other than `own` among the holders, who has most first.
pub fn others(holders: &[Holder], own: u32) -> Vec<Other> {
    let mut by_user: BTreeMap<u32, Vec<&Holder>> = BTreeMap::new();
    for holder in holders {
        if let Some(uid) = holder.uid.filter(|uid| *uid != own) {
            by_user.entry(uid).or_default().push(holder);
        }
    }
    let of_user = |(uid, held): (u32, Vec<&Holder>)| Other {
        uid,
        names: held.iter().map(|holder| &holder.name).collect::<BTreeSet<_>>().len(),
        process: held.first().and_then(|holder| process_with(holder.inode)),
    };
    let mut others: Vec<Other> = by_user.into_iter().map(of_user).collect();
    others.sort_by_key(|other| std::cmp::Reverse(other.names));
    others
}

/// The process that has the socket with this number, and the name of its program, where /proc shows it.
pub fn process_with(inode: u32) -> Option<(i32, String)> {
    let link = format!("socket:[{inode}]");
    let has_it = |pid: &i32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == link.as_str()))
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pid = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(has_it)?;
    Some((pid, program(pid)))
}

fn program(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Process and user at the other end of a connection (SO_PEERCRED): of who listened there, or of who connected. The
/// process is 0 where this pid namespace does not show it.
pub fn peer(socket: impl AsFd) -> Option<(i32, u32)> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: getsockopt fills at most `len` bytes of the struct on this stack.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    (rc == 0).then_some((cred.pid, cred.uid))
}

/// Bytes of a netlink message's header, and of what unix_diag says before its attributes.
const HEADER: usize = 16;
const SAID: usize = 16;

/// All named sockets of a kind, by sock_diag(7).
fn ask_the_kernel(kind: SocketType) -> io::Result<Vec<Holder>> {
    /// SOCK_DIAG_BY_FAMILY of linux/sock_diag.h; NLM_F_REQUEST and NLM_F_DUMP of linux/netlink.h.
    const BY_FAMILY: u16 = 20;
    const REQUEST_DUMP: u16 = 0x301;
    /// UDIAG_SHOW_NAME and UDIAG_SHOW_UID of linux/unix_diag.h.
    const SHOW: u32 = 0x1 | 0x40;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
    // The kernel answers within the call; a sandbox may never do.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(1)))?;
    let mut request = Vec::new();
    // Length, type and flags, sequence number, port; family, protocol; states, inode, what to show, cookie (none).
    request.extend(40u32.to_ne_bytes());
    request.extend([BY_FAMILY.to_ne_bytes(), REQUEST_DUMP.to_ne_bytes()].concat());
    request.extend([1u32, 0].map(u32::to_ne_bytes).concat());
    request.extend([AddressFamily::UNIX.as_raw() as u8, 0, 0, 0]);
    request.extend([u32::MAX, 0, SHOW, u32::MAX, u32::MAX].map(u32::to_ne_bytes).concat());
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut found = Vec::new();
    let mut bytes = vec![0; 64 << 10];
    loop {
        let (length, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty())?;
        if !take(&bytes[..length], kind, &mut found)? {
            return Ok(found);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Takes what one receive brought; whether more is to come.
fn take(mut bytes: &[u8], kind: SocketType, found: &mut Vec<Holder>) -> io::Result<bool> {
    /// NLMSG_ERROR and NLMSG_DONE of linux/netlink.h.
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    while let (Some(length), Some(what)) = (word(bytes, 0), half(bytes, 4)) {
        let length = length as usize;
        let Some(body) = bytes.get(HEADER..length) else { return Err(io::ErrorKind::InvalidData.into()) };
        match what {
            DONE => return Ok(false),
            ERROR => {
                let errno = word(body, 0).map_or(0, |code| code.cast_signed().saturating_neg());
                return Err(io::Error::from_raw_os_error(errno));
            }
            _ => found.extend(holder(body, kind)),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// One socket: unix_diag_msg of linux/unix_diag.h and its attributes.
fn holder(body: &[u8], kind: SocketType) -> Option<Holder> {
    const NAME: u16 = 0;
    const UID: u16 = 7;
    if u32::from(*body.get(1)?) != kind.as_raw() {
        return None;
    }
    let inode = word(body, 4)?;
    let mut attributes = body.get(SAID..)?;
    let (mut name, mut uid) = (None, None);
    while let (Some(length), Some(what)) = (half(attributes, 0), half(attributes, 2)) {
        let length = usize::from(length);
        let value = attributes.get(4..length)?;
        match what {
            // An abstract name begins with a zero.
            NAME => name = value.strip_prefix(&[0]).map(|name| String::from_utf8_lossy(name).into_owned()),
            UID => uid = word(value, 0),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    // A connection that its listener has not accepted yet bears the listener's name, but nobody's user and number.
    Some(Holder { name: name?, uid: uid.filter(|_| inode != 0), inode })
}

/// A row of /proc/net/unix: number, references, protocol, flags, type, state, inode, path.
fn row(line: &str, kind: SocketType) -> Option<Holder> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, _, _, _, of_kind, _, inode, path] = fields[..] else { return None };
    if u32::from_str_radix(of_kind, 16).ok()? != kind.as_raw() {
        return None;
    }
    Some(Holder { name: path.strip_prefix('@')?.to_owned(), uid: None, inode: inode.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SocketAddrUnix, bind};

    #[test]
    fn a_name_is_found_with_the_user_and_the_process_that_have_it() {
        let name = format!("vervain-names/{}/1", std::process::id());
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let found = holders(SocketType::DGRAM, &name[..name.len() - 1]).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].name, name);
        assert_eq!(holders(SocketType::SEQPACKET, &name).unwrap(), []);
        assert_eq!(process_with(found[0].inode).unwrap().0.cast_unsigned(), std::process::id());
        // SAFETY: asks for a number.
        let own = unsafe { libc::geteuid() };
        assert_eq!(found[0].uid.unwrap_or(own), own);
        assert_eq!(others(&found, own), []);
        drop(socket);
        assert_eq!(holders(SocketType::DGRAM, &name).unwrap(), []);
    }

    #[test]
    fn who_has_most_names_comes_first() {
        let holder = |(name, uid): (&str, _)| Holder { name: name.to_owned(), uid, inode: 0 };
        let held = [("a", Some(7)), ("b", Some(0)), ("c", None), ("d", Some(9)), ("e", Some(9)), ("a", Some(7))];
        let held = held.map(holder);
        let others = others(&held, 0);
        assert_eq!(others.iter().map(|o| (o.uid, o.names)).collect::<Vec<_>>(), [(9, 2), (7, 1)]);
        let other = Other { process: Some((12, "squat".to_owned())), ..others[1].clone() };
        assert_eq!([other.to_string(), others[0].to_string()], ["uid 7, process 12 (squat)", "uid 9"]);
    }

    #[test]
    fn the_kernels_table_tells_names_but_no_users() {
        let line = "0000000000000000: 00000002 00000000 00010000 0005 01 27219 @vervain/0/77";
        let expected = Holder { name: "vervain/0/77".to_owned(), uid: None, inode: 27219 };
        assert_eq!(row(line, SocketType::SEQPACKET), Some(expected));
        assert_eq!(row(line, SocketType::DGRAM), None);
        assert_eq!(row(&line.replace('@', "/run/"), SocketType::SEQPACKET), None);
        assert_eq!(row("Num       RefCount Protocol Flags    Type St Inode Path", SocketType::STREAM), None);
    }

    #[test]
    fn what_the_kernel_would_not_say_is_an_error_and_no_panic() {
        let mut found = Vec::new();
        let mut refusal = [20u32, 2, 0, 0].map(u32::to_ne_bytes).concat();
        refusal.extend((-libc::ENOENT).to_ne_bytes());
        let refused = take(&refusal, SocketType::DGRAM, &mut found).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOENT));
        let longer_than_it_is = [64u32, 20, 0, 0].map(u32::to_ne_bytes).concat();
        assert!(take(&longer_than_it_is, SocketType::DGRAM, &mut found).is_err());
        let shorter_than_its_header = [0u32, 20, 0, 0].map(u32::to_ne_bytes).concat();
        assert!(take(&shorter_than_its_header, SocketType::DGRAM, &mut found).is_err());
        // An attribute that says that it is shorter than its own header.
        let torn = [&[1, 2, 7, 0][..], &[0; 12], &[2, 0, 0, 0]].concat();
        assert_eq!(holder(&torn, SocketType::DGRAM), None);
        assert_eq!(found, []);
    }

    #[test]
    fn a_connection_in_a_listeners_queue_is_of_no_user() {
        let attributes = [&[6, 0, 0, 0, 0, b'a', 0, 0][..], &[8, 0, 7, 0, 3, 0, 0, 0]].concat();
        let socket = |inode: u8| [&[1, 5, 1, 0, inode, 0, 0, 0][..], &[0; 8], &attributes].concat();
        let of = |inode| holder(&socket(inode), SocketType::SEQPACKET).map(|h| (h.name, h.uid));
        assert_eq!(of(9), Some(("a".to_owned(), Some(3))));
        assert_eq!(of(0), Some(("a".to_owned(), None)));
    }
}
