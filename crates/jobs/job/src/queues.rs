//! The contents of the queues of a job's TCP connections. Between hosts they move on after all processes stand still.
//! The image of one end must not be made before they rest, or bytes that the other end has sent since are in neither
//! image.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

/// The queues of all connections at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Queues {
    /// Digest of the contents and their queues.
    digest: u64,
    /// Something was sent that the other end has not acknowledged.
    pub(crate) unsent: bool,
}

/// The queues of the processes that are seen here.
pub(crate) fn queues(processes: &[i32]) -> Queues {
    let mut inodes = HashSet::new();
    for pid in processes {
        let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        inodes.extend(links.filter_map(|link| {
            let path = fs::read_link(link.path()).ok()?;
            path.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
        }));
    }
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    of_tables(&tables, &inodes)
}

fn of_tables(tables: &[String], inodes: &HashSet<u64>) -> Queues {
    let mut found: Vec<(u64, u32, u32)> =
        tables.iter().flat_map(|table| table.lines().skip(1).filter_map(of_line)).collect();
    found.retain(|(inode, ..)| inodes.contains(inode));
    found.sort_unstable();
    let mut hasher = DefaultHasher::new();
    found.hash(&mut hasher);
    Queues { digest: hasher.finish(), unsent: found.iter().any(|(_, sent, _)| *sent > 0) }
}

/// A line of proc(5), `/proc/net/tcp`: the inode, and the bytes in the queues of sending and receiving.
fn of_line(line: &str) -> Option<(u64, u32, u32)> {
    const LISTEN: &str = "0A";
    let words: Vec<&str> = line.split_whitespace().collect();
    let (sent, received) = words.get(4)?.split_once(':')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    // A listener's queue is one of connections.
    if *words.get(3)? == LISTEN {
        return None;
    }
    Some((words.get(9)?.parse().ok()?, number(sent)?, number(received)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    #[test]
    fn a_line_has_an_inode_and_two_queues() {
        let line = "   1: 0100007F:1F90 0100007F:C350 01 00000010:000000FF 00:00000000 00000000     0        0 4242 1 0 20 4 30 10 -1";
        assert_eq!(of_line(line), Some((4242, 16, 255)));
        assert_eq!(of_line(&line.replace(" 01 ", " 0A ")), None);
        assert_eq!(of_line("sl local_address"), None);
    }

    #[test]
    fn what_is_sent_and_not_read_changes_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _server = listener.accept().unwrap();
        let own = [std::process::id().cast_signed()];
        let before = queues(&own);
        client.write_all(b"words").unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while queues(&own) == before && Instant::now() < until {
            std::thread::yield_now();
        }
        assert_ne!(queues(&own), before);
    }
}
