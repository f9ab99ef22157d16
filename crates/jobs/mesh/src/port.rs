//! A device with what all connections of it share.

use vervain_rdma::{
    Access, AtomicCap, CompChannel, Context, Cq, Device, Library, PathOptions, Pd, PortState, Qp, RecvList,
    RecvRequest, Region, Srq, Transport,
};

use crate::address::{Door as DoorAddress, Lanes};
use crate::devices::notice_receive;
use crate::door::{self, Door};
use crate::error::{Error, Result};
use crate::options::{Link, Options};

/// A peer without a receive for a command asks again after 10 µs: a number of the table in `ibv_modify_qp(3)`.
const RNR_TIMER: u8 = 1;
/// Never gives up.
const RNR_RETRY: u8 = 7;

/// The limit of inline bytes is looked for this closely.
const INLINE_STEP: u32 = 32;
/// The most bytes inline on the data lane, where they are an answer's. More would be in each request of its queue, for
/// nothing.
const DATA_INLINE: u32 = 64;

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
    /// Completions of commands, and of the door if that has no CQ of its own:
    /// [`Mesh::poll_service`](crate::Mesh::poll_service) polls it. It has room for all.
    pub service: Cq,
    /// Completions of the door: `service`, or with [`Options::own_door_cq`] one that
    /// [`Mesh::poll_door`](crate::Mesh::poll_door) polls.
    pub door_cq: Cq,
    /// Channel of events of `data`; does not block.
    pub data_channel: CompChannel,
    /// Channel of events of `service`; does not block.
    pub service_channel: CompChannel,
    /// Channel of events of `door_cq`; does not block.
    pub door_channel: CompChannel,
    /// The receives for commands, where connections share them, and what they are for: `slots` of `slot_bytes` each.
    pub srq: Option<Srq>,
    commands: Option<Region>,
    /// The UD QP for datagrams of the protocol.
    pub door: Door,
    slot_bytes: usize,
    /// Slots of all connections if they share the receives, else of each.
    pub(crate) slots: u32,
    /// The room of a list of receives.
    list: Option<RecvList<'static>>,
    sends: u32,
    notices: u32,
    inline: u32,
    access: Access,
}

/// The two QPs of a place.
pub struct Pair {
    /// The lane for RDMA.
    pub data: Qp,
    /// The lane for commands.
    pub commands: Qp,
    /// Memory for the receives of `commands`, if they are its own.
    pub receives: Option<Region>,
}

