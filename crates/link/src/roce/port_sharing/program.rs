//! The program that picks a socket for each packet: classic BPF on the UDP payload, which needs no privilege (`man 7
//! socket`, SO_ATTACH_REUSEPORT_CBPF). It reads the destination QPN of the BTH (IBA 9.2.3, bytes 5 to 7) and returns
//! the index, in the order of the group, of the socket that has the QPN's process slot.

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_RSH, BPF_W};
use libc::{sock_filter, sock_fprog};
use std::io;
use std::os::fd::BorrowedFd;
use vervain_hca::arena::layout::INDEX_BITS;

use super::SINK;
use crate::roce::net::options;

/// Slots that are compared one by one at the end of the search; in between, each step halves them. Old kernels limit
/// the program to 20 KiB (net.core.optmem_max) after their translation to eight-byte instructions, three for a slot
/// here.
const LEAF: usize = 8;

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

const fn verdict(index: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, 0, 0, index)
}

/// The program for `routes`, pairs of slot and index. Slots that it does not know go to the sink, and so does a packet
/// too short to have a QPN, for a load beyond the end returns 0 as well.
pub fn build(mut routes: Vec<(u32, u32)>) -> Vec<sock_filter> {
    routes.sort_unstable();
    let mut program = vec![
        instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, 4),
        instruction(BPF_ALU | BPF_AND | BPF_K, 0, 0, 0x00ff_ffff),
        instruction(BPF_ALU | BPF_RSH | BPF_K, 0, 0, INDEX_BITS),
    ];
    search(&mut program, &routes);
    program
}

fn search(program: &mut Vec<sock_filter>, routes: &[(u32, u32)]) {
    if routes.len() <= LEAF {
        for (slot, index) in routes {
            program.push(instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, *slot));
            program.push(verdict(*index));
        }
        program.push(verdict(SINK));
        return;
    }
    let (low, high) = routes.split_at(routes.len() / 2);
    // Conditional jumps reach 255 instructions, BPF_JA any number.
    program.push(instruction(BPF_JMP | BPF_JGE | BPF_K, 0, 1, high[0].0));
    let jump = program.len();
    program.push(instruction(BPF_JMP | BPF_JA, 0, 0, 0));
    search(program, low);
    program[jump].k = (program.len() - jump - 1) as u32;
    search(program, high);
}

/// Gives the group of `socket` a program, in place of the one it had: a packet meets either the old or the new one.
pub fn attach(socket: BorrowedFd<'_>, program: &[sock_filter]) -> io::Result<()> {
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    options::set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_hca::arena::layout::SLOTS;

    /// What the kernel would return for `payload`.
    fn run(program: &[sock_filter], payload: &[u8]) -> u32 {
        let (mut a, mut at) = (0u32, 0usize);
        loop {
            let i = &program[at];
            at += 1;
            match u32::from(i.code) {
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
            let program = build(routes.clone());
            for slot in 0..SLOTS {
                let expected = routes.iter().find(|r| r.0 == slot).map_or(SINK, |r| r.1);
                assert_eq!(run(&program, &packet(slot)), expected, "slot {slot} of every {step}th");
            }
        }
    }

    #[test]
    fn short_packets_and_an_empty_group_lead_to_the_sink() {
        let program = build(vec![(5, 1)]);
        assert_eq!(run(&program, &packet(5)[..7]), SINK);
        assert_eq!(run(&program, &packet(5)[..8]), 1);
        assert_eq!(run(&build(Vec::new()), &packet(5)), SINK);
    }

    #[test]
    fn a_full_group_fits_into_a_program() {
        let program = build((1..SLOTS).map(|slot| (slot, slot)).collect());
        assert!(program.len() <= libc::BPF_MAXINSNS as usize, "{} instructions", program.len());
    }
}
