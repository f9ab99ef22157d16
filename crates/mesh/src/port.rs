//! A device with what all connections of it share.

use vervain_rdma::{
    Access, AtomicCap, CompChannel, Context, Cq, Device, Library, PathOptions, Pd, PortState, Qp, RecvRequest, Region,
    Srq, Transport,
};

use crate::address::{Door as DoorAddress, Lanes, MAX_DEVICES};
use crate::door::{self, Door};
use crate::error::{Error, Result};
use crate::options::Options;

/// A peer without a receive for a command asks again after 10 µs: a number of the table in `ibv_modify_qp(3)`.
const RNR_TIMER: u8 = 1;
/// Never gives up.
const RNR_RETRY: u8 = 7;

/// Bytes of the receive for a command.
pub(crate) fn slot_bytes(options: &Options) -> usize {
    options.command_bytes.next_multiple_of(8)
}

/// An open device, and what all connections of it share.
pub struct Port {
    /// The device.
    pub context: Context,
    /// The domain of all QPs.
    pub pd: Pd,
    /// How connections leave; MTU, Reads and atomics are the most that this end can.
    pub path: PathOptions,
    /// Completions of both lanes' sends, and of notices. It has room for all that can be outstanding.
    pub data: Cq,
    /// Completions of commands, and of the door: [`Mesh::poll_service`](crate::Mesh::poll_service) polls it. It has room for all.
    pub service: Cq,
    /// Where events of `data` arrive; does not block.
    pub data_channel: CompChannel,
    /// Where events of `service` arrive; does not block.
    pub service_channel: CompChannel,
    /// The receives for commands.
    pub srq: Srq,
    pub(crate) door: Door,
    /// What the receives of `srq` are for: `slots` of `slot_bytes` each.
    commands: Region,
    slot_bytes: usize,
    slots: u32,
    sends: u32,
    notices: u32,
    inline: u32,
    access: Access,
}

/// The two QPs of a place.
pub(crate) struct Pair {
    pub data: Qp,
    pub commands: Qp,
}

impl Port {
    /// Opens the devices that the options name, or the first usable ones.
    pub(crate) fn open_all(options: &Options) -> Result<Vec<Port>> {
        let devices = Library::load()?.devices()?;
        let ports: Vec<Port> = if options.devices.is_empty() {
            let usable = devices.iter().filter_map(|device| usable(device).ok());
            usable.take(MAX_DEVICES).map(|(context, path)| Port::open(context, path, options)).collect::<Result<_>>()?
        } else {
            options.devices.iter().map(|name| Port::open_named(&devices, name, options)).collect::<Result<_>>()?
        };
        if ports.is_empty() {
            return Err(Error::new("this machine has no RDMA device with an active port; `vervain run` provides one"));
        }
        Ok(ports)
    }

    fn open_named(devices: &[Device], name: &str, options: &Options) -> Result<Port> {
        let found = devices.iter().find(|device| device.name() == name);
        let device = found.ok_or_else(|| Error::new(format!("no RDMA device called {name}")))?;
        let (context, path) = usable(device)?;
        Port::open(context, path, options)
    }

    fn open(context: Context, mut path: PathOptions, options: &Options) -> Result<Port> {
        let attr = context.attr()?;
        (path.min_rnr_timer, path.rnr_retry) = (RNR_TIMER, RNR_RETRY);
        let channel = || -> Result<CompChannel> {
            let channel = CompChannel::new(&context)?;
            channel.set_nonblocking(true)?;
            Ok(channel)
        };
        let (data_channel, service_channel) = (channel()?, channel()?);
        let each = u64::from(options.sends) * 2 + u64::from(options.notices);
        let all = each * options.connections as u64;
        let room = u32::try_from(all).ok().filter(|room| *room <= attr.max_cqe).ok_or_else(|| {
            let most = u64::from(attr.max_cqe) / each;
            Error::new(format!(
                "{} connections are too many for {}: {most} are possible",
                options.connections,
                context.name()
            ))
        })?;
        let pd = Pd::new(&context)?;
        let data = Cq::new(&context, room, Some(&data_channel), 0)?;
        let service = Cq::new(&context, options.commands + door::REQUESTS, Some(&service_channel), 0)?;
        let srq = Srq::new(&pd, options.commands, 1)?;
        let slot_bytes = slot_bytes(options);
        let commands = pd.region(slot_bytes * options.commands as usize, Access::LOCAL_WRITE)?;
        let door = Door::open(&pd, &service, &path)?;
        // A device refuses a QP for a right that it does not know.
        let atomics = if attr.atomics == AtomicCap::None { Access::REMOTE_ATOMIC } else { Access::empty() };
        let mut port = Port {
            context,
            pd,
            path,
            data,
            service,
            data_channel,
            service_channel,
            srq,
            door,
            commands,
            slot_bytes,
            slots: options.commands,
            sends: options.sends,
            notices: options.notices,
            inline: 0,
            access: Access::REMOTE - atomics,
        };
        for slot in 0..port.slots {
            port.post_command(slot)?;
        }
        port.inline = port.most_inline(options);
        Ok(port)
    }

