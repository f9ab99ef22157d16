"""foreign.py WAY LOCAL REMOTE GROUP RC_QPN UD_QPN RKEY ADDRESS: a peer of tests/c/answer that is not Vervain.

It makes its packets whole, from the IP header on, and sends them by raw sockets; it reads what comes at the interface. So it
does what RNICs and soft-RoCE do and a program with an ordinary UDP socket cannot: UDP checksum 0, any IPv4 flags and
identification, fragments, options. WAY says which of that. The ICRC is that of icrc.py.

Prints what it has seen, one line for each thing; exit status 1 when an answer is missing."""
import ipaddress
import random
import socket
import struct
import sys
import time

import icrc

PORT = icrc.ROCE_PORT
RC_QPN, UD_QPN, QKEY, GROUP_QPN = 0x11, 0x12, 0x11223344, 0xFFFFFF
SEND_ONLY, WRITE_ONLY, READ_REQUEST, READ_ONLY, ACK, UD_SEND_ONLY = 0x04, 0x0A, 0x0C, 0x10, 0x11, 0x64
# How long an answer may take before its message is sent again, as a reliable QP would, and how often.
PATIENCE, TRIES = 1.0, 8
ETH_P_ALL, IPV6_HDRINCL = 3, 36


class Peer:
    """The device."""

    def __init__(self, way, local, remote, group, rc_qpn, ud_qpn, rkey, address):
        self.way, self.local, self.remote, self.group = way, *map(ipaddress.ip_address, (local, remote, group))
        self.rc_qpn, self.ud_qpn, self.rkey, self.address = int(rc_qpn), int(ud_qpn), int(rkey), int(address)
        self.random = random.Random(4791)
        family = socket.AF_INET if self.local.version == 4 else socket.AF_INET6
        self.out = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
        if family == socket.AF_INET:
            self.out.setsockopt(socket.IPPROTO_IP, socket.IP_HDRINCL, 1)
            self.out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self.local.packed)
        else:
            self.out.setsockopt(socket.IPPROTO_IPV6, IPV6_HDRINCL, 1)
            self.out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex("eth0"))
        self.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.wire.bind(("eth0", 0))
        # So that the kernel does not say that nobody is there.
        self.port = socket.socket(family, socket.SOCK_DGRAM)
        self.port.bind((local, PORT))
        self.psn = {SEND_ONLY: 0, UD_SEND_ONLY: 0}
        self.expected = 0
        # The source ports and flow labels of what came for each QP.
        self.seen = {RC_QPN: (set(), set()), UD_QPN: (set(), set())}

    # --- sending ---

    def packet(self, to, udp_payload, label=0):
        """IP packet of a UDP datagram to `to` with checksum 0, whose last four bytes become its ICRC."""
        udp = struct.pack("!HHHH", 0xC123, PORT, 8 + len(udp_payload), 0)
        if self.local.version == 4:
            flags = 0 if self.way in ("clear", "fragments") else 0x4000
            number = self.random.randrange(1, 0x10000)
            # Four bytes that do nothing (RFC 791).
            options = b"\x01\x01\x01\x00" if self.way == "options" else b""
            header = 20 + len(options)
            total = header + len(udp) + len(udp_payload)
            ip = struct.pack("!BBHHHBBH", 0x40 | header // 4, 0, total, number, flags, 64, 17, 0)
        else:
            header, options = 40, b""
            ip = struct.pack("!IHBB", 6 << 28 | label, len(udp) + len(udp_payload), 17, 64)
        packet = bytearray(ip + self.local.packed + to.packed + options + udp + udp_payload)
        packet[-4:] = icrc.expected(packet, header)
        return packet

    def transmit(self, to, packet):
        for piece in self.pieces(packet):
            address = (str(to), 0) if self.local.version == 4 else (str(to), 0, 0, 0)
            self.out.sendto(bytes(piece), address)

    def pieces(self, packet):
        """What of a packet goes over the wire: itself, or what a router makes of it."""
        if self.way == "fragments":
            at = (len(packet) - 20) // 2 // 8 * 8
            first, last = bytearray(packet[:20 + at]), bytearray(packet[:20] + packet[20 + at:])
            first[6:8], last[6:8] = struct.pack("!H", 0x2000), struct.pack("!H", at // 8)
            for piece in (first, last):
                piece[2:4] = struct.pack("!H", len(piece))
            return [first, last]
        return [packet]

    def bth(self, opcode, qpn, psn, payload=b"", extended=b"", ack=False):
        pad = -len(payload) % 4
        head = struct.pack("!BBHII", opcode, pad << 4, 0xFFFF, qpn, ack << 31 | psn)
        return head + extended + payload + bytes(pad + 4)

    def send(self, opcode, payload, to=None, qpn=None, label=0):
        """A message of one packet; its IP packet, to be sent again if need be."""
        psn, self.psn[opcode] = self.psn[opcode], self.psn[opcode] + 1
        if opcode == UD_SEND_ONLY:
            body = self.bth(opcode, qpn or self.ud_qpn, psn, payload, struct.pack("!II", QKEY, UD_QPN))
        else:
            body = self.bth(opcode, self.rc_qpn, psn, payload, ack=True)
        packet = self.packet(to or self.remote, body, label)
        self.transmit(to or self.remote, packet)
        return packet

    # --- receiving ---

    def arrived(self, until):
        """RoCE packets of the other side: (opcode, destination QPN, PSN, what follows the BTH)."""
        while (left := until - time.monotonic()) > 0:
            self.wire.settimeout(left)
            try:
                frame, where = self.wire.recvfrom(65536)
            except TimeoutError:
                return
            if where[2] == socket.PACKET_OUTGOING or not (found := icrc.roce(frame)):
                continue
            ip, header = found
            if ip[-4:] != icrc.expected(ip, header):
                raise SystemExit("an answer has a wrong ICRC")
            udp, body = ip[header:header + 8], ip[header + 8:-4]
            opcode, flags, _, qpn, psn = struct.unpack("!BBHII", body[:12])
            body = body[12:len(body) - (flags >> 4 & 3)]
            ports, labels = self.seen.setdefault(qpn & 0xFFFFFF, (set(), set()))
            ports.add(int.from_bytes(udp[:2], "big"))
            labels.add(int.from_bytes(ip[0:4], "big") & 0xFFFFF if header == 40 else 0)
            yield opcode, qpn & 0xFFFFFF, psn & 0xFFFFFF, body

    def answered(self, packet, to, is_answer, tries=TRIES):
        """Waits for an answer to a packet, which is sent again until there is one."""
        for _ in range(tries):
            for opcode, qpn, psn, body in self.arrived(time.monotonic() + PATIENCE):
                if qpn == RC_QPN and opcode == SEND_ONLY:
                    # Acknowledged, once or again.
                    self.expected = max(self.expected, psn + 1)
                    acknowledged = self.bth(ACK, self.rc_qpn, psn, extended=struct.pack("!I", 0x1F << 24 | psn + 1))
                    self.transmit(self.remote, self.packet(self.remote, acknowledged))
                if is_answer(opcode, qpn, psn, body):
                    return True
            self.transmit(to, packet)
        return False

    # --- what is tried ---

    def reliable(self, payload, tries=TRIES):
        """A SEND, which is acknowledged and answered."""
        psn, seen = self.psn[SEND_ONLY], set()

        def is_answer(opcode, qpn, number, body):
            if qpn == RC_QPN and opcode == ACK and number == psn and body[0] >> 5 == 0:
                seen.add("acknowledged")
            if qpn == RC_QPN and opcode == SEND_ONLY and body == payload:
                seen.add("answered")
            return len(seen) == 2

        return self.answered(self.send(SEND_ONLY, payload), self.remote, is_answer, tries)

    def datagram(self, payload, to=None, qpn=None, label=0):
        def is_answer(opcode, number, _, body):
            return number == UD_QPN and opcode == UD_SEND_ONLY and body[8:] == payload

        packet = self.send(UD_SEND_ONLY, payload, to, qpn, label)
        return self.answered(packet, to or self.remote, is_answer)

    def write(self, payload):
        """An RDMA Write, and a READ that gets it back."""
        psn, where = self.psn[SEND_ONLY], struct.pack("!QII", self.address, self.rkey, len(payload))
        self.psn[SEND_ONLY] += 2
        written = self.packet(self.remote, self.bth(WRITE_ONLY, self.rc_qpn, psn, payload, where, ack=True))
        self.transmit(self.remote, written)
        read = self.packet(self.remote, self.bth(READ_REQUEST, self.rc_qpn, psn + 1, extended=where, ack=True))
        is_ack = lambda opcode, qpn, number, _: qpn == RC_QPN and opcode == ACK and number == psn
        is_data = lambda opcode, qpn, _, body: qpn == RC_QPN and opcode == READ_ONLY and body[4:] == payload
        if not self.answered(written, self.remote, is_ack):
            return False
        self.transmit(self.remote, read)
        return self.answered(read, self.remote, is_data)

    def damaged(self, count):
        """Packets that were right until some bits changed on their way: none is answered."""
        for _ in range(count):
            psn, payload = self.psn[SEND_ONLY], self.random.randbytes(100)
            packet = self.packet(self.remote, self.bth(SEND_ONLY, self.rc_qpn, psn, payload, ack=True))
            # Behind the UDP header, and not in the byte that the ICRC leaves out.
            start = 28 if self.local.version == 4 else 48
            for at in self.random.sample([n for n in range(start, len(packet)) if n != start + 4], 3):
                packet[at] ^= self.random.randrange(1, 256)
            self.transmit(self.remote, packet)
        return not any(qpn == RC_QPN for _, qpn, _, _ in self.arrived(time.monotonic() + 0.3))


def main():
    peer = Peer(*sys.argv[1:])
    data = peer.random.randbytes
    tried = [
        ("an RC message", lambda: peer.reliable(data(1000))),
        ("a short RC message", lambda: peer.reliable(data(5))),
        ("an RDMA Write and a READ", lambda: peer.write(data(900))),
        ("a datagram", lambda: peer.datagram(data(500), label=0xABCDE)),
        ("a datagram to a group", lambda: peer.datagram(data(300), peer.group, GROUP_QPN)),
        ("damaged packets", lambda: peer.damaged(500)),
        ("an RC message after them", lambda: peer.reliable(data(64))),
    ]
    if peer.way == "options":
        tried = [("no answer to a message with options", lambda: not peer.reliable(data(64), 2))]
    missing = 0
    for name, attempt in tried:
        good = attempt()
        missing += not good
        print(f"{'good' if good else 'MISSING'}: {name}")
    for qpn, (ports, labels) in peer.seen.items():
        print(f"QP {qpn:#x}: source ports {sorted(ports)}, flow labels {sorted(map(hex, labels))}")
    return missing != 0


if __name__ == "__main__":
    sys.exit(main())
