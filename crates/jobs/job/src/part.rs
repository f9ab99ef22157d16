//! A job's part on one host: its namespaces and processes, and the orders that act on all of them at once. The
//! supervisor's own part gets orders by calls, those on other hosts by lines ([`crate::remote`]): both carry out the
//! same orders.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::addresses;
use crate::agent::{Done, Task};
use crate::checkpoint::{self, Dump, Dumping, LateSignal, Refused, Restore, Restoring, Wait};
use crate::criu::Criu;
use crate::hosts::own_addresses;
use crate::manifest::{Image, Network, Vervain};
use crate::park::Newcomer;
use crate::place::Place;
use crate::space::{Plan, Space, What};
use crate::starter::{self, RemoteCommand};
use crate::store::{IMAGES, SCRATCH};
use crate::trust;

/// The state that all lives of a part share.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) criu: Criu,
    /// Vervain's folder that only this user can enter.
    pub(crate) private: PathBuf,
    pub(crate) place: Place,
}

/// An order for a part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// A task of the program inside.
    Task(Task),
    /// Start a program besides.
    Start(RemoteCommand),
    /// Write all into a folder, and stand still.
    Dump { folder: PathBuf, stop: bool },
    /// The processes go on, or rather: they could. It was all for nothing if not `well`.
    EndDump { well: bool },
    /// Have the processes there again, standing still.
    Restore(Box<Restored>),
    /// They go on.
    EndRestore,
    /// Say how many processes there are, and how large.
    Status,
}

/// The parameters of a restore.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Restored {
    /// The checkpoint's folder.
    pub(crate) checkpoint: PathBuf,
    pub(crate) image: Image,
    pub(crate) network: Network,
    /// Bytes of the checkpoint.
    pub(crate) bytes: u64,
    /// The build that made it.
    pub(crate) vervain: Vervain,
    /// Addresses that have become others.
    pub(crate) map: String,
}

/// The result of an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    Nothing,
    Done(Done),
    Dumped(Image),
    /// For so many microseconds.
    StoodStill(u64),
    Status {
        processes: usize,
        memory: u64,
    },
}

/// The reason why an order cannot be carried out: a sentence, and true if another attempt may succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{sentence}")]
pub(crate) struct Trouble {
    pub(crate) sentence: String,
    pub(crate) may_pass: bool,
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Trouble {
        let may_pass = error.is::<Newcomer>() || error.is::<LateSignal>();
        Trouble { sentence: format!("{error:#}"), may_pass }
    }
}

impl From<Refused> for Trouble {
    fn from(refused: Refused) -> Trouble {
        match refused {
            Refused::Criu(reason) => Trouble { sentence: reason.sentence, may_pass: reason.may_pass },
            Refused::Other(error) => error.into(),
        }
    }
}

/// A part from its start, or its restart, to its end.
#[derive(Debug)]
pub(crate) struct Part {
    home: Rc<Home>,
    // CRIU is in the process namespace too, and is waited for here: it goes before the space, whose end waits for all
    // others.
    dumping: Option<Dumping>,
    restoring: Option<Restoring>,
    pub(crate) space: Space,
    /// The control group in which the processes are frozen.
    frozen: Option<PathBuf>,
}

impl Part {
    pub(crate) fn new(home: Rc<Home>, space: Space) -> Part {
        Part { home, space, frozen: None, dumping: None, restoring: None }
    }

