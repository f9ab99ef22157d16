//! The addresses that sockets of a checkpoint have, for a job that goes on where they are others. CRIU binds each
//! socket again to the address in its images, and gives each TCP connection both ends from there; so these addresses
//! are rewritten, and nothing else. Messages are not decoded and encoded again: fields that a later CRIU has beside
//! those that are known here stay byte for byte.
//!
//! Only `files.img` has addresses. What stays as it is: the interfaces that sockets are bound to by name
//! (SO_BINDTODEVICE, link-local addresses), which have to be there under these names; packet sockets. CRIU saves no
//! membership of multicast groups. `ifaddr`, `route` and `rule` are those of a network of the job's own, which has no
//! addresses but `lo`'s.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, absolute};

use anyhow::{Context, Result, ensure};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field};
use vervain_names::AddressMap;

use crate::image::{BEFORE, each_message};

/// The image of all descriptors.
const FILES: &str = "files.img";

/// Tags of `file_entry`.
mod file {
    pub const INET_SOCKET: u32 = 4;
}

/// Tags of `inet_sk_entry`.
mod socket {
    pub const FAMILY: u32 = 3;
    pub const SOURCE: u32 = 11;
    pub const DESTINATION: u32 = 12;
}

/// AF_INET.
const IPV4: u64 = 2;
/// AF_INET6.
const IPV6: u64 = 10;

/// Makes the folder `into`, with all that the folder `images` of CRIU has: by links, but for what names addresses,
/// which is written anew with those that they have become. If this fails, `into` is not there.
///
/// # Errors
/// `into` is there already or cannot be made; images that cannot be read or understood.
pub fn readdress(images: &Path, into: &Path, map: &AddressMap) -> Result<()> {
    let images = absolute(images)?;
    let files = read(&images)?;
    let files = rewritten(&files, map).with_context(misunderstood)?;
    DirBuilder::new().mode(0o700).create(into).with_context(|| format!("cannot make {}", into.display()))?;
    let made = fill(&images, into, &files).with_context(|| format!("cannot write to {}", into.display()));
    if made.is_err() {
        // If this fails too, it is for the reason that is reported already.
        let _ = fs::remove_dir_all(into);
    }
    made
}

fn fill(images: &Path, into: &Path, files: &[u8]) -> Result<()> {
    for entry in fs::read_dir(images)? {
        let name = entry?.file_name();
        if name != FILES {
            symlink(images.join(&name), into.join(&name))?;
        }
    }
    Ok(fs::write(into.join(FILES), files)?)
}

/// The addresses of hosts that the sockets of the images in the folder `images` are bound to, without loopback.
///
/// # Errors
/// Images that cannot be read or understood.
pub fn addresses(images: &Path) -> Result<BTreeSet<IpAddr>> {
    bound(&read(images)?).with_context(misunderstood)
}

fn read(images: &Path) -> Result<Vec<u8>> {
    fs::read(images.join(FILES)).with_context(|| format!("cannot read {FILES} of CRIU"))
}

fn misunderstood() -> String {
    format!("{FILES} of CRIU cannot be understood")
}

fn bound(image: &[u8]) -> Result<BTreeSet<IpAddr>> {
    let mut found = BTreeSet::new();
    each_message(image, |message, _| {
        for entry in fields(message)?.iter().filter(|field| field.tag == file::INET_SOCKET) {
            let ip = Socket::of(entry)?.address(socket::SOURCE)?.map(|ip| ip.to_canonical());
            found.extend(ip.filter(is_of_a_host));
        }
        Ok(0)
    })?;
    Ok(found)
}

fn is_of_a_host(ip: &IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !broadcast
}

fn rewritten(image: &[u8], map: &AddressMap) -> Result<Vec<u8>> {
    let mut new = Vec::with_capacity(image.len());
    new.extend(image.iter().take(BEFORE));
    each_message(image, |message, _| {
        let mut entry = Vec::with_capacity(message.len());
        for field in fields(message)? {
            match if field.tag == file::INET_SOCKET { Socket::of(&field)?.readdressed(map)? } else { None } {
                Some(contents) => field.encode_with(&contents, &mut entry),
                None => entry.extend(field.whole),
            }
        }
        new.extend(u32::try_from(entry.len())?.to_le_bytes());
        new.extend(entry);
        Ok(0)
    })?;
    Ok(new)
}

/// The entry of a socket of IPv4 or IPv6, or of another family without what has addresses here.
struct Socket<'a> {
    family: u64,
    fields: Vec<Field<'a>>,
}

