//! Saving a context and bringing it back, which all nodes do together.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::agree::Meeting;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::image::{Image, Kind, SaveId, SavedCopy, SavedPeer, check_file};
use crate::locks::AddrHandle;
use crate::nodes::Counts;
use crate::shared::Shared;
use crate::standing;

/// Between two looks at what has not come yet, and how long it may take: it has been received by the device.
const LOOK: Duration = Duration::from_micros(50);
const PATIENCE: Duration = Duration::from_secs(30);

/// Numbers of messages that a node has sent, or has, by the numbers of nodes; for the others.
#[derive(Serialize, Deserialize)]
pub(crate) struct Counted(pub Vec<(u32, u64)>);

/// Facts about a node's image for the others: the save that it is of, the numbers of messages sent by then, and the
/// keys in handles of its memory with the present ones.
#[derive(Serialize, Deserialize)]
struct Claim {
    save: SaveId,
    sent: Vec<(u32, u64)>,
    keys: Vec<(u32, u32)>,
}

pub(crate) fn told<T: Serialize>(what: &T) -> Result<Vec<u8>> {
    postcard::to_allocvec(what).map_err(|error| Error::broken(format!("nodes cannot be told: {error}")))
}

pub(crate) fn heard<T: for<'a> Deserialize<'a>>(node: u32, bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| Error::broken(format!("node {node} tells something else: {error}")))
}

pub(crate) fn count_for(node: u32, all: &[(u32, u64)]) -> u64 {
    all.iter().find(|(to, _)| *to == node).map_or(0, |(_, count)| *count)
}

fn sent(engine: &Engine) -> Vec<(u32, u64)> {
    engine
        .nodes
        .counts()
        .into_iter()
        .filter(|(_, counts)| counts.sent > 0)
        .map(|(node, counts)| (node, counts.sent))
        .collect()
}

/// Waits until all messages are here that all nodes have announced as sent to this one: the device has received them,
/// and reports them a little later.
fn await_sent(shared: &Shared, meeting: &Meeting<'_>, nodes: u32, own: u32) -> Result<()> {
    let since = Instant::now();
    for node in 0..nodes {
        let Counted(all) = heard(node, &meeting.told(node)?)?;
        let wanted = count_for(own, &all);
        loop {
            let mut engine = shared.lock();
            engine.look_for_messages();
            engine.nodes.check()?;
            let found =
                engine.nodes.counts().iter().find(|(from, _)| *from == node).map_or(0, |(_, counts)| counts.received);
            drop(engine);
            if found == wanted {
                break;
            }
            if since.elapsed() > PATIENCE {
                return Err(Error::broken(format!(
                    "{wanted} messages were sent by node {node}, and {found} have come"
                )));
            }
            thread::sleep(LOOK);
        }
    }
    Ok(())
}

/// The image, without the requests that the device has in progress.
pub(crate) fn image(engine: &Engine, kind: Kind, save: SaveId) -> Image {
    let peers = engine.nodes.counts().into_iter();
    Image {
        kind,
        save,
        node: engine.nodes.rank,
        nodes: engine.nodes.size,
        mtu: engine.sends.mtu() as u32,
        peers: peers.map(|(node, Counts { sent, received })| SavedPeer { node, sent, received }).collect(),
        messages: engine.inbox.saved(),
        locks: engine.locks.saved(),
        unsent: engine.rest.unsent.as_deref().cloned().unwrap_or_default(),
    }
}

/// Stops, and waits until what this node has sent is with the others, who do the same.
pub(crate) fn await_rest(shared: &Shared) -> Result<()> {
    shared.with(Engine::settle)?;
    shared.kick();
    loop {
        match shared.with(Engine::check_settled) {
            Err(error) if error.is_temporary() => thread::sleep(LOOK),
            done => return done,
        }
    }
}

/// Writes an image of the context, of the save that node 0 gives a number to.
pub(crate) fn save(shared: &Shared, turn: &mut u32, file: Result<BorrowedFd<'_>>) -> Result<()> {
    let mut meeting = Meeting::new(&shared.job, shared.epoch, turn);
    let ready = file.and_then(|file| {
        check_file(file)?;
        shared.with(|engine| {
            engine.check_stopped()?;
            engine.check_hands()?;
            // Messages that others have sent before must still be taken.
            engine.settle()
        })?;
        Ok((file, random()?))
    });
    shared.kick();
    let (file, id) = meeting.all_have("save its context", ready)?;
    let id = meeting.told_by_first(&id)?;
    let id = SaveId::try_from(&*id).map_err(|_| Error::broken("node 0 has not named the save"))?;
    let before = shared.with(|engine| engine.rest.withheld);
    let image = match standing::image(shared, &mut meeting, id)? {
        Some(image) => Ok(image),
        None => drained(shared, &mut meeting, id),
    };
    let stood_still = image.as_ref().is_ok_and(|image| image.kind == Kind::StoodStill);
    let written = meeting.all_have("write its image", image.and_then(|image| image.write(file)));
    if written.is_err() || !stood_still {
        // No image has what was under way.
        shared.with(|engine| engine.rest.withheld = before);
    }
    written
}

