"""An RDMA Write, a Read and a Send between two queue pairs, as a test: python3 -m unittest, or pytest.

Uses pyverbs (Debian: python3-pyverbs) and runs on any RDMA device; on Vervain's under `vervain run`. Where Vervain's wheel is
installed, pytest also runs the functions at the end, which take devices, faults and counters from its fixture `rdma`.
"""

import os
import sys
import time
import unittest

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 1
SIZE = 1 << 20
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class Side:
    """One end of a connection: a queue pair with a registered buffer."""

    def __init__(self, context, gid_index):
        self.gid = context.query_gid(PORT, gid_index)
        self.gid_index = gid_index
        self.pd = PD(context)
        self.cq = CQ(context, 64)
        self.mr = MR(self.pd, SIZE, ACCESS)
        caps = QPCap(max_send_wr=16, max_recv_wr=16)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=caps))

    def connect(self, peer, mtu):
        route = GlobalRoute(dgid=peer.gid, sgid_index=self.gid_index)
        attr = QPAttr(port_num=PORT)
        attr.qp_access_flags = ACCESS
        attr.dest_qp_num = peer.qp.qp_num
        attr.path_mtu = mtu
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        self.qp.to_rts(attr)

    def sge(self):
        return SGE(self.mr.buf, SIZE, self.mr.lkey)

    def post(self, opcode, peer):
        request = SendWR(opcode=opcode, num_sge=1, sg=[self.sge()], send_flags=e.IBV_SEND_SIGNALED)
        request.set_wr_rdma(peer.mr.rkey, peer.mr.buf)
        self.qp.post_send(request)

    def completion(self):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            count, completions = self.cq.poll()
            if count:
                return completions[0]
        raise TimeoutError("no completion within 30 s")


class TestRdma(unittest.TestCase):
    def setUp(self):
        try:
            devices = get_device_list()
        except PyverbsError:  # The kernel has no RDMA subsystem.
            devices = []
        if not devices:
            self.skipTest("no RDMA device: run under `vervain run`")
        context = Context(name=devices[0].name.decode())
        index = int(os.environ.get("GID_INDEX", 0))
        self.near, self.far = Side(context, index), Side(context, index)
        mtu = context.query_port(PORT).active_mtu
        self.near.connect(self.far, mtu)
        self.far.connect(self.near, mtu)
        self.data = os.urandom(SIZE)

    def check(self, side):
        completion = side.completion()
        self.assertEqual(completion.status, e.IBV_WC_SUCCESS)
        return completion

    def test_write(self):
        self.near.mr.write(self.data, SIZE)
        self.near.post(e.IBV_WR_RDMA_WRITE, self.far)
        self.check(self.near)
        self.assertEqual(self.far.mr.read(SIZE, 0), self.data)

    def test_read(self):
        self.far.mr.write(self.data, SIZE)
        self.near.post(e.IBV_WR_RDMA_READ, self.far)
        self.check(self.near)
        self.assertEqual(self.near.mr.read(SIZE, 0), self.data)

    def test_send(self):
        self.far.qp.post_recv(RecvWR(num_sge=1, sg=[self.far.sge()]))
        self.near.mr.write(self.data, SIZE)
        self.near.post(e.IBV_WR_SEND, self.far)
        self.check(self.near)
        self.assertEqual(self.check(self.far).byte_len, SIZE)
        self.assertEqual(self.far.mr.read(SIZE, 0), self.data)


def test_where_the_network_loses_packets(rdma):
    """The tests above as a program of its own, for the variables of a device are read when a process opens it first."""
    lossy = rdma.with_faults("drop=2%", seed=1)
    lossy.run([sys.executable, __file__], check=True)
    counters = lossy.counters()
    assert counters["resent_pkts"] > 0
    assert counters["memory_bytes"] == 0, "all data went in packets"


def test_a_server_and_its_client(rdma):
    """Two programs that know nothing of Vervain. What still runs at the end of a test is killed."""
    server = rdma.popen(["ibv_rc_pingpong", "-g", "0"])
    server.wait_listening(18515)
    rdma.run(["ibv_rc_pingpong", "-g", "0", "localhost"], check=True)
    assert server.wait() == 0
    assert rdma.counters()["rx_send_requests"] == 2000, "1000 there, 1000 back"


if __name__ == "__main__":
    unittest.main()
