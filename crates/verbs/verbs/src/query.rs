//! Attributes of a device and its ports: `ibv_query_device(3)`, `ibv_query_device_ex(3)`, `ibv_query_port(3)`,
//! `ibv_query_gid(3)` and its kin, `ibv_query_pkey(3)`, `ibv_query_rt_values_ex(3)`.

use core::ffi::{c_char, c_int};
use core::mem::size_of;
use core::{ptr, slice};
use std::sync::Arc;

use vervain_hca::device::{GidEntry, GidType, LIMITS};
use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::device_list;
use crate::object::{self, errno_of, minus_one_of};
use crate::opening::opening;
use crate::same::same;

/// Vervain's own vendor number: an OUI with the "locally administered" bit, which the IEEE gives to nobody.
const VENDOR_ID: u32 = 0x02_5652;

/// ConnectX-6's number. perftest knows devices by this number alone and gives an unknown one neither inline data nor
/// the `ibv_wr_*` functions, which would leave half of the device untested. Nothing that looks at it in earnest goes by
/// it without looking at the vendor as well.
const VENDOR_PART_ID: u32 = 4123;

/// The device behind a context.
unsafe fn device<'a>(context: *mut ibv_context) -> &'a Arc<hca::Device> {
    // SAFETY: the client's context, whose device is one of ours.
    unsafe { device_list::device((*context).device) }
}

/// Capabilities beyond the basic operations.
const CAPABILITIES: u32 = IBV_DEVICE_CURR_QP_STATE_MOD
    | IBV_DEVICE_SYS_IMAGE_GUID
    | IBV_DEVICE_RC_RNR_NAK_GEN
    | IBV_DEVICE_MEM_WINDOW
    | IBV_DEVICE_XRC
    | IBV_DEVICE_MEM_MGT_EXTENSIONS
    | IBV_DEVICE_MEM_WINDOW_TYPE_2B;

/// Time that this device adds to an acknowledgement, 4.096 µs times two to this power: 0.13 s, which covers a process
/// that is not scheduled for a while.
const ACK_DELAY: u8 = 15;

fn device_attr(device: &hca::Device) -> ibv_device_attr {
    let l = &LIMITS;
    // SAFETY: integers and bytes.
    let mut a: ibv_device_attr = unsafe { object::zeros() };
    for (to, &from) in a.fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").as_bytes()) {
        *to = from as c_char;
    }
    a.node_guid = device.guid().to_be();
    a.sys_image_guid = a.node_guid;
    a.max_mr_size = l.memory.max_mr_size;
    a.page_size_cap = l.memory.page_sizes;
    a.vendor_id = VENDOR_ID;
    a.vendor_part_id = VENDOR_PART_ID;
    a.max_qp = l.qp.max as c_int;
    a.max_qp_wr = l.qp.max_wr as c_int;
    a.device_cap_flags = CAPABILITIES;
    a.max_sge = l.qp.max_sge as c_int;
    a.max_sge_rd = l.qp.max_sge as c_int;
    a.max_cq = l.cq.max as c_int;
    a.max_cqe = l.cq.max_cqe as c_int;
    a.max_mr = l.memory.max_mr as c_int;
    a.max_pd = l.max_pd as c_int;
    a.max_qp_rd_atom = l.qp.max_rd_atom as c_int;
    a.max_res_rd_atom = (l.qp.max_rd_atom * l.qp.max) as c_int;
    a.max_qp_init_rd_atom = l.qp.max_rd_atom as c_int;
    // Atomics are the CPU's own instructions, at the initiator and at the owner, so they are atomic for all processes.
    a.atomic_cap = IBV_ATOMIC_GLOB;
    a.max_mw = l.memory.max_mw as c_int;
    a.max_mcast_grp = l.multicast.max_groups as c_int;
    a.max_mcast_qp_attach = l.multicast.max_qps as c_int;
    a.max_total_mcast_qp_attach = (l.multicast.max_groups * l.multicast.max_qps) as c_int;
    a.max_ah = l.max_ah as c_int;
    a.max_srq = l.srq.max as c_int;
    a.max_srq_wr = l.srq.max_wr as c_int;
    a.max_srq_sge = l.srq.max_sge as c_int;
    a.max_pkeys = l.pkeys as u16;
    a.local_ca_ack_delay = ACK_DELAY;
    a.phys_port_cnt = device.ports();
    a
}

