//! Record of a connection by packets of a QP that stands still, from which another one goes on in its place. It names
//! receives by their places among the outstanding ones, as another queue has other names for them.

use serde::{Deserialize, Serialize};
use vervain_hca::{Error, Qp, Result};
use vervain_transport::{SavedRequester, SavedResponder, Target, Then, Unusable};

/// State of both ends of a connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedConnection {
    /// None if the QP was never ready to send, or its requester has ended.
    pub requester: Option<SavedRequester>,
    /// The responder, whose receives are named by their places.
    pub responder: SavedResponder,
}

impl SavedConnection {
    /// The record as bytes.
    pub fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_allocvec(self).ok()
    }

    /// The record in such bytes.
    pub fn decode(bytes: &[u8]) -> Result<SavedConnection> {
        match postcard::take_from_bytes(bytes) {
            Ok((saved, [])) => Ok(saved),
            _ => Err(Error::invalid("the record of a connection is none")),
        }
    }
}

/// The receives of `saved`, and the SRQ of each: for the message that is coming in, and for one that is to be refused.
fn receives(saved: &mut SavedResponder) -> impl Iterator<Item = (u32, &mut u32, Option<&mut u64>)> {
    let coming_in = saved.message.as_mut().and_then(|message| match &mut message.target {
        Target::Receive { receive, room } => Some((message.srqn, receive, Some(room))),
        Target::Memory { .. } => None,
    });
    let refused = saved.refusal.as_mut().and_then(|refusal| match &mut refusal.then {
        Then::Spoil { srqn, receive, .. } => Some((*srqn, receive, None)),
        Then::Nothing | Then::Fail(_) => None,
    });
    coming_in.into_iter().chain(refused)
}

/// Names the receives of `saved`, which `qp` has claimed, by their places. Returns false if one has none.
pub fn name_by_places(qp: &Qp, saved: &mut SavedResponder) -> bool {
    receives(saved).all(|(srqn, receive, _)| qp.receive_place(srqn, *receive).map(|place| *receive = place).is_some())
}

/// Claims the receives at these places for `qp`, and names them by its names.
pub fn claim_places(qp: &Qp, saved: &mut SavedResponder) -> Result<()> {
    for (srqn, receive, room) in receives(saved) {
        let claimed = qp.claim_receive(srqn, *receive);
        let (name, has_room) = claimed.ok_or_else(|| Error::invalid("a message fills a receive that is not there"))?;
        *receive = name;
        room.into_iter().for_each(|room| *room = has_room);
    }
    Ok(())
}

/// The device's error for an unusable record.
pub fn unusable(why: Unusable) -> Error {
    Error::invalid(format!("the record of a connection: {why}"))
}
