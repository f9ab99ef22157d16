//! A gang: jobs that take turns. All processes of one job have the CPUs at once, so none of them waits for one that has
//! none; the others are held (`hold.rs`). Each job's supervisor has its job go on when the connection ends, so whatever
//! ends the gang, all go on.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vervain_names::parking::Step;
use vervain_scheduler::First;

use crate::control::{Asker, Reach, Reply, Request, Turn, send};
use crate::hold::{Answers, Hand};
use crate::park::Processes;
use crate::place::{Name, Places};

/// Below, switches would take most of the time.
pub const SHORTEST_SLICE: Duration = Duration::from_millis(1);
/// So long that it is never reached.
pub const LONGEST_SLICE: Duration = Duration::from_secs(3600);

/// Time before the end of a turn at which the processes to be asked are looked up, and the next job gets its first
/// order, so that neither takes time between the turns.
const AHEAD: Duration = Duration::from_millis(2);
/// How often in a row a job may not be held.
const FAILURES: u32 = 3;

/// A job's part in a gang, as its supervisor has it.
pub(crate) struct Member {
    /// The connection to the gang.
    pub(crate) asker: Asker,
    /// It may stand still at any moment, or does.
    pub(crate) held: bool,
    /// Its first reply, which waits for the supervisor. None while the supervisor is busy with something longer.
    pub(crate) first: Option<First>,
}

impl Member {
    /// Returns true if something is asked, or who asks has gone.
    pub(crate) fn asks(&self) -> bool {
        ready(&[self.asker.line()], Some(Instant::now())).is_ok_and(|ready| ready[0])
    }
}

/// How turns are taken.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Time of one turn.
    pub slice: Duration,
    /// The gang ends after so many switches.
    pub switches: Option<u64>,
    /// It ends after this time.
    pub time: Option<Duration>,
}

/// The costs of a switch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Switch {
    /// From the end of one job's turn to the beginning of the next one's.
    pub all: Duration,
    /// Of it, the time until the devices of the one stood still.
    pub stop: Duration,
    /// The signals to both.
    pub signals: Duration,
    /// Until the devices of the other have gone on.
    pub go: Duration,
}

/// The report at the end.
#[derive(Debug)]
pub struct Ended {
    /// From the first turn to the end.
    pub took: Duration,
    /// All switches.
    pub switches: Vec<Switch>,
    /// Time for which each job had its turn.
    pub shares: Vec<(Name, Duration)>,
}

/// The value that so many of a hundred do not exceed.
pub fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// Has jobs take turns until all have ended, or as the rules say, or a signal does.
///
/// # Errors
/// There is no such job, it cannot take turns, or it cannot be held: a sentence. All go on.
pub fn run(places: &Places, names: &[Name], rules: &Rules, note: fn(&str)) -> Result<Ended> {
    ensure!(names.len() > 1, "a gang needs two jobs or more (`vervain job list` lists those that run)");
    for (n, name) in names.iter().enumerate() {
        ensure!(!names[..n].contains(name), "job {name} is named twice");
    }
    let mut set = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].into_iter().for_each(|signal| set.add(signal));
    set.thread_block()?;
    let signals = Signals(SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?);
    // The end of a turn is when this runs, which must not wait for those whose turn it is.
    let _first = First::of_this_thread();
    let mut gang = Gang { signals, jobs: Vec::new(), note };
    for name in names {
        gang.join(places, name)
            .map_err(|e| if e.is::<Told>() { e.context("ended before all jobs were there") } else { e })?;
    }
    let began = Instant::now();
    let mut switches = Vec::new();
    // A signal that comes before the first turn is noticed in it.
    let turns = gang.turns(rules, began, &mut switches);
    let took = began.elapsed();
    match turns {
        Err(e) if !e.is::<Told>() => Err(e),
        _ => Ok(Ended { took, switches, shares: gang.jobs.iter().map(|job| (job.name.clone(), job.had)).collect() }),
    }
}