impl<'a> Socket<'a> {
    fn of(entry: &Field<'a>) -> Result<Socket<'a>> {
        ensure!(entry.wire == WireType::LengthDelimited, "the entry of a socket is no message");
        let fields = fields(entry.contents)?;
        let family = fields.iter().rfind(|field| field.tag == socket::FAMILY).context("a socket has no family")?;
        let family = *family.varints()?.last().context("a socket has no family")?;
        Ok(Socket { family, fields })
    }

    /// The words of an address, in network byte order each; behind them there may be others.
    fn words(&self, tag: u32) -> Result<Vec<u32>> {
        let mut words = Vec::new();
        for field in self.fields.iter().filter(|field| field.tag == tag) {
            for word in field.varints()? {
                words.push(u32::try_from(word).context("a word of an address is too long")?);
            }
        }
        Ok(words)
    }

    fn address(&self, tag: u32) -> Result<Option<IpAddr>> {
        let words = self.words(tag)?;
        let octets: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let of = match self.family {
            IPV4 => octets.first_chunk().map(|four: &[u8; 4]| Ipv4Addr::from(*four).into()),
            IPV6 => octets.first_chunk().map(|all: &[u8; 16]| Ipv6Addr::from(*all).into()),
            _ => return Ok(None),
        };
        of.map(Some).context("an address is cut off")
    }

    /// The contents of the entry with what its addresses have become; none if that is what they are.
    fn readdressed(&self, map: &AddressMap) -> Result<Option<Vec<u8>>> {
        let mut changed = false;
        let mut new_words = Vec::new();
        for tag in [socket::SOURCE, socket::DESTINATION] {
            let mut words = self.words(tag)?;
            if let Some(old) = self.address(tag)? {
                let new = map.of(old);
                changed |= new != old;
                words.iter_mut().zip(words_of(new)).for_each(|(word, new)| *word = new);
            }
            new_words.push((tag, words.into_iter()));
        }
        if !changed {
            return Ok(None);
        }
        let mut contents = Vec::new();
        for field in &self.fields {
            let Some((_, words)) = new_words.iter_mut().find(|(tag, _)| *tag == field.tag) else {
                contents.extend(field.whole);
                continue;
            };
            let mut varints = Vec::new();
            words.take(field.varints()?.len()).for_each(|word| encode_varint(word.into(), &mut varints));
            field.encode_with(&varints, &mut contents);
        }
        Ok(Some(contents))
    }
}

fn words_of(ip: IpAddr) -> Vec<u32> {
    let octets = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    octets.chunks_exact(4).map(|word| u32::from_ne_bytes(std::array::from_fn(|i| word[i]))).collect()
}

/// A field of a message.
struct Field<'a> {
    tag: u32,
    wire: WireType,
    whole: &'a [u8],
    /// Without tag and length.
    contents: &'a [u8],
}

/// The fields of a message, in the order in which they stand there.
fn fields(message: &[u8]) -> Result<Vec<Field<'_>>> {
    let mut found = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let whole = rest;
        let (tag, wire) = decode_key(&mut rest)?;
        let mut contents = rest;
        skip_field(wire, tag, &mut rest, DecodeContext::default())?;
        if wire == WireType::LengthDelimited {
            decode_varint(&mut contents)?;
        }
        let [whole, contents] = [whole, contents].map(|bytes| &bytes[..bytes.len() - rest.len()]);
        found.push(Field { tag, wire, whole, contents });
    }
    Ok(found)
}

