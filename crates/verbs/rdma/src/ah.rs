//! Address handles: where a datagram goes, and where one came from.

use vervain_abi::*;

use crate::completion::Completion;
use crate::device::Context;
use crate::error::{Error, Result, check};
use crate::gid::{GRH_BYTES, Gid};
use crate::path::{Endpoint, PathOptions};
use crate::pd::Pd;

/// The way to a port; `struct ibv_ah_attr` of `ibv_create_ah(3)`. A value, by which a program can find the handle that
/// it has made for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// The port to leave by, from 1.
    pub port: u8,
    /// The LID of the other port; without meaning on RoCE.
    pub lid: u16,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Low bits of the LID to leave with, where the port has several.
    pub path_bits: u8,
    /// `enum ibv_rate`, the fastest to send; 0 for the port's own.
    pub rate: u8,
    /// The GRH; None: no GRH, which RoCE does not allow.
    pub route: Option<Route>,
}

/// The fields of a GRH that the sender chooses; `struct ibv_global_route`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// The GID of the other port.
    pub gid: Gid,
    /// The GID to leave with, by its place in the port's table.
    pub gid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Routers that a packet may pass.
    pub hop_limit: u8,
    /// On RoCE v2 the DSCP and ECN bits of the IP header.
    pub traffic_class: u8,
}

impl AddressVector {
    /// The way to `remote` over the path `path`.
    ///
    /// # Errors
    /// A path that cannot lead there: a GID on one side only, or no LID where there is no GID.
    pub fn new(remote: &Endpoint, path: &PathOptions) -> Result<Self> {
        let route = match (path.gid_index, remote.gid) {
            (Some(gid_index), Some(gid)) => {
                let (hop_limit, traffic_class) = (path.hop_limit, path.traffic_class);
                Some(Route { gid, gid_index, flow_label: 0, hop_limit, traffic_class })
            }
            (None, _) if remote.lid != 0 => None,
            (Some(_), None) => return Err(Error::invalid("a path with a GID leads to a peer that gave none")),
            (None, _) => return Err(Error::invalid("a path without a GID leads to a peer that has no LID")),
        };
        Ok(Self { port: path.port, lid: remote.lid, sl: path.sl, path_bits: 0, rate: 0, route })
    }

    /// The address of the sender of a datagram: `received` is its completion, `grh` the first [`GRH_BYTES`] bytes of
    /// its receive, `port` the QP's port. On RoCE it comes from the GRH, or from the IP header in its place; on
    /// InfiniBand from the LID, and from the GRH if the datagram had one. `ibv_init_ah_from_wc(3)`.
    ///
    /// On RoCE libraries search the port's GIDs for the one that the datagram came to, with a system call for each,
    /// perhaps. That is too slow to be done for every datagram; [`sender_gid`](crate::sender_gid) and
    /// [`source_lid`](Completion::source_lid) name the sender without it.
    ///
    /// # Errors
    /// A `grh` that is no GRH, or one of an address that the port does not have; a port that is not there. Else the
    /// errno that the library left; older libraries set none.
    pub fn from_completion(context: &Context, port: u8, received: &Completion, grh: &[u8; GRH_BYTES]) -> Result<Self> {
        let (mut wc, mut attr, mut raw) = (received.raw(), ibv_ah_attr::default(), raw_grh(grh));
        let init = context.0.library.0.ah.init_from_wc;
        // SAFETY: an open context, and three structs of the layouts that the call reads and writes.
        let rc = unsafe { init(context.0.raw, port, &mut wc, &mut raw, &mut attr) };
        check(rc, "ibv_init_ah_from_wc", || {
            format!("a datagram of QP {:#x} at {}", received.source_qp(), context.name())
        })?;
        Ok(Self::of(&attr))
    }

    pub(crate) fn of(raw: &ibv_ah_attr) -> Self {
        let route = (raw.is_global != 0).then_some(Route {
            gid: Gid(raw.grh.dgid.raw),
            gid_index: raw.grh.sgid_index,
            flow_label: raw.grh.flow_label,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
        });
        Self {
            port: raw.port_num,
            lid: raw.dlid,
            sl: raw.sl,
            path_bits: raw.src_path_bits,
            rate: raw.static_rate,
            route,
        }
    }

