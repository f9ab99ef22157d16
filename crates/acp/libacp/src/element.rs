//! Arguments and results of functions of containers: bytes somewhere in global memory.

use vervain_acp::GlobalAddress;

/// `acp_element_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Element {
    pub ga: GlobalAddress,
    pub size: usize,
}

impl Element {
    /// The element without bytes.
    pub const NONE: Self = Self { ga: GlobalAddress::NULL, size: 0 };

    pub fn new((ga, size): (GlobalAddress, u64)) -> Self {
        usize::try_from(size).map_or(Self::NONE, |size| Self { ga, size })
    }
}

impl From<vervain_acp_containers::Element> for Element {
    fn from(element: vervain_acp_containers::Element) -> Self {
        Self { ga: element.address, size: element.size }
    }
}

/// `acp_pair_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Pair {
    pub first: Element,
    pub second: Element,
}

impl Pair {
    /// The pair without bytes.
    pub const NONE: Self = Self { first: Element::NONE, second: Element::NONE };
}
