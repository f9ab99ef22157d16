//! The state of a context behind its lock: connections, buffers, requests in progress. None of its functions waits. The
//! program's calls move it on; so does the context's thread if a peer waits for this side of a connection.

use std::collections::HashMap;
use std::time::Instant;

use vervain_mesh::{Link, Mesh};
use vervain_rdma::Completion;

use crate::error::{Error, Result};
use crate::image::SavedMessage;
use crate::locks::Locks;
use crate::nodes::{COLOR, Counts, Nodes, PORT, QUEUE};
use crate::rdma::{RDMA, Rdma};
use crate::receive::Inbox;
use crate::rest::{Rest, Withheld};
use crate::send::SendBuffers;
use crate::settings::Settings;
use crate::unsent::Unsent;

const NOT_STOPPED: Error = Error::plain(libc::EINVAL, "sending was not stopped");
const IN_FLIGHT: Error = Error::plain(libc::EBUSY, "messages, writes or reads are still under way");

/// Completions that are taken by one call.
const BATCH: usize = 16;

pub(crate) struct Engine {
    pub nodes: Nodes,
    pub sends: SendBuffers,
    pub inbox: Inbox,
    pub locks: Locks,
    pub rdma: Rdma,
    /// How it stands still, and what was brought back meanwhile.
    pub rest: Rest,
    /// The context is being closed: what comes is given back.
    pub discarding: bool,
    done: [Completion; BATCH],
}

impl Engine {
    /// An engine on an open mesh.
    pub fn new(mesh: Mesh, settings: &Settings) -> Result<Engine> {
        let port = &mesh.ports()[PORT];
        let sends = settings.sends();
        let buffers = port.pd.region(sends * settings.mtu, vervain_rdma::Access::LOCAL_WRITE)?;
        let inline = settings.inline.min(port.max_inline() as usize);
        let mut engine = Engine {
            sends: SendBuffers::new(buffers, sends, settings.mtu, inline),
            inbox: Inbox::new(settings.receives(), settings.shared),
            locks: Locks::new(port.pd.clone()),
            rdma: Rdma::default(),
            rest: Rest::default(),
            discarding: false,
            done: [Completion::default(); BATCH],
            nodes: Nodes::new(mesh, settings.connections),
        };
        engine.inbox.window.arm_limit(&mut engine.nodes.mesh)?;
        Ok(engine)
    }

    /// Requests that are with the device.
    #[inline]
    pub fn under_way(&self) -> bool {
        self.sends.under_way() || self.rdma.under_way()
    }

    /// The connection to a node; without one it is asked for, and there will be one.
    #[inline]
    pub fn connection(&mut self, node: u32) -> Option<Link> {
        self.nodes.find(node).or_else(|| self.connect(node))
    }

    #[cold]
    fn connect(&mut self, node: u32) -> Option<Link> {
        self.nodes.mesh.want(node, COLOR);
        self.nodes.look_for_peers();
        // One that has just been made is used first: else it might be closed at once, for another one that is wanted.
        let found = self.nodes.find(node);
        if found.is_none() {
            // Also where nothing has come: what was asked is to be asked again.
            self.nodes.progress(Instant::now());
            self.make_way();
        }
        found
    }

    /// Takes what has come out of its receives, where senders wait for one and connections wait for these senders: one
    /// closes when what was sent by it has come. A program that tries again until it is connected, or computes, may not
    /// receive meanwhile.
    pub fn make_way(&mut self) {
        while self.inbox.is_used_up() && (self.nodes.mesh.is_draining() || self.inbox.kept() < self.most_kept()) {
            self.inbox.keep(&mut self.nodes);
            if !self.look_for_messages() {
                return;
            }
        }
    }

    /// The most messages that can be in progress at a time. A sender that goes on is to wait for the program, unless
    /// its connection closes.
    fn most_kept(&self) -> usize {
        self.nodes.most_connections() * (QUEUE as usize + self.inbox.window.all())
    }

    /// Looks at all that may have happened.
    pub fn look(&mut self) {
        self.look_for_messages();
        self.look_for_completions();
        self.nodes.look_for_peers();
    }

