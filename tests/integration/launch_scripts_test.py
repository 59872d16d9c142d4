#!/usr/bin/env python3
"""What `outrider launch` writes for others to run, run: Slurm's scripts by bash, with stand-ins for Slurm's commands that note
how they were called; `push` with stand-ins for ssh and rsync. Names are as bad as a plan allows.

usage: launch_scripts_test.py OUTRIDER
"""
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

HANG = 600  # seconds; ends a test that would hang, never a measure of speed
BAD = "a b'c\"d$HOME`e`;#%j*"  # a name for files and for hosts
NOTE = 'for word in "$0" "$@"; do printf "%s\\0" "$word"; done >>"$NOTES/$$.$(basename "$0")"\n'
STAND_INS = {
    "scontrol": 'if [ "$1 $2" = "show hostnames" ]; then printf "%s\\n" n1 n2; fi\n',
    # A step of the coordinator says where it is, and each ends with its standard input.
    "srun": 'for word in "$@"; do [ "$last" = --address-file ] && echo tcp://10.0.0.1:7 >"$word"; last=$word; done; cat >/dev/null\n',
    "program": "exit 0\n",
}


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-scripts-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.notes = self.folder / "notes"
        self.bin = self.folder / f"bin {BAD}"
        self.environment = os.environ | {"NOTES": str(self.notes), "PATH": f"{self.bin}:{os.environ['PATH']}", "SLURM_JOB_ID": "7",
                                         "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]",
                                         "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]", "SLURM_ARRAY_TASK_ID": "5"}
        for folder in (self.notes, self.bin):
            folder.mkdir()
        self.stand_in(STAND_INS)

    def stand_in(self, programs):
        for name, script in programs.items():
            (self.bin / name).write_text("#!/bin/sh\n" + NOTE + script)
            (self.bin / name).chmod(0o755)

    def plan(self, shape, **slurm):
        ask = ["outrider", "run", "What's $HOME?", "--connect={coordinator}", "--model", "{model}", f"{BAD}{{run_dir}}/x,{{coordinator}}"]
        return {"program": str(self.bin / "program"), "model": f"/models/{BAD}/{{run_dir}}", "hosts": [{"name": BAD}, {"name": "big box", "address": "n2"}],
                "coordinator": {"hosts": BAD, "listen": "tcp://0.0.0.0:*"}, "verifiers": [{"hosts": BAD, "environment": {"A": BAD}}],
                "drafters": [{"hosts": "big box"}], "run": [{"command": ask}, {"command": ["sh", "-c", "echo \"$1\"", "sh", "{coordinator}"]}],
                "slurm": {"shape": shape, "header": {"--comment": BAD, "--time": "0"}} | slurm}

    def render(self, plan):
        (self.folder / "plan.json").write_text(json.dumps(plan))
        self.run_dir = self.folder / f"run {BAD}"
        shutil.rmtree(self.run_dir, ignore_errors=True)
        done = subprocess.run([OUTRIDER, "launch", self.folder / "plan.json", "--backend", "slurm", "--run-dir", self.run_dir],
                              capture_output=True, text=True, timeout=HANG)
        self.assertEqual(done.returncode, 0, done.stderr)
        scripts = sorted(self.run_dir.glob("*.sbatch"), key=lambda script: script.name == "drafters.sbatch")
        self.assertEqual([shlex.split(line) for line in done.stdout.splitlines()], [["sbatch", str(script)] for script in scripts])
        return scripts

    def called(self, name):
        """The words of each call of a stand-in."""
        return [file.read_text().split("\0")[1:-1] for file in sorted(self.notes.glob(f"*.{name}"))]

    def bash(self, script):
        return subprocess.run(["bash", script], capture_output=True, text=True, timeout=HANG, env=self.environment)

    def test_every_word_of_a_job_arrives_as_it_was_meant(self):
        for shape in ("one", "het", "elastic"):
            for note in self.notes.iterdir():
                note.unlink()
            job = self.render(self.plan(shape))[0]
            done = self.bash(job)
            self.assertEqual((done.returncode, done.stderr), (0, ""), job.read_text())
            self.assertEqual(done.stdout, "tcp://10.0.0.1:7\n")
            self.assertTrue((self.run_dir / "ended").exists())
            steps = {step[step.index("--no-kill") + 2]: step for step in self.called("srun")}
            hosts = {"coordinator": (BAD, "n1"), "verifier.0": (BAD, "n1"), "facts": (BAD, "n1")} | ({} if shape == "elastic" else {"drafter.0": ("big box", "n1" if shape == "het" else "n2")})
            logs = {step[step.index("--no-kill") + 2].partition("=")[2] for step in self.called("srun")}
            wanted = {f"{self.run_dir}/logs/{host}.{name}.log".replace("%", "%%") for name, (host, _) in hosts.items()}
            self.assertLessEqual(wanted, logs, steps)
            for name, (host, node) in hosts.items():
                step = steps["--output=" + f"{self.run_dir}/logs/{host}.{name}.log".replace("%", "%%")]
                self.assertIn(f"--nodelist={node}", step)
                self.assertIn(str(self.bin / "program"), step)
            verifier = steps["--output=" + f"{self.run_dir}/logs/{BAD}.verifier.0.log".replace("%", "%%")]
            self.assertEqual(verifier[verifier.index("env") + 1], f"A={BAD}")
            self.assertEqual(verifier[verifier.index("--model") + 1], f"/models/{BAD}/{{run_dir}}")
            self.assertEqual(verifier[-2:], ["--join", "tcp://10.0.0.1:7"])
            [ask] = [words for words in self.called("program") if words[0] == "run"]
            keys = self.run_dir / "keys"
            self.assertEqual(ask, ["run", "What's $HOME?", "--connect=tcp://10.0.0.1:7", "--model", f"/models/{BAD}/{{run_dir}}",
                                   f"{BAD}{self.run_dir}/x,tcp://10.0.0.1:7", "--key", f"{keys}/client", "--coordinator-key", f"{keys}/coordinator.pub"])

    def test_every_word_of_an_array_of_drafters_arrives_as_it_was_meant(self):
        array = self.render(self.plan("elastic"))[1]
        (self.run_dir / "coordinator.address").write_text("tcp://10.0.0.1:7\n")
        done = self.bash(array)
        self.assertEqual((done.returncode, done.stderr), (0, ""), array.read_text())
        [drafter] = self.called("program")
        self.assertEqual(drafter[:5], ["drafter", "--name", "drafter.5", "--model", f"/models/{BAD}/{{run_dir}}"])
        self.assertEqual(drafter[-2:], ["--join", "tcp://10.0.0.1:7"])

    def test_shellcheck_finds_nothing_in_them(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("NOT tested: no shellcheck here")
        for shape in ("one", "het", "elastic"):
            shards = {"verifiers": [{"hosts": BAD, "shards": 2, "shard_hosts": BAD}]}
            for more in ({}, shards, {"run": []}, {"run": [], "coordinator": {"hosts": BAD, "listen": "tcp://0.0.0.0:*", "deadline": "slurm"}}):
                scripts = self.render(self.plan(shape) | more)
                # SC2016: a $ in single quotes, which is a plan's own and text.
                done = subprocess.run(["shellcheck", "--exclude=SC2016", *scripts], capture_output=True, text=True, timeout=HANG)
                self.assertEqual((done.returncode, done.stdout), (0, ""))


OUTRIDER = str(pathlib.Path(sys.argv.pop(1)).resolve())

if __name__ == "__main__":
    unittest.main(verbosity=2)