    pub(crate) fn raw(&self) -> ibv_ah_attr {
        let grh = self.route.map(|route| ibv_global_route {
            dgid: route.gid.raw(),
            flow_label: route.flow_label,
            sgid_index: route.gid_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        });
        ibv_ah_attr {
            grh: grh.unwrap_or_default(),
            dlid: self.lid,
            sl: self.sl,
            src_path_bits: self.path_bits,
            static_rate: self.rate,
            is_global: grh.is_some().into(),
            port_num: self.port,
        }
    }
}

/// The bytes as the struct that they are, in which integers keep network byte order.
fn raw_grh(bytes: &[u8; GRH_BYTES]) -> ibv_grh {
    let gid = |from: usize| {
        let mut raw = [0; 16];
        raw.copy_from_slice(&bytes[from..from + 16]);
        ibv_gid { raw }
    };
    ibv_grh {
        version_tclass_flow: u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        paylen: u16::from_ne_bytes([bytes[4], bytes[5]]),
        next_hdr: bytes[6],
        hop_limit: bytes[7],
        sgid: gid(8),
        dgid: gid(24),
    }
}

/// An address handle; `ibv_create_ah(3)`. A device reads it while a datagram is posted; what is still under way when it
/// is dropped may be lost, as datagrams may.
pub struct Ah {
    pub(crate) raw: *mut ibv_ah,
    pub(crate) pd: Pd,
}

// SAFETY: the functions of libibverbs may be called from any thread; a handle does not change once it is made.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

impl Ah {
    /// A handle for `remote` over the path `path`, for the UD QPs of this domain.
    ///
    /// # Errors
    /// As [`AddressVector::new`] and [`to`](Ah::to).
    pub fn new(pd: &Pd, remote: &Endpoint, path: &PathOptions) -> Result<Ah> {
        Self::to(pd, &AddressVector::new(remote, path)?)
    }

    /// A handle for the sender of a datagram; `ibv_create_ah_from_wc(3)`. The answer goes to
    /// [`source_qp`](Completion::source_qp), with a Q_Key that both sides have agreed on: a datagram does not carry its
    /// sender's.
    ///
    /// # Errors
    /// As [`AddressVector::from_completion`] and [`to`](Ah::to).
    pub fn from_completion(pd: &Pd, port: u8, received: &Completion, grh: &[u8; GRH_BYTES]) -> Result<Ah> {
        Self::to(pd, &AddressVector::from_completion(pd.context(), port, received, grh)?)
    }

    /// A handle for the way `vector`, for the UD QPs of this domain.
    ///
    /// # Errors
    /// EINVAL: no such port or GID. ENOMEM. Else the driver's errno, for example ETIMEDOUT if the address cannot be
    /// resolved.
    pub fn to(pd: &Pd, vector: &AddressVector) -> Result<Ah> {
        // SAFETY: an allocated domain and an address vector of the layout that the call reads.
        let raw = unsafe { (pd.context().0.library.0.ah.create)(pd.0.raw, &mut vector.raw()) };
        if raw.is_null() {
            let to = vector.route.map_or_else(|| format!("LID {}", vector.lid), |route| route.gid.to_string());
            return Err(Error::last("ibv_create_ah", format!("{to} from {}", pd.context().name())));
        }
        Ok(Ah { raw, pd: pd.clone() })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; requests that name it borrow it, and are read when they are posted.
        unsafe { (self.pd.context().0.library.0.ah.destroy)(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_the_same_after_a_trip_through_the_library() {
        let route = Route {
            gid: "2001:db8::9".parse().expect("a GID"),
            gid_index: 3,
            flow_label: 0xabcde,
            hop_limit: 255,
            traffic_class: 7,
        };
        for route in [Some(route), None] {
            let vector = AddressVector { port: 2, lid: 0xc001, sl: 5, path_bits: 1, rate: 4, route };
            assert_eq!(AddressVector::of(&vector.raw()), vector);
        }
    }

    #[test]
    fn a_grh_keeps_its_bytes() {
        let bytes: [u8; GRH_BYTES] = std::array::from_fn(|i| i as u8);
        let grh = raw_grh(&bytes);
        assert_eq!((grh.version_tclass_flow, grh.paylen), (0x0001_0203u32.to_be(), 0x0405u16.to_be()));
        assert_eq!((grh.next_hdr, grh.hop_limit, grh.sgid.raw[0], grh.dgid.raw[15]), (6, 7, 8, 39));
    }
}
