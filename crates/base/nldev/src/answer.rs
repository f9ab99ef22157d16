//! Messages of messages: what a request is answered with.

use std::convert::Infallible;
use std::num::NonZeroI32;

use netlink_packet_core::{
    DefaultNla, DoneMessage, Emitable, ErrorMessage, NLM_F_ACK, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_MULTIPART,
    NLM_F_REQUEST, NetlinkBuffer, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable, NlasIterator,
};

use crate::uapi::{RDMA_NL_NLDEV, attr, client_and_command, command};
use crate::{Device, Devices, Port};

/// Errors of errno.h, which are the same for every architecture that Vervain is built for.
mod errno {
    pub const ENOENT: i32 = 2;
    pub const ENODEV: i32 = 19;
    pub const EINVAL: i32 = 22;
    pub const EOPNOTSUPP: i32 = 95;
}

/// Types below this are netlink's own.
const NLMSG_MIN_TYPE: u16 = 16;

/// The datagrams that answer those messages in `request` that want an answer, to be sent to the socket with number
/// `port_id`.
///
/// A dump is a message for each thing that there is, and one that says it is done. Other requests have one answer, with
/// NLM_F_ACK an acknowledgement after it; or an error.
pub fn answer(request: &[u8], port_id: u32, devices: &Devices) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    let mut rest = request;
    while let Ok(message) = NetlinkBuffer::new_checked(rest) {
        let length = message.length() as usize;
        let one = One { message: &rest[..length], header: reply_header(&message, port_id), devices };
        one.answer(message.message_type(), message.flags(), message.payload(), &mut datagrams);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    datagrams
}

fn reply_header(message: &NetlinkBuffer<&[u8]>, port_id: u32) -> NetlinkHeader {
    let mut header = NetlinkHeader::default();
    header.sequence_number = message.sequence_number();
    header.port_number = port_id;
    header
}

/// A request.
struct One<'a> {
    message: &'a [u8],
    header: NetlinkHeader,
    devices: &'a Devices,
}

/// The attributes of a message.
type Attributes = Vec<DefaultNla>;

