//! Answers to QPs that another thread has in hand. They are set aside, in their order, so that other QPs of the pair go
//! on.

use super::connection::Connection;
use super::pair::encode;
use super::payload::copy_out;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_carrier::Foreign;
use vervain_hca::qp::remote::SenderAccess;
use vervain_hca::{Qp, now_ns};
use vervain_transport::{Data, Service};
use vervain_window::pairs::ring::HEADERS;
use vervain_wire::{Packet, parse_headers};

/// Most answers that are set aside.
const MOST: usize = 1024;
/// Most nanoseconds that a request waits for answers that came before it: a thread that posts has finished its put by
/// then.
const CATCH_UP_NS: u64 = 500_000;

/// The answers that are set aside.
#[derive(Default)]
pub struct DeferredAnswers(VecDeque<DeferredAnswer>);

struct DeferredAnswer {
    connection: Arc<Connection>,
    headers: [u8; HEADERS],
    payload: Vec<u8>,
    /// Bytes that are at their destination already; None: the payload is here.
    landed: Option<usize>,
}

impl DeferredAnswers {
    /// Returns true if there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Handles an answer to a QP, or sets it aside where another thread has that in hand, and has it counted by
    /// `count`. False if there are too many: it is to be looked at again.
    pub fn handle(
        &mut self,
        connection: &Arc<Connection>,
        qp: &Qp,
        packet: &Packet<'_, Foreign>,
        landed: bool,
        count: impl FnOnce(),
    ) -> bool {
        if connection.path.deferred.load(Ordering::Relaxed) == 0
            && connection.response(qp, packet) != SenderAccess::Busy
        {
            count();
            return true;
        }
        // A thread may have the QP in the midst of a batch (`ibv_wr_start`) and wait for another QP of this pair.
        if self.0.len() >= MOST {
            return false;
        }
        count();
        let mut bytes = Vec::new();
        if landed || copy_out(packet.payload, &mut bytes) {
            connection.path.deferred.fetch_add(1, Ordering::Relaxed);
            let landed = landed.then_some(packet.payload.length());
            let (connection, headers) = (Arc::clone(connection), encode(&packet.headers));
            self.0.push_back(DeferredAnswer { connection, headers, payload: bytes, landed });
        }
        true
    }

    /// Handles answers that came before a request of the same peer first, and waits for that for a moment: a thread
    /// that posts holds the QP during its put, and a program that sees a message must find its own Sends completed that
    /// the peer acknowledged before. A thread in the middle of a batch may hold the QP for longer, and wait for later
    /// messages.
    #[inline]
    pub fn catch_up(&mut self, connection: &Connection) {
        if self.0.is_empty() {
            return;
        }
        // With XRC, the QPs that send and those that receive differ.
        let precedes = |other: &Connection| {
            let (other_peer, peer) = (&other.path.peer, &connection.path.peer);
            other_peer.own_qpn == peer.own_qpn
                || [connection, other].iter().all(|it| it.terms().service == Service::Xrc)
                    && other_peer.process == peer.process
        };
        let end = now_ns() + CATCH_UP_NS;
        loop {
            self.retry();
            if !self.0.iter().any(|deferred| precedes(&deferred.connection)) || now_ns() >= end {
                return;
            }
            // This thread may have taken the other's CPU.
            std::thread::yield_now();
        }
    }

    /// Tries them again.
    pub fn retry(&mut self) {
        let mut busy: Vec<u32> = Vec::new();
        self.0.retain(|DeferredAnswer { connection, headers, payload, landed }| {
            let again = match (connection.qp().upgrade(), parse_headers(headers, landed.unwrap_or(payload.len()))) {
                (Some(qp), _) if busy.contains(&qp.qp_num()) => true,
                (Some(qp), Ok(headers)) => {
                    let payload = match landed {
                        Some(len) => Foreign::landed(*len),
                        // SAFETY: the bytes are not touched until the call is over.
                        None => unsafe { Foreign::new(payload.as_ptr(), payload.len()) },
                    };
                    let packet = Packet { headers, payload: &payload };
                    let is_busy = connection.response(&qp, &packet) == SenderAccess::Busy;
                    if is_busy {
                        busy.push(qp.qp_num());
                    }
                    is_busy
                }
                _ => false,
            };
            if !again {
                connection.path.deferred.fetch_sub(1, Ordering::Relaxed);
            }
            again
        });
    }
}
