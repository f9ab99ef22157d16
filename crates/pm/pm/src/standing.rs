//! Images of devices that stand still. The nodes need not wait for messages to arrive: all have their devices stand
//! still, and save the messages that they have at that moment. A message that a node had sent by then is either with
//! the other node, which announces the number that it has, or still in a buffer of its sender's. So each node has all
//! that it needs to send it again.

use crate::agree::Meeting;
use crate::engine::Engine;
use crate::error::Result;
use crate::image::{Image, Kind, SaveId, SavedCopy, SavedMessage};
use crate::rdma::{Direction, Operation};
use crate::save::{self, Counted, count_for, heard, told};
use crate::shared::Shared;

/// The state of a node at a moment in which nothing moved.
struct Moment {
    /// All but the messages that are to be sent again.
    image: Image,
    /// Messages that the device had and had not told to be with their nodes, in the order in which they were sent.
    posted: Vec<SavedMessage>,
    /// The number of messages that have come from each node.
    received: Vec<(u32, u64)>,
}

/// The image of this node. None if not all nodes can make theirs in this way, which all learn; then nothing has
/// changed.
pub(crate) fn image(shared: &Shared, meeting: &mut Meeting<'_>, id: SaveId) -> Result<Option<Image>> {
    let still = shared.device.stand_still();
    if !meeting.all_agree(still.is_ok())? {
        return Ok(None);
    }
    // Now all of them do.
    let moment = shared.with(|engine| take(engine, id));
    let received = moment.as_ref().map_or_else(|_| Vec::new(), |moment| moment.received.clone());
    meeting.tell(&told(&Counted(received))?)?;
    // All have taken what they have: it is of no use to stand still any longer, and peers in packets do not wait for
    // ever.
    drop(still);
    let image = match moment {
        Ok(moment) => complete(moment, meeting)?,
        Err(_) => None,
    };
    if !meeting.all_agree(image.is_some())? {
        return Ok(None);
    }
    Ok(image)
}

/// Takes the state of the node while nothing moves.
fn take(engine: &mut Engine, id: SaveId) -> Result<Moment> {
    while engine.look_for_completions() {}
    while engine.look_for_messages() {}
    engine.inbox.keep(&mut engine.nodes);
    engine.nodes.check()?;
    engine.check_hands()?;
    let mut image = save::image(engine, Kind::StoodStill, id);
    let received = image.peers.iter().map(|peer| (peer.node, peer.received)).collect();
    let copies: Result<Vec<_>> =
        engine.rdma.all_under_way().iter().map(|operation| saved_copy(engine, operation)).collect();
    // Requests of an older image that have not begun come behind those that have.
    image.unsent.copies.splice(0..0, copies?);
    engine.rest.withheld.writes |= image.unsent.has(Direction::Write);
    engine.rest.withheld.reads |= image.unsent.has(Direction::Read);
    Ok(Moment { image, posted: engine.sends.posted_messages(&engine.nodes.mesh), received })
}

/// Adds the messages that are to be sent again, by the numbers that the others have. None if one has fewer than this
/// node knows to be there: a device may complete a message at its sender before it completes it at the receiver.
fn complete(moment: Moment, meeting: &Meeting<'_>) -> Result<Option<Image>> {
    let Moment { mut image, posted, .. } = moment;
    let mut again = Vec::new();
    for peer in &mut image.peers {
        let Counted(all) = heard(peer.node, &meeting.told(peer.node)?)?;
        let there = count_for(image.node, &all);
        let to_it = posted.iter().filter(|message| message.node == peer.node);
        let Some(missing) = peer.sent.checked_sub(there).and_then(|missing| usize::try_from(missing).ok()) else {
            return Ok(None);
        };
        let Some(more) = to_it.clone().count().checked_sub(missing) else { return Ok(None) };
        again.extend(to_it.skip(more).cloned());
        peer.sent = there;
    }
    image.unsent.messages.splice(0..0, again);
    Ok(Some(image))
}

/// # Errors
/// The local memory was unlocked meanwhile, so that no image has it.
fn saved_copy(engine: &Engine, operation: &Operation) -> Result<SavedCopy> {
    let Operation { link, direction, remote, local, len, .. } = *operation;
    engine.locks.find(local, len as usize)?;
    let node = engine.nodes.mesh.peer(link).0;
    Ok(SavedCopy { node, direction, remote: remote.0, local: local.0, len })
}
