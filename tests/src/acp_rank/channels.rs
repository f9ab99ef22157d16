//! Channels of values between each rank and the next.

use vervain_acp::{Result, World};
use vervain_acp_channel::Channels;

use super::other;

/// Values go around the ring of ranks, and grow at each; threads use channels of their own at once.
pub fn run(world: &World, count: u64) -> Result<()> {
    let channels = Channels::new(world);
    let (rank, size) = (world.rank(), world.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    if channels.sender::<u8>(rank).is_ok()
        || channels.receiver::<u8>(size).is_ok()
        || channels.sender::<()>(next).is_ok()
    {
        return Err(other("a channel that cannot be is there".into()));
    }
    let ends = || Ok::<_, vervain_acp::Error>((channels.sender::<u64>(next)?, channels.receiver::<u64>(before)?));
    // In this order at all ranks.
    let pairs = [ends()?, ends()?, ends()?, ends()?];
    std::thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .into_iter()
            .enumerate()
            .map(|(lane, (to, from))| {
                scope.spawn(move || {
                    // Some are short, some long, some are offered.
                    let mut values = vec![0; [1, 20, 3000, 20000][lane]];
                    let rounds = count / values.len() as u64 + 2;
                    for round in 0..rounds {
                        if rank == 0 {
                            values.fill(round * 1000 + lane as u64);
                            to.send(&values)?;
                        }
                        let got = from.receive(&mut values)?;
                        let hops = if rank == 0 { size - 1 } else { rank - 1 };
                        let wanted = round * 1000 + lane as u64 + u64::from(hops);
                        if got != values.len() || values.iter().any(|value| *value != wanted) {
                            return Err(other(format!(
                                "{got} values of {}, not all {wanted}",
                                values.first().unwrap_or(&0)
                            )));
                        }
                        if rank != 0 {
                            values.iter_mut().for_each(|value| *value += 1);
                            to.send(&values)?;
                        }
                    }
                    drop(to);
                    match from.receive(&mut values) {
                        Err(error) if error.is_refused() => Ok(()),
                        all => Err(other(format!("after the sender was freed: {all:?}"))),
                    }
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| other("a thread has panicked".into()))?)
    })
}
