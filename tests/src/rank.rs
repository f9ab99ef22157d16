//! The program that the tests of launchers start: a rank that uses `vervain-bootstrap` and nothing else. Its first argument is what
//! it does.

use std::io::{Write, stdin, stdout};
use std::process::{Command, ExitCode};
use std::time::Duration;

use vervain_bootstrap::{Job, MAX_VALUE, Result};

/// How long a get may take on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// Runs the rank: status 0, or 3 with the sentence of the error.
pub fn main() -> ExitCode {
    let what = std::env::args().nth(1).unwrap_or_default();
    match run(&what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rank: {error}");
            ExitCode::from(3)
        }
    }
}

fn run(what: &str) -> Result<()> {
    match what {
        // Writes to the launcher what is no message, by a shell that has the descriptor too, and waits for what comes of it.
        "rubbish" => {
            let fd = std::env::var("VERVAIN_JOB_FD").unwrap_or_default();
            let _ = Command::new("bash").args(["-c", &format!("printf '\\377\\377\\377\\377' >&{fd}")]).status();
            forever()
        }
        "lines" => {
            lines();
            Ok(())
        }
        "wait" => {
            println!("waits as {}", std::process::id());
            forever()
        }
        // With a child in its group that does not end by itself.
        "shell" => {
            let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep");
            println!("waits with {}", child.id());
            let _ = child.wait();
            Ok(())
        }
        "input" => {
            let mut line = String::new();
            let length = stdin().read_line(&mut line).unwrap_or(0);
            println!("read {length}: {}", line.trim());
            Ok(())
        }
        _ => with_job(what, Job::join()?),
    }
}

fn with_job(what: &str, job: Job) -> Result<()> {
    let last = job.size() - 1;
    match what {
        "exchange" => exchange(&job)?,
        // The last rank fails in the way that is asked for, once all are there; the others wait in a fence for it.
        "exit" | "kill" | "abort" | "leave" | "forget" | "_exit" => {
            job.fence()?;
            if job.rank() == last {
                match what {
                    "exit" => std::process::exit(7),
                    "kill" => {
                        let own = i32::try_from(std::process::id()).expect("a pid");
                        // SAFETY: kill has no memory effects; the number is this process's own.
                        unsafe { libc::kill(own, libc::SIGKILL) };
                    }
                    "abort" => job.abort(9, "no more\nof this"),
                    "leave" => return job.finalize(),
                    "_exit" => {
                        // SAFETY: the call ends the process; it touches no memory of it.
                        unsafe { libc::_exit(0) }
                    }
                    _ => return Ok(()),
                }
            }
            job.fence()?;
        }
        "twice" => {
            let again = Job::join().err().map(|e| e.to_string());
            println!("again: {}", again.unwrap_or_default());
        }
        // A program that a rank starts is no rank.
        "child" => {
            let own = std::env::current_exe().expect("this program");
            let output = Command::new(own).arg("exchange").output().expect("itself");
            println!("child: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        _ => panic!("unknown: {what}"),
    }
    job.finalize()
}

/// Every rank gets from every other what it has put, in two rounds, with values of all sizes.
fn exchange(job: &Job) -> Result<()> {
    let value = |rank: u32, round: u32| -> Vec<u8> {
        let length = [1, 2, 48, 1000][usize::try_from((rank + round) % 4).expect("small")];
        (0..length).map(|i: u32| (i + rank * 7 + round).to_le_bytes()[0]).collect()
    };
    for round in 0..2 {
        job.put(&format!("address {round}"), &value(job.rank(), round))?;
        job.fence()?;
        for rank in 0..job.size() {
            let got = job.get(rank, &format!("address {round}"), LONG)?;
            assert_eq!(got, Some(value(rank, round)), "round {round}, rank {rank}");
        }
    }
    let nothing = job.get(0, "nobody has put this", Duration::from_secs(1))?;
    assert_eq!(nothing, None);
    if job.rank() == 0 {
        job.put("large", &vec![7; MAX_VALUE.min(100_000)])?;
    }
    job.fence()?;
    assert_eq!(job.get(0, "large", LONG)?, Some(vec![7; MAX_VALUE.min(100_000)]));
    let local = job.local_ranks().map(<[u32]>::len);
    println!("rank {} of {}, local {local:?}, job {}", job.rank(), job.size(), job.id());
    job.fence()
}

/// 200 lines in pieces, each written by a call of its own.
fn lines() {
    let rank = std::env::var("VERVAIN_JOB_RANK").unwrap_or_default();
    let mut out = stdout();
    for n in 0..200 {
        for piece in [format!("<{rank}:{n}:"), rank.repeat(50), ">\n".into()] {
            out.write_all(piece.as_bytes()).and_then(|()| out.flush()).expect("a pipe");
        }
    }
    out.write_all(b"no newline").and_then(|()| out.flush()).expect("a pipe");
}

fn forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1000));
    }
}