/// A job of a gang's.
struct Job {
    name: Name,
    /// The connection to its supervisor, which holds the job only as long as the connection exists. None when the job
    /// has ended.
    line: Option<Line>,
    /// None while it has no life.
    hand: Option<Hand>,
    held: Option<Held>,
    had: Duration,
}

/// A job that is held.
struct Held {
    parked: Processes,
    /// They have been asked to go on, which they will when they are not frozen any more.
    going: Option<Answers>,
}

/// A signal has asked the gang to end.
#[derive(Debug, thiserror::Error)]
#[error("a signal has come")]
struct Told;

struct Signals(SignalFd);

impl Signals {
    /// Waits for a descriptor. [`Told`] if a signal comes first.
    fn or(&self, fd: BorrowedFd<'_>, until: Option<Instant>) -> Result<()> {
        let ready = ready(&[fd, self.0.as_fd()], until)?;
        ensure!(ready[0] || !ready[1], Told);
        Ok(())
    }
}

/// The reason why a wait is over.
enum Woken {
    Time,
    /// A job has ended, was killed, or is back.
    Changed,
}

struct Gang {
    signals: Signals,
    jobs: Vec<Job>,
    note: fn(&str),
}

impl Gang {
    fn join(&mut self, places: &Places, name: &Name) -> Result<()> {
        let mut line = Line::new(places.connect(name)?);
        send(&mut line.stream, &Request::Gang)?;
        // It may be in the midst of a checkpoint.
        self.signals.or(line.stream.as_fd(), None)?;
        match line.hear()? {
            Some(Reply::Joined(reach)) => {
                let hand = line.hand(&reach).with_context(|| format!("job {name} cannot take turns"))?;
                self.jobs.push(Job {
                    name: name.clone(),
                    line: Some(line),
                    hand: Some(hand),
                    held: None,
                    had: Duration::ZERO,
                });
                Ok(())
            }
            Some(Reply::Failed(why)) => bail!("{why}"),
            Some(other) => bail!("an odd answer: {other:?}"),
            None => bail!("job {name} has ended"),
        }
    }

    /// Turn by turn, until the end.
    fn turns(&mut self, rules: &Rules, began: Instant, switches: &mut Vec<Switch>) -> Result<()> {
        let end = rules.time.map(|time| began + time);
        // Done before the first turn, which would be shorter by the time that it takes. A job that cannot be held yet
        // is held in that turn, or gets one too.
        self.hold_those_who_are_back(0)?;
        let mut now = self.next(self.jobs.len() - 1);
        // The first of the jobs may have ended already, and this one be held.
        self.release(now)?;
        let mut failures = 0;
        while self.jobs.iter().any(|job| job.line.is_some()) {
            let turn = Instant::now();
            let over = self.turn(now, rules.slice, end);
            let ended = Instant::now();
            if let Some(n) = now {
                self.jobs[n].had += ended - turn;
            }
            let stopped = match (over, now) {
                (Ok(Over::End), _) => break,
                (Ok(Over::Slice(parked)), Some(n)) => self.stop(n, parked),
                (Ok(_), _) => Ok(Switch::default()),
                (Err(e), _) => Err(e),
            };
            let mut switch = match stopped {
                Ok(switch) => switch,
                Err(why) if why.is::<Told>() => return Err(why),
                // Beside other programs that compute, a process may have no CPU for seconds. The job has another turn.
                Err(why) if failures < FAILURES => {
                    failures += 1;
                    (self.note)(&format!("{why:#}"));
                    continue;
                }
                Err(why) => return Err(why.context("gives up, and all jobs go on")),
            };
            failures = 0;
            let before = now;
            now = self.next(now.unwrap_or(self.jobs.len() - 1));
            let (signals, go) = self.release(now)?;
            (switch.signals, switch.go, switch.all) = (switch.signals + signals, go, ended.elapsed());
            if now.is_some() && now != before {
                switches.push(switch);
            }
            if rules.switches.is_some_and(|most| switches.len() as u64 >= most) {
                break;
            }
        }
        Ok(())
    }

