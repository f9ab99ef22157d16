//! The program that the tests of the mesh start: ranks that write to each other's memory and ask each other by commands, with fewer
//! places for connections than there are peers. Its first argument is what it does.

mod rank;

use std::error::Error;
use std::process::ExitCode;

use vervain_bootstrap::Job;
use vervain_mesh::Options;

use rank::Rank;

/// Operations of each rank.
const OPERATIONS: u32 = 600;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Runs the rank: status 0, or 3 with the sentence of the error.
pub fn main() -> ExitCode {
    let what = std::env::args().nth(1).unwrap_or_default();
    match Job::join().map_err(Into::into).and_then(|job| run(&what, &job).and_then(|()| Ok(job.finalize()?))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mesh: {error}");
            ExitCode::from(3)
        }
    }
}

fn run(what: &str, job: &Job) -> Result<()> {
    let options = Options { connections: 2, ..Options::default() };
    let (rank, agreed): (u32, &[u8]) = (job.rank(), b"settings");
    match what {
        "exchange" => exchange(job, rank, 0, &options, agreed),
        // As acp_reset: a second mesh, in which ranks have other numbers.
        "renumbered" => {
            exchange(job, rank, 0, &options, agreed)?;
            exchange(job, (rank + 1) % job.size(), 1, &options, agreed)
        }
        "roomy" => exchange(job, rank, 0, &Options { connections: 64, ..options }, agreed),
        // The last one says that it is the one before.
        "twice" => exchange(job, rank.min(job.size() - 2), 0, &options, agreed),
        "differ" => exchange(job, rank, 0, &options, if rank == 0 { agreed } else { b"others" }),
        "no device" => exchange(job, rank, 0, &Options { devices: vec!["none_0".into()], ..options }, agreed),
        "too many" => exchange(job, rank, 0, &Options { connections: 1 << 20, ..options }, agreed),
        _ => panic!("unknown: {what}"),
    }
}

/// All operations of a rank, then until the others are through with theirs.
fn exchange(job: &Job, number: u32, epoch: u32, options: &Options, agreed: &[u8]) -> Result<()> {
    let rank = Rank::open(job, number, epoch, options, agreed)?;
    rank.work(OPERATIONS)?;
    job.fence()?;
    let counts = rank.close()?;
    println!(
        "epoch {epoch}: rank {number} did {} operations and answered {}; {} opened, {} closed, by port {:?}",
        counts.done, counts.answered, counts.opened, counts.closed, counts.by_port
    );
    // Devices are closed when nobody uses them any more.
    Ok(job.fence()?)
}