/// The device's attributes.
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the client's context and attributes, to be set.
    unsafe { *attr = device_attr(device(context)) };
    0
}

/// The device's attributes as far as the client's struct goes.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    errno_of(|| {
        // SAFETY: the client's context, and its input or NULL.
        let device = unsafe {
            if !input.is_null() && (*input).comp_mask != 0 {
                return Err(Error::invalid("ibv_query_device_ex_input has no optional fields"));
            }
            device(context)
        };
        // SAFETY: integers and bytes.
        let mut a: ibv_device_attr_ex = unsafe { object::zeros() };
        a.orig_attr = device_attr(device);
        // Completion times are nanoseconds in 64 bits; the field for the clock's rate is in kHz.
        a.completion_timestamp_mask = u64::MAX;
        a.hca_core_clock = 1_000_000;
        a.device_cap_flags_ex = u64::from(a.orig_attr.device_cap_flags);
        a.max_dm_size = LIMITS.memory.max_dm_size;
        a.phys_port_cnt_ex = u32::from(device.ports());
        // SAFETY: the client's attributes, `attr_size` bytes.
        unsafe { copy_out(&a, attr.cast(), attr_size) };
        Ok(())
    })
}

/// Copies `from` to the client's struct of `size` bytes: what it does not know is cut off, what we do not know is 0.
unsafe fn copy_out<T>(from: &T, to: *mut u8, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's `size` bytes at `to`; `from` has `known` of them.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(from).cast(), to, known);
        ptr::write_bytes(to.add(known), 0, size - known);
    }
}

unsafe fn port_attr(context: *mut ibv_context, port_num: u8) -> Result<ibv_port_attr, Error> {
    // SAFETY: the client's context.
    let p = unsafe { device(context) }.port(port_num)?;
    Ok(same!(p => ibv_port_attr {
        state, max_mtu, active_mtu, port_cap_flags, max_msg_sz, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num,
        sm_sl, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2;
        gid_tbl_len: p.gid_tbl_len as c_int;
        // The speed has a code of 8 bits; no violation is ever counted; there is no subnet to time out.
        ..Default::default()
    }))
}

/// A port's attributes as far as the client's struct goes; the header's inline function comes here.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    errno_of(|| {
        // SAFETY: the client's context, and `attr_len` bytes of attributes.
        unsafe { copy_out(&port_attr(context, port_num)?, attr.cast(), attr_len) };
        Ok(())
    })
}

/// A port's attributes in the struct of 48 bytes that programs built before v20 pass.
pub unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the client's context and attributes.
    unsafe { query_port(context, port_num, attr, COMPAT_PORT_ATTR_LEN) }
}

/// A port's speed in units of 100 Mb/s.
pub unsafe extern "C" fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, speed: *mut u64) -> c_int {
    errno_of(|| {
        let port = u8::try_from(port_num).map_err(|_| Error::invalid(format!("port {port_num}")))?;
        // SAFETY: the client's context.
        let p = unsafe { port_attr(context, port)? };
        // IBA 14.2.5.6, PortInfo: one bit per width and per lane speed.
        let lanes = match p.active_width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 0,
        };
        let per_lane = match p.active_speed {
            1 => 25,
            2 => 50,
            4 | 8 => 100,
            16 => 140,
            32 => 250,
            64 => 500,
            128 => 1000,
            _ => 0,
        };
        // SAFETY: the client's number, to be set.
        unsafe { *speed = lanes * per_lane };
        Ok(())
    })
}

