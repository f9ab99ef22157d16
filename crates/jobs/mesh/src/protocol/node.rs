//! This rank, as every part of the pool needs it: its configuration and devices, what it sends, and the events for its
//! owner.

use std::collections::VecDeque;

use super::message::{Decoded, Envelope, Key, MAX_DATAGRAM, Message, decode, encode};
use super::{Config, Fabric};
use crate::address::Door;
use crate::error::Error;
use crate::options::Event;

pub struct Node<F> {
    pub config: Config,
    pub fabric: F,
    pub rng: fastrand::Rng,
    key: Option<Key>,
    events: VecDeque<Event>,
}

impl<F: Fabric> Node<F> {
    pub fn new(config: Config, fabric: F) -> Self {
        let rng = fastrand::Rng::with_seed(config.seed);
        Self { config, fabric, rng, key: None, events: VecDeque::new() }
    }

    /// The job's key: from now on datagrams are heard and sent.
    pub fn set_key(&mut self, key: Key) {
        self.key = Some(key);
    }

    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// A datagram that has come; None before there is a key.
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> Option<Decoded<'a>> {
        Some(decode(bytes, &self.key?, self.config.epoch))
    }

    /// Sends a message from `port`.
    pub fn say(&mut self, port: usize, to: &Door, message: Message<'_>) {
        say(&mut self.fabric, &self.config, self.key, port, to, message);
    }

    /// Sends the message that `message` makes of this rank's hello.
    pub fn say_hello(&mut self, port: usize, to: &Door, message: impl FnOnce(&[u8]) -> Message<'_>) {
        say(&mut self.fabric, &self.config, self.key, port, to, message(&self.config.hello));
    }

    /// The port that connections of this color leave by.
    pub fn port_for(&self, color: u32) -> usize {
        color.min(self.config.colors - 1) as usize
    }

    pub fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub fn fail(&mut self, rank: u32, color: u32, error: Error) {
        self.report(Event::Failed { rank, color, error });
    }

    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// [`Node::say`], for when a part of the configuration is in the message.
fn say<F: Fabric>(fabric: &mut F, config: &Config, key: Option<Key>, port: usize, to: &Door, message: Message<'_>) {
    let Some(key) = key else { return };
    let envelope = Envelope { from: config.rank, door: config.doors.of(port as u32), message };
    let mut room = [0; MAX_DATAGRAM];
    fabric.send(port, to, encode(&mut room, &key, config.epoch, &envelope));
}