impl One<'_> {
    fn answer(&self, message_type: u16, flags: u16, payload: &[u8], datagrams: &mut Vec<Vec<u8>>) {
        let acknowledged = flags & NLM_F_ACK != 0;
        if message_type < NLMSG_MIN_TYPE || flags & NLM_F_REQUEST == 0 {
            if acknowledged {
                datagrams.push(self.error(0));
            }
            return;
        }
        let wanted = Wanted::read(payload);
        if flags & NLM_F_DUMP != 0
            && let Some(answers) = self.dump(message_type, &wanted)
        {
            match answers {
                Ok(all) => {
                    datagrams.extend(all.into_iter().map(|one| self.reply(message_type, NLM_F_MULTIPART, one)));
                    datagrams.push(self.bytes(NLM_F_MULTIPART, NetlinkPayload::Done(DoneMessage::default())));
                }
                Err(code) => datagrams.push(self.error(code)),
            }
            return;
        }
        match self.one(message_type, &wanted) {
            Ok(attributes) => {
                datagrams.push(self.reply(message_type, 0, attributes));
                if acknowledged {
                    datagrams.push(self.error(0));
                }
            }
            Err(code) => datagrams.push(self.error(code)),
        }
    }

    /// The answers to a request for all objects of a kind; None if the kernel knows no such request.
    fn dump(&self, message_type: u16, wanted: &Wanted) -> Option<Result<Vec<Attributes>, i32>> {
        let (client, command) = client_and_command(message_type);
        if client != RDMA_NL_NLDEV {
            return None;
        }
        let Devices(devices) = self.devices;
        Some(match command {
            command::GET => Ok(devices.iter().map(device).collect()),
            command::PORT_GET => {
                self.device(wanted).map(|device| device.ports.iter().map(|one| port(device, one)).collect())
            }
            command::RES_GET => Ok(devices.iter().map(summary).collect()),
            // Only its process knows the owner of an object: no list of them can be had, so the answer is empty.
            command::RES_QP_GET..=command::RES_PD_GET | command::RES_CTX_GET | command::RES_SRQ_GET => Ok(Vec::new()),
            // Without a kind of object a dump is of nothing; counters that are bound to QPs are not there.
            command::STAT_GET if wanted.kind_of_object.is_some() => Ok(Vec::new()),
            command::STAT_GET => Err(errno::EINVAL),
            _ => return None,
        })
    }

    /// The answer to a request for one thing.
    fn one(&self, message_type: u16, wanted: &Wanted) -> Result<Attributes, i32> {
        let (client, command) = client_and_command(message_type);
        if client != RDMA_NL_NLDEV {
            return Err(errno::EINVAL);
        }
        match command {
            command::GET => self.device(wanted).map(device),
            command::PORT_GET => self.port(wanted).map(|(device, one)| port(device, one)),
            command::SYS_GET => Ok(system()),
            command::RES_GET => self.device(wanted).map(summary),
            command::GET_CHARDEV => self.chardev(wanted),
            command::STAT_GET => self.port(wanted).map(|(device, port)| counters(device, port)),
            command::RES_QP_GET..=command::RES_PD_GET | command::RES_CTX_GET | command::RES_SRQ_GET => {
                Err(errno::ENOENT)
            }
            command::SET..=command::DELLINK | command::SYS_SET | command::STAT_SET..command::NUM_OPS => {
                Err(errno::EOPNOTSUPP)
            }
            _ => Err(errno::EINVAL),
        }
    }

    fn device(&self, wanted: &Wanted) -> Result<&Device, i32> {
        let index = wanted.device.ok_or(errno::EINVAL)?;
        self.devices.0.iter().find(|device| device.index == index).ok_or(errno::EINVAL)
    }

    fn port(&self, wanted: &Wanted) -> Result<(&Device, &Port), i32> {
        let device = self.device(wanted)?;
        let number = wanted.port.ok_or(errno::EINVAL)?;
        let port = device.ports.iter().find(|port| port.number == number).ok_or(errno::EINVAL)?;
        Ok((device, port))
    }

    /// The node in /dev/infiniband of a kind that is asked for by name.
    fn chardev(&self, wanted: &Wanted) -> Result<Attributes, i32> {
        let kind = wanted.kind_of_chardev.as_deref().ok_or(errno::EINVAL)?;
        if kind != "uverbs" {
            return Err(errno::EOPNOTSUPP);
        }
        let node = self.device(wanted)?.chardev.as_ref().ok_or(errno::ENODEV)?;
        let (major, minor) = (u64::from(node.number.0), u64::from(node.number.1));
        Ok(vec![
            // The kernel's huge_encode_dev.
            u64_attr(attr::CHARDEV, (minor & 0xff) | major << 8 | (minor & !0xff) << 12),
            u64_attr(attr::CHARDEV_ABI, node.abi),
            string(attr::CHARDEV_NAME, &node.name),
        ])
    }

    fn reply(&self, message_type: u16, flags: u16, attributes: Attributes) -> Vec<u8> {
        self.bytes(flags, NetlinkPayload::InnerMessage(Reply { message_type, attributes }))
    }

    /// An error with the whole request behind it, or the acknowledgement with only its header.
    fn error(&self, code: i32) -> Vec<u8> {
        let mut error = ErrorMessage::default();
        error.code = NonZeroI32::new(-code);
        error.header = if code == 0 { self.message[..HEADER].to_vec() } else { self.message.to_vec() };
        self.bytes(if code == 0 { NLM_F_CAPPED } else { 0 }, NetlinkPayload::Error(error))
    }

    fn bytes(&self, flags: u16, payload: NetlinkPayload<Reply>) -> Vec<u8> {
        let mut message = NetlinkMessage::new(self.header, payload);
        message.header.flags = flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }
}

/// Bytes of a message's header.
const HEADER: usize = 16;

/// The objects that a request names.
#[derive(Default)]
struct Wanted {
    device: Option<u32>,
    port: Option<u32>,
    kind_of_chardev: Option<String>,
    kind_of_object: Option<u32>,
}

