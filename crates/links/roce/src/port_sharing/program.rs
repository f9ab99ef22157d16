//! The program that picks a socket for each packet: classic BPF on the UDP payload, which needs no privilege (`man 7
//! socket`, SO_ATTACH_REUSEPORT_CBPF). It reads the destination QPN of the BTH (IBA 9.2.3, bytes 5 to 7) and returns
//! the index, in the order of the group, of the socket that has the QPN's process slot. QP 1 belongs to no process: its
//! packets are led by the slot in the communication identifier, or by the service, in their management datagram
//! (`qp1/src/mad.rs`).

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_H, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_RSH, BPF_W,
};
use libc::{SKF_AD_OFF, SKF_AD_RANDOM, sock_filter, sock_fprog};
use std::io;
use std::os::fd::BorrowedFd;
use vervain_gsi::SLOT_BITS;
use vervain_hca::arena::layout::INDEX_BITS;

use super::SINK;
use crate::net::options;
use vervain_qp1::mad::{ATTRIBUTE_AT, LOCAL_AT, QPN, REMOTE_AT, REQ, SERVICE_AT, SIDR_REP, SIDR_REQ};

/// Slots that are compared one by one at the end of the search; each step before halves them.
const LEAF: usize = 8;
/// Most instructions that the kernel takes.
const MOST: usize = libc::BPF_MAXINSNS as usize;
/// Most processes among which the program chooses for a service that nobody has claimed.
const MOST_TAKERS: usize = 32;
/// Offset of a datagram's payload in its packet: behind BTH and DETH.
const PAYLOAD_AT: usize = 20;
/// Offset at which the program reads a random number.
const RANDOM: u32 = (SKF_AD_OFF + SKF_AD_RANDOM) as u32;
/// BPF_MOD of linux/filter.h.
const BPF_MOD: u32 = 0x90;

/// Destinations of the packets for QP 1.
#[derive(Clone, Debug, Default)]
pub struct Management {
    /// Services, and the index of the process that has claimed each.
    pub services: Vec<(u64, u32)>,
    /// Indices of the processes that answer for services that nobody has claimed.
    pub takers: Vec<u32>,
}

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

const fn verdict(index: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, 0, 0, index)
}

const fn load(size: u32, at: usize) -> sock_filter {
    instruction(BPF_LD | size | BPF_ABS, 0, 0, at as u32)
}

const fn compute(operation: u32, with: u32) -> sock_filter {
    instruction(BPF_ALU | operation | BPF_K, 0, 0, with)
}

const fn skip_unless(value: u32, jf: u8) -> sock_filter {
    instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, jf, value)
}

const fn jump(over: u32) -> sock_filter {
    instruction(BPF_JMP | BPF_JA, 0, 0, over)
}

/// The program for `slots`, pairs of slot and index. Unknown slots go to the sink, and so does a packet that is too
/// short, as a load beyond the end returns 0 as well. Services for which there is no room are led as if nobody had
/// claimed them, and handed on by their receivers.
pub fn build(mut slots: Vec<(u32, u32)>, management: &Management) -> Vec<sock_filter> {
    slots.sort_unstable();
    let Management { services, takers } = management;
    let takers = &takers[..takers.len().min(MOST_TAKERS)];
    let mut most = services.len();
    loop {
        let program = assemble(&slots, &services[..most], takers);
        if most == 0 || program.len() <= MOST {
            return program;
        }
        most /= 2;
    }
}

