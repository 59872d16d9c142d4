#!/usr/bin/env python3
"""`outrider launch --backend slurm` on a real Slurm of four nodes on this machine: Debian's packages, only unpacked.

usage: launch_slurm_test.py OUTRIDER CACHE [--lines N]     CACHE: folder for the packages; N: of the batch whose jobs are
requeued (default 40)
Status 77: the packages cannot be had or Slurm does not start here, and nothing was tested.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from batch_support import Job, completion_line, nano_lines
from launch_support import check_experiment, HANG, QUESTION, Run, eventually, take_number
from slurm_support import Slurm, skip, unpacked

ASK = ["outrider", "run", QUESTION, "--max-tokens", "12", "--connect", "{coordinator}"]


class LaunchWithSlurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.story = subprocess.run([OUTRIDER, *ASK[1:-2]], capture_output=True, text=True, timeout=HANG).stdout.split("\n\n")[0]
        assert cls.story

    def tearDown(self):
        subprocess.run(["scancel", "--user=root"], timeout=HANG)
        self.assertTrue(eventually(lambda: not SLURM.jobs()))

    def plan(self, shape, run):
        groups = [{"hosts": host, "threads": 1} for host in (["n2", "n3"] if shape == "elastic" else ["n[2-3]"])]
        return {"program": OUTRIDER, "hosts": [{"name": "n[1-3]"}], "coordinator": {"hosts": "n1"},
                "verifiers": [{"hosts": "n1", "threads": 1}], "drafters": groups, "run": run, "slurm": {"shape": shape}}

    def batch(self, job):
        return [{"command": ["outrider", *job.command()[1:], "--connect", "{coordinator}"]}]

    def submit(self, shape, *, run=None, verifier={}):
        plan = self.plan(shape, [{"command": ASK}] if run is None else run)
        plan["verifiers"][0] |= verifier
        run = Run(OUTRIDER, plan, "--backend", "slurm", "--submit", expect_end=True, name="a run of 100%j; it's \"here\"")
        self.addCleanup(run.remove)
        self.assertEqual(run.status, 0, run.explain())
        return run

    def assert_ran(self, run):
        self.assertTrue(eventually(lambda: (run.dir / "ended").exists() and not SLURM.jobs()), run.explain())
        self.assertIn(self.story, "".join(log.read_text() for log in run.dir.glob("logs/slurm-*.log")), run.explain())
        self.assertTrue(eventually(lambda: not run.alive()), f"{run.alive()} are left")
        lock = json.loads((run.dir / "lock.json").read_text())["lock"]
        self.assertEqual((lock["backend"], lock["slurm"]["job_id"], lock["slurm"]["partition"]), ("slurm", run.ledger()[0]["job"], "main"))
        self.assertEqual(sorted(lock["hosts"]), ["n1", "n2", "n3"])
        self.assertTrue(lock["slurm"]["nodes"].startswith("n") and lock["slurm"]["time_limit"], lock["slurm"])
        for host, facts in lock["hosts"].items():
            self.assertTrue(facts["build_id"] and facts["isa"], host)

    def test_one_allocation(self):
        self.assert_ran(self.submit("one"))

    def test_shards_of_a_verifier_are_steps_on_nodes_of_their_own(self):
        run = self.submit("one", verifier={"shards": 2, "shard_hosts": "n2"})
        self.assert_ran(run)
        self.assertIn("event=joined ", (run.dir / "logs" / "n2.verifier.0.shard.1.log").read_text())

    def test_a_het_job(self):
        self.assert_ran(self.submit("het"))

    def test_elastic_drafters_that_are_preempted(self):
        wait = ["sh", "-c", 'while [ ! -e "$1/go" ]; do sleep 0.1; done', "sh", "{run_dir}"]
        run = self.submit("elastic", run=[{"command": wait}, {"command": ASK}])
        joined = lambda: subprocess.run([OUTRIDER, "launch", "wait", run.dir, "--timeout", "1"], capture_output=True, timeout=HANG).returncode == 0
        self.assertTrue(eventually(joined), run.explain())
        array = [entry["job"] for entry in run.ledger() if entry["name"] == "drafters.sbatch"][0]
        subprocess.run(["scontrol", "requeue", f"{array}_0"], check=True, timeout=HANG)
        self.assertTrue(eventually(lambda: not joined()), "the drafter is still there")
        (run.dir / "go").touch()  # text goes on without it
        self.assertTrue(eventually(lambda: (run.dir / "ended").exists()), run.explain())
        self.assertIn(self.story, "".join(log.read_text() for log in run.dir.glob("logs/slurm-*.log")))

    def test_a_batch_has_the_same_bytes_though_all_its_jobs_are_requeued(self):
        lines = nano_lines(LINES) if LINES < 1000 else [completion_line(f"{i}", f"{i}", max_tokens=3) for i in range(LINES)]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        few = ("--concurrency", "4")  # or all lines of a short file would be under way, and end, together
        alone = Job(OUTRIDER, folder.name, lines, *few, name="alone")
        began = time.monotonic()
        local = Run(OUTRIDER, self.plan("elastic", self.batch(alone)))
        self.addCleanup(local.remove)
        self.assertEqual(local.end(PATIENCE), 0, local.explain())
        print(f"{LINES} lines: undisturbed on this machine {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        job = Job(OUTRIDER, folder.name, None, *few, name="job")
        began = time.monotonic()
        # Or a fast machine would be through with a short file before anything is requeued.
        run = self.submit("elastic", run=self.batch(job), verifier={"added_verify_us": [250_000]} if LINES < 1000 else {})
        ids = {entry["name"]: entry["job"] for entry in run.ledger()}
        done = lambda: json.loads(job.progress.read_text())["completed"] if job.progress.exists() else 0

        def requeue(name, share):
            """Once that share of the lines is done. Slurm would wait for two minutes before it starts it again."""
            self.assertTrue(eventually(lambda: done() >= share * LINES, PATIENCE), f"{done()} lines done\n{run.explain()}")
            subprocess.run(["scontrol", "requeue", name], capture_output=True, timeout=HANG)
            requeued_after = done()
            print(f"{name} requeued after {requeued_after} lines", file=sys.stderr, flush=True)
            self.assertLess(requeued_after, LINES, "it was in the middle")

            def runs_again():
                subprocess.run(["scontrol", "update", f"JobId={name}", "StartTime=now"], capture_output=True, timeout=HANG)
                time.sleep(1)
                shown = subprocess.run(["scontrol", "show", "job", name], capture_output=True, text=True, timeout=HANG).stdout
                return "JobState=RUNNING" in shown and "Restarts=1" in shown

            self.assertTrue(eventually(runs_again), run.explain())

        requeue(ids["drafters.sbatch"] + "_0", 0.1)
        requeue(ids["job.sbatch"], 0.3)
        requeue(ids["drafters.1.sbatch"] + "_1", 0.5)
        self.assertTrue(eventually(lambda: (run.dir / "ended").exists(), PATIENCE), run.explain())
        print(f"on Slurm {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        self.assertEqual(job.files(), alone.files())
        self.assertEqual(len(alone.output.read_bytes().splitlines()), LINES)

    def test_in_an_allocation_a_plan_is_launched_by_steps_and_so_are_an_experiments_cells(self):
        plan = self.plan("one", [{"command": ASK}]) | {"hosts": [{"name": "n[1-3]"}]}
        allocation = ["salloc", "--quiet", "--nodelist=n[1-3]", "--nodes=3"]
        run = Run(OUTRIDER, plan, "--backend", "srun", expect_end=True, before=allocation)
        self.addCleanup(run.remove)
        self.assertEqual(run.status, 0, run.explain())
        self.assertIn(self.story, run.out.read_text())
        self.assertEqual({entry["host"]: entry["where"] for entry in run.ledger() if entry["name"] not in ("launcher", "run.0")}, dict.fromkeys(("n1", "n2", "n3"), "srun"))
        self.assertTrue(eventually(lambda: not run.alive()), f"{run.alive()} are left")
        del plan["run"], plan["slurm"], plan["verifiers"][0]["threads"]
        check_experiment(self, OUTRIDER, plan | {"drafters": [{"hosts": "n2"}]}, "srun", before=allocation)

    def test_down_lets_the_job_drain(self):
        run = self.submit("one", run=[])
        self.assertTrue(eventually(lambda: run.about("wait", "--timeout", "1").returncode == 0), run.explain())
        down = run.about("down", "--timeout", "60")
        self.assertEqual(down.returncode, 0, down.stderr)
        self.assertEqual(SLURM.jobs(), [])
        self.assertTrue((run.dir / "ended").exists(), "the script came to its end by itself")
        self.assertTrue(eventually(lambda: not run.alive()))

    def test_the_end_of_the_script_however_it_comes_ends_the_steps(self):
        run = self.submit("one", run=[])
        self.assertTrue(eventually(lambda: run.about("wait", "--timeout", "1").returncode == 0), run.explain())
        job = run.ledger()[0]["job"]
        subprocess.run(["scancel", "--batch", "--signal=KILL", job], check=True, timeout=HANG)
        self.assertTrue(eventually(lambda: not run.alive()), f"{run.alive()} are left")

    def test_status_75_of_a_command_requeues_the_job_and_it_ends_well(self):
        again = ["sh", "-c", '[ -e "$1/second" ] || { touch "$1/second"; exit 75; }', "sh", "{run_dir}"]
        run = self.submit("one", run=[{"command": again}, {"command": ASK}])
        requeued = lambda: (run.dir / "second").exists() and any(line.split()[1] in ("PD", "R") for line in SLURM.jobs())
        self.assertTrue(eventually(requeued), run.explain())
        job = run.ledger()[0]["job"]
        release = lambda: subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], capture_output=True, timeout=HANG)
        ended = lambda: (run.dir / "ended").exists() or (release(), time.sleep(1), False)[2]
        self.assertTrue(eventually(ended), run.explain())
        self.assertIn(self.story, "".join(log.read_text() for log in run.dir.glob("logs/slurm-*.log")))


LINES = take_number("--lines", 40)
PATIENCE = max(HANG, LINES)  # seconds
OUTRIDER = str(pathlib.Path(sys.argv.pop(1)).resolve())
CACHE = pathlib.Path(sys.argv.pop(1)).resolve()

if __name__ == "__main__":
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        skip("it wants root and apt-get")
    SLURM = Slurm(unpacked(CACHE))
    if not eventually(SLURM.up, 60):
        log = SLURM.folder / "slurmctld.log"
        skip("Slurm does not start: " + (log.read_text()[-300:] if log.exists() else "no log"))
    unittest.main(verbosity=2)
