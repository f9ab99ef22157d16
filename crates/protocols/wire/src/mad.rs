//! The common header of management datagrams (IBA 13.4.3), as those of the communication management class have it.

/// Bytes of a MAD.
pub const BYTES: usize = 256;
/// Bytes of the common header.
pub const HEADER: usize = 24;
/// The only base version that there is.
pub const BASE_VERSION: u8 = 1;
/// The management class of communication management.
pub const CLASS_CM: u8 = 7;
/// The version of that class.
pub const CM_VERSION: u8 = 2;
/// The method Send: all messages of communication management have it.
pub const METHOD_SEND: u8 = 3;

/// The fields of the common header that differ between MADs of communication management.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Status; 0.
    pub status: u16,
    /// Transaction ID: that of a request comes back in its answers.
    pub tid: u64,
    /// Which message it is.
    pub attribute: u16,
    /// The attribute modifier: 0, or what enhanced connection establishment says (`attr_mod` of `struct ibv_ece` as
    /// rdma-core has it on the wire).
    pub modifier: u32,
}

/// The reason why bytes are no MAD of communication management that can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Another base version.
    #[error("base version {0}")]
    BaseVersion(u8),
    /// Another management class.
    #[error("management class {0:#x}")]
    Class(u8),
    /// Another version of the class.
    #[error("class version {0}")]
    ClassVersion(u8),
    /// Another method than Send.
    #[error("method {0:#x}")]
    Method(u8),
    /// No message of communication management.
    #[error("attribute {0:#x}")]
    Attribute(u16),
    /// More additional information than there is room for: the length that was found.
    #[error("{0} bytes of additional information")]
    Information(u8),
}

impl Header {
    /// Takes the header from a MAD.
    ///
    /// # Errors
    /// If it is another class, version or method than those of communication management.
    pub fn parse(mad: &[u8; BYTES]) -> Result<Header, Malformed> {
        match [mad[0], mad[1], mad[2], mad[3]] {
            [BASE_VERSION, CLASS_CM, CM_VERSION, METHOD_SEND] => {}
            [BASE_VERSION, CLASS_CM, CM_VERSION, method] => return Err(Malformed::Method(method)),
            [BASE_VERSION, CLASS_CM, version, _] => return Err(Malformed::ClassVersion(version)),
            [BASE_VERSION, class, ..] => return Err(Malformed::Class(class)),
            [version, ..] => return Err(Malformed::BaseVersion(version)),
        }
        Ok(Header {
            status: u16::from_be_bytes([mad[4], mad[5]]),
            tid: u64::from_be_bytes([mad[8], mad[9], mad[10], mad[11], mad[12], mad[13], mad[14], mad[15]]),
            attribute: u16::from_be_bytes([mad[16], mad[17]]),
            modifier: u32::from_be_bytes([mad[20], mad[21], mad[22], mad[23]]),
        })
    }

    /// A MAD with this header, and zeros behind it.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut mad = [0; BYTES];
        mad[..4].copy_from_slice(&[BASE_VERSION, CLASS_CM, CM_VERSION, METHOD_SEND]);
        mad[4..6].copy_from_slice(&self.status.to_be_bytes());
        mad[8..16].copy_from_slice(&self.tid.to_be_bytes());
        mad[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        mad[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        mad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_classes_and_methods_are_told_apart() {
        let header = Header { status: 1, tid: 0x0123_4567_89ab_cdef, attribute: 0x10, modifier: 7 };
        let mad = header.encode();
        assert_eq!(Header::parse(&mad), Ok(header));
        let errors = [
            (0, Malformed::BaseVersion(9)),
            (1, Malformed::Class(9)),
            (2, Malformed::ClassVersion(9)),
            (3, Malformed::Method(9)),
        ];
        for (at, error) in errors {
            let mut mad = mad;
            mad[at] = 9;
            assert_eq!(Header::parse(&mad), Err(error));
        }
    }
}
