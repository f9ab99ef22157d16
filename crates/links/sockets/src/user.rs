//! The user of this process, as the kernel shows it to others. Both links trust only processes of this user: the one at
//! the time when the devices were opened, like the file of a kernel's device.

use crate::socket::Socket;
use rustix::net::SocketType;
use vervain_hca::host::cancel::Uncancelled;

/// Number of users in a namespace that has a number for each.
const ALL: u64 = u32::MAX as u64;

/// The effective user id, which distinguishes this user's processes from others'. The error is a sentence: in a user
/// namespace all users without a number look like one, the overflow user, so that one cannot tell its own processes
/// from others'.
pub fn own() -> Result<u32, String> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    told_apart(rustix::process::geteuid().as_raw(), overflow, &read("/proc/self/uid_map"))
}

/// The user by whom processes know each other, and the means to recognise one that has become another user since
/// (setuid(2)).
pub struct User {
    /// The effective user id at the time of opening.
    pub uid: u32,
    /// True if processes that look like this user are this user's.
    is_told_apart: bool,
    /// Listener that shows `uid` as long as the process lives, whatever user it becomes: the kernel notes process and
    /// user at listen(2). Only root can become another user, so others have none.
    opening: Option<Socket>,
}

impl User {
    /// The present user of this process.
    pub fn of_process() -> User {
        let (uid, apart) = (rustix::process::geteuid(), own());
        if let Err(why) = &apart {
            log::warn!("{why}, so no other process is talked to: give this user a number (unshare --map-current-user)");
        }
        let unique = getrandom::u64().unwrap_or_default();
        let name = vervain_names::opening(uid.as_raw(), std::process::id(), unique);
        let listen =
            || Socket::listen(&name).inspect_err(|e| log::debug!("@{name}: {}", std::io::Error::from(*e))).ok();
        let opening = uid.is_root().then(listen).flatten();
        User { uid: uid.as_raw(), is_told_apart: apart.is_ok(), opening }
    }

    /// The user id, part of all names; None: this user's processes cannot be told from others'.
    pub fn number(&self) -> Option<u32> {
        self.is_told_apart.then_some(self.uid)
    }

    /// The listener to which others connect to see the user that opened. No messages are exchanged there.
    pub fn opening(&self) -> Option<&Socket> {
        self.opening.as_ref()
    }

    /// Returns true if a process is of this user; number and user are those that [`vervain_names::peer`] returns for a
    /// connection.
    ///
    /// Its user now is this process's at the time of opening. Or both opened as root, and are the same other user now.
    /// Neither alone is enough: a process that gave up root's rights must not enter one that has them, and a process
    /// that never had them must not enter one that may keep what it read with them.
    pub fn is_of(&self, (pid, uid): (i32, u32)) -> bool {
        if uid == self.uid {
            return self.is_told_apart;
        }
        let _whole = Uncancelled::begin();
        self.uid == 0 && own() == Ok(uid) && self.has_opened(pid)
    }

    /// Returns true if process `pid` has opened as this user: it still listens under a name with its number. A name
    /// with another process's number, or a listener of another user, does not count: the kernel shows both.
    fn has_opened(&self, pid: i32) -> bool {
        // 0: this pid namespace does not show the process.
        let Some(number) = u32::try_from(pid).ok().filter(|number| *number != 0) else { return false };
        let names = vervain_names::holders(SocketType::SEQPACKET, &vervain_names::openings(self.uid, number));
        let mut names = names.unwrap_or_default();
        names.retain(|holder| holder.uid.is_none_or(|of| of == self.uid));
        let shows = |name: &str| Socket::connect(name).is_ok_and(|socket| socket.peer() == Some((pid, self.uid)));
        names.iter().any(|holder| shows(&holder.name))
    }
}

fn told_apart(uid: u32, overflow: u32, map: &str) -> Result<u32, String> {
    if uid == overflow && numbers_in(map) < ALL {
        return Err(format!("this user namespace does not tell users apart that look like this one (uid {uid})"));
    }
    Ok(uid)
}

/// Number of users that a map has numbers for (`man 7 user_namespaces`).
fn numbers_in(map: &str) -> u64 {
    map.lines().filter_map(|line| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::geteuid;

    const OTHER: u32 = 1234;

    /// Returns, for both ends of a connection made by a thread of another user, if `user` trusts them. The thread also
    /// listens at `also`.
    fn as_other(user: &User, also: Option<&str>) -> [bool; 2] {
        let act = || {
            // SAFETY: unlike libc's function, the bare system call changes the user of this thread only, which ends
            // here.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER) };
            assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
            let name = format!("vervain-test/user-{}", std::process::id());
            let _also = also.map(|name| Socket::listen(name).unwrap());
            let listener = Socket::listen(&name).unwrap();
            let client = Socket::connect(&name).unwrap();
            let server = listener.accept().unwrap();
            [client, server].map(|end| user.is_of(end.peer().unwrap()))
        };
        std::thread::scope(|scope| scope.spawn(act).join().unwrap())
    }

    #[test]
    fn who_has_become_another_user_trusts_only_those_that_have_opened_as_it_did() {
        if !geteuid().is_root() {
            return vervain_skip::skip("only root can become another user");
        }
        let pid = std::process::id();
        let mut user = User::of_process();
        assert!(user.is_of((pid.cast_signed(), 0)));
        assert!(!user.is_of((pid.cast_signed(), OTHER)), "root trusts nobody who gave its rights up");
        assert_eq!(as_other(&user, None), [true; 2]);
        user.opening = None;
        assert_eq!(as_other(&user, None), [false; 2], "one that never was root");
        let name = vervain_names::opening(0, pid, 7);
        assert_eq!(as_other(&user, Some(&name)), [false; 2], "the name alone");
        // The name bears another process's number.
        let _root = Socket::listen(&vervain_names::opening(0, pid + 1, 7)).unwrap();
        assert_eq!(as_other(&user, None), [false; 2]);
    }

    #[test]
    fn who_looks_like_the_overflow_user_trusts_nobody() {
        assert!(told_apart(65534, 65534, "").is_err());
        assert!(told_apart(65534, 65534, "0 100000 65536\n").is_err(), "users from 165536 on look the same");
        assert_eq!(told_apart(65534, 65534, "0 0 4294967295\n"), Ok(65534));
        assert_eq!(told_apart(1000, 65534, "1000 1000 1\n"), Ok(1000));
    }

    #[test]
    fn the_first_namespace_has_a_number_for_each_user() {
        assert_eq!(numbers_in("         0          0 4294967295\n"), ALL);
        assert_eq!(numbers_in("0 1000 1\n1 100000 65536\n"), 65537);
        assert_eq!(numbers_in(""), 0);
    }
}