impl Wanted {
    fn read(payload: &[u8]) -> Wanted {
        let mut wanted = Wanted::default();
        for nla in NlasIterator::new(payload).map_while(Result::ok) {
            let number = || nla.value().try_into().ok().map(u32::from_ne_bytes);
            match nla.kind() {
                attr::DEV_INDEX => wanted.device = number(),
                attr::PORT_INDEX => wanted.port = number(),
                attr::STAT_RES => wanted.kind_of_object = number(),
                attr::CHARDEV_TYPE => {
                    let text = nla.value().split(|&b| b == 0).next().unwrap_or_default();
                    wanted.kind_of_chardev = Some(String::from_utf8_lossy(text).into_owned());
                }
                _ => {}
            }
        }
        wanted
    }
}

/// Which device it is, at the head of every answer about one.
fn handle(device: &Device) -> Attributes {
    vec![u32_attr(attr::DEV_INDEX, device.index), string(attr::DEV_NAME, &device.name)]
}

fn device(device: &Device) -> Attributes {
    let mut all = handle(device);
    let infiniband = device.ports.first().is_some_and(|port| port.infiniband);
    all.push(u32_attr(attr::PORT_INDEX, device.ports.len() as u32));
    if !device.fw_version.is_empty() {
        all.push(string(attr::FW_VERSION, &device.fw_version));
    }
    all.push(u64_attr(attr::NODE_GUID, device.node_guid));
    all.push(u64_attr(attr::SYS_IMAGE_GUID, device.sys_image_guid));
    all.push(u8_attr(attr::DEV_NODE_TYPE, device.node_type));
    // No CQ has its events held back.
    all.push(u8_attr(attr::DEV_DIM, 0));
    all.push(string(attr::DEV_PROTOCOL, if infiniband { "ib" } else { "roce" }));
    all
}

fn port(device: &Device, port: &Port) -> Attributes {
    let mut all = handle(device);
    all.push(u32_attr(attr::PORT_INDEX, port.number));
    // The kernel says these of InfiniBand only.
    if port.infiniband {
        all.push(u64_attr(attr::CAP_FLAGS, port.cap_mask.into()));
        all.push(u64_attr(attr::SUBNET_PREFIX, port.subnet_prefix));
        all.push(u32_attr(attr::LID, port.lid));
        all.push(u32_attr(attr::SM_LID, port.sm_lid));
        all.push(u8_attr(attr::LMC, port.lmc));
    }
    all.push(u8_attr(attr::PORT_STATE, port.state));
    all.push(u8_attr(attr::PORT_PHYS_STATE, port.phys_state));
    if let Some((name, index)) = &port.netdev
        && !port.infiniband
    {
        all.push(u32_attr(attr::NDEV_INDEX, *index));
        all.push(string(attr::NDEV_NAME, name));
    }
    all
}

/// The number of objects of each kind.
fn summary(device: &Device) -> Attributes {
    let mut all = handle(device);
    let entry = |(name, count): &(&'static str, u64)| {
        let inside = [string(attr::RES_SUMMARY_ENTRY_NAME, name), u64_attr(attr::RES_SUMMARY_ENTRY_CURR, *count)];
        nest(attr::RES_SUMMARY_ENTRY, &inside)
    };
    let entries: Vec<_> = device.objects.iter().map(entry).collect();
    all.push(nest(attr::RES_SUMMARY, &entries));
    all
}

fn counters(device: &Device, port: &Port) -> Attributes {
    let mut all = handle(device);
    all.push(u32_attr(attr::PORT_INDEX, port.number));
    let entry = |(name, value): &(String, u64)| {
        let inside =
            [string(attr::STAT_HWCOUNTER_ENTRY_NAME, name), u64_attr(attr::STAT_HWCOUNTER_ENTRY_VALUE, *value)];
        nest(attr::STAT_HWCOUNTER_ENTRY, &inside)
    };
    let entries: Vec<_> = port.hw_counters().iter().map(entry).collect();
    all.push(nest(attr::STAT_HWCOUNTERS, &entries));
    all
}

