//! The launcher of this process, from the variables that launchers set.
//!
//! The launcher that started a process last is the one that counts. A launcher passes on the variables of the one
//! around it, so `vervain launch` removes the variables of [`is_of_a_launcher`] from its ranks' environment: if such a
//! variable stands beside its own, the other launcher runs inside.

use std::ffi::OsString;

use vervain_config::{JOB_FD, JOB_ID, JOB_RANK, JOB_SIZE};

use crate::{Error, Result};

/// How to start a program so that its ranks find each other.
const HOW: &str = "start the program with `vervain launch -n N`, Open MPI's mpirun, prterun or `srun --mpi=pmix`";

/// Variables that every launcher with PMIx sets (PMIx standard 4.1, section 3.4).
const PMIX: [&str; 2] = ["PMIX_RANK", "PMIX_NAMESPACE"];
/// Variables of launchers with PMI-1 or PMI-2: the rank, the descriptor, or the address of the launcher.
const PMI: [&str; 5] = ["PMI_RANK", "PMI_FD", "PMI_PORT", "PMI_ID", "PMI_SIZE"];
/// Numbers of ranks: above 1, this process is one of several. Slurm's is that of a step, for within an allocation the
/// number of its tasks says nothing about this process.
const SIZES: [&str; 4] = ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE"];

/// The launcher of this process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No launcher.
    Alone,
    /// `vervain launch`.
    Launch(Seat),
    /// A launcher with PMIx, which libpmix will ask for more.
    Pmix,
}

/// The variables of `vervain launch` about a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seat {
    /// Number of the descriptor of the connection to the launcher.
    pub fd: i32,
    pub rank: u32,
    pub size: u32,
    pub id: String,
}

/// Returns true if `name` is a variable by which a launcher gives a process its place in a job. `vervain launch`
/// removes these from its ranks' environment. Settings that a user makes for PMIx itself (PMIX_MCA_…) are none.
pub fn is_of_a_launcher(name: &str) -> bool {
    let begins = |prefix: &str| name.starts_with(prefix);
    (begins("PMIX_") && !begins("PMIX_MCA_")) || begins("PMI_") || begins("OMPI_COMM_WORLD_") || SIZES.contains(&name)
}

/// The launcher of a process whose variables `get` returns.
pub(crate) fn find(get: impl Fn(&str) -> Option<OsString>) -> Result<Found> {
    let get = |name: &str| get(name).filter(|value| !value.is_empty()).map(|v| v.to_string_lossy().into_owned());
    if PMIX.iter().any(|name| get(name).is_some()) {
        return Ok(Found::Pmix);
    }
    if let Some(name) = PMI.iter().find(|name| get(name).is_some()) {
        return Err(Error::new(format!(
            "{name} is set: a launcher with PMI-1 or PMI-2 has started this process, such as MPICH's mpirun, and Vervain speaks \
             PMIx; {HOW}"
        )));
    }
    for name in SIZES {
        // A value that is no number does not show other ranks.
        if let Some(size) = get(name).and_then(|value| value.trim().parse::<u64>().ok()).filter(|size| *size > 1) {
            return Err(Error::new(format!(
                "{name} is {size}, so this process is one of {size}, but its launcher offers no PMIx (PMIX_RANK is not set); {HOW}"
            )));
        }
    }
    let ours = [&JOB_FD, &JOB_RANK, &JOB_SIZE, &JOB_ID];
    if ours.iter().all(|variable| get(variable.name()).is_none()) {
        return Ok(Found::Alone);
    }
    seat(|name| get(name)).map(Found::Launch)
}