/// The valid entries of a port's GID table.
pub(crate) unsafe fn gid_entries(context: *mut ibv_context, port_num: u8) -> Result<Vec<GidEntry>, Error> {
    // SAFETY: the client's context.
    let device = unsafe { device(context) };
    device.port(port_num)?;
    Ok(device.gids(port_num))
}

fn entry_to_c(port_num: u32, e: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: e.gid },
        gid_index: e.index,
        port_num,
        gid_type: match e.gid_type {
            GidType::Ib => IBV_GID_TYPE_IB,
            GidType::RoceV2 => IBV_GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: e.ifindex,
    }
}

/// One entry of a port's GID table: ENODATA if it is empty, EINVAL beyond the table's end.
unsafe fn gid_entry(context: *mut ibv_context, port_num: u32, index: u32) -> Result<ibv_gid_entry, Error> {
    let port = u8::try_from(port_num).map_err(|_| Error::invalid(format!("port {port_num}")))?;
    // SAFETY: the client's context.
    let entries = unsafe { gid_entries(context, port)? };
    if let Some(entry) = entries.iter().find(|e| e.index == index) {
        return Ok(entry_to_c(port_num, entry));
    }
    // SAFETY: as above.
    unsafe { device(context) }.gid(port, index)?;
    Err(Error::new(libc::ENODATA, format!("GID {index} of port {port} is empty")))
}

/// A GID: zeros for an empty entry, -1 beyond the table's end.
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    minus_one_of(|| {
        let index = u32::try_from(index).map_err(|_| Error::invalid(format!("GID index {index}")))?;
        // SAFETY: the client's context and GID, to be set.
        unsafe { (*gid).raw = device(context).gid(port_num, index)? };
        Ok(0)
    })
}

/// An entry of the GID table, with its type and interface.
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    errno_of(|| {
        if flags != 0 {
            return Err(Error::unsupported(format!("ibv_query_gid_ex flags {flags:#x}")));
        }
        // SAFETY: the client's context, and `entry_size` bytes of entry.
        unsafe { copy_out(&gid_entry(context, port_num, gid_index)?, entry.cast(), entry_size) };
        Ok(())
    })
}

/// All valid entries of all ports; their number, or a negative errno value.
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    // SAFETY: the client's context.
    let device = unsafe { device(context) };
    let all: Vec<_> = (1..=device.ports())
        .flat_map(|port| device.gids(port).into_iter().map(move |e| entry_to_c(port.into(), &e)))
        .collect();
    if all.len() > max_entries {
        return -(libc::EINVAL as isize);
    }
    for (i, entry) in all.iter().enumerate() {
        // SAFETY: the client's array has `max_entries` elements of `entry_size` bytes.
        unsafe { copy_out(entry, entries.cast::<u8>().add(i * entry_size), entry_size) };
    }
    all.len() as isize
}

/// The type of a GID table entry in the old, coarser words; an empty entry reads as InfiniBand or RoCE v1.
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    minus_one_of(|| {
        // SAFETY: the client's context.
        let found = match unsafe { gid_entry(context, port_num.into(), index) } {
            Ok(entry) if entry.gid_type == IBV_GID_TYPE_ROCE_V2 => IBV_GID_TYPE_SYSFS_ROCE_V2,
            Ok(_) => IBV_GID_TYPE_SYSFS_IB_ROCE_V1,
            Err(e) if e.errno() == libc::ENODATA => IBV_GID_TYPE_SYSFS_IB_ROCE_V1,
            Err(e) => return Err(e),
        };
        // SAFETY: the client's type, to be set.
        unsafe { *gid_type = found };
        Ok(0)
    })
}

/// A P_Key, in network byte order; -1 beyond the table's end.
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    minus_one_of(|| {
        let index = u32::try_from(index).map_err(|_| Error::invalid(format!("P_Key index {index}")))?;
        // SAFETY: the client's context and P_Key, to be set.
        unsafe { *pkey = device(context).pkey(port_num, index)?.to_be() };
        Ok(0)
    })
}