/// Devices are there in every network namespace, a forked child's memory is its own, and a controlled Q_Key takes
/// privilege.
fn system() -> Attributes {
    vec![
        u8_attr(attr::SYS_NETNS_MODE, 1),
        u8_attr(attr::SYS_COPY_ON_FORK, 1),
        u8_attr(attr::SYS_PRIVILEGED_QKEY_MODE, 0),
    ]
}

fn u8_attr(kind: u16, value: u8) -> DefaultNla {
    DefaultNla::new(kind, vec![value])
}

fn u32_attr(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn u64_attr(kind: u16, value: u64) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn string(kind: u16, value: &str) -> DefaultNla {
    DefaultNla::new(kind, [value.as_bytes(), &[0]].concat())
}

fn nest(kind: u16, inside: &[DefaultNla]) -> DefaultNla {
    DefaultNla::new(kind, emit(inside))
}

fn emit(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

/// A message of nldev's.
#[derive(Debug)]
struct Reply {
    message_type: u16,
    attributes: Attributes,
}

impl NetlinkSerializable for Reply {
    fn message_type(&self) -> u16 {
        self.message_type
    }

    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl NetlinkDeserializable for Reply {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        let attributes = NlasIterator::new(payload).map_while(Result::ok);
        let attributes = attributes.map(|nla| DefaultNla::new(nla.kind(), nla.value().to_vec())).collect();
        Ok(Reply { message_type: header.message_type, attributes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::two;

    const PORT_ID: u32 = 77;

    fn message_type(client: u16, command: u16) -> u16 {
        (client << 10) | command
    }

    /// A request as a program sends it.
    fn request(command: u16, flags: u16, attributes: &[DefaultNla]) -> Vec<u8> {
        let payload = emit(attributes);
        let mut bytes = Vec::new();
        bytes.extend((HEADER as u32 + payload.len() as u32).to_ne_bytes());
        bytes.extend(message_type(RDMA_NL_NLDEV, command).to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend(5_u32.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(payload);
        bytes
    }

    /// The answer to a request: the attributes of each message, and the error or 0 that ends them.
    fn ask(command: u16, flags: u16, attributes: &[DefaultNla]) -> (Vec<Reply>, Option<i32>) {
        let (mut replies, mut end) = (Vec::new(), None);
        let (_tree, devices) = two();
        for datagram in answer(&request(command, flags, attributes), PORT_ID, &devices) {
            assert_eq!(end, None, "nothing comes after the end");
            let message = NetlinkMessage::<Reply>::deserialize(&datagram).unwrap();
            assert_eq!((message.header.sequence_number, message.header.port_number), (5, PORT_ID));
            assert_eq!(message.header.length as usize, datagram.len());
            match message.payload {
                NetlinkPayload::InnerMessage(reply) => {
                    assert_eq!(reply.message_type, message_type(RDMA_NL_NLDEV, command));
                    assert_eq!(message.header.flags & NLM_F_MULTIPART != 0, flags & NLM_F_DUMP != 0);
                    replies.push(reply);
                }
                NetlinkPayload::Done(done) => end = Some(done.code),
                NetlinkPayload::Error(error) => end = Some(error.code.map_or(0, NonZeroI32::get)),
                other => panic!("{other:?}"),
            }
        }
        (replies, end)
    }

    impl Reply {
        fn value(&self, kind: u16) -> Option<Vec<u8>> {
            let nlas = emit(&self.attributes);
            NlasIterator::new(&nlas[..])
                .map(Result::unwrap)
                .find(|nla| nla.kind() == kind)
                .map(|nla| nla.value().to_vec())
        }

        fn text(&self, kind: u16) -> String {
            let value = self.value(kind).unwrap_or_else(|| panic!("no attribute {kind} in {self:?}"));
            assert_eq!(value.last(), Some(&0), "a string ends in NUL");
            String::from_utf8(value[..value.len() - 1].to_vec()).unwrap()
        }

        fn number(&self, kind: u16) -> u64 {
            let value = self.value(kind).unwrap_or_else(|| panic!("no attribute {kind} in {self:?}"));
            match value[..] {
                [byte] => byte.into(),
                [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
                _ => u64::from_ne_bytes(value.try_into().unwrap()),
            }
        }
    }

    #[test]
    fn a_dump_of_devices_has_each_and_an_end() {
        let (devices, end) = ask(command::GET, NLM_F_DUMP | NLM_F_ACK, &[]);
        assert_eq!(end, Some(0));
        let names: Vec<_> = devices.iter().map(|d| (d.number(attr::DEV_INDEX), d.text(attr::DEV_NAME))).collect();
        assert_eq!(names, [(0, "vervain0".into()), (1, "vervain2".into()), (2, "vervain10".into())]);
        let first = &devices[0];
        assert_eq!(first.number(attr::PORT_INDEX), 1);
        assert_eq!(first.number(attr::NODE_GUID), 0x0011_2233_4455_6677);
        assert_eq!(first.number(attr::SYS_IMAGE_GUID), 0x0011_2233_4455_6678);
        assert_eq!(first.number(attr::DEV_NODE_TYPE), 1);
        assert_eq!((first.text(attr::FW_VERSION), first.text(attr::DEV_PROTOCOL)), ("1.0".into(), "roce".into()));
        assert_eq!((devices[1].text(attr::DEV_PROTOCOL), devices[1].value(attr::FW_VERSION)), ("ib".into(), None));
    }

    #[test]
    fn one_device_comes_with_an_acknowledgement_if_it_is_asked_for() {
        let (devices, end) = ask(command::GET, NLM_F_ACK, &[u32_attr(attr::DEV_INDEX, 1)]);
        assert_eq!((devices.len(), end), (1, Some(0)));
        assert_eq!(devices[0].text(attr::DEV_NAME), "vervain2");
        let (devices, end) = ask(command::GET, 0, &[u32_attr(attr::DEV_INDEX, 1)]);
        assert_eq!((devices.len(), end), (1, None));
    }

    #[test]
    fn a_port_of_ethernet_has_an_interface_and_one_of_infiniband_a_lid() {
        let (ports, _) = ask(command::PORT_GET, 0, &[u32_attr(attr::DEV_INDEX, 0), u32_attr(attr::PORT_INDEX, 1)]);
        assert_eq!((ports[0].number(attr::PORT_STATE), ports[0].number(attr::PORT_PHYS_STATE)), (4, 5));
        assert_eq!((ports[0].text(attr::NDEV_NAME), ports[0].number(attr::NDEV_INDEX)), ("eth0".into(), 42));
        assert_eq!(ports[0].value(attr::LID), None);
        let (ports, end) = ask(command::PORT_GET, NLM_F_DUMP, &[u32_attr(attr::DEV_INDEX, 1)]);
        assert_eq!((ports.len(), end), (2, Some(0)));
        assert_eq!((ports[0].number(attr::LID), ports[0].number(attr::SM_LID), ports[0].number(attr::LMC)), (26, 1, 2));
        assert_eq!(ports[0].number(attr::SUBNET_PREFIX), 0xfe80_0000_0000_0001);
        assert_eq!(ports[1].number(attr::PORT_INDEX), 2);
        assert_eq!(ports[0].value(attr::NDEV_NAME), None);
    }

    #[test]
    fn the_node_of_a_device_is_found_by_its_kind() {
        let of = |index| [string(attr::CHARDEV_TYPE, "uverbs"), u32_attr(attr::DEV_INDEX, index)];
        let (node, _) = ask(command::GET_CHARDEV, 0, &of(0));
        assert_eq!(node[0].text(attr::CHARDEV_NAME), "uverbs0");
        assert_eq!((node[0].number(attr::CHARDEV), node[0].number(attr::CHARDEV_ABI)), (0x103, 1));
        assert_eq!(ask(command::GET_CHARDEV, 0, &of(1)).1, Some(-errno::ENODEV));
        let other = [string(attr::CHARDEV_TYPE, "umad"), u32_attr(attr::DEV_INDEX, 0)];
        assert_eq!(ask(command::GET_CHARDEV, 0, &other).1, Some(-errno::EOPNOTSUPP));
    }

    /// The entries of a nested table, as messages.
    fn table(reply: &Reply, kind: u16) -> Vec<Reply> {
        let inside = reply.value(kind).unwrap();
        let entries = NlasIterator::new(&inside[..])
            .map(|entry| Reply::deserialize(&NetlinkHeader::default(), entry.unwrap().value()).unwrap());
        entries.collect()
    }

    #[test]
    fn counters_and_objects_are_tables_of_names_and_numbers() {
        let (port, _) = ask(command::STAT_GET, 0, &[u32_attr(attr::DEV_INDEX, 0), u32_attr(attr::PORT_INDEX, 1)]);
        let counters = table(&port[0], attr::STAT_HWCOUNTERS);
        let counters: Vec<_> = counters
            .iter()
            .map(|c| (c.text(attr::STAT_HWCOUNTER_ENTRY_NAME), c.number(attr::STAT_HWCOUNTER_ENTRY_VALUE)))
            .collect();
        assert_eq!(counters, [("duplicate_request".into(), 3), ("sent_pkts".into(), 17)]);
        let (_tree, mut devices) = two();
        devices.0[0].objects = vec![("pd", 2), ("qp", 7)];
        let datagrams = answer(&request(command::RES_GET, NLM_F_DUMP, &[]), PORT_ID, &devices);
        let NetlinkPayload::InnerMessage(first) = NetlinkMessage::<Reply>::deserialize(&datagrams[0]).unwrap().payload
        else {
            panic!("no message")
        };
        let objects: Vec<_> = table(&first, attr::RES_SUMMARY)
            .iter()
            .map(|o| (o.text(attr::RES_SUMMARY_ENTRY_NAME), o.number(attr::RES_SUMMARY_ENTRY_CURR)))
            .collect();
        assert_eq!(objects, [("pd".into(), 2), ("qp".into(), 7)]);
    }

    #[test]
    fn a_list_of_objects_is_empty_and_ends() {
        let (all, end) = ask(command::RES_QP_GET, NLM_F_DUMP, &[u32_attr(attr::DEV_INDEX, 0)]);
        assert_eq!((all.len(), end), (0, Some(0)));
    }

    #[test]
    fn the_system_says_how_it_shares_devices() {
        let (system, _) = ask(command::SYS_GET, 0, &[]);
        assert_eq!((system[0].number(attr::SYS_NETNS_MODE), system[0].number(attr::SYS_COPY_ON_FORK)), (1, 1));
    }

    #[test]
    fn what_is_not_there_or_cannot_be_is_an_error() {
        let port = |device, port| [u32_attr(attr::DEV_INDEX, device), u32_attr(attr::PORT_INDEX, port)];
        for (command, flags, attributes, code) in [
            (command::GET, 0, &[][..], errno::EINVAL),
            (command::GET, 0, &port(9, 1)[..], errno::EINVAL),
            (command::PORT_GET, 0, &port(0, 2), errno::EINVAL),
            (command::PORT_GET, NLM_F_DUMP, &[], errno::EINVAL),
            (command::RES_QP_GET, 0, &port(0, 1), errno::ENOENT),
            (command::SET, NLM_F_ACK, &port(0, 1), errno::EOPNOTSUPP),
            (3, NLM_F_ACK, &[], errno::EOPNOTSUPP),
            (200, 0, &[], errno::EINVAL),
        ] {
            let (replies, end) = ask(command, flags, attributes);
            assert_eq!((replies.len(), end), (0, Some(-code)), "command {command}");
        }
    }

    #[test]
    fn two_requests_in_one_datagram_are_both_answered() {
        let both = [request(command::SYS_GET, NLM_F_ACK, &[]), request(command::GET, NLM_F_DUMP, &[])].concat();
        assert_eq!(answer(&both, PORT_ID, &two().1).len(), 2 + 4);
    }

    #[test]
    fn rubbish_is_not_answered() {
        let whole = request(command::GET, NLM_F_DUMP, &[u32_attr(attr::DEV_INDEX, 0)]);
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end], PORT_ID, &two().1), Vec::<Vec<u8>>::new(), "{end} bytes");
        }
        let mut long = whole.clone();
        long[0] = 0;
        assert_eq!(answer(&long, PORT_ID, &two().1), Vec::<Vec<u8>>::new(), "a length of 0 ends it");
    }
}
