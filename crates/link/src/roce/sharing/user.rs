//! The user that this process is of, as the kernel tells it to others.

use super::Names;
use vervain_hca::Result;

/// Users in a namespace that has a number for each.
const ALL: u64 = u32::MAX as u64;

/// The effective user id. In a user namespace, all users that it has no number for look like one, the overflow user;
/// who is that one itself cannot tell its own processes from others', and gets EPERM.
pub fn own(names: &Names) -> Result<u32> {
    let uid = rustix::process::geteuid().as_raw();
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    if uid == overflow && numbers_in(&read("/proc/self/uid_map")) < ALL {
        let why = format!("this user namespace does not tell users apart that look like this one (uid {uid})");
        return Err(names.error(libc::EPERM, &why));
    }
    Ok(uid)
}

/// How many users a map has numbers for (`man 7 user_namespaces`).
fn numbers_in(map: &str) -> u64 {
    map.lines().filter_map(|line| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_namespace_has_a_number_for_each_user() {
        assert_eq!(numbers_in("         0          0 4294967295\n"), ALL);
        assert_eq!(numbers_in("0 1000 1\n1 100000 65536\n"), 65537);
        assert_eq!(numbers_in(""), 0);
    }
}
