//! The mesh over verbs.

use std::time::{Duration, Instant};

use vervain_bootstrap::Job;
use vervain_rdma::{Completion, Qp, Status};

use crate::address::Doors;
use crate::devices::{Devices, link_of_notice, notice_receive};
use crate::door::{Done, random};
use crate::error::{Error, Result};
use crate::introduction::{self, Introduction};
use crate::options::{Event, Link, MAX_HELLO, Options};
use crate::port::Port;
use crate::protocol::{BLOCK, Config, MAX_DATAGRAM, Pool, leader_of};

/// Completions that are taken by one call.
const BATCH: usize = 16;

/// A command that came in. Its receive is the owner's until [`Mesh::repost_command`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// The connection that it came by, which may be closing, or not have been told as opened yet.
    pub link: Link,
    /// The port of that, by its place in [`Mesh::ports`].
    pub port: u32,
    /// Which receive it took.
    pub buffer: u32,
    /// Its length in bytes.
    pub len: u32,
}

/// The connections of this process. No lock, no thread: the owner keeps it in its mutex and drives it.
pub struct Mesh {
    pool: Pool<Devices>,
    agreed: Vec<u8>,
    /// The room for polled completions: to make it anew takes as long as a poll.
    done: [Completion; BATCH],
}

impl Mesh {
    /// Opens the devices and begins to listen; puts what others have to know into the job's store. `rank` is this
    /// process's number in `epoch`; ranks are renumbered by a new mesh with the next epoch. `agreed` is what all ranks
    /// must have alike, `hello` what peers get with each connection, at most [`MAX_HELLO`] bytes.
    ///
    /// The owner then starts the thread that polls, calls [`Job::fence`], then [`find_leader`](Mesh::find_leader) and
    /// [`introduce`](Mesh::introduce).
    ///
    /// # Errors
    /// No usable device, or not the resources; the launcher is gone, or a mesh of this epoch was opened before;
    /// arguments out of range.
    pub fn open(job: &Job, rank: u32, epoch: u32, options: &Options, agreed: &[u8], hello: Vec<u8>) -> Result<Mesh> {
        check(job, rank, options, &hello)?;
        let ports = Port::open_all(options)?;
        let addresses = ports.iter().map(Port::address).collect::<Result<Vec<_>>>()?;
        let doors = Doors::new(&addresses);
        let config = Config {
            rank,
            size: job.size(),
            epoch,
            job_rank: job.rank(),
            block: BLOCK,
            connections: options.connections,
            doors,
            colors: addresses.len() as u32,
            hello,
            give_up: options.give_up,
            seed: u64::from_le_bytes(random()?),
        };
        let mut pool = Pool::new(config, Devices::new(ports, options.connections));
        if leader_of(job.rank(), BLOCK) == job.rank() {
            introduction::put_leader(job, epoch, &doors)?;
        }
        if job.rank() == 0 {
            let key = random()?;
            introduction::put_common(job, epoch, key, agreed, doors)?;
            pool.set_key(key);
        }
        Ok(Mesh { pool, agreed: agreed.to_vec(), done: [Completion::default(); BATCH] })
    }

    /// Sets the hello that peers get with each connection from now on, at most [`MAX_HELLO`] bytes. To be called before
    /// [`introduce`](Mesh::introduce), by owners that need the ports to make it.
    ///
    /// # Panics
    /// If it is longer.
    pub fn set_hello(&mut self, hello: Vec<u8>) {
        assert!(hello.len() <= MAX_HELLO, "a hello of {} bytes", hello.len());
        self.pool.set_hello(hello);
    }

    /// Fetches what [`introduce`](Mesh::introduce) needs; after the fence. It may wait, so no lock is held meanwhile.
    ///
    /// # Errors
    /// Job rank 0 or the leader has put nothing, or another version of this crate; the launcher is gone.
    pub fn find_leader(job: &Job, rank: u32, epoch: u32) -> Result<Introduction> {
        introduction::fetch(job, rank, epoch)
    }

    /// Begins to register, and to answer and ask other ranks.
    ///
    /// # Errors
    /// What must be alike is not: the settings, and the link layers of the devices.
    pub fn introduce(&mut self, introduction: Introduction) -> Result<()> {
        let rank = self.rank();
        if introduction.agreed != self.agreed {
            return Err(Error::new(format!(
                "rank {rank} has other settings than process 0 of the job; they must be alike"
            )));
        }
        self.pool.config().doors.check_link_layers(rank, &introduction.first)?;
        self.pool.set_key(introduction.key);
        self.pool.introduce(Instant::now(), introduction.leader);
        Ok(())
    }

