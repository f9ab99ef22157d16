//! The needs of jobs that are saved and brought back: CRIU. All else runs without it.

use anyhow::Result;
use rustix::process::geteuid;
use vervain_job::criu::{Criu, REMEDY};

use super::{Finding, Status};

/// CRIU, which `vervain job`, `vervain checkpoint` and `vervain restart` run.
pub fn criu() -> Finding {
    judge_criu(Criu::look(None, std::env::var_os("PATH").as_deref()), geteuid().is_root())
}

fn judge_criu(criu: Result<Criu>, is_root: bool) -> Finding {
    const CHECK: &str = "CRIU";
    const COST: &str =
        "`vervain job run` and `vervain restart` start nothing: no running job can be saved; all else works";
    match criu {
        Ok(criu) if is_root => Finding::ok(CHECK, format!("{} in {}", criu.version, criu.path.display())),
        Ok(criu) => {
            let found = format!("{} in {}, and this user is not root", criu.version, criu.path.display());
            Finding::with(Status::Note, CHECK, found, COST, "as root: vervain job run")
        }
        Err(e) => Finding::with(Status::Note, CHECK, format!("{e:#}"), COST, REMEDY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_job::criu::Version;

    #[test]
    fn a_criu_that_is_missing_or_may_not_be_used_is_a_note() {
        let found = || Ok(Criu { path: "/usr/sbin/criu".into(), version: Version(4, 2) });
        let good = judge_criu(found(), true);
        assert_eq!((good.status, good.found.as_str()), (Status::Ok, "4.2 in /usr/sbin/criu"));
        let user = judge_criu(found(), false);
        assert!(user.status == Status::Note && user.remedy.starts_with("as root"), "{user:?}");
        let none = judge_criu(Err(anyhow::anyhow!("there is no criu in PATH")), true);
        assert_eq!((none.status, none.found.as_str()), (Status::Note, "there is no criu in PATH"));
        assert!(none.remedy.contains("4.2 or later") && !none.cost.is_empty());
    }
}
