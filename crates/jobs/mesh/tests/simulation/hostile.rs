//! Datagrams that no rank of the job should have sent.

use std::time::Duration;

use vervain_mesh::Event;
use vervain_mesh::protocol::{Decoded, Id, MAX_DATAGRAM, Message, VERSION, decode};

use crate::fabric::{door, doors};
use crate::few::{Few, LANES, encoded, ours};
use crate::world::{EPOCH, KEY};

#[test]
fn another_version_is_one_sentence() {
    let mut few = Few::new(2);
    let mut other = encoded(&KEY, EPOCH, 0, Message::Lookup { rank: 1 });
    other[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    for _ in 0..3 {
        few.deliver((door(1, 0), other.clone()));
    }
    let events = few.events(1);
    let [Event::Failed { error, .. }] = &events[..] else { panic!("{events:?}") };
    assert!(error.to_string().starts_with("two versions of Vervain are in one job"), "{error}");
}

/// Messages with the right key that no rank of the job says.
fn wrong(rng: &mut fastrand::Rng) -> Vec<u8> {
    let id = Id { initiator: rng.u32(0..20), color: rng.u32(0..5), nonce: rng.u64(1 << 40..) };
    let hello: &[u8] = &[9; 64];
    let message = match rng.u32(0..12) {
        0 => Message::Registered,
        1 => Message::Refused,
        2 => Message::Lookup { rank: rng.u32(16..) },
        3 => Message::Found { rank: rng.u32(6..20), doors: doors(3, 1) },
        4 => Message::Connect { id, to: rng.u32(2..), lanes: LANES, hello },
        5 => Message::Connect { id: Id { color: rng.u32(2..), ..id }, to: 1, lanes: LANES, hello },
        6 => Message::Accept { id: Id { initiator: 0, ..id }, lanes: LANES, hello },
        7 => Message::Ready { id },
        8 => Message::Busy { id },
        9 => Message::Stale { id },
        10 => Message::Disconnect { id, sent: rng.u32(..), round: 0 },
        _ => Message::Disconnected { id, sent: rng.u32(..) },
    };
    encoded(&KEY, EPOCH, if rng.bool() { rng.u32(2..16) } else { rng.u32(16..) & 0xf_ffff }, message)
}

#[test]
fn hostile_datagrams_change_nothing() {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut few = Few::new(2);
    let link = few.open(1, 0);
    few.pools[1].want(few.now, 5, 0);
    few.exchange();
    for round in 0..200_000 {
        let bytes: Vec<u8> = match round % 3 {
            0 => (0..rng.usize(0..=MAX_DATAGRAM)).map(|_| rng.u8(..)).collect(),
            1 => {
                // With a right header, and any body.
                let mut bytes = encoded(&KEY, EPOCH, 0, Message::Registered);
                bytes.truncate(26);
                bytes.extend((0..rng.usize(0..=MAX_DATAGRAM - 26)).map(|_| rng.u8(..) >> rng.u32(0..8)));
                // A message that it might send by chance must not be of a rank of this job.
                if let Decoded::Ours(envelope) = decode(&bytes, &KEY, EPOCH)
                    && envelope.from < 16
                {
                    continue;
                }
                bytes
            }
            _ => wrong(&mut rng),
        };
        few.pools[1].datagram(few.now, 0, &bytes);
    }
    assert_eq!(few.events(1), []);
    assert!(few.pools[1].is_open(link) && few.pools[1].registered());
    assert_eq!(few.pools[1].links().count(), 1);
    few.sent(1);
    few.pools[1].want(few.now, 7, 0);
    let asked = few.sent(1).remove(0);
    assert!(matches!(ours(&asked.1).message, Message::Lookup { rank: 7 }), "nothing was learned of what was not asked");
}

#[test]
fn a_flood_of_connects_does_not_take_what_is_held() {
    let mut rng = fastrand::Rng::with_seed(12);
    let mut few = Few::new(3);
    let held = few.open(1, 0);
    few.pools[1].hold(held);
    for nonce in 0..20_000 {
        let from = rng.u32(2..16);
        let id = Id { initiator: from, color: rng.u32(0..2), nonce };
        let connect = Message::Connect { id, to: 1, lanes: LANES, hello: b"" };
        few.pools[1].datagram(few.now, 0, &encoded(&KEY, EPOCH, from, connect));
    }
    assert!(few.pools[1].is_open(held) && few.pools[1].links().count() <= 2);
    // None of them answers the Accept.
    few.sent(1);
    few.pass(Duration::from_secs(1));
    assert!(few.sent(1).len() < 200);
}
