"""What the tests of `outrider launch`, and others that start processes, share."""
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HANG = 600  # seconds; ends a test that would hang, never a measure of speed
QUESTION = "Write a short story about a fox."


def eventually(condition, seconds=HANG):
    """Polls until the condition holds. Returns what it gave, false at the deadline."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def free_ports(count):
    """TCP ports that are free at every address of this machine, no two the same. The ports lie below the kernel's
    ephemeral range: no connection of another process takes one before its server is up, or while it is restarted."""
    first_ephemeral = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(10000, max(first_ephemeral, 20000))
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                found.add(port)
            except OSError:
                pass  # The port is taken.
    return list(found)


def take_seed():
    """Returns the seed of a test's random choices: OUTRIDER_SEED, a number or `random`, else 1, and prints the seed."""
    seed = os.environ.get("OUTRIDER_SEED", "1")
    seed = time.time_ns() % 1000000 if seed == "random" else int(seed)
    print(f"OUTRIDER_SEED={seed}", file=sys.stderr)
    return seed


def processes_with(word):
    """The ids of processes in whose command line or environment this word is."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes():
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and int(folder.name) != os.getpid():
                    found.append(int(folder.name))
        except OSError:
            pass  # it has just ended
    return found


def marked(plan, mark):
    """The plan, each of whose processes has the mark in its environment: also over ssh and in Slurm."""
    name, value = mark.split("=")
    def group(role):
        return role | {"environment": role.get("environment", {}) | {name: value}}
    return plan | {"coordinator": group(plan.get("coordinator", {}))} | {
        role: [group(workers) for workers in plan[role]] for role in ("verifiers", "drafters", "encoders") if role in plan}


def take_number(option, default):
    """N of `--option N`, which is taken out of the command line."""
    if option not in sys.argv:
        return default
    at = sys.argv.index(option)
    number = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
    return number


def check_experiment(test, outrider, launch, backend, before=()):
    """An experiment of one cell on that plan has all arms and texts that agree, its drafters where they belong, and leaves no process.
    What an axis says the plan must not. `before`: what its command line begins with."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-experiment-"))
    test.addCleanup(shutil.rmtree, folder)
    mark = f"OUTRIDER_TEST_RUN={folder.name}"
    plan = {"launch": marked(launch, mark), "backend": backend, "prompts": ["Count from 3 to 20."], "repeats": 3, "seconds": 0,
            "void": {"spread": 1000, "steal": 1, "others": 1, "bandwidth": 1000}, "sweeps": [{"output": [12], "threads": [1], "drafter_isa": ["scalar"]}]}

    def run():
        (folder / "plan.json").write_text(json.dumps(plan))
        return subprocess.run([*before, outrider, "experiment", folder / "plan.json", "--out", folder / "out"], capture_output=True, text=True, timeout=HANG)
    done = run()
    test.assertEqual(done.returncode, 0, done.stderr)
    [cell] = [json.loads(line) for line in (folder / "out" / "cells.jsonl").read_text().splitlines()]
    test.assertEqual((sorted(cell["arms"]), cell["texts_equal"]), (["colocated", "ngram", "plain", "remote"], True))
    test.assertGreater(cell["arms"]["remote"]["drafted_tokens"], 0)
    groups = {arm: json.loads((folder / "out" / "launched" / "0" / arm / "plan.json").read_text())["drafters"][0] for arm in ("colocated", "remote")}
    test.assertEqual({arm: (group["hosts"], group["environment"]["OUTRIDER_ISA"]) for arm, group in groups.items()},
                     {"colocated": (launch["verifiers"][0]["hosts"], "scalar"), "remote": (launch["drafters"][0]["hosts"], "scalar")})
    test.assertTrue(eventually(lambda: not processes_with(mark)), f"{processes_with(mark)} are left")
    plan["launch"]["drafters"][0]["environment"]["OUTRIDER_ISA"] = "scalar"
    test.assertIn('drafters[0].environment.OUTRIDER_ISA is "scalar", which the axis drafter_isa says', run().stderr)


class Run:
    """One `outrider launch` of a plan in a folder of its own; each file may have `most_bytes`, as if the disk were full then.
    `before`: what its command line begins with. `name`: of its run folder."""

    def __init__(self, outrider, plan, *options, expect_end=False, most_bytes=None, before=(), name="run"):
        self.outrider = outrider
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-launch-"))
        self.dir = self.folder / name
        self.mark = f"OUTRIDER_TEST_RUN={self.folder.name}"  # by which all its processes can be found
        (self.folder / "plan.json").write_text(json.dumps(marked(plan, self.mark)))
        self.out, self.err = self.folder / "out", self.folder / "err"
        limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))) if most_bytes else None
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [*before, outrider, "launch", self.folder / "plan.json", "--run-dir", self.dir, *options],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=os.environ | dict([self.mark.split("=")]),
                preexec_fn=limit, restore_signals=not limit)  # Python ignores SIGXFSZ, and so shall they
        if expect_end:
            self.end()

    def end(self, patience=HANG):
        self.status = self.process.wait(patience)
        return self.status

    def ready(self):
        return eventually(lambda: self.process.poll() is not None or "outrider: ready" in self.err.read_text()) and self.process.poll() is None

    def about(self, command, *options):
        return subprocess.run([self.outrider, "launch", command, self.dir, *options], capture_output=True, text=True, timeout=HANG)

    def ledger(self):
        file = self.dir / "ledger.jsonl"
        return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []  # the last may be half written

    def alive(self):
        return processes_with(self.mark)

    def addresses(self):
        return (self.dir / "coordinator.address").read_text().split()

    def explain(self):
        logs = "".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self.dir.glob("logs/*")))
        return f"status {self.process.poll()}\n{self.err.read_text()}{logs}"

    def remove(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