    /// The job whose turn comes after that of `n`.
    fn next(&self, n: usize) -> Option<usize> {
        let all = self.jobs.len();
        (1..=all).map(|step| (n + step) % all).find(|n| self.jobs[*n].hand.is_some())
    }

    /// Until the turn of a job is over, or until there is one that can have a turn.
    fn turn(&mut self, now: Option<usize>, slice: Duration, end: Option<Instant>) -> Result<Over> {
        let mut began = Instant::now();
        loop {
            let Some(n) = now.filter(|n| self.jobs[*n].hand.is_some()) else {
                if self.next(0).is_some() || self.jobs.iter().all(|job| job.line.is_none()) {
                    return Ok(Over::Gone);
                }
                match self.wait(end)? {
                    Woken::Time => return Ok(Over::End),
                    Woken::Changed => continue,
                }
            };
            self.hold_those_who_are_back(n)?;
            let alone = self.next(n) == Some(n);
            if alone {
                // It has the CPUs for itself until another is there.
                if let Woken::Time = self.wait(end)? {
                    return Ok(Over::End);
                }
                began = Instant::now();
                continue;
            }
            let over = began + slice;
            let at_most = |time: Instant| Some(end.map_or(time, |end| time.min(end)));
            if let Woken::Changed = self.wait(at_most(over - AHEAD.min(slice / 2)))? {
                continue;
            }
            if let Some(next) = self.next(n) {
                self.call(next)?;
            }
            let Some(parked) = self.prepare(n)? else { continue };
            while let Woken::Changed = self.wait(at_most(over))? {
                if self.jobs[n].hand.is_none() {
                    return Ok(Over::Gone);
                }
            }
            let at_end = end.is_some_and(|end| Instant::now() >= end);
            return Ok(if at_end { Over::End } else { Over::Slice(parked) });
        }
    }

