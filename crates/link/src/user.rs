//! The user that this process is of, as the kernel tells it to others. Both links trust processes of this user only.

/// Users in a namespace that has a number for each.
const ALL: u64 = u32::MAX as u64;

/// The effective user id by which this user's processes are known from others'. In a user namespace, all users that it has
/// no number for look like one, the overflow user; who is that one itself cannot tell them apart, and gets a sentence.
pub fn own() -> Result<u32, String> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    told_apart(rustix::process::geteuid().as_raw(), overflow, &read("/proc/self/uid_map"))
}

fn told_apart(uid: u32, overflow: u32, map: &str) -> Result<u32, String> {
    if uid == overflow && numbers_in(map) < ALL {
        return Err(format!("this user namespace does not tell users apart that look like this one (uid {uid})"));
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
