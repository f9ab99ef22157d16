"""The package vervain, with the command that VERVAIN_TEST_COMMAND names: python3 package.py, PYTHONPATH to the package."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import vervain
from vervain import _options, _process


def free_port():
    with socket.socket() as it:
        it.bind(("", 0))
        return it.getsockname()[1]


def alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class TestOptions(unittest.TestCase):
    def test_they_are_those_of_the_command(self):
        listed = json.loads(subprocess.check_output([vervain.executable(), "env", "--list", "--format=json"]))
        settings = {row["option"][2:].replace("-", "_") for row in listed if row["option"]}
        self.assertEqual(_options.NAMES, settings | {"lib_dir", "no_preload", "verbose"})
        usage = subprocess.check_output([vervain.executable(), "run", "--help"], text=True)
        for name in _options.NAMES:
            self.assertIn(f"--{name.replace('_', '-')}", usage)

    def test_words_are_what_the_command_line_has(self):
        given = {"link_layer": "infiniband", "devices": 2, "interface": ["lo", "eth0"], "adopt": True, "link": ""}
        expected = ["--link-layer=infiniband", "--devices=2", "--interface=lo,eth0", "--adopt=on", "--link="]
        self.assertEqual(_options.words(given), expected)
        self.assertEqual(_options.words({"adopt": False, "pcap": Path("/a b")}), ["--adopt=off", "--pcap=/a b"])
        self.assertEqual(_options.words({"no_preload": True, "verbose": False, "log": None}), ["--no-preload"])

    def test_a_name_that_is_none_is_a_type_error(self):
        for call in (vervain.env, vervain.devices, vervain.Session):
            with self.assertRaisesRegex(TypeError, "lnk"):
                call(lnk="roce")
        with self.assertRaisesRegex(TypeError, "lnk"):
            vervain.run(["true"], lnk="roce")


class TestCommand(unittest.TestCase):
    def test_it_is_the_one_of_the_package(self):
        self.assertEqual(Path(vervain.executable()), Path(os.environ["VERVAIN_TEST_COMMAND"]))

    def test_without_it_that_of_the_path_is_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "vervain"
            source = Path(vervain.__file__).parent
            shutil.copytree(source, package, ignore=shutil.ignore_patterns("_prefix", "__pycache__"))
            line = [sys.executable, "-c", "import vervain; print(vervain.executable())"]

            def found(path):
                env = {**os.environ, "PYTHONPATH": folder, "PATH": path}
                return subprocess.run(line, env=env, cwd=folder, capture_output=True, text=True)

            command = Path(folder) / "bin" / "vervain"
            self.assertIn("no command vervain", found(folder).stderr)
            command.parent.mkdir()
            command.write_text("#!/bin/sh\n")
            command.chmod(0o755)
            self.assertEqual(found(str(command.parent)).stdout.strip(), str(command))
            # One that was unpacked without its mode is not passed over for another version.
            bundled = package / "_prefix" / "bin" / "vervain"
            bundled.parent.mkdir(parents=True)
            bundled.write_text("")
            self.assertIn(f"{bundled} is not executable", found(str(command.parent)).stderr)

    def test_the_entry_point_becomes_the_command(self):
        line = [sys.executable, "-m", "vervain", "run", "--", "sh", "-c", "echo $$; exit 7"]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.communicate()[0], f"{process.pid}\n")
        self.assertEqual(process.returncode, 7)

    def test_run_is_as_that_of_subprocess(self):
        end = vervain.run(["sh", "-c", "cat; exit 3"], devices=2, input="a", capture_output=True, text=True)
        self.assertEqual((end.returncode, end.stdout), (3, "a"))
        with self.assertRaises(subprocess.CalledProcessError):
            vervain.run("false", check=True)
        wrong = vervain.run(["true"], link="air", capture_output=True, text=True)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("--link is 'air'", wrong.stderr)
        self.assertEqual(vervain.run(["/nowhere"], stderr=subprocess.DEVNULL).returncode, 127)
        for name, value in (("shell", True), ("executable", "/bin/true")):
            with self.assertRaises(ValueError):
                vervain.run(["true"], **{name: value})

    def test_env_puts_a_program_on_the_devices(self):
        env = vervain.env(ports=2)
        self.assertEqual((env["VERVAIN_PORTS"], env["HOME"]), ("2", os.environ["HOME"]))
        read = "cat /sys/class/infiniband/vervain0/ports/2/link_layer"
        self.assertEqual(subprocess.check_output(["sh", "-c", read], env=env), b"Ethernet\n")

    def test_an_option_takes_a_variable_away(self):
        with mock.patch.dict(os.environ, {"VERVAIN_PORTS": "2"}):
            self.assertEqual(vervain.env()["VERVAIN_PORTS"], "2")
            self.assertNotIn("VERVAIN_PORTS", vervain.env(ports=""))

    def test_a_wrong_value_is_the_sentence_of_the_command(self):
        for call in (vervain.env, vervain.devices, vervain.Session):
            with self.assertRaises(vervain.Error) as caught:
                call(link="air")
            self.assertEqual(str(caught.exception), "--link is 'air'; it can be auto, local, roce or window")

    def test_devices_are_listed_with_their_ports(self):
        devices = vervain.devices(devices=2, link_layer="infiniband")
        self.assertEqual([device["name"] for device in devices], ["vervain0", "vervain1"])
        self.assertEqual(devices[1]["ports"][0]["link_layer"], "infiniband")


class TestSession(unittest.TestCase):
    def pingpong(self, session, messages=100):
        """A pair of processes, each of which sends so many messages."""
        line = ["ibv_rc_pingpong", "-g", "0", "-n", str(messages), "-p", str(free_port())]
        server = session.popen(line)
        server.wait_listening(int(line[-1]))
        client = session.run([*line, "localhost"], check=True)
        self.assertEqual(server.wait(), 0, server.report())
        self.assertIn(f"{messages} iters", client.stdout)
        self.assertIn(f"{messages} iters", server.output)

    def until(self, process, text):
        """Waits until a program has printed a text."""
        while text not in process.output:
            self.assertIsNone(process.poll(), process.report())
            time.sleep(0.01)

    def test_each_counts_its_own_programs(self):
        with vervain.Session() as one, vervain.Session() as other:
            self.pingpong(one)
            self.assertEqual(one.counters()["rx_send_requests"], 200)
            self.assertEqual(other.counters()["rx_send_requests"], 0)
            self.assertGreater(one.counters()["memory_bytes"], 0)

    def test_counters_of_a_port_are_a_part_of_their_sum(self):
        with vervain.Session(devices=2) as session:
            self.pingpong(session)
            counted = [session.counters(name)["rx_send_requests"] for name in ("vervain0", "vervain1")]
            self.assertEqual(counted, [200, 0])
            self.assertEqual(session.counters("vervain0", 1), session.counters("vervain0"))
            with self.assertRaisesRegex(vervain.Error, "vervain2"):
                session.counters("vervain2")

    def test_faults_meet_the_packets(self):
        with vervain.Session() as session:
            # Not of acknowledgements: the last one of a program that has ended is not sent again.
            lossy = session.with_faults("drop=5%:send", seed=7)
            self.pingpong(lossy)
            self.assertGreater(lossy.counters()["resent_pkts"], 0)
            self.assertEqual(lossy.counters()["memory_bytes"], 0)
            self.assertEqual(session.counters()["sent_pkts"], 0)
            titles, texts = zip(*session.report())
            self.assertTrue(all("drop=5%" in title for title in titles), titles)
            self.assertIn("seed=7 repeats these decisions", texts[0])
            self.assertIn("resent_pkts", texts[1])

    def test_programs_by_its_environment_count_too(self):
        with vervain.Session() as session:
            names = subprocess.check_output(["ibv_devices"], env=session.env, text=True)
            self.assertIn(session.devices[0]["name"], names)
            place = session.env["XDG_RUNTIME_DIR"]
            self.assertTrue(session.env["VERVAIN_SYSFS"].startswith(place))
        self.assertFalse(os.path.exists(place))

    def test_what_a_program_has_started_ends_with_the_session(self):
        # The second one has left the Unix session of the program when it prints its number.
        script = "sleep 1000 & echo $!; setsid sh -c 'echo $$ ready; exec sleep 1000' & wait"
        with vervain.Session() as session:
            process = session.popen(["sh", "-c", script])
            self.until(process, "ready")
            pids = [process.pid, *(int(word) for word in process.output.split() if word.isdigit())]
            self.assertEqual(len(pids), 3)
            self.assertTrue(all(map(alive, pids)))
        self.assertFalse(any(map(alive, pids)))
        self.assertEqual(process.returncode, -signal.SIGKILL)

    def test_children_are_killed_when_the_program_has_ended(self):
        with vervain.Session() as session:
            end = session.run(["sh", "-c", "sleep 1000 >/dev/null & echo $!"])
            self.assertTrue(alive(int(end.stdout)))
        self.assertFalse(alive(int(end.stdout)))

    def test_a_program_that_hangs_is_killed(self):
        with vervain.Session() as session:
            with self.assertRaises(subprocess.TimeoutExpired):
                session.run(["sleep", "1000"], timeout=0.1)
            self.assertIn("was ended by SIGKILL", session.report()[0][1])

    def test_waiting_too_long_leaves_a_program_and_tells_its_output(self):
        with vervain.Session() as session:
            process = session.popen(["sh", "-c", "sleep 1000 & echo $!; echo begun; wait"])
            self.until(process, "begun")
            with self.assertRaises(subprocess.TimeoutExpired) as caught:
                process.wait(timeout=0.01)
            self.assertEqual(caught.exception.output, process.output)
            child = int(process.output.split()[0])
            self.assertTrue(process.returncode is None and alive(child))
            process.kill()
            self.assertFalse(alive(child))
            self.assertEqual(process.wait(), -signal.SIGKILL)

    def test_a_server_that_ends_is_not_waited_for(self):
        with vervain.Session() as session:
            server = session.popen(["sh", "-c", "exit 4"])
            with self.assertRaisesRegex(vervain.Error, "ended with status 4 before it listened on port 1"):
                server.wait_listening(1)

    def test_a_server_of_rdma_cm_is_waited_for(self):
        with vervain.Session() as session:
            line = ["rping", "-a", "127.0.0.1", "-p", str(free_port()), "-C", "3"]
            server = session.popen([*line, "-s"])
            server.wait_listening(int(line[4]))
            # A program of another session, or of none, is on the same network.
            vervain.run([*line, "-c"], check=True, stdout=subprocess.DEVNULL)
            self.assertEqual(server.wait(), 0, server.report())

    def test_another_process_that_listens_is_not_the_server(self):
        with vervain.Session() as session, socket.socket() as other:
            other.bind(("", 0))
            other.listen()
            server = session.popen(["sleep", "1000"])
            with self.assertRaises(subprocess.TimeoutExpired):
                server.wait_listening(other.getsockname()[1], timeout=0.1)

    def test_input_variables_and_folder_reach_the_program(self):
        with vervain.Session(log="error") as session:
            line = ["sh", "-c", "cat; echo $A $VERVAIN_LOG; pwd"]
            end = session.run(line, input="in\n", env={"A": "b"}, cwd="/")
            self.assertEqual((end.stdout, end.stderr), ("in\nb error\n/\n", ""))
            with self.assertRaises(subprocess.CalledProcessError):
                session.run(["false"], check=True)

    def test_the_report_says_what_was_printed_and_how_it_ended(self):
        with vervain.Session() as session:
            self.assertEqual(session.report(), [])
            lines = _process._LAST_LINES + 5
            session.run(["sh", "-c", f"seq {lines}; echo 'it is wrong' >&2; kill -SEGV $$"])
            session.run(["true"])
            (_, programs), (_, counters) = session.report()
            for part in ("ended by SIGSEGV", "after 5 lines", f"    {lines}", "    it is wrong", "-- true"):
                self.assertIn(part, programs)
            self.assertNotIn("    5\n", programs)
            self.assertEqual(counters, "none")


if __name__ == "__main__":
    unittest.main()