    /// Until a time, or until there is news of a job.
    fn wait(&mut self, until: Option<Instant>) -> Result<Woken> {
        let has_more = |job: &Job| job.line.as_ref().is_some_and(Line::has_more);
        if let Some(n) = self.jobs.iter().position(has_more) {
            self.news(n)?;
            return Ok(Woken::Changed);
        }
        let there: Vec<usize> = (0..self.jobs.len()).filter(|n| self.jobs[*n].line.is_some()).collect();
        let mut fds = vec![self.signals.0.as_fd()];
        fds.extend(self.jobs.iter().filter_map(|job| job.line.as_ref()).map(|line| line.stream.as_fd()));
        let ready = ready(&fds, until)?;
        ensure!(!ready[0], Told);
        if !ready.contains(&true) {
            return Ok(Woken::Time);
        }
        for (n, _) in there.into_iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            self.news(n)?;
        }
        Ok(Woken::Changed)
    }

    /// Takes messages that a supervisor sends unasked.
    fn news(&mut self, n: usize) -> Result<()> {
        let job = &mut self.jobs[n];
        let said = job.line.as_mut().map_or(Ok(None), Line::hear)?;
        self.note_news(n, said)
    }

    fn note_news(&mut self, n: usize, said: Option<Reply>) -> Result<()> {
        let job = &mut self.jobs[n];
        (job.hand, job.held) = (None, None);
        let text = match said {
            Some(Reply::Away) => "is to be resumed; the others have its turns".to_owned(),
            Some(Reply::Joined(reach)) => match job.line.as_ref().map(|line| line.hand(&reach)) {
                Some(Ok(hand)) => {
                    job.hand = Some(hand);
                    "takes turns again".to_owned()
                }
                Some(Err(e)) => {
                    job.line = None;
                    format!("takes no turns any more: {e:#}")
                }
                None => return Ok(()),
            },
            Some(other) => bail!("an odd word of job {}: {other:?}", job.name),
            None => {
                job.line = None;
                "has ended".to_owned()
            }
        };
        (self.note)(&format!("job {} {text}", job.name));
        Ok(())
    }

    /// Says something to the supervisor of a job. It is no error that it has gone, which is noticed when it is to
    /// answer.
    fn say(&mut self, n: usize, turn: Turn) {
        let job = &mut self.jobs[n];
        if let (Some(line), Some(hand)) = (&mut job.line, &job.hand) {
            let _ = send(&mut line.stream, &(hand.life(), turn));
        }
    }

    /// Sends an order, and waits for the answer: the job may be in the midst of a checkpoint. None if it has no life
    /// any more.
    fn ask(&mut self, n: usize, turn: Turn) -> Result<Option<Reply>> {
        self.say(n, turn);
        let Some(line) = &mut self.jobs[n].line else { return Ok(None) };
        if !line.has_more() {
            self.signals.or(line.stream.as_fd(), None)?;
        }
        match line.hear()? {
            Some(reply @ (Reply::Prepared(_) | Reply::Signalled)) => Ok(Some(reply)),
            Some(Reply::Failed(why)) => bail!("{why}"),
            said => self.note_news(n, said).map(|()| None),
        }
    }

    /// Has a job made ready to be held; returns the processes to be asked. None if it has no life any more.
    fn prepare(&mut self, n: usize) -> Result<Option<Processes>> {
        match self.ask(n, Turn::Prepare)? {
            Some(Reply::Prepared(processes)) => Ok(Some(processes)),
            Some(other) => bail!("an odd answer: {other:?}"),
            None => Ok(None),
        }
    }

    fn hold(&mut self, n: usize) -> Result<()> {
        match self.prepare(n)? {
            Some(parked) => self.stop(n, parked).map(drop),
            None => Ok(()),
        }
    }

    /// All but the one whose turn it is. It does no harm if one goes on beside it.
    fn hold_those_who_are_back(&mut self, now: usize) -> Result<()> {
        for n in (0..self.jobs.len()).filter(|n| *n != now) {
            if self.jobs[n].hand.is_some()
                && self.jobs[n].held.is_none()
                && let Err(e) = self.hold(n)
            {
                ensure!(!e.is::<Told>(), e);
                (self.note)(&format!("{e:#}"));
            }
        }
        Ok(())
    }

    /// Has a job stand still that was prepared.
    fn stop(&mut self, n: usize, parked: Processes) -> Result<Switch> {
        let mut switch = Switch::default();
        let job = &mut self.jobs[n];
        let Some(hand) = &job.hand else { return Ok(switch) };
        let began = Instant::now();
        let mut wait = |fd: BorrowedFd<'_>, until| self.signals.or(fd, Some(until));
        // Devices first: a stopped process would not answer.
        if let Err(e) = hand.ask(&parked, Step::Stop).and_then(|answers| answers.all(&mut wait)) {
            ensure!(!e.is::<Told>(), e);
            let _ = hand.ask(&parked, Step::Go).and_then(|answers| answers.all(&mut wait));
            let e = e.context(format!("job {}", job.name));
            self.say(n, Turn::Goes);
            return Err(e);
        }
        switch.stop = began.elapsed();
        let began = Instant::now();
        job.held = Some(Held { parked, going: None });
        if let Err(e) = self.signal(n, Turn::Stop) {
            ensure!(!e.is::<Told>(), e);
            let _ = self.release(Some(n));
            return Err(e);
        }
        switch.signals = began.elapsed();
        Ok(switch)
    }

    /// Has the devices of a job go on as soon as its processes do. That takes no time of theirs if it is said before.
    fn call(&mut self, n: usize) -> Result<()> {
        if let Job { hand: Some(hand), held: Some(held), .. } = &mut self.jobs[n]
            && held.going.is_none()
        {
            held.going = Some(hand.ask(&held.parked, Step::Go)?);
        }
        Ok(())
    }

    /// Has a job go on that is held. How long the signals took, and the devices.
    fn release(&mut self, n: Option<usize>) -> Result<(Duration, Duration)> {
        let Some(n) = n.filter(|n| self.jobs[*n].held.is_some()) else { return Ok(<_>::default()) };
        self.call(n)?;
        let began = Instant::now();
        self.signal(n, Turn::Continue)?;
        let signals = began.elapsed();
        let began = Instant::now();
        if let Some(going) = self.jobs[n].held.take().and_then(|held| held.going) {
            let mut wait = |fd: BorrowedFd<'_>, until| self.signals.or(fd, Some(until));
            // It is not frozen any more, and goes on when it has a CPU: other programs may keep it from that for
            // seconds.
            if let Err(e) = going.all(&mut wait) {
                ensure!(!e.is::<Told>(), e);
                (self.note)(&format!("job {}: {e:#}", self.jobs[n].name));
            }
        }
        let go = began.elapsed();
        self.say(n, Turn::Goes);
        Ok((signals, go))
    }

    /// Stops all processes of a job, or has them go on.
    fn signal(&mut self, n: usize, what: Turn) -> Result<()> {
        let job = &self.jobs[n];
        match (job.hand.as_ref().and_then(Hand::freeze), what) {
            (Some(freeze), Turn::Stop) => {
                freeze.freeze().with_context(|| format!("job {} cannot be frozen", job.name))?;
            }
            // Its group is gone if it has ended meanwhile.
            (Some(freeze), _) => _ = freeze.thaw(),
            (None, what) => _ = self.ask(n, what)?,
        }
        Ok(())
    }
}