/// The image of this node where not all can have their devices stand still: all that was sent is let arrive, so that
/// nothing is left in queues and on the wire. It works on any device.
fn drained(shared: &Shared, meeting: &mut Meeting<'_>, id: SaveId) -> Result<Image> {
    let (own, nodes) = (shared.job.rank(), shared.job.size());
    meeting.all_have("come to rest", await_rest(shared))?;
    let all_sent = shared.with(|engine| sent(engine));
    meeting.tell(&told(&Counted(all_sent))?)?;
    await_sent(shared, meeting, nodes, own)?;
    shared.with(|engine| {
        engine.check_hands()?;
        engine.inbox.keep(&mut engine.nodes);
        Ok(image(engine, Kind::Drained, id))
    })
}

fn random() -> Result<SaveId> {
    let (mut id, mut filled) = (SaveId::default(), 0);
    while filled < id.len() {
        match rustix::rand::getrandom(&mut id[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::broken(format!("no random number: {error}"))),
        }
    }
    Ok(id)
}

/// Reads an image, and whether it fits this context: the keys in handles of memory, and those that it has now.
fn read(shared: &Shared, file: BorrowedFd<'_>) -> Result<(Image, Vec<(u32, u32)>)> {
    let image = Image::read(file)?;
    let (node, nodes) = (shared.job.rank(), shared.job.size());
    shared.with(|engine| {
        engine.check_hands()?;
        if (image.node, image.nodes, image.mtu as usize) != (node, nodes, engine.sends.mtu()) {
            return Err(Error::invalid(format!(
                "the image is of node {} of {} with an MTU of {}, and this is node {node} of {nodes} with {}",
                image.node,
                image.nodes,
                image.mtu,
                engine.sends.mtu()
            )));
        }
        let keys = engine.locks.keys_of(&image.locks)?;
        Ok((image, keys))
    })
}

/// Makes the context what an image says. All nodes have theirs of the same save.
pub(crate) fn restore(shared: &Shared, turn: &mut u32, file: Result<BorrowedFd<'_>>) -> Result<()> {
    let before = shared.with(|engine| (engine.rest.is_stopped, engine.rest.keeps));
    let restored = try_restore(shared, turn, file);
    if restored.is_err() {
        shared.with(|engine| (engine.rest.is_stopped, engine.rest.keeps) = before);
    }
    restored
}

fn try_restore(shared: &Shared, turn: &mut u32, file: Result<BorrowedFd<'_>>) -> Result<()> {
    let (own, nodes) = (shared.job.rank(), shared.job.size());
    let mut meeting = Meeting::new(&shared.job, shared.epoch, turn);
    let image = file.and_then(|file| read(shared, file)).and_then(|image| await_rest(shared).map(|()| image));
    let (image, keys) = meeting.all_have("read its image", image)?;
    // Messages of this life must be here, so that none of them comes later; then they are forgotten.
    let all_sent = shared.with(|engine| sent(engine));
    meeting.tell(&told(&Counted(all_sent))?)?;
    let here = await_sent(shared, &meeting, nodes, own);
    meeting.all_have("receive what is under way", here)?;

    let of_image = image.peers.iter().map(|peer| (peer.node, peer.sent)).collect();
    meeting.tell(&told(&Claim { save: image.save, sent: of_image, keys })?)?;
    let fits = far_keys(&meeting, &image, own, nodes);
    let far = meeting.all_have("use its image", fits)?;
    shared.with(|engine| become_image(engine, image, far));
    shared.kick();
    meeting.tell(&[0])
}

/// The memory that other nodes have locked.
struct Far {
    /// The keys in handles that are known by other ones now.
    changed: HashMap<(u32, u32), u32>,
    /// All keys in handles.
    all: HashSet<(u32, u32)>,
}

/// Checks that the images of other nodes fit the own one; returns the keys of their memory.
fn far_keys(meeting: &Meeting<'_>, image: &Image, own: u32, nodes: u32) -> Result<Far> {
    let mut far = Far { changed: HashMap::new(), all: HashSet::new() };
    for node in 0..nodes {
        let claim: Claim = heard(node, &meeting.told(node)?)?;
        let received = image.peers.iter().find(|peer| peer.node == node).map_or(0, |peer| peer.received);
        if claim.save != image.save || count_for(own, &claim.sent) != received {
            return Err(Error::new(
                libc::ESTALE,
                format!("the images of node {node} and of this one are of different saves"),
            ));
        }
        far.all.extend(claim.keys.iter().map(|(key, _)| (node, *key)));
        let changed = claim.keys.into_iter().filter(|(key, now)| key != now);
        far.changed.extend(changed.map(|(key, now)| ((node, key), now)));
    }
    Ok(far)
}

/// Makes the context what the image says, which fits it.
fn become_image(engine: &mut Engine, image: Image, far: Far) {
    let counts = image.peers.iter().map(|peer| (peer.node, peer.counts())).collect();
    engine.locks.become_restored(&image.locks);
    let mut unsent = image.unsent;
    // A key that stands in no handle of the node's may be that of any memory there by now.
    let is_locked = |copy: &SavedCopy| far.all.contains(&(copy.node, AddrHandle(copy.remote).key()));
    let (copies, refused): (Vec<_>, Vec<_>) = unsent.copies.into_iter().partition(is_locked);
    unsent.copies = copies;
    engine.become_restored(counts, &image.messages, unsent, far.changed);
    refused.iter().for_each(|copy| engine.rdma.refuse(copy));
}
