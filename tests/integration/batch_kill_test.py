#!/usr/bin/env python3
"""outrider batch, killed at random moments: one file, the bytes of the undisturbed run; nothing lost, nothing doubled.

OUTRIDER_KILLS kills of the program beside a server that answers at once (12 unless told); and OUTRIDER_CLUSTER_KILLS (2
unless told) of program, verifier and drafter, one or several at a time, with the nano pair. The disk fails in both.
OUTRIDER_SEED (a number, or random) chooses the moments.

usage: batch_kill_test.py OUTRIDER FAULT_IO_LIBRARY
"""
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import unittest

from batch_support import FastServer, Job, chat_line, nano_lines, read_lines
from launch_support import take_seed

KILLS = int(os.environ.get("OUTRIDER_KILLS", "12"))
CLUSTER_KILLS = int(os.environ.get("OUTRIDER_CLUSTER_KILLS", "2"))


class Killed(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(take_seed())
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def environment(self):
        """Of a run whose disk fails, more or less often; at times it does not."""
        if self.random.random() < 0.3:
            return dict(os.environ)
        return os.environ | {"LD_PRELOAD": FAULT_IO, "OUTRIDER_FAULTS_IN": self.folder.name,
                             "OUTRIDER_FAULTS_EVERY": str(self.random.choice([2, 5, 20])),
                             "OUTRIDER_FAULTS_SEED": str(self.random.randrange(1, 1 << 30))}

    def killed_until_done(self, job, patience, kill=lambda program: [program.kill()]):
        """Runs a job until a run comes to its end, and calls `kill` after random times. Returns kills and stops by the disk.

        `kill` kills the program or others, and returns as many things as it killed.
        """
        kills, stops, size, program = 0, 0, 0, None
        while True:
            program = program or job.start(env=self.environment())
            try:
                _, err = program.communicate(timeout=self.random.uniform(0, patience))
                status, program = program.returncode, None
                if status == 0:
                    return kills, stops
                if status != -signal.SIGKILL:
                    self.assertEqual(status, 1, err)  # the disk: one line that says so
                    self.assertRegex(err.splitlines()[-1], r"^outrider: .*: cannot (write|sync): ", err)
                    stops += 1
            except subprocess.TimeoutExpired:
                kills += len(kill(program))
                # However slow the machine is, a run shall come further than the one before now and then.
                now = job.journal.stat().st_size if job.journal.exists() else 0
                size, patience = now, patience * (1.5 if now <= size else 0.9)
            if job.output.exists():  # whole, or not there
                self.assertEqual(job.output.read_bytes(), self.wanted)

    def test_with_a_disk_that_fails(self):
        server = FastServer(busy=0.1, delay=0.002)
        self.addCleanup(server.close)
        lines = nano_lines(400)
        undisturbed = Job(OUTRIDER, self.folder.name, lines, "--endpoint", server.url, name="undisturbed")
        self.assertEqual(undisturbed.run().returncode, 0)
        self.wanted = undisturbed.output.read_bytes()
        self.assertEqual([line["custom_id"] for line in read_lines(undisturbed.output)], [line["custom_id"] for line in lines])

        kills = stops = jobs = 0
        while kills < KILLS:
            job = Job(OUTRIDER, self.folder.name, None, "--endpoint", server.url, "--concurrency",
                      self.random.choice(["auto", "3", "40"]), name=f"killed{jobs}")
            more = self.killed_until_done(job, self.random.choice([0.1, 0.3, 1]))
            self.assertEqual(job.output.read_bytes(), self.wanted)
            kills, stops, jobs = kills + more[0], stops + more[1], jobs + 1
            print(f"{jobs} jobs, {kills} kills, {stops} stops by the disk: the same bytes", file=sys.stderr, flush=True)

    def test_with_the_verifier_and_the_drafter(self):
        lines = nano_lines(24) + [chat_line(f"formed-{i}", "A fox as JSON:", max_tokens=12, temperature=i / 2,
                                            response_format={"type": "json_object"}) for i in range(3)]
        undisturbed = Job(OUTRIDER, self.folder.name, lines, "--dtype", "f32", name="undisturbed")
        done = undisturbed.run()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.wanted = undisturbed.output.read_bytes()
        coordinator = subprocess.Popen([OUTRIDER, "coordinator", "--listen", "tcp://127.0.0.1:*"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        address = coordinator.stdout.readline().split()[-1]
        workers = {}

        def stop_all():
            for process in [*workers.values(), coordinator]:
                process.kill()
                process.wait()
            coordinator.stdout.close()

        def start(role):
            workers[role] = subprocess.Popen([OUTRIDER, role, "--join", address, "--dtype", "f32"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def kill_some(program):
            """One of the three at least."""
            killed = []
            while not killed:
                killed = [role for role in ("program", "verifier", "drafter") if self.random.random() < 0.5]
            for role in killed:
                (workers[role] if role in workers else program).kill()
            for role in set(killed) & set(workers):
                workers[role].wait()
                start(role)
            return killed

        self.addCleanup(stop_all)
        start("verifier")
        start("drafter")
        kills = stops = jobs = 0
        while kills < CLUSTER_KILLS:
            job = Job(OUTRIDER, self.folder.name, None, "--connect", address, name=f"killed{jobs}")
            more = self.killed_until_done(job, self.random.choice([2, 4, 8]), kill_some)
            self.assertEqual(job.output.read_bytes(), self.wanted)
            kills, stops, jobs = kills + more[0], stops + more[1], jobs + 1
            print(f"{jobs} jobs, {kills} kills of program, verifier and drafter, {stops} stops by the disk: the same bytes", file=sys.stderr, flush=True)


if __name__ == "__main__":
    OUTRIDER, FAULT_IO = sys.argv.pop(1), str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