/// The reason why a turn is over.
enum Over {
    /// The slice is, and the job may be held.
    Slice(Processes),
    /// The job has no life any more, or there was none.
    Gone,
    /// The gang's time is.
    End,
}

/// A connection to a supervisor.
struct Line {
    stream: UnixStream,
    /// Bytes that were read of the next lines.
    read: Vec<u8>,
}

impl Line {
    fn new(stream: UnixStream) -> Line {
        Line { stream, read: Vec::new() }
    }

    /// Returns true if something was read already.
    fn has_more(&self) -> bool {
        self.read.contains(&b'\n')
    }

    /// The next message of the supervisor; None if it has ended.
    fn hear(&mut self) -> Result<Option<Reply>> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(read) => self.read.extend(&bytes[..read]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("the supervisor's answer cannot be read"),
            }
        }
    }

    fn hand(&self, reach: &Reach) -> Result<Hand> {
        Hand::new(reach, vervain_names::peer(&self.stream).map(|(pid, _)| pid))
    }
}

/// Waits until a descriptor is ready or the time has come; which are ready. Slices are short, so milliseconds would not
/// do.
pub(crate) fn ready(fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() });
        match poll(&mut polled, left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot wait"),
            Ok(_) => return Ok(polled.iter().map(|polled| !polled.revents().is_empty()).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::serve;
    use std::sync::mpsc::channel;
    use std::thread::JoinHandle;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let times: Vec<Duration> = (1..=20).rev().map(Duration::from_millis).collect();
        let of = |percent| percentile(&times, percent).as_millis();
        assert_eq!([of(50), of(95), of(100)], [10, 19, 20]);
        assert_eq!(percentile(&times[..1], 50), times[0]);
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn a_gang_is_of_two_jobs_that_are_there() {
        let tmp = tempfile::tempdir().unwrap();
        let places = Places::new(tmp.path());
        let rules = Rules { slice: SHORTEST_SLICE, switches: None, time: None };
        let names = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<Vec<Name>>();
        for (of, why) in [(&["a"][..], "two jobs"), (&["a", "a"], "named twice"), (&["a", "b"], "no job a runs here")] {
            let error = run(&places, &names(of), &rules, |_| ()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    fn reach(life: u32) -> Reply {
        let own = std::process::id();
        Reply::Joined(Reach { life, supervisor: own, init: own, group: None })
    }

    /// A supervisor without a job: it notes its orders, and ends after `most` of them. With `away` its job has no life
    /// for a while, after that number of orders.
    fn stand_in(places: &Places, name: &str, most: usize, away: Option<usize>) -> JoinHandle<Vec<(u32, Turn)>> {
        let place = places.take(&name.parse().unwrap()).unwrap();
        let listener = place.listen().unwrap();
        let (hand_on, requests) = channel();
        std::thread::spawn(move || serve(&listener, &mut |request, asker| _ = hand_on.send((request, asker))));
        std::thread::spawn(move || {
            let _place = place;
            let (request, mut asker) = requests.recv().unwrap();
            assert_eq!(request, Request::Gang);
            let mut life = 1;
            asker.tell(&reach(life));
            let mut taken = Vec::new();
            while taken.len() < most {
                ready(&[asker.line()], None).unwrap();
                let Some(said) = asker.hear() else { break };
                taken.push(said);
                if away == Some(taken.len()) {
                    asker.tell(&Reply::Away);
                    std::thread::sleep(Duration::from_millis(50));
                    life += 1;
                    asker.tell(&reach(life));
                } else if said.0 == life {
                    match said.1 {
                        Turn::Prepare => asker.tell(&Reply::Prepared(Processes::new())),
                        Turn::Stop | Turn::Continue => asker.tell(&Reply::Signalled),
                        Turn::Goes => {}
                    }
                }
            }
            taken
        })
    }

    /// Held and let go on, again and again; the first of so many.
    fn turns(life: u32, n: usize) -> Vec<(u32, Turn)> {
        use Turn::{Continue, Goes, Prepare, Stop};
        [Prepare, Stop, Continue, Goes].into_iter().cycle().take(n).map(|turn| (life, turn)).collect()
    }

    const NINE: Rules = Rules { slice: SHORTEST_SLICE, switches: Some(9), time: None };

    #[test]
    fn one_has_its_turn_and_the_rest_go_on_when_one_has_ended() {
        let tmp = tempfile::tempdir().unwrap();
        let places = Places::new(tmp.path());
        let names: Vec<Name> = ["a", "b", "c"].map(|name| name.parse().unwrap()).into();
        let of = |name, most| stand_in(&places, name, most, None);
        let [a, b, c] = [of("a", 6), of("b", usize::MAX), of("c", usize::MAX)];
        let ended = run(&places, &names, &NINE, |_| ()).unwrap();
        assert_eq!(ended.switches.len(), 9);
        assert_eq!(ended.shares.len(), 3);
        assert!(ended.shares.iter().all(|(_, time)| *time > Duration::ZERO));
        assert_eq!(a.join().unwrap(), turns(1, 6));
        let [b, c] = [b, c].map(|job| job.join().unwrap());
        // a begins; b, c, a, b, and a has ended; c, b, c, b, c. Or that is noticed when it has its next turn: b, c, a,
        // b, c, a, b, c, b.
        assert!([(18, 16), (16, 14)].contains(&(b.len(), c.len())), "{b:?}\n{c:?}");
        assert_eq!(b, turns(1, b.len()));
        assert_eq!(c, turns(1, c.len()));
    }

    #[test]
    fn a_job_that_was_away_is_held_until_its_turn_when_it_is_back() {
        let tmp = tempfile::tempdir().unwrap();
        let places = Places::new(tmp.path());
        let names: Vec<Name> = ["a", "b"].map(|name| name.parse().unwrap()).into();
        // It is in the midst of its second turn.
        let (a, b) = (stand_in(&places, "a", usize::MAX, Some(5)), stand_in(&places, "b", usize::MAX, None));
        let ended = run(&places, &names, &NINE, |_| ()).unwrap();
        assert_eq!(ended.switches.len(), 9);
        let a = a.join().unwrap();
        assert_eq!(a[..4], turns(1, 4));
        assert_eq!(a[4], (1, Turn::Prepare));
        assert_eq!(a[5..], turns(2, a.len() - 5));
        // b, a, b, and a is away; a, b, a, b, a, b.
        assert_eq!(a.len() - 5, 14);
        assert_eq!(b.join().unwrap(), turns(1, 20));
    }
}
