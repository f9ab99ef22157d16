//! Connections of many ranks of a job in one process: each rank with its own pool, handshakes and identity, all on one
//! set of ports and doors.
//!
//! Datagrams name the rank that they are for only where that is not known otherwise. Here it follows from the attempt
//! that they belong to, which no other rank has.

use std::cell::{Ref, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use vervain_bootstrap::Job;
use vervain_mesh::parts::{Done, Pair, fetch_common, fetch_leader, put_common, put_leader};
use vervain_mesh::protocol::{
    BLOCK, Config, Decoded, Fabric, Id, Key, MAX_DATAGRAM, Message, Pool, decode, leader_of, teller,
};
use vervain_mesh::{Door, Doors, Error, Event, Lanes, Link, Options, Port, Result};
use vervain_rdma::{CompChannel, Completion, Cq};

/// Places in the pool of each rank: one for each other rank that it has to do with at a time.
const PLACES: usize = 2;
/// Completions that are taken by one call.
const BATCH: usize = 16;

/// The part that all ranks of the process share.
struct Home {
    ports: RefCell<Vec<Port>>,
    /// QPs in RESET, by port.
    spare: RefCell<Vec<Vec<Rc<Pair>>>>,
    /// The number of pairs, and its limit.
    made: RefCell<usize>,
    most: usize,
}

/// A rank's QPs: for each place, those that it has, and at which port.
struct Share {
    home: Rc<Home>,
    pairs: [Option<(usize, Rc<Pair>)>; PLACES],
}

impl Share {
    fn pair(&self, place: u32) -> Result<&Rc<Pair>> {
        let pair = self.pairs[place as usize].as_ref().map(|(_, pair)| pair);
        pair.ok_or_else(|| Error::new("a place has no QPs"))
    }
}

impl Fabric for Share {
    fn send(&mut self, port: usize, to: &Door, datagram: &[u8]) {
        self.home.ports.borrow_mut()[port].door.send(to, datagram);
    }

    fn is_made(&self, place: u32, port: usize) -> bool {
        self.pairs[place as usize].as_ref().is_some_and(|(at, _)| *at == port)
    }

    fn prepare(&mut self, place: u32, port: usize, life: u32) -> Result<Lanes> {
        let ports = self.home.ports.borrow();
        let spare = self.home.spare.borrow_mut()[port].pop();
        let pair = match spare {
            Some(pair) => pair,
            None => {
                let mut made = self.home.made.borrow_mut();
                if *made == self.home.most {
                    return Err(Error::new(format!(
                        "the ranks of this process have {made} connections, and want more"
                    )));
                }
                *made += 1;
                Rc::new(ports[port].pair()?)
            }
        };
        let lanes = ports[port].prepare(&pair, Link { index: place, life })?;
        self.pairs[place as usize] = Some((port, pair));
        Ok(lanes)
    }

    fn connect(&mut self, place: u32, port: usize, door: &Door, lanes: &Lanes) -> Result<()> {
        self.home.ports.borrow()[port].connect(self.pair(place)?, door, lanes)
    }

    fn reset(&mut self, place: u32, _port: usize) -> Result<()> {
        let Some((port, pair)) = self.pairs[place as usize].take() else { return Ok(()) };
        pair.data.reset()?;
        pair.commands.reset()?;
        self.home.spare.borrow_mut()[port].push(pair);
        Ok(())
    }
}

/// One rank.
struct Member {
    pool: Pool<Share>,
    deadline: Option<Instant>,
}

/// Ranks that this process answers for.
pub struct RankPool {
    home: Rc<Home>,
    first: u32,
    /// None for a rank that is another process.
    members: Vec<Option<Box<Member>>>,
    /// Ranks of the job.
    size: u32,
    doors: Doors,
    key: Option<Key>,
    agreed: Vec<u8>,
    /// Attempts that others began, and with whom.
    attempts: HashMap<Id, u32>,
    /// Members that look for a rank.
    seekers: HashMap<u32, Vec<u32>>,
    /// Members whose next connection is held for who wants it.
    wanting: HashSet<u32>,
    /// Leaders whose address was fetched.
    leaders: HashMap<u32, Doors>,
    /// The member that registers.
    registering: Option<u32>,
    /// Leaders whose addresses are to be fetched for a rank.
    fetches: VecDeque<(u32, u32)>,
    deadlines: BTreeSet<(Instant, u32)>,
    events: VecDeque<(u32, Event)>,
}

impl RankPool {
    /// Opens the devices, for the ranks in `ranks`: whole blocks of the directory but for the last one, of which this
    /// process is the first rank. `connections` of the options is what all of them may have together.
    ///
    /// # Errors
    /// As [`Mesh::open`](vervain_mesh::Mesh::open); the ranks do not begin with this process's.
    pub fn open(job: &Job, ranks: Range<u32>, options: &Options, agreed: &[u8]) -> Result<Self> {
        if ranks.start != job.rank() || leader_of(ranks.start, BLOCK) != ranks.start || ranks.end > job.size() {
            return Err(Error::new(format!("rank {} cannot answer for ranks {ranks:?}", job.rank())));
        }
        let ports = Port::open_all(options)?;
        let doors = Doors::new(&ports.iter().map(Port::address).collect::<Result<Vec<_>>>()?);
        put_leader(job, 0, &doors)?;
        let mut key = None;
        if job.rank() == 0 {
            let random = random()?;
            put_common(job, 0, random, agreed, doors)?;
            key = Some(random);
        }
        let spare = ports.iter().map(|_| Vec::new()).collect();
        let home = Home {
            ports: RefCell::new(ports),
            spare: RefCell::new(spare),
            made: RefCell::new(0),
            most: options.connections,
        };
        Ok(Self {
            home: Rc::new(home),
            first: ranks.start,
            members: ranks.map(|_| None).collect(),
            size: job.size(),
            doors,
            key,
            agreed: agreed.to_vec(),
            attempts: HashMap::new(),
            seekers: HashMap::new(),
            wanting: HashSet::new(),
            leaders: HashMap::new(),
            registering: None,
            fetches: VecDeque::new(),
            deadlines: BTreeSet::new(),
            events: VecDeque::new(),
        })
    }

    /// The ports, which are not kept while the pool does something.
    pub fn ports(&self) -> Ref<'_, Vec<Port>> {
        self.home.ports.borrow()
    }

    /// The CQs for requests, and those for all else, with their channels.
    pub fn queues(&self) -> Vec<[(Cq, CompChannel); 2]> {
        let ports = self.home.ports.borrow();
        let of = |port: &Port| {
            [(port.data.clone(), port.data_channel.clone()), (port.service.clone(), port.service_channel.clone())]
        };
        ports.iter().map(of).collect()
    }

    /// Puts a rank in, with what its peers are to get from it. After the fence.
    ///
    /// # Errors
    /// It is not of this process, or there; rank 0 of the job has put nothing, or other settings.
    pub fn add(&mut self, job: &Job, rank: u32, hello: Vec<u8>) -> Result<()> {
        let key = match self.key {
            Some(key) => key,
            None => {
                let (key, agreed, _) = fetch_common(job, 0)?;
                if agreed != self.agreed {
                    return Err(Error::new("rank 0 has other settings; they must be alike"));
                }
                *self.key.insert(key)
            }
        };
        let config = Config {
            rank,
            size: job.size(),
            epoch: 0,
            job_rank: rank,
            block: BLOCK,
            connections: PLACES,
            doors: self.doors,
            colors: self.home.ports.borrow().len() as u32,
            hello,
            give_up: Duration::from_secs(120),
            seed: u64::from_le_bytes(random()?),
        };
        let share = Share { home: self.home.clone(), pairs: [None, None] };
        let mut pool = Pool::new(config, share);
        pool.set_key(key);
        match self.slot(rank) {
            Some(at) if self.members[at].is_none() => {
                self.members[at] = Some(Box::new(Member { pool, deadline: None }));
                Ok(())
            }
            _ => Err(Error::new(format!("rank {rank} is not of this process, or there"))),
        }
    }

    fn slot(&self, rank: u32) -> Option<usize> {
        let at = rank.checked_sub(self.first)? as usize;
        (at < self.members.len()).then_some(at)
    }

    fn member(&mut self, rank: u32) -> Option<&mut Member> {
        let at = self.slot(rank)?;
        self.members[at].as_deref_mut()
    }

    /// Registers a rank with its leader, which is one of this process, added before, or another process, until
    /// [`registered`](RankPool::registered). One at a time.
    ///
    /// # Errors
    /// As [`want`](RankPool::want).
    pub fn introduce(&mut self, job: &Job, now: Instant, rank: u32) -> Result<()> {
        let doors = self.leader(job, leader_of(rank, BLOCK))?;
        self.registering = Some(rank);
        self.with(now, rank, |pool| pool.introduce(now, doors));
        Ok(())
    }

    /// Returns true if the rank is in the directory.
    pub fn registered(&mut self, rank: u32) -> bool {
        self.member(rank).is_some_and(|member| member.pool.registered())
    }

    /// Does something with a rank's pool, and what follows from it.
    fn with<T>(&mut self, now: Instant, rank: u32, f: impl FnOnce(&mut Pool<Share>) -> T) -> Option<T> {
        let member = self.member(rank)?;
        let done = f(&mut member.pool);
        self.look_after(now, rank);
        Some(done)
    }

    fn look_after(&mut self, now: Instant, rank: u32) {
        let Some(at) = self.slot(rank) else { return };
        let Some(member) = self.members[at].as_deref_mut() else { return };
        let deadline = loop {
            while let Some(event) = member.pool.next_event() {
                // Not closed before its owner has used it.
                if let Event::Opened(link) = event
                    && self.wanting.remove(&rank)
                {
                    member.pool.hold(link);
                }
                self.events.push_back((rank, event));
            }
            if let Some(leader) = member.pool.wanted_leader() {
                match self.leaders.get(&leader) {
                    Some(doors) => member.pool.leader_found(now, leader, Ok(*doors)),
                    None => self.fetches.push_back((rank, leader)),
                }
            } else {
                let deadline = member.pool.progress(now);
                if !member.pool.needs_owner() {
                    break deadline;
                }
            }
        };
        if member.deadline != deadline {
            if let Some(before) = member.deadline {
                self.deadlines.remove(&(before, rank));
            }
            self.deadlines.extend(deadline.map(|deadline| (deadline, rank)));
            member.deadline = deadline;
        }
    }

    /// Connects a rank to `peer`; [`Event::Opened`] reports it, and the connection is held once then. The address of
    /// the peer's leader is fetched from the job's store, the first time.
    ///
    /// # Errors
    /// The leader has put nothing, or the launcher is gone.
    pub fn want(&mut self, job: &Job, now: Instant, rank: u32, peer: u32) -> Result<()> {
        let leader = leader_of(peer, BLOCK);
        let doors = self.leader(job, leader)?;
        self.with(now, rank, |pool| pool.leader_found(now, leader, Ok(doors)));
        self.wanting.insert(rank);
        self.seekers.entry(peer).or_default().push(rank);
        self.with(now, rank, |pool| pool.want(now, peer, 0));
        Ok(())
    }

    /// The address of a leader, fetched the first time.
    fn leader(&mut self, job: &Job, leader: u32) -> Result<Doors> {
        if let Some(doors) = self.leaders.get(&leader) {
            return Ok(*doors);
        }
        let is_here = self.member(leader).is_some();
        let doors = if is_here { self.doors } else { fetch_leader(job, leader, 0)? };
        self.leaders.insert(leader, doors);
        Ok(doors)
    }

    /// Fetches the addresses that leaders of this process were asked for, and says whether there were any. It may wait.
    ///
    /// # Errors
    /// As [`want`](RankPool::want).
    pub fn fetch(&mut self, job: &Job) -> Result<bool> {
        let mut any = false;
        while let Some((rank, leader)) = self.fetches.pop_front() {
            any = true;
            let doors = self.leader(job, leader)?;
            let now = Instant::now();
            self.with(now, rank, |pool| pool.leader_found(now, leader, Ok(doors)));
        }
        Ok(any)
    }

    /// Returns true if the rank has wanted the connection, and not given it back.
    pub fn is_held(&mut self, rank: u32, link: Link) -> bool {
        self.member(rank).is_some_and(|member| member.pool.is_held(link))
    }

    /// Gives the hold back that came with the connection.
    pub fn release(&mut self, now: Instant, rank: u32, link: Link) {
        self.with(now, rank, |pool| pool.release(link));
    }

    /// The QPs of a rank's open connection.
    pub fn qps(&mut self, rank: u32, link: Link) -> Option<Rc<Pair>> {
        self.member(rank)?.pool.fabric().pair(link.index).ok().cloned()
    }

    /// The hello that the peer of a rank's connection has passed.
    pub fn hello(&mut self, rank: u32, link: Link) -> Vec<u8> {
        self.member(rank).map(|member| member.pool.hello(link).to_vec()).unwrap_or_default()
    }

    /// QPs that all ranks have together, in pairs.
    pub fn connections(&self) -> usize {
        *self.home.made.borrow()
    }

    /// The next of what has happened, and to which rank.
    pub fn next_event(&mut self) -> Option<(u32, Event)> {
        self.events.pop_front()
    }

    /// When [`progress`](RankPool::progress) is to be called next, if nothing else happens before.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Does what is due.
    pub fn progress(&mut self, now: Instant) {
        while let Some((deadline, rank)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.look_after(now, rank);
            if self.deadlines.first() == Some(&(deadline, rank)) {
                // No connection has come of it: not again before the next call.
                break;
            }
        }
    }

    /// Polls what comes to the doors, once, and says whether something has.
    ///
    /// # Errors
    /// What the driver says; a receive that failed; a command, which these ranks do not serve.
    pub fn poll(&mut self) -> Result<bool> {
        let mut any = false;
        let ports = self.home.ports.borrow().len();
        for port in 0..ports {
            let mut done = [Completion::default(); BATCH];
            let found = self.home.ports.borrow()[port].service.poll(&mut done)?;
            for completion in &done[..found] {
                any = true;
                self.served(port, completion)?;
            }
        }
        Ok(any)
    }

    fn served(&mut self, port: usize, completion: &Completion) -> Result<()> {
        let mut room = [0; MAX_DATAGRAM];
        let length = {
            let mut ports = self.home.ports.borrow_mut();
            match ports[port].door.completed(completion)? {
                Done::Nothing => return Ok(()),
                Done::Other => return Err(Error::new("a command came to a rank that serves none")),
                Done::Datagram(slot, length) => {
                    ports[port].door.take(slot, &mut room[..length])?;
                    length
                }
            }
        };
        let now = Instant::now();
        for rank in self.addressees(&room[..length]) {
            self.with(now, rank, |pool| pool.datagram(now, port, &room[..length]));
        }
        Ok(())
    }

    /// Which ranks a datagram is for.
    fn addressees(&mut self, datagram: &[u8]) -> Vec<u32> {
        let Some(key) = self.key else { return vec![] };
        let Decoded::Ours(envelope) = decode(datagram, &key, 0) else { return vec![] };
        let from = envelope.from;
        let of = |id: Id, attempts: &HashMap<Id, u32>| {
            if id.initiator == from { attempts.get(&id).copied() } else { Some(id.initiator) }
        };
        match envelope.message {
            Message::Register { .. } => vec![leader_of(from, BLOCK)],
            Message::SeekLeader { leader } if leader_of(from, BLOCK) == from => {
                vec![teller(from, leader, self.size, BLOCK)]
            }
            Message::SeekLeader { .. } => vec![leader_of(from, BLOCK)],
            // Leaders that have not asked do not hear it; the other ranks of this process never ask.
            Message::LeaderFound { .. } => {
                let end = self.first + self.members.len() as u32;
                (self.first..end).step_by(BLOCK as usize).collect()
            }
            Message::Lookup { rank } => vec![leader_of(rank, BLOCK)],
            Message::Registered | Message::Refused => self.registering.into_iter().collect(),
            Message::Found { rank, .. } => self.seekers.remove(&rank).unwrap_or_default(),
            Message::Connect { id, to, .. } => {
                self.attempts.insert(id, to);
                vec![to]
            }
            Message::Accept { id, .. }
            | Message::Ready { id }
            | Message::Busy { id }
            | Message::Wait { id, .. }
            | Message::Stale { id }
            | Message::Disconnect { id, .. }
            | Message::Disconnected { id, .. } => of(id, &self.attempts).into_iter().collect(),
        }
    }
}

/// Bytes that nobody can guess.
fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::new(format!("getrandom failed: {error}")))?;
    Ok(bytes)
}