    /// Looks for messages; says whether some have come.
    #[inline]
    pub fn look_for_messages(&mut self) -> bool {
        match self.inbox.poll(&mut self.nodes) {
            Ok(0) => false,
            Ok(_) => {
                if self.rest.keeps {
                    self.inbox.keep(&mut self.nodes);
                }
                self.nodes.attend();
                true
            }
            Err(error) => {
                self.nodes.fail(error);
                false
            }
        }
    }

    /// Looks for what has become of this node's requests; says whether there was something.
    #[inline]
    pub fn look_for_completions(&mut self) -> bool {
        let found = match self.nodes.mesh.ports()[PORT].data.poll(&mut self.done) {
            Ok(0) => return false,
            Ok(found) => found,
            Err(error) => {
                self.nodes.fail(error.into());
                return false;
            }
        };
        for i in 0..found {
            let completion = self.done[i];
            self.completed(&completion);
        }
        self.nodes.news.add(found as u64);
        self.nodes.attend();
        true
    }

    #[inline]
    fn completed(&mut self, completion: &Completion) {
        // Peers send no notices; a completion of a receive for one means that its connection has ended.
        if Mesh::notice(completion).is_some() {
            return;
        }
        let number = (completion.id() & !RDMA) as u32;
        let is_message = completion.id() & RDMA == 0;
        let link = if is_message { self.message_over(number) } else { self.operation_over(number, completion) };
        if !completion.is_success() {
            self.nodes.request_failed(link, is_message, completion.status());
        }
        self.nodes.mesh.release(link);
    }

    /// Stops all sending, or has it go on.
    pub fn control_send(&mut self, on: bool) -> Result<()> {
        self.nodes.check()?;
        if !on {
            self.rest.is_stopped = true;
            return Ok(());
        }
        (self.rest.is_stopped, self.rest.keeps, self.rest.withheld) = (false, false, Withheld::default());
        self.begin_unsent();
        // Wakes a program that sleeps until there is room to send.
        self.nodes.news.add(1);
        Ok(())
    }

    /// Stops all sending, and keeps what comes, until sending goes on.
    pub fn settle(&mut self) -> Result<()> {
        self.nodes.check()?;
        (self.rest.is_stopped, self.rest.keeps) = (true, true);
        self.look_for_messages();
        self.inbox.keep(&mut self.nodes);
        Ok(())
    }

    /// # Errors
    /// EINVAL: sending goes on.
    pub fn check_stopped(&self) -> Result<()> {
        self.nodes.check()?;
        if self.rest.is_stopped { Ok(()) } else { Err(NOT_STOPPED) }
    }

    /// Checks that no message, write or read of this node is in progress. Those of an image are not until they begin.
    pub fn check_settled(&mut self) -> Result<()> {
        while self.look_for_completions() {}
        self.look_for_messages();
        self.check_stopped()?;
        if self.under_way() { Err(IN_FLIGHT) } else { Ok(()) }
    }

    /// Takes the counts and messages from an image, and forgets all others.
    pub fn become_restored(
        &mut self,
        counts: Vec<(u32, Counts)>,
        messages: &[SavedMessage],
        unsent: Unsent,
        far_keys: HashMap<(u32, u32), u32>,
    ) {
        self.forget_send_buffer();
        self.discard();
        self.nodes.restore_counts(counts);
        self.inbox.restore(messages);
        self.rest.far_keys = far_keys;
        (self.rest.unsent, self.rest.withheld) = (unsent.some(), Withheld::default());
        self.rdma.forget_faults();
        self.nodes.news.add(1);
    }

    /// Returns true if there is something that may begin.
    pub fn begins(&self) -> bool {
        self.rest.unsent.is_some() && (!self.rest.is_stopped || self.discarding)
    }

    /// Begins as many of them as there is room for; returns true if none is left.
    #[cold]
    pub fn begin_unsent(&mut self) -> bool {
        if !self.begins() {
            return self.rest.unsent.is_none();
        }
        let Some(unsent) = self.rest.unsent.take() else { return true };
        self.rest.unsent = unsent.begin(self).some();
        self.rest.unsent.is_none()
    }

    /// The device says that few receives are left.
    #[cold]
    pub fn few_receives_left(&mut self) -> Result<()> {
        while self.look_for_messages() {}
        self.inbox.window.few_left(&mut self.nodes.mesh)
    }
}