fn assemble(slots: &[(u32, u32)], services: &[(u64, u32)], takers: &[u32]) -> Vec<sock_filter> {
    let mut program = vec![
        load(BPF_W, 4),
        compute(BPF_AND, 0x00ff_ffff),
        skip_unless(QPN, 10),
        load(BPF_H, PAYLOAD_AT + ATTRIBUTE_AT),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, REQ.into()),
        skip_unless(SIDR_REQ.into(), 1),
        jump(0),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, 2, 0, SIDR_REP.into()),
        load(BPF_W, PAYLOAD_AT + REMOTE_AT),
        jump(1),
        load(BPF_W, PAYLOAD_AT + LOCAL_AT),
        compute(BPF_RSH, u32::BITS - SLOT_BITS),
        jump(1),
        compute(BPF_RSH, INDEX_BITS),
    ];
    const TO_SERVICES: usize = 6;
    search(&mut program, slots, &mut |program| program.push(verdict(SINK)));
    land(&mut program, TO_SERVICES);
    search_services(&mut program, services);
    if let [only] = takers {
        program.push(verdict(*only));
    } else if let Ok(count @ 1..) = u32::try_from(takers.len()) {
        program.push(instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, RANDOM));
        program.push(compute(BPF_MOD, count));
        let places: Vec<_> = (0..).zip(takers.iter().copied()).collect();
        search(&mut program, &places, &mut |program| program.push(verdict(SINK)));
    } else {
        program.push(verdict(SINK));
    }
    program
}

/// Makes the jump at `at` end here.
fn land(program: &mut [sock_filter], at: usize) {
    let here = program.len();
    program[at].k = (here - at - 1) as u32;
}

/// Appends the search for the service of a request; the program goes on behind it if there is none.
fn search_services(program: &mut Vec<sock_filter>, services: &[(u64, u32)]) {
    let mut services = services.to_vec();
    services.sort_unstable();
    services.dedup_by_key(|(service, _)| *service);
    let mut misses = Vec::new();
    if !services.is_empty() {
        program.push(load(BPF_W, PAYLOAD_AT + SERVICE_AT));
        for group in services.chunk_by(|(a, _), (b, _)| a >> 32 == b >> 32) {
            program.push(skip_unless((group[0].0 >> 32) as u32, 1));
            program.push(jump(1));
            let over = program.len();
            program.push(jump(0));
            program.push(load(BPF_W, PAYLOAD_AT + SERVICE_AT + 4));
            let group: Vec<_> = group.iter().map(|(service, index)| (*service as u32, *index)).collect();
            search(program, &group, &mut |program| {
                misses.push(program.len());
                program.push(jump(0));
            });
            land(program, over);
        }
    }
    misses.into_iter().for_each(|at| land(program, at));
}

/// Appends the search for the index of a number; `miss` appends the end of a search that finds none.
fn search(program: &mut Vec<sock_filter>, routes: &[(u32, u32)], miss: &mut impl FnMut(&mut Vec<sock_filter>)) {
    if routes.len() <= LEAF {
        for (slot, index) in routes {
            program.push(skip_unless(*slot, 1));
            program.push(verdict(*index));
        }
        miss(program);
        return;
    }
    let (low, high) = routes.split_at(routes.len() / 2);
    // Conditional jumps reach 255 instructions, BPF_JA any number.
    program.push(instruction(BPF_JMP | BPF_JGE | BPF_K, 0, 1, high[0].0));
    let over = program.len();
    program.push(jump(0));
    search(program, low, miss);
    land(program, over);
    search(program, high, miss);
}

/// `struct sock_fprog`, with its padding: memcheck would report uninitialised bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct Given {
    length: u16,
    padding: [u16; 3],
    filter: *const sock_filter,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Given>() == size_of::<sock_fprog>() && offset_of!(Given, length) == offset_of!(sock_fprog, len));
    assert!(offset_of!(Given, filter) == offset_of!(sock_fprog, filter));
};

