//! A job in a gang, whose members take turns: it stands still and goes on as the gang asks, and goes on by itself once
//! nobody asks any more.

use std::os::fd::BorrowedFd;

use anyhow::{Context, Result};
use vervain_scheduler::First;

use super::Supervisor;
use crate::agent::Task;
use crate::control::{Asker, Reach, Reply, Turn};
use crate::freezer;
use crate::gang::Member;

impl Supervisor {
    /// Somebody has the job take turns.
    pub fn join(&mut self, mut asker: Asker) {
        let reach = match (&self.gang, self.ended()) {
            (Some(_), _) => Err("takes turns in another gang already".to_owned()),
            (None, Some(_)) => Err("does not run just now".to_owned()),
            (None, None) => self.reach().map_err(|e| format!("cannot take turns: {e:#}")),
        };
        match reach {
            Ok(reach) => {
                asker.tell(&Reply::Joined(reach));
                self.gang = Some(Member { asker, held: false, first: Some(First::of_this_thread()) });
            }
            Err(why) => asker.tell(&Reply::Failed(format!("job {} {why}", self.name))),
        }
    }

    /// The facts by which a gang holds the job.
    fn reach(&mut self) -> Result<Reach> {
        // A part on another host is held by the supervisor, and so is all of the job then.
        let several = self.life.as_ref().is_some_and(|life| life.is_on_several_hosts());
        // If only the job sees control groups, the gang cannot use one, and has the job stopped by signals.
        let can = !several && freezer::groups().is_some();
        let group = if can { self.inside(Task::Group)?.group } else { None };
        let life = self.life.as_ref().context("the job does not run just now")?;
        Ok(Reach { life: self.lives, supervisor: std::process::id(), init: life.part.space.init(), group })
    }

    /// Others in its gang have the job's turns until it is back.
    pub fn leave_gang_for_a_while(&mut self) {
        if let Some(member) = &mut self.gang {
            (member.held, member.first) = (false, None);
            member.asker.tell(&Reply::Away);
        }
    }

    pub fn rejoin_gang(&mut self) {
        let Some(mut member) = self.gang.take() else { return };
        match self.reach() {
            Ok(reach) => {
                member.first = Some(First::of_this_thread());
                member.asker.tell(&Reply::Joined(reach));
            }
            // It has ended already, and may be resumed again.
            Err(_) if self.life.as_ref().is_some_and(|life| life.part.space.has_ended()) => {}
            Err(e) => return self.note(&format!("job {} takes no turns any more: {e:#}", self.name)),
        }
        self.gang = Some(member);
    }

    /// Returns true if the gang may have the job stand still.
    pub fn is_held(&self) -> bool {
        self.gang.as_ref().is_some_and(|member| member.held)
    }

    /// Sees to what is said by who has the job take turns; the job goes on if that is nobody any more.
    pub fn turns(&mut self) {
        while let Some(member) = self.gang.as_mut().filter(|member| member.asks()) {
            match member.asker.hear() {
                None => {
                    let was_held = member.held;
                    self.gang = None;
                    if was_held
                        && self.ended().is_none()
                        && let Err(e) = self.release()
                    {
                        self.note(&format!("job {} does not go on as it should: {e:#}", self.name));
                    }
                }
                Some((life, turn)) if life == self.lives && self.ended().is_none() => self.turn(turn),
                // The sender learns, or has learned, that this life of the job is over.
                Some(_) => {}
            }
        }
    }

    fn turn(&mut self, turn: Turn) {
        let done = match turn {
            Turn::Prepare => self.inside(Task::Prepare).map(|done| Reply::Prepared(done.processes)),
            Turn::Stop | Turn::Continue if self.life.as_ref().is_some_and(|life| life.is_on_several_hosts()) => {
                self.turn_of_parts(turn == Turn::Stop).map(|()| Reply::Signalled)
            }
            // If the program inside was killed in the midst of it, the next one would take all for stopped before.
            Turn::Stop => self.inside_once(Task::Signal).map(|_| Reply::Signalled).or_else(|e| {
                self.inside(Task::Release)?;
                Err(e)
            }),
            Turn::Continue => self.inside(Task::Continue).map(|_| Reply::Signalled),
            Turn::Goes => {
                self.gang.iter_mut().for_each(|member| member.held = false);
                return;
            }
        };
        // The job has ended: the sender will learn that in a moment.
        if self.life.as_ref().is_some_and(|life| life.part.space.has_ended()) {
            return;
        }
        let failed = |e| Reply::Failed(format!("job {}: {e:#}", self.name));
        let reply = done.unwrap_or_else(failed);
        if let Some(member) = &mut self.gang {
            member.held |= matches!(reply, Reply::Prepared(_));
            member.asker.tell(&reply);
        }
    }

    /// Has all parts of a job on several hosts stand still, or go on.
    fn turn_of_parts(&mut self, stand: bool) -> Result<()> {
        let life = self.life.as_mut().context("the job does not run just now")?;
        let target = life.part.space.target();
        let (signals, asked) = (&self.desk.signals, &mut self.desk.asked);
        let mut wait = |fds: &[BorrowedFd<'_>], until| asked.wait(signals, Some(&target), fds, until);
        let turned = if stand { life.hold(&mut wait) } else { life.release(&mut wait) };
        Ok(turned?)
    }

    /// Has the job go on whose gang is gone.
    fn release(&mut self) -> Result<()> {
        match &self.life {
            Some(life) if life.is_on_several_hosts() => self.turn_of_parts(false),
            _ => self.inside(Task::Release).map(drop),
        }
    }
}