impl Field<'_> {
    /// The numbers of a field that has one, or several in a row.
    fn varints(&self) -> Result<Vec<u64>> {
        ensure!(matches!(self.wire, WireType::Varint | WireType::LengthDelimited), "a field is no number");
        let mut rest = self.contents;
        let mut found = Vec::new();
        while !rest.is_empty() {
            found.push(decode_varint(&mut rest)?);
        }
        Ok(found)
    }

    /// Appends this field with other contents to a message.
    fn encode_with(&self, contents: &[u8], message: &mut Vec<u8>) {
        encode_key(self.tag, self.wire, message);
        if self.wire == WireType::LengthDelimited {
            encode_varint(contents.len() as u64, message);
        }
        message.extend(contents);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message;

    /// The fields of `inet_sk_entry` that are looked at, one that is not, and one that no CRIU has yet.
    #[derive(Clone, PartialEq, Message)]
    struct Inet {
        #[prost(uint32, tag = "3")]
        family: u32,
        #[prost(uint32, tag = "7")]
        port: u32,
        #[prost(uint32, repeated, packed = "false", tag = "11")]
        source: Vec<u32>,
        #[prost(uint32, repeated, packed = "false", tag = "12")]
        destination: Vec<u32>,
        #[prost(string, tag = "900")]
        later: String,
    }

    /// Packed, as no CRIU does and every reader has to take.
    #[derive(Clone, PartialEq, Message)]
    struct Packed {
        #[prost(uint32, tag = "3")]
        family: u32,
        #[prost(uint32, repeated, tag = "11")]
        source: Vec<u32>,
        #[prost(uint32, repeated, tag = "12")]
        destination: Vec<u32>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Entry {
        #[prost(uint32, tag = "1")]
        kind: u32,
        #[prost(bytes = "vec", optional, tag = "3")]
        regular: Option<Vec<u8>>,
        #[prost(bytes = "vec", optional, tag = "4")]
        inet: Option<Vec<u8>>,
        #[prost(fixed64, tag = "901")]
        later: u64,
    }

    fn words(ip: &str) -> Vec<u32> {
        words_of(ip.parse().unwrap())
    }

    fn inet(family: u64, source: &str, destination: &str) -> Inet {
        let [source, destination] = [source, destination].map(words);
        let family = u32::try_from(family).unwrap();
        Inet { family, port: 4791, source, destination, later: "kept".into() }
    }

    fn entry(inet: Option<Vec<u8>>) -> Vec<u8> {
        let regular = inet.is_none().then(|| b"\x30\x01".to_vec());
        Entry { kind: 4, regular, inet, later: 7 }.encode_to_vec()
    }

    fn image(messages: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
        let mut bytes = [0x5456_4319_u32, 0x5630_3138].map(u32::to_le_bytes).concat();
        for message in messages {
            bytes.extend(u32::try_from(message.len()).unwrap().to_le_bytes());
            bytes.extend(message);
        }
        bytes
    }

    fn sockets(ends: &[Inet]) -> Vec<u8> {
        image(ends.iter().map(|end| entry(Some(end.encode_to_vec()))).chain([entry(None)]))
    }

    fn map(text: &str) -> AddressMap {
        text.parse().unwrap()
    }

    const SWAP: &str = "10.0.0.1=10.0.0.2,10.0.0.2=10.0.0.1,fd00::1=fd00::2";

    #[test]
    fn both_ends_of_sockets_become_what_the_map_says_and_nothing_else_changes() {
        let old = sockets(&[
            inet(IPV4, "10.0.0.1", "10.0.0.2"),
            inet(IPV4, "10.0.0.1", "0.0.0.0"),
            inet(IPV4, "10.0.0.3", "10.0.0.1"),
            inet(IPV4, "127.0.0.1", "127.0.0.1"),
            inet(IPV6, "fd00::1", "fd00::3"),
            inet(IPV6, "::ffff:10.0.0.1", "::ffff:10.0.0.9"),
            inet(IPV6, "::", "::"),
        ]);
        let new = sockets(&[
            inet(IPV4, "10.0.0.2", "10.0.0.1"),
            inet(IPV4, "10.0.0.2", "0.0.0.0"),
            inet(IPV4, "10.0.0.3", "10.0.0.2"),
            inet(IPV4, "127.0.0.1", "127.0.0.1"),
            inet(IPV6, "fd00::2", "fd00::3"),
            inet(IPV6, "::ffff:10.0.0.2", "::ffff:10.0.0.9"),
            inet(IPV6, "::", "::"),
        ]);
        assert_eq!(rewritten(&old, &map(SWAP)).unwrap(), new);
    }

    #[test]
    fn words_in_a_row_stay_in_a_row_and_those_behind_an_address_stay() {
        let packed = |source: [&str; 2], destination| {
            let source = source.map(words).concat();
            let message = Packed { family: 2, source, destination: words(destination) };
            image([entry(Some(message.encode_to_vec()))])
        };
        let old = packed(["10.0.0.1", "10.0.0.2"], "10.0.0.9");
        assert_eq!(rewritten(&old, &map(SWAP)).unwrap(), packed(["10.0.0.2", "10.0.0.2"], "10.0.0.9"));
    }

    #[test]
    fn the_folder_has_all_files_and_the_first_one_stays_as_it_is() {
        let tmp = tempfile::tempdir().unwrap();
        let [from, into] = ["images", "new"].map(|name| tmp.path().join(name));
        let old = sockets(&[inet(IPV4, "10.0.0.1", "10.0.0.3")]);
        fs::create_dir(&from).unwrap();
        fs::write(from.join(FILES), &old).unwrap();
        fs::write(from.join("core-1.img"), "core").unwrap();
        readdress(&from, &into, &map(SWAP)).unwrap();
        assert_eq!(fs::read(from.join(FILES)).unwrap(), old);
        assert_eq!(fs::read(into.join(FILES)).unwrap(), sockets(&[inet(IPV4, "10.0.0.2", "10.0.0.3")]));
        assert_eq!(fs::read(into.join("core-1.img")).unwrap(), b"core");
        assert!(fs::symlink_metadata(into.join("core-1.img")).unwrap().is_symlink());
        assert_eq!(addresses(&into).unwrap(), BTreeSet::from(["10.0.0.2".parse().unwrap()]));
        assert!(readdress(&from, &into, &map(SWAP)).is_err() && into.join(FILES).exists());
        fs::write(from.join(FILES), &old[..old.len() - 1]).unwrap();
        let other = tmp.path().join("other");
        assert!(readdress(&from, &other, &map(SWAP)).is_err() && !other.exists());
    }

    #[test]
    fn addresses_are_those_of_the_host_that_sockets_are_bound_to() {
        let image = sockets(&[
            inet(IPV4, "10.0.0.1", "10.0.0.2"),
            inet(IPV4, "127.0.0.1", "10.0.0.3"),
            inet(IPV4, "0.0.0.0", "0.0.0.0"),
            inet(IPV4, "224.0.0.5", "0.0.0.0"),
            inet(IPV6, "::ffff:10.0.0.4", "::"),
            inet(IPV6, "fd00::1", "::"),
            inet(IPV6, "::1", "::1"),
        ]);
        let expected = ["10.0.0.1", "10.0.0.4", "fd00::1"].map(|ip| ip.parse().unwrap());
        assert_eq!(bound(&image).unwrap(), BTreeSet::from(expected));
    }

    #[test]
    fn damaged_images_are_errors() {
        let cut_address = Inet { source: vec![1, 2, 3], ..inet(IPV6, "fd00::1", "fd00::2") };
        let no_message = [vec![0x08, 0x04], vec![0x20, 0x01]].concat();
        let long_word = [vec![0x18, 0x02, 0x58], vec![0xff; 9], vec![0x01, 0x60, 0x01]].concat();
        let float = vec![0x18, 0x02, 0x5d, 0, 0, 0, 0];
        for bad in [
            Vec::new(),
            vec![0; 64],
            sockets(&[cut_address]),
            sockets(&[Inet::default()]),
            image([no_message]),
            image([entry(Some(long_word))]),
            image([entry(Some(float))]),
            image([vec![0x22, 0x7f]]),
            image([vec![0xff; 12]]),
        ] {
            assert!(rewritten(&bad, &map(SWAP)).is_err(), "{bad:x?}");
            assert!(bound(&bad).is_err(), "{bad:x?}");
        }
    }

    proptest! {
        #[test]
        fn an_empty_map_leaves_every_byte_as_it_is(
            ends in prop::collection::vec((any::<bool>(), any::<[u32; 8]>(), any::<u32>(), ".*"), 0..8)
        ) {
            let socket = |(v6, words, port, later): &(bool, [u32; 8], u32, String)| {
                let n = if *v6 { 4 } else { 1 };
                let family = if *v6 { 10 } else { 2 };
                let (source, destination) = (words[..n].to_vec(), words[4..4 + n].to_vec());
                Inet { family, port: *port, source, destination, later: later.clone() }
            };
            let image = sockets(&ends.iter().map(socket).collect::<Vec<_>>());
            prop_assert_eq!(rewritten(&image, &AddressMap::default()).unwrap(), image);
        }

        #[test]
        fn a_map_and_its_inverse_bring_back_every_byte(first: [u8; 4], second: [u8; 4]) {
            let [first, second] = [first, second].map(|ip| IpAddr::from(ip).to_string());
            let image = sockets(&[inet(IPV4, "10.0.0.1", &first), inet(IPV4, &second, "10.0.0.2")]);
            let there = rewritten(&image, &map(SWAP)).unwrap();
            prop_assert_eq!(rewritten(&there, &map(SWAP)).unwrap(), image);
        }

        #[test]
        fn hostile_images_are_no_panic(
            at in 0..200_usize,
            byte: u8,
            cut in 0..200_usize,
            more in prop::collection::vec(any::<u8>(), 0..64)
        ) {
            let mut bytes = sockets(&[inet(IPV4, "10.0.0.1", "10.0.0.2"), inet(IPV6, "fd00::1", "fd00::2")]);
            if let Some(there) = bytes.get_mut(at) {
                *there = byte;
            }
            bytes.truncate(cut.max(BEFORE));
            bytes.extend(more);
            let _ = (rewritten(&bytes, &map(SWAP)), bound(&bytes));
        }
    }
}