/// The index of a P_Key, which is in network byte order, or -1.
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    minus_one_of(|| {
        // SAFETY: the client's context.
        let device = unsafe { device(context) };
        let len = device.port(port_num)?.pkey_tbl_len;
        (0..len)
            .find(|&i| device.pkey(port_num, i.into()).is_ok_and(|p| p.to_be() == pkey))
            .map(c_int::from)
            .ok_or_else(|| Error::new(libc::ENOENT, format!("port {port_num} has no P_Key {:#x}", u16::from_be(pkey))))
    })
}

/// The HCA's clock.
pub(crate) unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    // SAFETY: the client's context, and its values, to be set.
    unsafe {
        if (*values).comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let ns = opening(context).hca.clock_ns();
            (*values).raw_clock.tv_sec = (ns / 1_000_000_000) as libc::time_t;
            (*values).raw_clock.tv_nsec = (ns % 1_000_000_000) as libc::c_long;
        }
        (*values).comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    }
    0
}

/// The Ethernet address behind an address vector, as far as the GID itself says: multicast groups (RFC 1112, RFC 2464)
/// and link-local addresses made from a MAC (RFC 4291, appendix A). There is no Ethernet below this device and so no
/// neighbour to ask for any other.
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    /// "No VLAN", by rdma-core's number.
    const NO_VLAN: u16 = 0xffff;
    // SAFETY: the client's context and attributes, and 6 bytes and a VLAN number or NULL, to be set.
    unsafe {
        if let Err(e) = gid_entry(context, (*attr).port_num.into(), (*attr).grh.sgid_index.into()) {
            return -e.errno();
        }
        let Some(mac) = mac_of(&(*attr).grh.dgid.raw) else { return -libc::EHOSTUNREACH };
        slice::from_raw_parts_mut(eth_mac, 6).copy_from_slice(&mac);
        if !vid.is_null() {
            *vid = NO_VLAN;
        }
    }
    0
}

fn mac_of(gid: &[u8; 16]) -> Option<[u8; 6]> {
    let v4 = gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
    if v4 && gid[12] >> 4 == 0xe {
        Some([0x01, 0x00, 0x5e, gid[13] & 0x7f, gid[14], gid[15]])
    } else if gid[0] == 0xff {
        Some([0x33, 0x33, gid[12], gid[13], gid[14], gid[15]])
    } else if gid[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] && gid[11..13] == [0xff, 0xfe] {
        Some([gid[8] ^ 2, gid[9], gid[10], gid[13], gid[14], gid[15]])
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_read_off_the_gids_that_hold_one() {
        let mut link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55];
        assert_eq!(mac_of(&link_local), Some([0, 0x11, 0x22, 0x33, 0x44, 0x55]));
        link_local[12] = 0;
        assert_eq!(mac_of(&link_local), None);
        let v4_group = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 0x81, 2, 3];
        assert_eq!(mac_of(&v4_group), Some([1, 0, 0x5e, 1, 2, 3]));
        let v6_group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
        assert_eq!(mac_of(&v6_group), Some([0x33, 0x33, 1, 2, 3, 4]));
    }

    #[test]
    fn a_short_struct_is_filled_and_a_long_one_padded() {
        let mut to = [0xaa_u8; 8];
        // SAFETY: as many bytes as the buffer has.
        unsafe { copy_out(&0x0403_0201_u32.to_le(), to.as_mut_ptr(), 2) };
        assert_eq!(to, [1, 2, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa]);
        // SAFETY: as above.
        unsafe { copy_out(&0x0403_0201_u32.to_le(), to.as_mut_ptr(), 6) };
        assert_eq!(to, [1, 2, 3, 4, 0, 0, 0xaa, 0xaa]);
    }
}
