#!/usr/bin/env python3
"""`outrider launch` on this machine: ready, run, down, and no process left however it ends.

usage: launch_test.py OUTRIDER [--kills N]     N: how often the launcher is killed at a random moment (default 6)
"""
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

from launch_support import eventually, HANG, QUESTION, Run, take_number

PLAN = {"verifiers": [{"threads": 1}], "drafters": [{"count": 2}]}
ASK = ["outrider", "run", QUESTION, "--max-tokens", "12", "--connect", "{coordinator}"]


def launch(*words):
    return subprocess.run([OUTRIDER, "launch", *words], capture_output=True, text=True, timeout=HANG)


class Launch(unittest.TestCase):
    def start(self, plan, *options, **more):
        run = Run(OUTRIDER, plan, *options, **more)
        self.addCleanup(run.remove)
        return run

    def test_a_plan_runs_its_commands_and_leaves_no_process(self):
        run = self.start(PLAN | {"run": [{"command": ASK}]}, expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        alone = subprocess.run([OUTRIDER, *ASK[1:-2]], capture_output=True, text=True, timeout=HANG)
        story = alone.stdout.split("\n\n")[0]
        self.assertTrue(story)
        self.assertIn(story, run.out.read_text())
        self.assertEqual(run.alive(), [])
        self.assertEqual([entry["name"] for entry in run.ledger()],
                         ["launcher", "coordinator", "verifier.0", "drafter.0", "drafter.1", "run.0"])
        self.assertEqual(json.loads((run.dir / "status.json").read_text())["state"], "ended")

    def test_ready_status_wait_logs_down(self):
        run = self.start(PLAN | {"verifiers": [{"count": 2, "threads": 1}]})
        self.assertTrue(run.ready(), run.explain())
        self.assertEqual(run.about("wait", "--timeout", "60").returncode, 0)
        status = run.about("status")
        self.assertEqual((status.returncode, status.stdout.count("alive")), (0, 6), status.stdout)
        logs = run.about("logs", "verifier").stdout
        self.assertTrue(all(re.match(r"localhost\.verifier\.[01]: ", line) for line in logs.splitlines()), logs)
        self.assertEqual(run.about("down").returncode, 0)
        self.assertEqual(run.end(), 0, run.explain())
        self.assertEqual(run.alive(), [])
        self.assertEqual(run.about("status").returncode, 4)
        self.assertEqual(run.about("wait").returncode, 4)

    def test_a_signal_ends_everything(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            run = self.start(PLAN)
            self.assertTrue(run.ready(), run.explain())
            run.process.send_signal(number)
            self.assertEqual(run.end(), 0, run.explain())
            self.assertEqual(run.alive(), [])

    def test_no_orphan_when_the_launcher_is_killed(self):
        for kill in range(KILLS):
            run = self.start(PLAN | {"run": [{"command": ASK}]})
            time.sleep(random.uniform(0, 4))
            run.kill()
            self.assertTrue(eventually(lambda: not run.alive()), f"kill {kill}: {run.alive()} are left\n{run.explain()}")

    def test_down_goes_by_the_ledger_when_the_launcher_is_gone(self):
        run = self.start(PLAN)
        self.assertTrue(run.ready(), run.explain())
        # A process of ours whose number stands in the ledger with another start is none of the run's.
        bystander = subprocess.Popen(["sleep", "100"])
        self.addCleanup(bystander.wait)
        self.addCleanup(bystander.kill)
        with (run.dir / "ledger.jsonl").open("a") as ledger:
            ledger.write(json.dumps({"name": "drafter.9", "where": "local", "host": "localhost", "pid": bystander.pid, "start": 1}) + "\n")
        run.kill()
        self.assertEqual(run.about("down").returncode, 0)
        self.assertEqual(run.alive(), [])
        self.assertIsNone(bystander.poll())

    def test_the_loss_of_a_verifier_ends_it_and_of_a_drafter_does_not(self):
        run = self.start(PLAN)
        self.assertTrue(run.ready(), run.explain())
        pid = {entry["name"]: entry["pid"] for entry in run.ledger()}
        subprocess.run(["kill", "-KILL", str(pid["drafter.0"])], check=True)
        self.assertTrue(eventually(lambda: "drafter.0 on localhost: ended with status 137" in run.err.read_text()))
        self.assertIsNone(run.process.poll())
        subprocess.run(["kill", "-KILL", str(pid["verifier.0"])], check=True)
        self.assertEqual(run.end(), 4, run.explain())
        self.assertEqual(run.alive(), [])

    def test_exit_statuses(self):
        for words, status in ((["sh", "-c", "exit 75"], 75), (["sh", "-c", "exit 9"], 5), (["/no/such/program"], 5), (["true"], 0)):
            run = self.start(PLAN | {"drafters": [], "run": [{"command": words}]}, expect_end=True)
            self.assertEqual(run.status, status, f"{words}: {run.explain()}")

    def test_what_cannot_be_started_is_named(self):
        taken = socket.socket()
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        self.addCleanup(taken.close)
        port = taken.getsockname()[1]
        for plan, part in ((PLAN | {"coordinator": {"listen": f"tcp://127.0.0.1:{port}"}}, f"coordinator on localhost: ended with status 1: outrider: cannot listen at tcp://127.0.0.1:{port}: Address already in use"),
                           (PLAN | {"experiment": "e.json"}, "experiment: outrider experiment starts the processes of each of its cells itself"),
                           ({"verifiers": [{"model": "/no/model"}]}, "verifier.0 on localhost: ended with status 1: outrider: /no/model"),
                           (PLAN | {"program": "/no/outrider"}, "localhost: no program /no/outrider"),
                           (PLAN | {"coordinator": {"listen": "tcp://192.0.2.99:1"}}, "coordinator on localhost: ended with status 1"),
                           ({"verifers": []}, "verifers is no key of a plan; the nearest is verifiers")):
            run = self.start(plan, expect_end=True)
            self.assertNotEqual(run.status, 0)
            self.assertIn(part, run.err.read_text())
            self.assertEqual(run.alive(), [])

    def test_wait_says_what_is_missing_with_the_end_of_its_log(self):
        run = self.start({"verifiers": [{"environment": {"OUTRIDER_ISA": "none"}}]}, "--ready-timeout", "3")
        run.end()
        self.assertEqual(run.status, 4, run.explain())
        run = self.start(PLAN)
        self.assertTrue(run.ready(), run.explain())
        pid = {entry["name"]: entry["pid"] for entry in run.ledger()}
        subprocess.run(["kill", "-KILL", str(pid["drafter.1"])], check=True)
        def missing():
            wait = run.about("wait", "--timeout", "0")
            return wait if wait.returncode == 3 else None
        wait = eventually(missing)
        self.assertRegex(wait.stderr, r"drafter\.1 on localhost has not joined; the end of its log:\n.*event=loaded")

    def test_a_lock_can_be_launched_again_and_says_what_differs(self):
        first = self.start(PLAN | {"run": [{"command": ["true"]}]}, expect_end=True)
        facts = json.loads((first.dir / "lock.json").read_text())["lock"]["hosts"]["localhost"]
        for key in ("version", "commit", "build_id", "cpu", "isa", "onednn"):
            self.assertTrue(facts[key], key)
        self.assertRegex(facts["models"][""], r"^[0-9a-f]{16} bf16$")
        again = self.start(json.loads((first.dir / "lock.json").read_text()), expect_end=True)
        self.assertEqual(again.status, 0, again.explain())
        self.assertEqual(launch("diff", first.dir, first.dir).returncode, 0)
        lines = launch("diff", first.dir, again.dir).stdout.splitlines()
        self.assertEqual([line for line in lines if "OUTRIDER_TEST_RUN" not in line], [])
        other = json.loads((first.dir / "lock.json").read_text())
        other["lock"]["hosts"]["localhost"]["isa"] = "abacus"
        file = first.folder / "other.json"
        file.write_text(json.dumps(other))
        diff = launch("diff", first.dir, file)
        self.assertEqual((diff.returncode, diff.stdout.count("\n")), (1, 1), diff.stdout)
        self.assertIn('/lock/hosts/localhost/isa: ', diff.stdout)

    def test_the_dry_run_is_the_reviewed_text(self):
        for name, backend in (("three_hosts", "local"), ("three_hosts", "ssh"), ("three_hosts", "slurm"), ("het", "slurm"), ("elastic", "slurm")):
            dry = launch(GOLDENS / f"{name}.json", "--dry-run", "--backend", backend, "--run-dir", "/shared/run")
            self.assertEqual(dry.returncode, 0, dry.stderr)
            golden = GOLDENS / f"{name}.{backend}.txt"
            if WRITE_GOLDENS:
                golden.write_text(dry.stdout)
            self.assertEqual(dry.stdout, golden.read_text())

    def test_what_slurm_would_refuse_is_refused_first(self):
        plan = json.loads((GOLDENS / "het.json").read_text())
        for change, part in (({"slurm": {"shape": "het", "header": {"--array": "0-3"}}}, "there are no arrays of het jobs"),
                             ({"slurm": {"header": {"--array": "0-3"}}}, "a run has one coordinator"),
                             ({"slurm": {"header": {"--signal": "USR1@60"}}}, "wanted B:"),
                             ({"slurm": {"header": {"--time": "00:02:00"}}}, "--time=00:02:00 is 120 s"),
                             ({"slurm": {"header": {"--time": "soon"}}}, "--time=soon is no time"),
                             ({"slurm": {"header": {"time": "1"}}}, "time is no option of sbatch"),
                             ({"slurm": {"shape": "het"}, "drafters": [{"hosts": "big"}]}, "het: big has drafters and another role"),
                             ({"slurm": {"shape": "elastic", "drafter_header": {"--array": "0"}}, "drafters": [{"hosts": "small1"}, {"hosts": "small2"}]},
                              "wanted in a group's slurm_header"),
                             ({"slurm": {"shape": "het"}, "drafters": [{"hosts": "small1", "slurm_header": {"--nice": ""}}]}, "is for the shape elastic"),
                             ({"slurm": {"shape": "elastic"}, "drafters": [{"hosts": "big"}]}, "which drafters of other jobs cannot dial")):
            run = self.start(plan | change, "--backend", "slurm", expect_end=True)
            self.assertEqual(run.status, 1)
            self.assertIn("outrider: slurm: ", run.err.read_text())
            self.assertIn(part, run.err.read_text())

    def test_the_published_schema_is_what_the_program_has(self):
        published = pathlib.Path(__file__).parents[2] / "schemas" / "plan.schema.json"
        schema = launch("--schema").stdout
        if WRITE_GOLDENS:
            published.write_text(schema)
        self.assertEqual(published.read_text(), schema)


GOLDENS = pathlib.Path(__file__).parents[1] / "goldens" / "launch"
WRITE_GOLDENS = "--write-goldens" in sys.argv
if WRITE_GOLDENS:
    sys.argv.remove("--write-goldens")
KILLS = take_number("--kills", 6)
OUTRIDER = str(pathlib.Path(sys.argv.pop(1)).resolve())

if __name__ == "__main__":
    unittest.main(verbosity=2)
