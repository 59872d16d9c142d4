#!/usr/bin/env python3
"""`outrider launch --backend ssh` against a real sshd on loopback with keys of its own.

usage: launch_ssh_test.py OUTRIDER [--kills N]     N: how often the launcher is killed at a random moment (default 4)
Status 77: there is no OpenSSH here, and nothing was tested.
"""
import atexit
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from launch_support import check_experiment, eventually, free_ports, HANG, QUESTION, Run, take_number, take_seed

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if os.path.exists("/usr/sbin/sshd") else None)
ASK = ["outrider", "run", QUESTION, "--max-tokens", "12", "--connect", "{coordinator}"]


class Sshd:
    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-sshd-"))
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)
        (self.folder / "authorized").write_text((self.folder / "user.pub").read_text())
        [self.port] = free_ports(1)
        (self.folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {self.folder}/host\nPidFile none\nStrictModes no\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder}/authorized\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n")
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port},[127.0.0.2]:{self.port} {(self.folder / 'host.pub').read_text()}")
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)
        self.log = (self.folder / "log").open("w+")
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "config"], stderr=self.log)
        atexit.register(self.process.kill)

    def host(self, name, port=None, address="127.0.0.1"):
        return {"name": name, "address": address,
                "ssh": ["-F", "/dev/null", "-p", str(port or self.port), "-i", str(self.folder / "user"), "-o", f"UserKnownHostsFile={self.folder}/known",
                        "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=2"]}

    def answers(self):
        words = self.host("a")["ssh"]
        return subprocess.run(["ssh", *words, "-o", "BatchMode=yes", "127.0.0.1", "true"], capture_output=True, timeout=HANG).returncode == 0


