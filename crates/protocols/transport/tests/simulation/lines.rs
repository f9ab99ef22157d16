//! Lines between hosts: what leaves one, and what comes to the other, in the time and with the faults of both.

use vervain_fault::Line;
use vervain_transport::Nanos;

use crate::codec;
use crate::landing::Parcel;
use crate::world::{Event, World};

impl World {
    /// Packets that the host has given out go to its line, and from there to others.
    pub fn flush(&mut self, host: usize) {
        let out = std::mem::take(&mut self.hosts[host].port.out);
        self.packets += out.len() as u64;
        for (to, parcel) in out {
            self.note(host, to, &parcel.packet);
            match self.hosts[host].transmit.as_mut() {
                Some(line) => line.push(self.now, to, &parcel.packet),
                None => self.at(self.now + self.plan.latency, Event::Arrive { from: host, host: to, parcel }),
            }
        }
        self.transmitted(host);
    }

    pub fn transmitted(&mut self, host: usize) {
        while let Some((to, packet)) = self.hosts[host].transmit.as_mut().and_then(|line| line.pop(self.now)) {
            let parcel = packet.into();
            self.at(self.now + self.plan.latency, Event::Arrive { from: host, host: to, parcel });
        }
        let next = self.hosts[host].transmit.as_ref().and_then(Line::next_timeout);
        if let Some(at) = earlier(&mut self.hosts[host].awaited.transmitted, next) {
            self.at(at, Event::Transmitted { host });
        }
    }

    pub fn received(&mut self, host: usize) {
        while let Some((from, packet)) = self.hosts[host].receive.as_mut().and_then(|line| line.pop(self.now)) {
            self.take_in(host, from, packet.into());
        }
        let next = self.hosts[host].receive.as_ref().and_then(Line::next_timeout);
        if let Some(at) = earlier(&mut self.hosts[host].awaited.received, next) {
            self.at(at, Event::Received { host });
        }
    }

    /// A host has it, and looks at it soon.
    pub fn take_in(&mut self, host: usize, from: usize, parcel: Parcel) {
        if self.hosts[host].stopped {
            return;
        }
        self.hosts[host].inbox.push_back((from, parcel));
        if !self.hosts[host].awaited.progress {
            self.hosts[host].awaited.progress = true;
            let poll = self.hosts[host].plan.poll;
            let wait = self.hosts[host].random.between(0, poll);
            self.at(self.now + wait, Event::Progress { host });
        }
    }

    fn note(&mut self, from: usize, to: usize, packet: &[u8]) {
        let tail: [u8; 4] = packet[packet.len() - 4..].try_into().expect("an ICRC");
        self.trace.note(&[self.now, (from << 8 | to) as u64, u64::from(u32::from_be_bytes(tail)), packet.len() as u64]);
        if let Some(captured) = &mut self.captured {
            captured.push((from, to, packet.to_vec()));
        }
        if self.print {
            codec::print(self.now, from, to, packet);
        }
    }
}

/// The next time, if nobody waits for an earlier one yet.
fn earlier(awaited: &mut Option<Nanos>, next: Option<Nanos>) -> Option<Nanos> {
    let next = next.filter(|&next| awaited.is_none_or(|at| next < at))?;
    *awaited = Some(next);
    Some(next)
}
