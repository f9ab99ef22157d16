//! Checkpoints: a file for each node in a directory, and one by which node 0 says which of them is the last that all
//! have ended. That is replaced at once, so whenever the job dies there is a whole one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::agree::Meeting;
use crate::context::Together;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::image::check_file;
use crate::save::{restore, save};
use crate::shared::Shared;

/// The state of a context's checkpoints.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// The last one that all have ended, if there is one.
    pub last: Option<i32>,
    /// Node 0 has looked for those of earlier lives of the job.
    looked: bool,
}

/// The files of a context in a directory.
struct Files<'a> {
    directory: &'a Path,
    epoch: u32,
    node: u32,
}

impl Files<'_> {
    /// The image of this node.
    fn image(&self, number: i32) -> PathBuf {
        self.directory.join(format!("pm.{}.{}.{number}", self.epoch, self.node))
    }

    /// Which one is whole.
    fn complete(&self) -> PathBuf {
        self.directory.join(format!("pm.{}.complete", self.epoch))
    }

    fn create(path: &Path) -> Result<File> {
        // A failed attempt may have left the file.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(of_file(path, &error)),
            _ => {}
        }
        let options = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path);
        options.map_err(|error| of_file(path, &error))
    }

    fn open(path: &Path) -> Result<File> {
        let options = fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
        options.map_err(|error| of_file(path, &error))
    }

    /// The number of the last whole checkpoint.
    fn read_complete(&self) -> Result<Option<i32>> {
        let path = self.complete();
        let file = match Self::open(&path) {
            Err(error) if error.errno() == libc::ENOENT => return Ok(None),
            other => other?,
        };
        check_file(file.as_fd())?;
        let mut text = String::new();
        file.take(32).read_to_string(&mut text).map_err(|error| of_file(&path, &error))?;
        match text.trim_end().parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(Error::new(libc::EBADMSG, format!("{} names no checkpoint", path.display()))),
        }
    }

    /// From now on it is this one.
    fn write_complete(&self, number: i32) -> Result<()> {
        let (path, new) = (self.complete(), self.directory.join(format!("pm.{}.complete.new", self.epoch)));
        let mut file = Self::create(&new)?;
        let written = writeln!(file, "{number}").and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, &path));
        written.and_then(|()| File::open(self.directory)?.sync_all()).map_err(|error| of_file(&path, &error))
    }
}

fn of_file(path: &Path, error: &io::Error) -> Error {
    Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{}: {error}", path.display()))
}

/// The directory, where all have one, and what node 0 knows of the last one there.
fn last<'a>(shared: &Shared, together: &mut Together, directory: Result<&'a Path>) -> Result<(Files<'a>, Option<i32>)> {
    let found = directory.and_then(|directory| {
        let files = Files { directory, epoch: shared.epoch, node: shared.job.rank() };
        let is_known = together.checkpoints.looked || files.node != 0;
        let found = if is_known { together.checkpoints.last } else { files.read_complete()? };
        Ok((files, found))
    });
    let mut meeting = Meeting::new(&shared.job, shared.epoch, &mut together.turn);
    let (files, found) = meeting.all_have("look for checkpoints", found)?;
    let told = meeting.told_by_first(&found.unwrap_or(0).to_le_bytes())?;
    let number = told.first_chunk().map(|bytes| i32::from_le_bytes(*bytes));
    let number = number.ok_or_else(|| Error::broken("node 0 has told no number"))?;
    together.checkpoints = Checkpoints { last: Some(number).filter(|number| *number > 0), looked: true };
    Ok((files, together.checkpoints.last))
}

/// Makes a checkpoint, and lets sending go on as it was. When all files are there, and before any node goes on, node 0
/// calls `whole`.
pub(crate) fn make(
    shared: &Shared,
    together: &mut Together,
    directory: Result<&Path>,
    program: impl FnOnce(i32),
    whole: impl FnOnce(),
) -> Result<()> {
    let before = shared.with(|engine| (engine.rest.is_stopped, engine.rest.keeps));
    let made = try_make(shared, together, directory, program, whole);
    shared.with(|engine| {
        (engine.rest.is_stopped, engine.rest.keeps) = before;
        // The program has saved what it has.
        engine.rest.withheld = Default::default();
        engine.nodes.news.add(1);
    });
    shared.kick();
    made
}

fn try_make(
    shared: &Shared,
    together: &mut Together,
    directory: Result<&Path>,
    program: impl FnOnce(i32),
    whole: impl FnOnce(),
) -> Result<()> {
    // Before this node waits for others: they may have to send it more than it has room for before they come here.
    let settled = shared.with(Engine::settle);
    shared.kick();
    let (files, before) = last(shared, together, settled.and(directory))?;
    let number = before.unwrap_or(0).checked_add(1).ok_or_else(|| Error::broken("there were too many checkpoints"))?;
    let file = Files::create(&files.image(number));
    save(shared, &mut together.turn, file.as_ref().map(AsFd::as_fd).map_err(Clone::clone))?;
    program(number);
    let mut meeting = Meeting::new(&shared.job, shared.epoch, &mut together.turn);
    // All files are there before one says so.
    meeting.tell(&[0])?;
    let ended = if shared.job.rank() == 0 { files.write_complete(number).map(|()| whole()) } else { Ok(()) };
    meeting.all_have("end the checkpoint", ended)?;
    together.checkpoints.last = Some(number);
    if let Some(before) = before {
        // It is of no use any more, and is in nobody's way.
        let _ = fs::remove_file(files.image(before));
    }
    Ok(())
}

/// Goes on from the last checkpoint.
pub(crate) fn restart(shared: &Shared, together: &mut Together, directory: Result<&Path>) -> Result<i32> {
    let (files, last) = last(shared, together, directory)?;
    let Some(number) = last else {
        let directory = files.directory.display();
        return Err(Error::new(libc::ENOENT, format!("there is no checkpoint in {directory}")));
    };
    let file = Files::open(&files.image(number));
    restore(shared, &mut together.turn, file.as_ref().map(AsFd::as_fd).map_err(Clone::clone))?;
    shared.with(|engine| engine.control_send(true))?;
    shared.kick();
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_checkpoint_is_the_one_that_was_written_last() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files { directory: directory.path(), epoch: 0, node: 0 };
        assert_eq!(files.read_complete().unwrap(), None);
        for number in [1, 2, i32::MAX] {
            files.write_complete(number).unwrap();
            assert_eq!(files.read_complete().unwrap(), Some(number));
        }
        for text in ["0\n", "-1\n", "", "2147483648\n", "1 2\n"] {
            let path = files.complete();
            let mut file = Files::create(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(files.read_complete().unwrap_err().errno(), libc::EBADMSG, "{text:?}");
        }
    }

    #[test]
    fn a_link_is_no_checkpoint() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files { directory: directory.path(), epoch: 0, node: 0 };
        std::os::unix::fs::symlink("/etc/passwd", files.complete()).unwrap();
        assert_eq!(files.read_complete().unwrap_err().errno(), libc::ELOOP);
    }
}