    /// What devices allow no query tells.
    fn most_inline(&mut self, options: &Options) -> u32 {
        let wanted = u32::try_from(options.command_bytes).unwrap_or(u32::MAX).max(64);
        [wanted, 64, 32].into_iter().find(|bytes| self.qp(*bytes).build().is_ok()).unwrap_or(0)
    }

    fn qp(&self, inline: u32) -> vervain_rdma::QpBuilder {
        Qp::builder(Transport::Rc, &self.pd, &self.data, &self.data).max_send(self.sends).max_inline(inline)
    }

    /// Bytes that a request can carry inline.
    pub fn max_inline(&self) -> u32 {
        self.inline
    }

    /// Where this rank is asked for connections.
    pub(crate) fn address(&self) -> Result<DoorAddress> {
        self.door.address(&self.path)
    }

    /// The QPs for a place.
    pub(crate) fn pair(&self) -> Result<Pair> {
        let data = self.qp(self.inline).max_receive(self.notices).max_sges(1, 1).build()?;
        let commands = Qp::builder(Transport::Rc, &self.pd, &self.data, &self.service)
            .max_send(self.sends)
            .max_inline(self.inline)
            .srq(&self.srq)
            .build()?;
        Ok(Pair { data, commands })
    }

    /// Takes them from RESET to INIT, with the receives for notices.
    pub(crate) fn prepare(&self, pair: &Pair, notice: u64) -> Result<Lanes> {
        pair.data.init(&self.path, self.access)?;
        pair.commands.init(&self.path, Access::empty())?;
        for _ in 0..self.notices {
            pair.data.receive(RecvRequest::new(&[]).id(notice))?;
        }
        Ok(Lanes {
            data: (pair.data.number(), pair.data.psn()),
            commands: (pair.commands.number(), pair.commands.psn()),
            mtu: u16::try_from(self.path.mtu.bytes()).unwrap_or(u16::MAX),
            reads: self.path.max_dest_rd_atomic,
        })
    }

    /// Takes them from INIT to RTS.
    pub(crate) fn connect(&self, pair: &Pair, door: &DoorAddress, lanes: &Lanes) -> Result<()> {
        let mtu = lanes.mtu().unwrap_or(self.path.mtu).min(self.path.mtu);
        let path = PathOptions { mtu, max_rd_atomic: self.path.max_rd_atomic.min(lanes.reads), ..self.path };
        for (qp, (number, psn)) in [(&pair.data, lanes.data), (&pair.commands, lanes.commands)] {
            qp.connect(&door.endpoint(number, psn), &path)?;
        }
        Ok(())
    }

    /// Posts a receive for a command; those that are posted already must not be posted again.
    pub(crate) fn post_command(&self, slot: u32) -> Result<()> {
        let start = slot as usize * self.slot_bytes;
        let sges = [self.commands.slice(start..start + self.slot_bytes)];
        Ok(self.srq.receive(RecvRequest::new(&sges).id(slot.into()))?)
    }

    /// Copies what a command's receive got.
    pub(crate) fn read_command(&self, slot: u32, len: u32, into: &mut [u8]) -> usize {
        let len = (len as usize).min(self.slot_bytes).min(into.len());
        self.commands.read(slot as usize * self.slot_bytes, &mut into[..len]);
        len
    }
}

/// Opens a device, and finds its first active port, and a path from it.
fn usable(device: &Device) -> Result<(Context, PathOptions)> {
    let context = device.open()?;
    let is_active = |port: &u8| context.port(*port).is_ok_and(|attr| attr.state == PortState::Active);
    let port = (1..=context.attr()?.ports).find(is_active);
    let port = port.ok_or_else(|| Error::new(format!("no port of {} is active", device.name())))?;
    let path = PathOptions::of(&context, port)?;
    Ok((context, path))
}