fn seat(get: impl Fn(&str) -> Option<String>) -> Result<Seat> {
    let wrong = |name: &str, value: Option<String>| {
        let is = value.map_or_else(|| "is not set".to_owned(), |value| format!("is '{value}'"));
        Error::new(format!("{name} {is}: `vervain launch` sets it, and nobody else should"))
    };
    let number = |name: &str, least: u32, most: u32| {
        let value = get(name);
        let number = value.as_ref().and_then(|value| value.parse().ok()).filter(|n| (least..=most).contains(n));
        number.ok_or_else(|| wrong(name, value))
    };
    let size = number(JOB_SIZE.name(), 1, u32::MAX)?;
    let rank = number(JOB_RANK.name(), 0, size - 1)?;
    let fd = number(JOB_FD.name(), 0, i32::MAX.unsigned_abs())?.cast_signed();
    let id = get(JOB_ID.name()).ok_or_else(|| wrong(JOB_ID.name(), None))?;
    Ok(Seat { fd, rank, size, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<Found> {
        find(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into()))
    }

    const OURS: [(&str, &str); 4] =
        [("VERVAIN_JOB_FD", "5"), ("VERVAIN_JOB_RANK", "2"), ("VERVAIN_JOB_SIZE", "4"), ("VERVAIN_JOB_ID", "abc")];

    fn ours_and(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        [&OURS, more].concat()
    }

    #[test]
    fn only_without_any_launcher_a_process_is_alone() {
        assert_eq!(of(&[]), Ok(Found::Alone));
        assert_eq!(of(&[("PMI_RANK", ""), ("VERVAIN_JOB_FD", "")]), Ok(Found::Alone), "an empty value counts as none");
        for one in ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"] {
            assert_eq!(of(&[(one, "1")]), Ok(Found::Alone));
        }
        assert_eq!(of(&[("SLURM_NTASKS", "4")]), Ok(Found::Alone), "in an allocation, outside of a step");
        for name in PMI.into_iter().chain(SIZES) {
            assert!(of(&[(name, "2")]).is_err(), "{name}");
        }
        for name in PMIX {
            assert_eq!(of(&[(name, "0")]), Ok(Found::Pmix));
        }
    }

    #[test]
    fn the_launcher_inside_counts() {
        let seat = Seat { fd: 5, rank: 2, size: 4, id: "abc".into() };
        assert_eq!(of(&OURS), Ok(Found::Launch(seat)));
        assert_eq!(of(&ours_and(&[("PMIX_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "3")])), Ok(Found::Pmix));
        assert!(of(&ours_and(&[("PMI_FD", "7")])).is_err());
        assert!(of(&ours_and(&[("SLURM_STEP_NUM_TASKS", "2")])).is_err());
        // Slurm's and Open MPI's PMIx has the sizes beside it.
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "2"), ("PMIX_NAMESPACE", "slurm.1.0")]), Ok(Found::Pmix));
    }

    #[test]
    fn a_pmi_that_is_not_spoken_is_one_sentence_with_a_remedy() {
        let said = |set: &[(&str, &str)]| of(set).unwrap_err().to_string();
        assert_eq!(
            said(&[("PMI_FD", "7"), ("PMI_RANK", "1")]),
            "PMI_RANK is set: a launcher with PMI-1 or PMI-2 has started this process, such as MPICH's mpirun, and Vervain speaks \
             PMIx; start the program with `vervain launch -n N`, Open MPI's mpirun, prterun or `srun --mpi=pmix`"
        );
        assert_eq!(
            said(&[("SLURM_STEP_NUM_TASKS", "3")]),
            "SLURM_STEP_NUM_TASKS is 3, so this process is one of 3, but its launcher offers no PMIx (PMIX_RANK is not set); \
             start the program with `vervain launch -n N`, Open MPI's mpirun, prterun or `srun --mpi=pmix`"
        );
    }

    #[test]
    fn each_wrong_variable_of_ours_is_named() {
        for (name, value) in [
            ("VERVAIN_JOB_FD", "-1"),
            ("VERVAIN_JOB_FD", "4294967295"),
            ("VERVAIN_JOB_RANK", "4"),
            ("VERVAIN_JOB_RANK", "x"),
            ("VERVAIN_JOB_SIZE", "0"),
            ("VERVAIN_JOB_ID", ""),
        ] {
            let set: Vec<_> = OURS.into_iter().map(|(n, v)| (n, if n == name { value } else { v })).collect();
            let is = if value.is_empty() { "is not set".to_owned() } else { format!("is '{value}'") };
            let said = format!("{name} {is}: `vervain launch` sets it, and nobody else should");
            assert_eq!(of(&set).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn what_is_removed_from_ranks_is_all_that_is_looked_at() {
        for name in PMIX.into_iter().chain(PMI).chain(SIZES) {
            assert!(is_of_a_launcher(name), "{name}");
        }
        for name in ["PMIX_MCA_gds", "SLURM_JOB_ID", "OMPI_MCA_pml", "PATH", "VERVAIN_JOB_FD"] {
            assert!(!is_of_a_launcher(name), "{name}");
        }
    }
}