    /// One whose processes are there again, and stand still until [`Order::EndRestore`]. `streams` are the numbers of
    /// the pipes that were the supervisor's, and the new ones.
    pub(crate) fn restored(
        home: Rc<Home>,
        what: &Restored,
        streams: Vec<(u64, BorrowedFd<'_>)>,
        wait: Wait<'_>,
    ) -> Result<Part, Trouble> {
        let image = &what.image;
        check(&home, what)?;
        checkpoint::cut(image)?;
        let folder = what.checkpoint.join(&image.folder);
        let map = what.map.parse().context("addresses that have become others")?;
        let mut images = folder.join(IMAGES);
        let moved = tempfile::tempdir_in(home.place.path()).context("cannot make a folder")?;
        if !what.map.is_empty() {
            let into = moved.path().join(IMAGES);
            addresses::readdress(&images, &into, &map).context("cannot give the job's sockets other addresses")?;
            images = into;
        }
        let plan = Plan {
            network: what.network,
            private: home.private.clone(),
            place: home.place.path().to_owned(),
            tree: None,
            what: What::Restored { root: image.root, last: image.last, scratch: folder.join(SCRATCH) },
        };
        let space = Space::new(&plan, [Stdio::null(), Stdio::null(), Stdio::inherit()], &Command::new("/"))?;
        let restore = Restore {
            criu: &home.criu,
            space: &space,
            place: &home.place,
            images: &images,
            bytes: what.bytes,
            streams,
        };
        let restoring = checkpoint::bring_back(&restore, wait)?;
        Ok(Part { restoring: Some(restoring), ..Part::new(home, space) })
    }

    /// Carries out an order.
    pub(crate) fn carry_out(&mut self, order: &Order, wait: Wait<'_>) -> Result<Report, Trouble> {
        match order {
            Order::Task(task) => {
                let done = self.space.ask(task, wait)?;
                match task {
                    Task::Freeze => self.frozen = done.group.clone(),
                    Task::Thaw => self.frozen = None,
                    _ => {}
                }
                Ok(Report::Done(done))
            }
            Order::Start(program) => {
                let folder = self.space.path(&self.home.private);
                starter::start(&folder, program).map(|()| Report::Nothing).map_err(Into::into)
            }
            Order::Dump { folder, stop } => {
                let dump = Dump {
                    criu: &self.home.criu,
                    space: &self.space,
                    place: &self.home.place,
                    private: &self.home.private,
                    stop: *stop,
                    frozen: self.frozen.as_deref(),
                };
                let (dumping, image) = checkpoint::begin(&dump, folder, wait)?;
                self.dumping = Some(dumping);
                Ok(Report::Dumped(image))
            }
            Order::EndDump { well } => match self.dumping.take() {
                Some(dumping) => Ok(Report::StoodStill(dumping.end(*well, wait)?)),
                None => Ok(Report::StoodStill(0)),
            },
            Order::EndRestore => {
                let Some(restoring) = self.restoring.take() else { return Ok(Report::Nothing) };
                restoring.end(wait)?;
                Ok(Report::Nothing)
            }
            Order::Status => {
                Ok(Report::Status { processes: self.space.processes().len(), memory: self.space.memory() })
            }
            Order::Restore(_) => Err(anyhow::anyhow!("it is there already").into()),
        }
    }

    /// Microseconds in which the processes have stood still for a dump.
    pub(crate) fn still(&self) -> u64 {
        self.dumping.as_ref().map_or(0, Dumping::still)
    }

    /// All of it ends, in the midst of a dump.
    pub(crate) fn kill(&mut self) {
        self.space.kill();
        if let Some(dumping) = self.dumping.take() {
            dumping.leave();
        }
    }
}

/// Looks whether the host has what the processes had.
fn check(home: &Home, what: &Restored) -> Result<()> {
    let image = &what.image;
    ensure!(
        image.private == home.private,
        "Vervain's folder was {} at the checkpoint, and is {} now; remedy: the same XDG_RUNTIME_DIR",
        image.private.display(),
        home.private.display()
    );
    what.vervain.check()?;
    image.check()?;
    let folder = what.checkpoint.join(&image.folder);
    trust::folder(&folder)?;
    here(&folder.join(IMAGES), &what.map)
}

/// Addresses that the job's sockets are bound to and this host does not have.
fn here(images: &Path, map: &str) -> Result<()> {
    let map: vervain_names::AddressMap = map.parse().context("addresses that have become others")?;
    let own = own_addresses()?;
    for known in addresses::addresses(images)? {
        let now = map.of(known);
        if !own.contains(&now.to_canonical()) {
            bail!("the job had the address {known}, and this host has no {now}; remedy: --map {known}=ADDRESS");
        }
    }
    Ok(())
}
