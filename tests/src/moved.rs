//! The program at each end of the tests of processes whose addresses change (`tests/tests/moved.rs`). It sends and answers by QPs of
//! several kinds, checks every byte, and knows its peer by the GIDs only that both had at the beginning. It is told by lines of its input
//! what to do, and answers by lines of its output; its first argument says whether it is the one that begins a round.

use std::io::{BufRead, stdin};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use vervain_rdma::{
    Access, Ah, Completion, Context, Cq, Endpoint, GRH_BYTES, Gid, Library, Opcode, PathOptions, Pd, Qp, RecvRequest,
    Region, SendRequest, Transport, sender_gid,
};

/// The kinds of QP, the GID that each leaves with, and bytes of its messages.
const KINDS: [(Transport, u8, usize); 4] =
    [(Transport::Rc, 0, 9_000), (Transport::Ud, 0, 500), (Transport::Uc, 0, 5_000), (Transport::Rc, 1, 3_000)];
/// Where what is sent lies, behind what is received.
const OUT: usize = 16 << 10;
const QKEY: u32 = 0x47;
/// After this a message that may be lost is sent again.
const LOST: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_micros(300);

/// Runs the end: status 0 when its input ends, or 3 with a sentence.
pub fn main() -> ExitCode {
    match run(std::env::args().nth(1).as_deref() == Some("first")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("end: {error}");
            ExitCode::from(3)
        }
    }
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A QP and its peer.
struct End {
    transport: Transport,
    bytes: usize,
    cq: Cq,
    region: Region,
    qp: Qp,
    path: PathOptions,
    peer: Option<(Endpoint, Option<Ah>)>,
    /// The GID by which the peer was known first.
    sender: Option<Gid>,
    rounds: u64,
}

impl End {
    fn new(pd: &Pd, (transport, gid, bytes): (Transport, u8, usize)) -> Result<End> {
        let context = pd.context();
        let cq = Cq::new(context, 64, None, 0)?;
        let region = pd.region(2 * OUT, Access::REMOTE)?;
        let qp = Qp::builder(transport, pd, &cq, &cq).build()?;
        let path = PathOptions { gid_index: Some(gid), timeout: 17, ..PathOptions::of(context, 1)? };
        if transport == Transport::Ud {
            qp.activate(&path, QKEY)?
        } else {
            qp.init(&path, Access::REMOTE)?
        }
        let end = End { transport, bytes, cq, region, qp, path, peer: None, sender: None, rounds: 0 };
        end.receive()?;
        Ok(end)
    }

    fn endpoint(&self) -> Result<Endpoint> {
        Ok(self.qp.endpoint(&self.path)?)
    }

    fn connect(&mut self, pd: &Pd, peer: Endpoint) -> Result<()> {
        let ah = if self.transport == Transport::Ud {
            Some(Ah::new(pd, &peer, &self.path)?)
        } else {
            self.qp.connect(&peer, &self.path)?;
            None
        };
        self.sender = self.sender.or(peer.gid);
        self.peer = Some((peer, ah));
        Ok(())
    }

    fn receive(&self) -> Result<()> {
        Ok(self.qp.receive(RecvRequest::new(&[self.region.slice(0..OUT)]))?)
    }

    /// The bytes of the message of a round.
    fn message(&self, round: u64) -> Vec<u8> {
        let text = (0..).map(|at: u64| (round.wrapping_mul(31).wrapping_add(at.wrapping_mul(7) >> 2)) as u8);
        round.to_ne_bytes().into_iter().chain(text).take(self.bytes).collect()
    }

    fn send(&self, round: u64) -> Result<()> {
        let (peer, ah) = self.peer.as_ref().ok_or("nobody is there")?;
        self.region.write(OUT, &self.message(round));
        let sges = [self.region.slice(OUT..OUT + self.bytes)];
        let request = match ah {
            Some(ah) => SendRequest::datagram(&sges, ah, peer.qpn, QKEY),
            None => SendRequest::send(&sges),
        };
        Ok(self.qp.post(request.signaled())?)
    }

    /// The round of a message that has come, checked.
    fn take(&self) -> Result<Option<u64>> {
        let mut done = [Completion::default()];
        if self.cq.poll(&mut done)? == 0 {
            return Ok(None);
        }
        let [done] = done;
        if !done.is_success() {
            return Err(format!("{:?} of QP {:#x}: {}", self.transport, self.qp.number(), done.status()).into());
        }
        if done.opcode() != Opcode::Receive {
            return Ok(None);
        }
        let header = if self.transport == Transport::Ud { GRH_BYTES } else { 0 };
        let mut bytes = vec![0; self.bytes];
        self.region.read(header, &mut bytes);
        let round = bytes.first_chunk().map_or(0, |first| u64::from_ne_bytes(*first));
        if done.bytes() as usize != header + self.bytes || bytes != self.message(round) {
            return Err(format!("a message of {:?} has other bytes than it should", self.transport).into());
        }
        if header != 0 {
            let mut grh = [0; GRH_BYTES];
            self.region.read(0, &mut grh);
            if sender_gid(&grh) != self.sender {
                return Err(format!("a datagram is from {:?}, not {:?}", sender_gid(&grh), self.sender).into());
            }
        }
        self.receive()?;
        Ok(Some(round))
    }

