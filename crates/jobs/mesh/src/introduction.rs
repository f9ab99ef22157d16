//! The data of ranks in the job's store: as little as possible, since launchers' libraries keep fetched values for
//! good.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use vervain_bootstrap::Job;

use crate::address::{Door, Doors, MAX_DEVICES, Site};
use crate::error::{Error, Result};
use crate::protocol::{BLOCK, Key, VERSION, leader_of};

/// Time for which a launcher may take to fetch a value.
const PATIENCE: Duration = Duration::from_secs(30);

/// The data that rank 0 of the job puts.
#[derive(Serialize, Deserialize)]
struct Common<'a> {
    key: Key,
    agreed: &'a [u8],
    doors: Doors,
}

/// The data that job rank 0 and the leader of the own block have put into the job's store.
#[derive(Clone)]
pub struct Introduction {
    pub(crate) key: Key,
    pub(crate) agreed: Vec<u8>,
    /// Doors of job rank 0.
    pub(crate) first: Doors,
    pub(crate) leader: Doors,
}

impl Introduction {
    /// The data that rank 0 of the job has passed to [`Mesh::open`](crate::Mesh::open), and that all ranks must have
    /// alike.
    pub fn agreed(&self) -> &[u8] {
        &self.agreed
    }
}

fn common_key(epoch: u32) -> String {
    format!("mesh.{epoch}.job")
}

fn leader_key(epoch: u32) -> String {
    format!("mesh.{epoch}.leader")
}

/// Bytes of a leader's key and value in the job's store, at most.
pub fn leader_bytes() -> usize {
    let address = Door { site: Site::Gid([u8::MAX; 16], u16::MAX), qpn: u32::MAX, qkey: u32::MAX };
    let mut room = [0; 256];
    let value = postcard::to_slice(&Doors::new(&[address; MAX_DEVICES]), &mut room).map_or(0, |value| value.len());
    leader_key(0).len() + size_of_val(&VERSION) + value
}

/// Puts the job's secret and settings, and the own address; done by rank 0 of the job.
///
/// # Errors
/// The settings are longer than 65,000 bytes; the launcher is gone.
pub fn put_common(job: &Job, epoch: u32, key: Key, agreed: &[u8], doors: Doors) -> Result<()> {
    put(job, &common_key(epoch), &Common { key, agreed, doors })
}

/// Puts the own address; done by leaders.
///
/// # Errors
/// The launcher is gone.
pub fn put_leader(job: &Job, epoch: u32, doors: &Doors) -> Result<()> {
    put(job, &leader_key(epoch), doors)
}

/// Fetches both for a rank.
pub fn fetch(job: &Job, rank: u32, epoch: u32) -> Result<Introduction> {
    if rank >= job.size() {
        return Err(Error::new(format!("there is no rank {rank}: the job has {}", job.size())));
    }
    let (key, agreed, first) = fetch_common(job, epoch)?;
    let leader = fetch_leader(job, leader_of(rank, BLOCK), epoch)?;
    Ok(Introduction { key, agreed, first, leader })
}

/// Fetches what rank 0 of the job has put: the secret, the settings, its address.
///
/// # Errors
/// It has put nothing, or a value of another version; the launcher is gone.
pub fn fetch_common(job: &Job, epoch: u32) -> Result<(Key, Vec<u8>, Doors)> {
    let value = get(job, 0, &common_key(epoch))?;
    let Common { key, agreed, doors } = decode(0, &value)?;
    Ok((key, agreed.to_vec(), doors))
}

/// Fetches the address of a leader.
///
/// # Errors
/// Those of [`fetch_common`].
pub fn fetch_leader(job: &Job, leader: u32, epoch: u32) -> Result<Doors> {
    let doors: Doors = decode(leader, &get(job, leader, &leader_key(epoch))?)?;
    if doors.is_possible() {
        Ok(doors)
    } else {
        Err(Error::new(format!("process {leader} of the job has put no address")))
    }
}

/// The version stands in front, in two bytes for all versions.
fn put(job: &Job, key: &str, value: &impl Serialize) -> Result<()> {
    let mut bytes = vec![0; 64 << 10];
    bytes[..2].copy_from_slice(&VERSION.to_le_bytes());
    let length = postcard::to_slice(value, &mut bytes[2..])
        .map_err(|_| Error::new("what all ranks must have alike is longer than 65,000 bytes"))?
        .len();
    Ok(job.put(key, &bytes[..2 + length])?)
}

fn get(job: &Job, rank: u32, key: &str) -> Result<Vec<u8>> {
    job.get(rank, key, PATIENCE)?.ok_or_else(|| {
        Error::new(format!("process {rank} of the job has put no '{key}': does its program use another library?"))
    })
}

fn decode<'a, T: Deserialize<'a>>(rank: u32, value: &'a [u8]) -> Result<T> {
    let (version, rest) = value.split_at_checked(2).unwrap_or((&[0, 0], &[]));
    let version = u16::from_le_bytes([version[0], version[1]]);
    if version != VERSION {
        return Err(Error::new(format!(
            "two versions of Vervain are in one job: process {rank} speaks version {version} of the mesh, this one {VERSION}"
        )));
    }
    match postcard::take_from_bytes(rest) {
        Ok((found, [])) => Ok(found),
        _ => Err(Error::new(format!("what process {rank} of the job has put is not of the mesh"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_other_versions_and_rubbish_are_told_apart() {
        let mut value = vec![0; 64];
        value[..2].copy_from_slice(&VERSION.to_le_bytes());
        let doors = Doors::new(&[Door { site: Site::Lid(1), qpn: 5, qkey: 6 }]);
        let put = Common { key: [3; 16], agreed: b"sizes", doors };
        let length = postcard::to_slice(&put, &mut value[2..]).unwrap().len();
        value.truncate(2 + length);
        let common: Common<'_> = decode(0, &value).unwrap();
        assert_eq!((common.key, common.agreed, common.doors), ([3; 16], &b"sizes"[..], doors));
        let sentence = |value: &[u8]| decode::<Common<'_>>(0, value).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(sentence(&value[..value.len() - 1]).contains("not of the mesh"));
        assert!(sentence(&[&value[..], &[0]].concat()).contains("not of the mesh"));
        value[0] += 1;
        assert!(sentence(&value).contains("two versions of Vervain"));
        assert!(sentence(&[]).contains("two versions"));
    }
}
