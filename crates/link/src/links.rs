//! The links of a process as one: by the address it is decided whether a peer is reached by memory or in packets
//! (`VERVAIN_LINK` may force either).

use crate::local::Local;
use crate::os_error;
use crate::roce::Roce;
use rustix::event::epoll;
use rustix::fd::{AsRawFd, OwnedFd};
use std::os::fd::RawFd;
use std::sync::Arc;
use vervain_config::Config;
use vervain_hca::context::ah::Route;
use vervain_hca::device::{Device, LinkChoice, is_multicast, is_this_host};
use vervain_hca::process::imports::Wanted;
use vervain_hca::process::link::{Datagram, LaneReply, LaneRequest, Link, Member, Peer};
use vervain_hca::process::peer::PeerProcess;
use vervain_hca::process::{LinkInit, Process, keep_from_children};
use vervain_hca::qp::remote::Sender;
use vervain_hca::{AhAttr, Gid, Qp, QpAttr, Result};

/// Both links.
pub struct Links {
    local: Local,
    roce: Roce,
    choice: LinkChoice,
    devices: Vec<Arc<Device>>,
    /// Readable when either has something to do.
    epoll: OwnedFd,
}

impl Links {
    /// Makes the links of a process that has no slot yet.
    pub fn new(init: &LinkInit) -> Result<Links> {
        let choice = Config::of_process()?.link;
        let devices = vervain_hca::devices()?;
        let (local, roce) = (Local::new(init)?, Roce::new(&devices, choice == LinkChoice::Roce)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| os_error("epoll", e))?;
        keep_from_children(epoll.as_raw_fd());
        for fd in [local.events(), roce.control_fd()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN).map_err(|e| os_error("epoll", e))?;
        }
        Ok(Links { local, roce, choice, devices, epoll })
    }

    /// The link by packets.
    pub fn roce(&self) -> &Roce {
        &self.roce
    }
}

impl Link for Links {
    fn claim_slot(&self) -> Result<u32> {
        let slot = self.local.claim_slot()?;
        self.roce.add_slot(slot)?;
        Ok(slot)
    }

    fn poll_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn handle_events(&self, process: &'static Process) {
        self.local.handle_events(process);
        self.roce.handle_events();
    }

    fn route(&self, device: u32, ah: &AhAttr) -> Route {
        let roce = self.devices.get(device as usize).is_some_and(|d| d.is_ethernet());
        let here = is_this_host(&self.devices, ah);
        match self.choice {
            LinkChoice::Roce if roce => Route::Packets,
            LinkChoice::Auto if roce && is_multicast(&ah.grh.dgid) => Route::Both,
            _ if here => Route::Memory,
            LinkChoice::Auto if roce => Route::Packets,
            _ => Route::Unreachable,
        }
    }

    fn peer(&self, process: &'static Process, slot: u32) -> Peer {
        self.local.peer(process, slot)
    }

    fn initiator_lives(&self, slot: u32) -> bool {
        self.local.initiator_lives(slot)
    }

    fn lane(&self, slot: u32, request: LaneRequest) -> LaneReply {
        self.local.lane(slot, request)
    }

    fn forget_lane(&self, request: &LaneRequest) {
        self.local.forget_lane(request);
    }

    fn forget_lanes(&self, initiator: u32) {
        self.local.forget_lanes(initiator);
    }

    fn ask_channel(&self, slot: u32, channel: u32) -> bool {
        self.local.ask_channel(slot, channel)
    }

    fn channel_gone(&self, channel: u32) {
        self.local.channel_gone(channel);
    }

    fn ask_for_object(&self, space: &PeerProcess, wanted: &Wanted) -> bool {
        self.local.ask_for_object(space, wanted)
    }

    fn object_withdrawn(&self, number: u32, generation: u32) {
        self.local.object_withdrawn(number, generation);
    }

    fn join(&self, process: &'static Process, group: &Gid, qpn: u32) -> Result<()> {
        if self.choice != LinkChoice::Local {
            self.roce.join(process, group, qpn)?;
        }
        self.local.join(process, group, qpn)
    }

    fn leave(&self, process: &'static Process, group: &Gid, qpn: u32) {
        self.local.leave(process, group, qpn);
        self.roce.leave(group, qpn);
    }

    fn members(&self, process: &'static Process, group: &Gid) -> Vec<Member> {
        self.local.members(process, group)
    }

    fn connect(&self, process: &'static Process, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Box<dyn Sender>> {
        self.roce.connect(process, qp, attr)
    }

    fn resolve(&self, device: u32, ah: &AhAttr) -> Result<()> {
        self.roce.resolve(device, ah)
    }

    fn listen(&self, process: &'static Process, qp: &Arc<Qp>) -> Result<()> {
        match self.choice {
            LinkChoice::Local => Ok(()),
            LinkChoice::Auto => self.roce.listen(process, qp).or(Ok(())),
            LinkChoice::Roce => self.roce.listen(process, qp),
        }
    }

    fn check_source(&self, process: &'static Process, device: u32, ah: &AhAttr) -> Result<()> {
        self.roce.check_source(process, device, ah)
    }

    fn unregister_qp(&self, qpn: u32) {
        self.roce.unregister_qp(qpn);
    }

    fn send_datagram(&self, process: &'static Process, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64> {
        self.roce.send_datagram(process, qp, datagram)
    }

    fn flush(&self) {
        self.roce.flush();
    }

    fn poll_packets(&self, process: &'static Process) -> bool {
        self.roce.poll(process)
    }

    fn wait_for(&self, process: &'static Process, fd: RawFd) -> Result<()> {
        self.roce.wait_for(process, fd)
    }

    fn attend_packets(&self, process: &'static Process) -> (bool, Option<u64>) {
        self.roce.attend(process)
    }

    fn shutdown(&self) {
        self.roce.shutdown();
    }

    fn packet_fd(&self) -> Option<RawFd> {
        self.roce.packet_fd()
    }
}