impl Port {
    /// Opens the devices that the options name, or the first usable ones.
    ///
    /// # Errors
    /// No usable device, or not the resources.
    pub fn open_all(options: &Options) -> Result<Vec<Port>> {
        let devices = Library::load()?.devices()?;
        let ports: Vec<Port> = if options.devices.is_empty() {
            let usable = devices.iter().filter_map(|device| usable(device).ok());
            usable
                .take(options.most_devices)
                .map(|(context, path)| Port::open(context, path, options))
                .collect::<Result<_>>()?
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

    fn open(context: Context, path: PathOptions, options: &Options) -> Result<Port> {
        let attr = context.attr()?;
        let path = PathOptions { min_rnr_timer: RNR_TIMER, rnr_retry: RNR_RETRY, ..path.outlasting(options.silence) };
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
        let commands = if options.shared {
            u64::from(options.commands)
        } else {
            u64::from(options.commands) * options.connections as u64
        };
        let commands =
            u32::try_from(commands).ok().filter(|all| *all <= attr.max_cqe - door::REQUESTS).ok_or_else(|| {
                Error::new(format!("{commands} receives for commands are too many for {}", context.name()))
            })?;
        let pd = Pd::new(&context)?;
        let data = Cq::new(&context, room, Some(&data_channel), 0)?;
        let (service, door_cq, door_channel) = if options.own_door_cq {
            let door_channel = channel()?;
            let service = Cq::new(&context, commands, Some(&service_channel), 0)?;
            (service, Cq::new(&context, door::REQUESTS, Some(&door_channel), 0)?, door_channel)
        } else {
            let service = Cq::new(&context, commands + door::REQUESTS, Some(&service_channel), 0)?;
            (service.clone(), service, service_channel.clone())
        };
        let slot_bytes = slot_bytes(options);
        let srq = if options.shared { Some(Srq::new(&pd, options.commands, 1)?) } else { None };
        let bytes = slot_bytes * options.commands as usize;
        let commands = if options.shared { Some(pd.region(bytes, Access::LOCAL_WRITE)?) } else { None };
        let door = Door::open(&pd, &door_cq, &path)?;
        // A device refuses a QP for a right that it does not know.
        let atomics = if attr.atomics == AtomicCap::None { Access::REMOTE_ATOMIC } else { Access::empty() };
        let mut port = Port {
            context,
            pd,
            path,
            data,
            service,
            door_cq,
            data_channel,
            service_channel,
            door_channel,
            srq,
            door,
            commands,
            slot_bytes,
            slots: options.commands,
            list: None,
            sends: options.sends,
            notices: options.notices,
            inline: 0,
            access: Access::REMOTE - atomics,
        };
        if options.shared {
            let first: Vec<u32> = (0..port.slots.min(options.posted)).collect();
            port.post_commands(&first)?;
        }
        port.inline = port.most_inline(options.max_inline);
        Ok(port)
    }

    /// The most of `wanted` bytes that devices allow inline, to within [`INLINE_STEP`]; no query returns it.
    fn most_inline(&self, wanted: u32) -> u32 {
        let (mut taken, mut refused) = (wanted, wanted);
        while taken > 0 && self.qp(taken).build().is_err() {
            (taken, refused) = (taken / 2, taken);
        }
        while refused - taken > INLINE_STEP {
            let between = taken.midpoint(refused);
            if self.qp(between).build().is_ok() {
                taken = between;
            } else {
                refused = between;
            }
        }
        taken
    }

    fn qp(&self, inline: u32) -> vervain_rdma::QpBuilder {
        Qp::builder(Transport::Rc, &self.pd, &self.data, &self.data).max_send(self.sends).max_inline(inline)
    }

    /// Bytes that a command can carry inline.
    pub fn max_inline(&self) -> u32 {
        self.inline
    }

    /// The address at which this rank is asked for connections.
    ///
    /// # Errors
    /// What verbs says.
    pub fn address(&self) -> Result<DoorAddress> {
        self.door.address(&self.path)
    }

    /// The QPs for a place.
    ///
    /// # Errors
    /// What verbs says.
    pub fn pair(&self) -> Result<Pair> {
        let data = self.qp(self.inline.min(DATA_INLINE)).max_receive(self.notices).max_sges(1, 1).build()?;
        let commands = Qp::builder(Transport::Rc, &self.pd, &self.data, &self.service)
            .max_send(self.sends)
            .max_inline(self.inline);
        let (commands, receives) = match &self.srq {
            Some(srq) => (commands.srq(srq), None),
            None => {
                let receives = self.pd.region(self.slot_bytes * self.slots as usize, Access::LOCAL_WRITE)?;
                (commands.max_receive(self.slots).max_sges(1, 1), Some(receives))
            }
        };
        Ok(Pair { data, commands: commands.build()?, receives })
    }

    /// Takes them from RESET to INIT, with the receives for notices of the connection.
    ///
    /// # Errors
    /// What verbs says.
    pub fn prepare(&self, pair: &Pair, link: Link) -> Result<Lanes> {
        pair.data.init(&self.path, self.access)?;
        pair.commands.init(&self.path, Access::empty())?;
        for _ in 0..self.notices {
            pair.data.receive(notice_receive(link))?;
        }
        Ok(Lanes {
            data: (pair.data.number(), pair.data.psn()),
            commands: (pair.commands.number(), pair.commands.psn()),
            mtu: u16::try_from(self.path.mtu.bytes()).unwrap_or(u16::MAX),
            reads: self.path.max_dest_rd_atomic,
        })
    }

    /// Takes them from INIT to RTS.
    ///
    /// # Errors
    /// What verbs says.
    pub fn connect(&self, pair: &Pair, door: &DoorAddress, lanes: &Lanes) -> Result<()> {
        let mtu = lanes.mtu().unwrap_or(self.path.mtu).min(self.path.mtu);
        let path = PathOptions { mtu, max_rd_atomic: self.path.max_rd_atomic.min(lanes.reads), ..self.path };
        for (qp, (number, psn)) in [(&pair.data, lanes.data), (&pair.commands, lanes.commands)] {
            qp.connect(&door.endpoint(number, psn), &path)?;
        }
        Ok(())
    }

    /// Posts shared receives for commands by one call; those that are posted already must not be posted again.
    pub(crate) fn post_commands(&mut self, slots: &[u32]) -> Result<()> {
        let (Some(srq), Some(commands)) = (&self.srq, &self.commands) else { return Ok(()) };
        let mut list = self.list.take().map_or_else(|| RecvList::with_capacity(slots.len()), RecvList::recycled);
        for &slot in slots {
            let start = slot as usize * self.slot_bytes;
            list.push(RecvRequest::new(&[commands.slice(start..start + self.slot_bytes)]).id(slot.into()));
        }
        let posted = srq.receive_list(&mut list);
        self.list = Some(list.recycled());
        Ok(posted?)
    }

    /// Posts a receive for a command that is the connection's own, the one with number `slot` among all connections'.
    pub(crate) fn post_own(&self, pair: &Pair, slot: u32) -> Result<()> {
        let Some(receives) = &pair.receives else { return Ok(()) };
        let start = (slot % self.slots) as usize * self.slot_bytes;
        let sges = [receives.slice(start..start + self.slot_bytes)];
        Ok(pair.commands.receive(RecvRequest::new(&sges).id(slot.into()))?)
    }

    /// The place of a command: the memory, which may be the connection's own, and the offset.
    #[inline]
    pub(crate) fn receive_of<'a>(
        &'a self,
        own: impl FnOnce(usize) -> Option<&'a Pair>,
        slot: u32,
    ) -> (&'a Region, usize) {
        if let Some(shared) = &self.commands {
            return (shared, slot as usize * self.slot_bytes);
        }
        let own = own((slot / self.slots) as usize).and_then(|pair| pair.receives.as_ref());
        (own.expect("a command came by the connection"), (slot % self.slots) as usize * self.slot_bytes)
    }

    /// The most bytes of a command.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
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