/// Gives the group of `socket` the program for `slots` and `management` in place of its old one: each packet meets
/// either. Old kernels take at most 20 KiB of a program translated to eight-byte instructions (net.core.optmem_max),
/// three for a slot; the rest is room for services.
pub fn attach(socket: BorrowedFd<'_>, slots: &[(u32, u32)], mut management: Management) -> io::Result<()> {
    loop {
        let program = build(slots.to_vec(), &management);
        let given = Given { length: program.len() as u16, padding: [0; 3], filter: program.as_ptr() };
        let services = management.services.len();
        match options::set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &given) {
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) && services > 0 => {
                management.services.truncate(services / 2);
            }
            attached => return attached,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_hca::arena::layout::SLOTS;

    /// The kernel's result for `payload`, with 7 as its random number.
    fn run(program: &[sock_filter], payload: &[u8]) -> u32 {
        run_by_chance(program, payload, 7)
    }

    fn run_by_chance(program: &[sock_filter], payload: &[u8], random: u32) -> u32 {
        let (mut a, mut at) = (0u32, 0usize);
        loop {
            let i = &program[at];
            at += 1;
            match u32::from(i.code) {
                c if c == BPF_LD | BPF_W | BPF_ABS && i.k == RANDOM => a = random,
                c if c == BPF_LD | BPF_H | BPF_ABS => match payload.get(i.k as usize..i.k as usize + 2) {
                    Some(half) => a = u16::from_be_bytes(half.try_into().unwrap()).into(),
                    None => return 0,
                },
                c if c == BPF_ALU | BPF_MOD | BPF_K => a %= i.k,
                c if c == BPF_LD | BPF_W | BPF_ABS => match payload.get(i.k as usize..i.k as usize + 4) {
                    Some(word) => a = u32::from_be_bytes(word.try_into().unwrap()),
                    None => return 0,
                },
                c if c == BPF_ALU | BPF_AND | BPF_K => a &= i.k,
                c if c == BPF_ALU | BPF_RSH | BPF_K => a >>= i.k,
                c if c == BPF_JMP | BPF_JEQ | BPF_K => at += usize::from(if a == i.k { i.jt } else { i.jf }),
                c if c == BPF_JMP | BPF_JGE | BPF_K => at += usize::from(if a >= i.k { i.jt } else { i.jf }),
                c if c == BPF_JMP | BPF_JA => at += i.k as usize,
                c if c == BPF_RET | BPF_K => return i.k,
                c => panic!("instruction {c:#x}"),
            }
        }
    }

    fn packet(slot: u32) -> [u8; 12] {
        let mut bytes = [0xff; 12];
        bytes[5..8].copy_from_slice(&(slot << INDEX_BITS | 0x2aaa).to_be_bytes()[1..]);
        bytes
    }

    #[test]
    fn every_slot_is_found_whatever_the_others_are() {
        for step in [1, 2, 3, 7, 100, 2000] {
            let routes: Vec<_> = (1..SLOTS).step_by(step).map(|slot| (slot, slot * 7 % 1000 + 1)).rev().collect();
            let program = build(routes.clone(), &Management::default());
            for slot in 0..SLOTS {
                let expected = routes.iter().find(|r| r.0 == slot).map_or(SINK, |r| r.1);
                assert_eq!(run(&program, &packet(slot)), expected, "slot {slot} of every {step}th");
            }
        }
    }

    #[test]
    fn short_packets_and_an_empty_group_lead_to_the_sink() {
        let program = build(vec![(5, 1)], &Management::default());
        assert_eq!(run(&program, &packet(5)[..7]), SINK);
        assert_eq!(run(&program, &packet(5)[..8]), 1);
        assert_eq!(run(&build(Vec::new(), &Management::default()), &packet(5)), SINK);
    }

    #[test]
    fn a_full_group_fits_into_a_program() {
        let services = (0..4096).map(|n| (n << 30, 1)).collect();
        let management = Management { services, takers: (1..SLOTS).collect() };
        let program = build((1..SLOTS).map(|slot| (slot, slot)).collect(), &management);
        assert!(program.len() <= libc::BPF_MAXINSNS as usize, "{} instructions", program.len());
    }

    /// A packet for QP 1 with these words from the beginning of its message on.
    fn mad(attribute: u16, local: u32, remote: u32, service: u64) -> Vec<u8> {
        let mut bytes = vec![0xff; 20 + 256 + 4];
        bytes[5..8].copy_from_slice(&[0, 0, 1]);
        bytes[36..38].copy_from_slice(&attribute.to_be_bytes());
        bytes[44..48].copy_from_slice(&local.to_be_bytes());
        bytes[48..52].copy_from_slice(&remote.to_be_bytes());
        bytes[52..60].copy_from_slice(&service.to_be_bytes());
        bytes
    }

    #[test]
    fn management_datagrams_go_by_the_slot_or_the_service_that_they_name() {
        for slots in [10, 600] {
            for services in [0, 1, 5, 100] {
                let slots: Vec<_> = (1..slots).map(|slot| (slot, slot + 1000)).collect();
                // In three groups.
                let service = |n: u64| (n % 3) << 32 | (0x0106_0000 + n * 7);
                let services: Vec<_> = (0..services).map(|n| (service(n), n as u32 + 1)).collect();
                let program = build(slots, &Management { services: services.clone(), takers: vec![77] });
                for (service, index) in &services {
                    for attribute in [REQ, SIDR_REQ] {
                        assert_eq!(run(&program, &mad(attribute, 5 << 22, 6 << 22, *service)), *index);
                    }
                }
                for strange in [service(200), service(1) ^ 1 << 40, 0, u64::MAX] {
                    assert_eq!(run(&program, &mad(REQ, 5 << 22, 6 << 22, strange)), 77);
                }
                let (local, remote) = (5 << 22 | 0x3f_ffff, 6 << 22 | 1);
                assert_eq!(run(&program, &mad(SIDR_REP, local, remote, service(1))), 1005);
                for attribute in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a, 0xffff] {
                    assert_eq!(run(&program, &mad(attribute, local, remote, service(1))), 1006);
                    assert_eq!(run(&program, &mad(attribute, local, 1023 << 22, service(1))), SINK);
                }
                assert_eq!(run(&program, &packet(6)), 1006);
            }
        }
    }

    #[test]
    fn what_nobody_has_claimed_goes_to_any_of_those_who_answer() {
        let request = mad(REQ, 0, 0, 9);
        for count in [0, 1, 2, 9, MOST_TAKERS, 100] {
            let takers: Vec<u32> = (1..=count as u32).collect();
            let program = build(vec![(1, 1)], &Management { services: vec![(8, 500)], takers });
            let chosen: std::collections::BTreeSet<_> =
                (0..1000).map(|random| run_by_chance(&program, &request, random)).collect();
            let expected = if count == 0 { [SINK].into() } else { (1..=count.min(MOST_TAKERS) as u32).collect() };
            assert_eq!(chosen, expected);
        }
    }

    #[test]
    fn services_without_room_are_led_as_if_nobody_had_them() {
        let services: Vec<_> = (0..4096).map(|n| (n, 3)).collect();
        let program = build((1..200).map(|slot| (slot, slot)).collect(), &Management { services, takers: vec![77] });
        assert!(program.len() <= MOST);
        assert_eq!(run(&program, &mad(REQ, 0, 0, 0)), 3);
        assert_eq!(run(&program, &mad(REQ, 0, 0, 4095)), 77);
    }

    #[test]
    fn a_management_datagram_that_is_cut_short_leads_to_the_sink() {
        let management = Management { services: vec![(8, 500)], takers: vec![77] };
        let program = build(vec![(6, 1)], &management);
        for attribute in [REQ, SIDR_REP, 0x13] {
            let whole = mad(attribute, 6 << 22, 6 << 22, 8);
            let from = match attribute {
                REQ => 60,
                SIDR_REP => 48,
                _ => 52,
            };
            for length in 8..whole.len() {
                assert_eq!(run(&program, &whole[..length]) != SINK, length >= from, "{attribute:#x} {length}");
            }
        }
    }
}