    /// Returns true if this rank has its place in the directory. If it does not get one, [`Event::Failed`] says why.
    pub fn registered(&self) -> bool {
        self.pool.registered()
    }

    /// The job rank of a leader whose address is needed: the owner fetches it ([`fetch_leader`](Mesh::fetch_leader))
    /// without a lock, and passes the outcome to [`leader_found`](Mesh::leader_found). To be asked after each
    /// [`progress`](Mesh::progress), [`want`](Mesh::want) and [`poll_service`](Mesh::poll_service).
    pub fn wanted_leader(&mut self) -> Option<u32> {
        self.pool.wanted_leader()
    }

    /// The doors that the leader with the job rank `leader` has put into the job's store. It may wait.
    ///
    /// # Errors
    /// The leader has put nothing, or the launcher is gone.
    pub fn fetch_leader(job: &Job, leader: u32, epoch: u32) -> Result<Doors> {
        introduction::fetch_leader(job, leader, epoch)
    }

    /// Goes on with those who waited for this leader's address.
    pub fn leader_found(&mut self, leader: u32, found: Result<Doors>) {
        self.pool.leader_found(Instant::now(), leader, found);
    }

    /// This process's number.
    pub fn rank(&self) -> u32 {
        self.pool.config().rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.pool.config().size
    }

    /// Devices that this process uses; colors are below.
    pub fn colors(&self) -> u32 {
        self.pool.config().colors
    }

    /// The devices in use.
    pub fn ports(&self) -> &[Port] {
        &self.pool.fabric().ports
    }

    /// The open connection to `rank` by `color`, whose [`Event::Opened`] was taken.
    #[inline]
    pub fn find(&self, rank: u32, color: u32) -> Option<Link> {
        self.pool.find(rank, color)
    }

