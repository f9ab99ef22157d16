"""icrc.py FILE...: recomputes the ICRC of every RoCE v2 packet in classic pcap files, independently of Vervain's code.

InfiniBand annex A17.3.2 (RoCE v2): CRC-32 over eight bytes of ones, which stand where an InfiniBand packet has its LRH, and
the packet from the IP header to the last byte before the ICRC. Fields that routers may change count as ones: type of
service, time to live and header checksum (IPv6: traffic class, flow label, hop limit), the UDP checksum, and the byte of
the BTH with FECN and BECN. Least significant byte first.

Prints one line for each packet that is wrong, and a summary "N packets, M wrong, by opcode: ..."; exit status 1 when there
is a wrong one or none at all."""
import collections
import struct
import sys
import zlib

ROCE_PORT = 4791


def frames(path):
    """The captured bytes of each frame."""
    with open(path, "rb") as file:
        magic = file.read(4)
        order = "<" if magic in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
        _, _, _, _, _, link_type = struct.unpack(order + "HHiIII", file.read(20))
        if link_type != 1:
            raise SystemExit(f"{path}: link type {link_type}, not Ethernet")
        while header := file.read(16):
            _, _, captured, length = struct.unpack(order + "IIII", header)
            if captured != length:
                raise SystemExit(f"{path}: a frame of {length} bytes is cut to {captured}")
            yield file.read(captured)


def roce(frame):
    """(IP packet, length of its IP header) of a RoCE v2 packet, else None."""
    ether_type = int.from_bytes(frame[12:14], "big")
    ip = frame[14:]
    if ether_type == 0x0800 and ip[9] == 17:
        header, total = (ip[0] & 0x0F) * 4, int.from_bytes(ip[2:4], "big")
    elif ether_type == 0x86DD and ip[6] == 17:
        header, total = 40, 40 + int.from_bytes(ip[4:6], "big")
    else:
        return None
    if int.from_bytes(ip[header + 2:header + 4], "big") != ROCE_PORT:
        return None
    return ip[:total], header


def expected(ip, header):
    """The four bytes that must end the packet."""
    covered = bytearray(b"\xff" * 8 + ip[:-4])
    at = 8
    if header == 40 and ip[0] >> 4 == 6:
        ones = [at + 1, at + 2, at + 3, at + 7]
        covered[at] |= 0x0F
    else:
        ones = [at + 1, at + 8, at + 10, at + 11]
    udp = at + header
    for index in ones + [udp + 6, udp + 7, udp + 12]:
        covered[index] = 0xFF
    return struct.pack("<I", zlib.crc32(covered))


def main():
    opcodes = collections.Counter()
    wrong = 0
    for path in sys.argv[1:]:
        for number, frame in enumerate(frames(path), 1):
            if (found := roce(frame)) is None:
                continue
            ip, header = found
            opcodes[ip[header + 8]] += 1
            want = expected(ip, header)
            if ip[-4:] != want:
                wrong += 1
                print(f"{path}: frame {number}: opcode {ip[header + 8]:#04x}: {ip[-4:].hex()}, expected {want.hex()}")
    total = sum(opcodes.values())
    names = " ".join(f"{opcode:#04x}:{n}" for opcode, n in sorted(opcodes.items()))
    print(f"{total} packets, {wrong} wrong, by opcode: {names}")
    return wrong != 0 or total == 0


if __name__ == "__main__":
    sys.exit(main())