class LaunchOverSsh(unittest.TestCase):
    def plan(self, **more):
        return {"program": OUTRIDER, "hosts": [SERVER.host("a")], "verifiers": [{"threads": 1}], "drafters": [{"count": 2}]} | more

    def start(self, plan, *options, **more):
        run = Run(OUTRIDER, plan, "--backend", "ssh", *options, **more)
        self.addCleanup(run.remove)
        return run

    def test_the_text_is_that_of_the_local_launch_and_no_process_is_left(self):
        over_ssh = self.start(self.plan(run=[{"command": ASK}]), expect_end=True)
        self.assertEqual(over_ssh.status, 0, over_ssh.explain())
        local = Run(OUTRIDER, self.plan(run=[{"command": ASK}]), expect_end=True)
        self.addCleanup(local.remove)
        self.assertEqual(local.status, 0, local.explain())
        story = local.out.read_text().split("\n\n")[0]
        self.assertTrue(story)
        self.assertEqual(over_ssh.out.read_text().split("\n\n")[0], story)
        self.assertEqual(over_ssh.alive(), [])
        lock = json.loads((over_ssh.dir / "lock.json").read_text())["lock"]
        self.assertEqual((lock["backend"], list(lock["hosts"])), ("ssh", ["a"]))

    def test_no_orphan_when_the_launcher_is_killed(self):
        choice = random.Random(take_seed())
        for kill in range(KILLS):
            run = self.start(self.plan(run=[{"command": ASK}]))
            time.sleep(choice.uniform(0, 5))
            run.kill()
            self.assertTrue(eventually(lambda: not run.alive()), f"kill {kill}: {run.alive()} are left\n{run.explain()}")

    def test_down_goes_by_the_ledger(self):
        run = self.start(self.plan())
        self.assertTrue(run.ready(), run.explain())
        # Its number on the host is in the ledger, and it is that of the process and not of a shell around it.
        verifier = next(entry for entry in run.ledger() if entry["name"] == "verifier.0")
        words = pathlib.Path(f"/proc/{verifier['pid']}/cmdline").read_bytes().split(b"\0")
        self.assertEqual((words[1], b"sh" in words), (b"verifier", False), words)
        self.assertEqual(run.about("status").stdout.count("alive"), 5)
        self.assertEqual(run.about("down").returncode, 0)
        self.assertEqual(run.end(), 0, run.explain())
        self.assertEqual(run.alive(), [])

    def test_hosts_that_refuse_hang_or_lack_the_program_are_named_and_the_others_go_on(self):
        silent = socket.socket()  # takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        self.addCleanup(silent.close)
        hosts = [SERVER.host("a"), SERVER.host("closed", *free_ports(1)), SERVER.host("silent", silent.getsockname()[1])]
        plan = self.plan(hosts=hosts, coordinator={"hosts": "a"}, verifiers=[{"hosts": "a"}],
                         drafters=[{"hosts": "a,closed,silent"}], run=[{"command": ["true"]}])
        run = self.start(plan, expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        self.assertRegex(run.err.read_text(), r"outrider: closed: ssh: .*refused")
        self.assertRegex(run.err.read_text(), r"outrider: silent: ssh: .*(timed out|timeout)")
        run = self.start(plan, "--strict", expect_end=True)
        self.assertEqual(run.status, 1, run.explain())
        self.assertEqual(run.alive(), [])
        run = self.start(self.plan(program="/no/outrider"), expect_end=True)
        self.assertEqual(run.status, 1)
        self.assertIn("outrider: a: no program /no/outrider", run.err.read_text())

    def test_across_hosts_nobody_gets_in_without_a_key_of_the_run(self):
        if not subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split():
            self.skipTest("NOT tested: this machine has no address but loopback")
        plan = self.plan(hosts=[SERVER.host("a"), SERVER.host("b", address="127.0.0.2")], coordinator={"hosts": "a"},
                         verifiers=[{"hosts": "a", "threads": 1, "shards": 2, "shard_hosts": "b"}], drafters=[{"hosts": "b"}])
        run = self.start(plan)
        self.assertTrue(run.ready(), run.explain())
        addresses = ",".join(run.addresses())
        self.assertNotIn("127.0.0", addresses)
        self.assertEqual(run.about("wait", "--timeout", "60").returncode, 0)
        keys = run.dir / "keys"
        self.assertEqual(sorted((file.name, oct(file.stat().st_mode & 0o777)) for file in keys.iterdir() if file.suffix == "" and file.name != "authorized_keys"),
                         [(role, "0o600") for role in ("client", "coordinator", "drafter", "encoder", "verifier")])
        ask = [OUTRIDER, "run", QUESTION, "--max-tokens", "4", "--connect", addresses]
        key = ["--coordinator-key", keys / "coordinator.pub", "--key"]
        for more, allowed in (([*key, keys / "client"], True), ([*key, keys / "drafter"], False), (["--insecure"], False)):
            answer = subprocess.run([*ask, *more], capture_output=True, text=True, timeout=HANG)
            self.assertEqual(answer.returncode == 0, allowed, f"{more}: {answer.stderr}")
        secret = (keys / "drafter").read_text().split()[-1].encode()
        for pid in run.alive():
            self.assertNotIn(secret, pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
        self.assertEqual(run.about("down").returncode, 0)
        self.assertTrue(eventually(lambda: not run.alive()), run.explain())

    def test_push_sends_what_is_not_there_and_checks_what_is(self):
        if shutil.which("rsync") is None:
            self.skipTest("NOT tested: no rsync here")
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-push-"))
        self.addCleanup(shutil.rmtree, folder)
        pair = folder / "pair"
        shutil.copytree(pathlib.Path(__file__).parents[2] / "models" / "nano", pair)
        there = folder / "the other side"
        plan = self.plan(program=str(there / "bin" / "outrider"), model=str(there / "models" / "pair"), hosts=[SERVER.host("a"), SERVER.host("closed", *free_ports(1))])
        (folder / "plan.json").write_text(json.dumps(plan))

        def push(*options):
            done = subprocess.run([OUTRIDER, "launch", "push", folder / "plan.json", "--model", pair, *options], capture_output=True, text=True, timeout=HANG)
            self.assertEqual(done.returncode, 1, done.stdout)  # one of the two hosts is not there
            self.assertRegex(done.stderr, r"outrider: closed: .*refused")
            return [line for line in done.stdout.splitlines() if line.startswith("a: sent")], done

        files = [path for path in pair.rglob("*") if path.is_file()]
        sent, done = push()
        self.assertEqual(len(sent), len(files) + 1, done.stdout)
        self.assertEqual(push()[0], [])
        weights = there / "models" / "pair" / "backbone" / "model.safetensors"
        stat, bytes_there = weights.stat(), bytearray(weights.read_bytes())
        bytes_there[-1] ^= 1
        weights.write_bytes(bytes_there)
        os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        self.assertEqual(push()[0], ["a: sent backbone/model.safetensors"])
        run = self.start(plan | {"hosts": plan["hosts"][:1], "run": [{"command": ASK}]}, expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        foreign = bytearray(pathlib.Path(OUTRIDER).read_bytes()[:4096])
        foreign[18] = 0xf3  # e_machine: RISC-V
        (folder / "foreign").write_bytes(foreign)
        (folder / "foreign").chmod(0o755)
        _, done = push("--program", folder / "foreign")
        self.assertRegex(done.stderr, r"outrider: a: .*/bin/outrider does not start there: .*[Ee]xec format error")
        run = self.start(plan | {"hosts": plan["hosts"][:1]}, expect_end=True)
        self.assertEqual(run.status, 1)
        self.assertIn(f"outrider: a: wrong architecture: the host is {os.uname().machine}, {there}/bin/outrider is for riscv64", run.err.read_text())

    def test_an_experiment_launches_each_cell_and_leaves_no_process(self):
        hosts = [SERVER.host("a"), SERVER.host("b", address="127.0.0.2")]
        check_experiment(self, OUTRIDER, {"program": OUTRIDER, "hosts": hosts, "coordinator": {"hosts": "a"}, "verifiers": [{"hosts": "a"}], "drafters": [{"hosts": "b"}]}, "ssh")

    def test_the_loss_of_the_connection_is_named(self):
        run = self.start(self.plan())
        self.assertTrue(run.ready(), run.explain())
        clients = [pid for pid in run.alive() if pathlib.Path(f"/proc/{pid}/comm").read_text() == "ssh\n"
                   and b"--name drafter.0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        self.assertEqual(len(clients), 1)
        os.kill(clients[0], 9)
        self.assertTrue(eventually(lambda: "drafter.0 on a: ended with status 137" in run.err.read_text()), run.explain())
        drafter = next(entry for entry in run.ledger() if entry["name"] == "drafter.0")
        self.assertTrue(eventually(lambda: not os.path.exists(f"/proc/{drafter['pid']}")), "it outlived its connection")


KILLS = take_number("--kills", 4)
OUTRIDER = str(pathlib.Path(sys.argv.pop(1)).resolve())

if __name__ == "__main__":
    if SSHD is None or shutil.which("ssh") is None:
        print("SKIPPED: launching over ssh was NOT tested: no sshd or no ssh (openssh-server, openssh-client)")
        sys.exit(77)
    SERVER = Sshd()
    if not eventually(SERVER.answers, 20):
        SERVER.log.seek(0)
        print("SKIPPED: launching over ssh was NOT tested: sshd does not answer:", SERVER.log.read()[-500:])
        sys.exit(77)
    unittest.main(verbosity=2)