    /// Sends a message and waits for the answer.
    fn begin_round(&mut self, commands: &Commands) -> Result<()> {
        let round = self.rounds + 1;
        self.send(round)?;
        let mut since = Instant::now();
        loop {
            match self.take()? {
                // An answer to what was sent twice.
                Some(answer) if answer < round => {}
                Some(answer) if answer == round => break,
                Some(answer) => return Err(format!("an answer to {answer} in round {round}").into()),
                None => thread::sleep(NAP),
            }
            if !matches!(self.transport, Transport::Rc) && since.elapsed() > LOST {
                self.send(round)?;
                since = Instant::now();
            }
            if commands.have_ended() {
                return Ok(());
            }
        }
        self.rounds = round;
        Ok(())
    }

    /// Answers what has come.
    fn answer(&mut self) -> Result<bool> {
        let Some(round) = self.take()? else { return Ok(false) };
        self.rounds = round;
        self.send(round)?;
        Ok(true)
    }
}

/// Lines of the input.
struct Commands(Receiver<String>, std::cell::Cell<Option<String>>, std::cell::Cell<bool>);

impl Commands {
    fn read() -> Commands {
        let (send, receive) = channel();
        thread::spawn(move || {
            stdin().lock().lines().map_while(std::io::Result::ok).try_for_each(|line| send.send(line))
        });
        Commands(receive, std::cell::Cell::default(), std::cell::Cell::default())
    }

    fn wait(&self) -> Result<String> {
        match self.1.take() {
            Some(line) => Ok(line),
            None => Ok(self.0.recv()?),
        }
    }

    fn next(&self) -> Option<String> {
        self.have_ended();
        self.1.take()
    }

    /// Whether no more come. One that has come is kept.
    fn have_ended(&self) -> bool {
        if let Some(line) = self.1.take() {
            self.1.set(Some(line));
            return false;
        }
        match self.0.try_recv() {
            Ok(line) => self.1.set(Some(line)),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => self.2.set(true),
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
        }
        self.2.get()
    }
}

fn run(is_first: bool) -> Result<()> {
    let commands = Commands::read();
    let context = Context::open(&Library::load()?, None)?;
    context.set_async_nonblocking(true)?;
    let pd = Pd::new(&context)?;
    let mut ends = KINDS.into_iter().map(|kind| End::new(&pd, kind)).collect::<Result<Vec<_>>>()?;
    introduce(&pd, &mut ends, &commands)?;
    let mut events = Vec::new();
    loop {
        let mut any = false;
        for end in &mut ends {
            if is_first { end.begin_round(&commands)? } else { any |= end.answer()? }
        }
        while let Some(event) = context.next_async_event()? {
            events.push(event.kind);
        }
        match commands.next().as_deref() {
            Some("rounds") => println!("{}", ends.iter().map(|end| end.rounds).min().unwrap_or_default()),
            Some("gids") => {
                let gids: Vec<_> = context.gids()?.into_iter().map(|entry| (entry.index, entry.gid.ip())).collect();
                println!("{gids:?} {:?} {events:?}", context.port(1)?.state);
            }
            // Connections with the GIDs that the program has known from the beginning, or with those that it is told.
            Some("more") => {
                let from = ends.len();
                for (n, kind) in KINDS.into_iter().enumerate() {
                    ends.push(End { sender: ends[n].sender, ..End::new(&pd, kind)? });
                }
                introduce(&pd, &mut ends[from..], &commands)?;
            }
            Some(other) => return Err(format!("`{other}` is nothing to do").into()),
            None if commands.have_ended() => return Ok(()),
            None if any || is_first => {}
            None => thread::sleep(NAP),
        }
    }
}

/// Tells the peer of these ends, and connects them to its own.
fn introduce(pd: &Pd, ends: &mut [End], commands: &Commands) -> Result<()> {
    let own = ends.iter().map(End::endpoint).collect::<Result<Vec<_>>>()?;
    println!("{}", serde_json::to_string(&own)?);
    let peers: Vec<Endpoint> = serde_json::from_str(&commands.wait()?)?;
    ends.iter_mut().zip(peers).try_for_each(|(end, peer)| end.connect(pd, peer))
}

/// The same endpoints, known by other addresses.
///
/// # Panics
/// When these are none.
pub fn known_by(endpoints: &str, other: impl Fn(std::net::IpAddr) -> std::net::IpAddr) -> String {
    let mut all: Vec<Endpoint> = serde_json::from_str(endpoints).expect("endpoints");
    for endpoint in &mut all {
        endpoint.gid = endpoint.gid.map(|gid| Gid::from(other(gid.ip())));
    }
    serde_json::to_string(&all).expect("text")
}