    /// The connections by which a peer may post: open ones, those that close, and those of which this side does not
    /// know yet that the peer has them. For each that is not open, an [`Event::Opened`] or [`Event::Closed`] will come.
    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        self.pool.links()
    }

    /// The hello that the peer has passed to [`open`](Mesh::open).
    pub fn hello(&self, link: Link) -> &[u8] {
        self.pool.hello(link)
    }

    /// The rank at the other end, and the color.
    pub fn peer(&self, link: Link) -> (u32, u32) {
        self.pool.peer(link)
    }

    /// The port of a connection, by its place in [`ports`](Mesh::ports).
    pub fn port_of(&self, link: Link) -> usize {
        self.pool.port_of(link)
    }

    /// The lane for RDMA and notices: it needs no software at the other end. All its ids are the owner's, below 2^63.
    /// Peers have [`Options::notices`] receives for what takes one.
    ///
    /// # Panics
    /// Where the place was never used.
    #[inline]
    pub fn data(&self, link: Link) -> &Qp {
        self.pool.fabric().pair(link.index).0
    }

    /// The lane for commands, which are Sends without immediate data; it waits while the peer has no receive. All its
    /// ids are the owner's, below 2^63.
    ///
    /// # Panics
    /// Where the place was never used.
    #[inline]
    pub fn commands(&self, link: Link) -> &Qp {
        self.pool.fabric().pair(link.index).1
    }

    /// Keeps the connection from being closed until as many calls of [`release`](Mesh::release). Each posted request
    /// needs a hold until its completion, or that of a later one of the same lane, was polled. If an answer is expected
    /// by the connection, the hold lasts until it has come. A closing connection may be held in order to answer a
    /// request that has come by it.
    #[inline]
    pub fn hold(&mut self, link: Link) {
        self.pool.hold(link);
    }

    /// Gives a hold back. When [`is_due`](Mesh::is_due) says so then, somebody waits for the place.
    #[inline]
    pub fn release(&mut self, link: Link) {
        self.pool.release(link);
    }

    /// Returns true if this is the life that the place is in, and open: it is not closing.
    pub fn is_open(&self, link: Link) -> bool {
        self.pool.is_open(link)
    }

    /// Counts a message posted that takes a receive of the peer: a command, a notice.
    #[inline]
    pub fn sent(&mut self, link: Link) {
        self.pool.sent(link);
    }

    /// Counts a message that has taken a receive: for each [`Command`] and each [`notice`](Mesh::notice), before the
    /// lock is given back under which it was polled.
    #[inline]
    pub fn received(&mut self, link: Link) {
        self.pool.received(link);
    }

    /// Returns true if a connection is closing: then completions of [`Port::data`] are to be polled as they come, since
    /// the peer may wait for what they release.
    pub fn is_draining(&self) -> bool {
        self.pool.is_draining()
    }

    /// The connection whose QP for commands has this number, also one that closes.
    #[inline]
    pub fn link_of_qp(&self, port: usize, qp_num: u32) -> Option<Link> {
        let link = self.pool.link(self.pool.fabric().place_of_qp(port, qp_num)?)?;
        (self.pool.port_of(link) == port).then_some(link)
    }

    /// The connection of a notice, and its immediate data, or 0 if it has none; None for a completion of [`Port::data`]
    /// that is no notice's.
    #[inline]
    pub fn notice(completion: &Completion) -> Option<(Link, u32)> {
        Some((link_of_notice(completion.id())?, completion.immediate().unwrap_or(0)))
    }

    /// Posts the receive of a notice again; nothing, where the connection is no more.
    ///
    /// # Errors
    /// What the driver says.
    pub fn repost_notice(&mut self, link: Link) -> Result<()> {
        if self.pool.is_alive(link) {
            self.data(link).receive(notice_receive(link))?;
        }
        Ok(())
    }

    /// Copies the bytes of a command, as many as fit, and says how many.
    pub fn read_command(&self, command: &Command, into: &mut [u8]) -> usize {
        let port = command.port as usize;
        let (memory, start) = self.pool.fabric().receive_of(port, command.buffer);
        let len = (command.len as usize).min(self.ports()[port].slot_bytes()).min(into.len());
        memory.read(start, &mut into[..len]);
        len
    }

    /// Copies the contents of the receive `buffer`, as many bytes as there is room for.
    ///
    /// # Panics
    /// If that is more than a command can have.
    pub fn read_memory_of(&self, port: usize, buffer: u32, into: &mut [u8]) {
        let (memory, start) = self.pool.fabric().receive_of(port, buffer);
        assert!(into.len() <= self.ports()[port].slot_bytes(), "{} bytes of a command", into.len());
        memory.read(start, into);
    }

    /// The address of the contents of the receive `buffer`, which are the owner's to read and write until
    /// [`repost_command`](Mesh::repost_command).
    #[inline]
    pub fn memory_of(&self, port: usize, buffer: u32) -> *mut u8 {
        let (memory, start) = self.pool.fabric().receive_of(port, buffer);
        memory.as_ptr().wrapping_add(start)
    }

    /// Posts the receive of a command again, once.
    ///
    /// # Errors
    /// What the driver says.
    pub fn repost_command(&mut self, command: &Command) -> Result<()> {
        self.post_commands(command.port as usize, &[command.buffer])
    }

    /// Posts receives of commands by one call: those that were not posted from the start ([`Options::posted`]), and
    /// those that commands have taken, each once.
    ///
    /// # Errors
    /// What the driver says.
    pub fn post_commands(&mut self, port: usize, buffers: &[u32]) -> Result<()> {
        if self.pool.fabric().are_shared() {
            return self.pool.fabric_mut().ports[port].post_commands(buffers);
        }
        for &buffer in buffers {
            let is_used = self.pool.link(self.pool.fabric().place_of_slot(port, buffer)).is_some();
            self.pool.fabric_mut().give_back(port, buffer, is_used)?;
        }
        Ok(())
    }

    /// Connects to `rank` by `color`, unless it is or will be connected; [`Event::Opened`] reports it. Also to the own
    /// rank. Those that wait for a place get it in the order of the calls.
    pub fn want(&mut self, rank: u32, color: u32) {
        self.pool.want(Instant::now(), rank, color);
    }

    /// Polls [`Port::service`] once: answers what came to the door, appends commands to `commands`, and says how many
    /// completions there were.
    ///
    /// # Errors
    /// What the driver says; a receive or a datagram that failed.
    #[inline]
    pub fn poll_service(&mut self, port: usize, commands: &mut Vec<Command>) -> Result<usize> {
        let found = self.pool.fabric().ports[port].service.poll(&mut self.done)?;
        self.serve_all(port, found, commands)?;
        Ok(found)
    }

    /// Polls [`Port::service`] once, where the door has a CQ of its own ([`Options::own_door_cq`]): passes each command
    /// and the rank that it came from to `take`, counted as [`received`](Mesh::received), and says how many there were.
    ///
    /// # Errors
    /// What the driver says; a receive that failed.
    #[inline]
    pub fn poll_commands(&mut self, port: usize, mut take: impl FnMut(Command, u32)) -> Result<usize> {
        let found = self.pool.fabric().ports[port].service.poll(&mut self.done)?;
        let are_shared = self.pool.fabric().are_shared();
        for at in 0..found {
            if !are_shared && self.done[at].status() == Status::Flushed {
                // The connection has ended, and with it its own receives.
                continue;
            }
            let command = self.command_of(port, &self.done[at])?;
            if !are_shared {
                self.pool.fabric_mut().hold(command.buffer);
            }
            self.pool.received(command.link);
            take(command, self.pool.peer(command.link).0);
        }
        Ok(found)
    }

    #[inline]
    fn serve_all(&mut self, port: usize, found: usize, commands: &mut Vec<Command>) -> Result<()> {
        for at in 0..found {
            let completion = self.done[at];
            self.serve(port, &completion, commands)?;
        }
        Ok(())
    }

    /// Polls [`Port::door_cq`] once, where that is a CQ of its own ([`Options::own_door_cq`]): answers what came to the
    /// door, and says how many completions there were.
    ///
    /// # Errors
    /// As [`poll_service`](Mesh::poll_service).
    pub fn poll_door(&mut self, port: usize) -> Result<usize> {
        let found = self.pool.fabric().ports[port].door_cq.poll(&mut self.done)?;
        let mut none = Vec::new();
        self.serve_all(port, found, &mut none)?;
        debug_assert!(none.is_empty(), "a command completes into the door's own CQ");
        Ok(found)
    }

    fn serve(&mut self, port: usize, completion: &Completion, commands: &mut Vec<Command>) -> Result<()> {
        match self.pool.fabric_mut().ports[port].door.completed(completion)? {
            Done::Nothing => Ok(()),
            Done::Datagram(slot, length) => {
                let mut datagram = [0; MAX_DATAGRAM];
                let datagram = &mut datagram[..length];
                self.ports()[port].door.take(slot, datagram)?;
                self.pool.datagram(Instant::now(), port, datagram);
                Ok(())
            }
            Done::Other => {
                let command = self.command_of(port, completion)?;
                if !self.pool.fabric().are_shared() {
                    self.pool.fabric_mut().hold(command.buffer);
                }
                commands.push(command);
                Ok(())
            }
        }
    }

    /// The command that has taken the receive of a completion.
    #[inline]
    fn command_of(&self, port: usize, completion: &Completion) -> Result<Command> {
        // Commands have their completions before a connection is closed.
        match self.link_of_qp(port, completion.qp_num()) {
            Some(link) if completion.is_success() => {
                Ok(Command { link, port: port as u32, buffer: completion.id() as u32, len: completion.bytes() })
            }
            _ => Err(self.no_command(port, completion)),
        }
    }

    #[cold]
    fn no_command(&self, port: usize, completion: &Completion) -> Error {
        if completion.is_success() {
            return Error::new(format!("a command came by QP {:#x}, which has no connection", completion.qp_num()));
        }
        let device = self.ports()[port].context.name();
        Error::new(format!("a command that came to {device} was not received: {}", completion.status()))
    }

    /// Returns true if [`progress`](Mesh::progress) has something to do at once; for who gives the lock back.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.pool.is_due()
    }

    /// Returns true if the owner has something to do at once: [`progress`](Mesh::progress), an event to take, a leader
    /// to fetch. For who gives the lock back, and leaves that to another thread.
    #[inline]
    pub fn needs_owner(&self) -> bool {
        self.pool.needs_owner()
    }

    /// Does what is due, and says when to call it next, if nothing else happens before. It costs nothing where nothing
    /// is due.
    #[inline]
    pub fn progress(&mut self, now: Instant) -> Option<Instant> {
        self.pool.progress(now)
    }

    /// The next event. The taker of an [`Event::Opened`] must hold the connection before it gives its lock back; else
    /// it may be closed.
    pub fn next_event(&mut self) -> Option<Event> {
        self.pool.next_event()
    }
}

/// Arguments out of range.
fn check(job: &Job, rank: u32, options: &Options, hello: &[u8]) -> Result<()> {
    let wrong = |what: String| Err(Error::new(what));
    if rank >= job.size() {
        return wrong(format!("there is no rank {rank}: the job has {}", job.size()));
    }
    if !(2..=1 << 20).contains(&options.connections) {
        return wrong(format!("{} connections: 2 to 1048576 are possible", options.connections));
    }
    if options.sends == 0 || options.notices == 0 || options.commands == 0 || options.command_bytes == 0 {
        return wrong("a mesh has at least one send, notice and command, of one byte".into());
    }
    if !(1..=crate::MAX_DEVICES).contains(&options.most_devices) || options.devices.len() > options.most_devices {
        let (named, most) = (options.devices.len(), options.most_devices);
        return wrong(format!("{named} devices of at most {most}: a rank uses one or two"));
    }
    if hello.len() > MAX_HELLO {
        return wrong(format!("a hello of {} bytes: {MAX_HELLO} are possible", hello.len()));
    }
    if options.give_up < Duration::from_millis(100) {
        return wrong(format!("{:?} is no time to wait for an answer", options.give_up));
    }
    Ok(())
}
