#!/usr/bin/env python3
"""Hostile peers, with a key and without, while an honest client asks: no text differs, nobody ends, nothing grows.

A coordinator with keys, two verifiers, two drafters and a server (nano), and one hostile peer of each kind (hostile.cc)
after the other: garbage, half a handshake, frames without end, a stranger's key; then an authorized drafter, verifier
and client whose messages are well-formed and lie. An honest client streams texts in turns with the hostile peer and
without; each must have the bytes of the undisturbed one. Prints how many messages came, what the processes grew by, and
for each kind the median of honest tokens a second beside the peer by those without it, of turns one after the other,
and the interval in which a median of such turns lies in 95 of 100 drawings (bootstrap). Nothing asserts them.

usage: hostile_test.py OUTRIDER HOSTILE [--messages N] [--turns T] [--seconds S] [--limit S]
                       [--kinds K,K] [--model DIR] [--dtype TYPE] [--growth MIB]
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from cluster_support import HANG, ROLES, Answer, Cluster, resident_mib
from launch_support import eventually

LIARS = ["drafter", "verifier", "client"]
KINDS = ["garbage", "handshakes", "frames", "stranger", *LIARS]
BODY = {"prompt": "Once upon a time a fox", "max_tokens": 100, "ignore_eos": True, "stream": True, "speculative": {"draft_length": 4}}
BODIES = [BODY | {"temperature": 0}, BODY | {"temperature": 1, "seed": 5}]


def median_and_interval(ratios):
    """The median, and between what medians of as many drawings from these lie in 95 of 100 cases."""
    if not ratios:
        return None, None
    choice = random.Random(1)
    drawn = sorted(statistics.median(choice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), [drawn[50], drawn[-51]]


class Hostile:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.key("coordinator")
        for name in LIARS:
            self.key(name, name)
            self.key(f"hostile-{name}", name)
        self.key("stranger")
        model = (["--model", options.model] if options.model else []) + ["--dtype", options.dtype]
        self.cluster = Cluster(options.outrider, folder, {
            "coordinator": ["--key", self.folder / "coordinator", "--authorized", self.folder / "authorized"],
            "verifier": [*model, *self.keys("verifier"), "--memory", "16"], "drafter": [*model, *self.keys("drafter")],
            "serve": [*model[:-2], *self.keys("client")]})
        self.wrong = []

    def key(self, name, role=None):
        subprocess.run([self.options.outrider, "keys", "new", "--key", self.folder / name], check=True, capture_output=True)
        if role:
            subprocess.run([self.options.outrider, "keys", "authorize", "--authorized", self.folder / "authorized", role, name,
                            self.folder / f"{name}.pub"], check=True, capture_output=True)

    def keys(self, name):
        return ["--key", self.folder / name, "--coordinator-key", self.folder / "coordinator.pub"]

    def start_peer(self, kind, seed):
        name = f"hostile-{kind}" if kind in LIARS else "stranger"
        return subprocess.Popen([self.options.hostile, kind, f"tcp://127.0.0.1:{self.cluster.ports['coordinator']}",
                                 str(self.options.seconds), str(10**9), str(seed), self.options.model or "", self.options.dtype,
                                 self.folder / name, self.folder / "coordinator.pub"], stdout=subprocess.PIPE, text=True)

    def turn(self, peer):
        """Honest tokens a second, until the peer has ended, or for as long as one would be there."""
        begin, tokens = time.monotonic(), 0
        while peer.poll() is None if peer else time.monotonic() - begin < self.options.seconds:
            for body, wanted in zip(BODIES, self.wanted):
                answer = Answer(self.cluster.ports["serve"], body)
                tokens += body["max_tokens"]
                if answer.error or answer.text != wanted:
                    self.wrong.append(f"{answer.error}: {answer.text!r} for {wanted!r}")
        return tokens / (time.monotonic() - begin)

    def against(self, kind, seed):
        """One turn without the peer, and one beside it; every other time the other way round."""
        about, before = self.about[kind], self.memory()
        calm = self.turn(None) if seed % 2 else None
        peer = self.start_peer(kind, seed)
        beside = self.turn(peer)
        said = peer.communicate()[0]
        calm = calm or self.turn(None)
        if peer.returncode != 0:
            return self.wrong.append(f"the hostile {kind} ended with status {peer.returncode}")
        said = json.loads(said)
        about["messages"] += said["messages"]
        about["connections"] += said["connections"]
        about["ratios"].append(round(beside / calm, 3))
        about["grown_mib"] = [round(sum(three), 1) for three in zip(about["grown_mib"], self.memory(), [-mib for mib in before])]
        print(f"{kind}: {said}, ratio {beside / calm:.3f}", file=sys.stderr)

    def wants(self, kind):
        """More of this kind. Those without a key count together."""
        outside = [one for one in KINDS if one not in LIARS]
        messages = sum(self.about[one]["messages"] for one in (outside if kind in outside else [kind]) if one in self.about)
        return len(self.about[kind]["ratios"]) < self.options.turns or messages < self.options.messages

    def memory(self):
        return [resident_mib(process.pid) for process in self.cluster.processes]

    def run(self):
        if not eventually(self.cluster.whole, HANG):
            return {"wrong": [f"the workers have not joined{self.cluster.logs()}"]}
        answers = [Answer(self.cluster.ports["serve"], body) for body in BODIES]
        self.wanted = [answer.text for answer in answers]
        if any(answer.error for answer in answers):
            return {"wrong": [f"undisturbed: {[answer.error for answer in answers]}"]}
        for _ in range(3):
            self.turn(None)  # warms up
        kinds = self.options.kinds.split(",")
        self.about = {kind: {"messages": 0, "connections": 0, "ratios": [], "grown_mib": [0] * len(ROLES)} for kind in kinds}
        first, handles, end, seed = self.memory(), self.cluster.handles(), time.monotonic() + self.options.limit, 0
        while time.monotonic() < end and any(self.wants(kind) for kind in kinds):
            seed += 1
            for kind in filter(self.wants, kinds):
                if self.wrong or time.monotonic() > end or any(process.poll() is not None for process in self.cluster.processes):
                    end = 0
                    break
                self.against(kind, seed)
        for i, process in enumerate(self.cluster.processes):
            if process.poll() is not None:
                self.wrong.append(f"{ROLES[i]} ended with status {process.poll()}")
        if not self.wrong:
            if not eventually(self.cluster.whole, HANG):
                self.wrong.append(f"not all is as before: {self.cluster.status()}")
            if not eventually(lambda: all(now <= before + 2 for now, before in zip(self.cluster.handles(), handles)), HANG):
                self.wrong.append(f"file handles: {handles} before, {self.cluster.handles()} now")
            for role, then, mib in zip(ROLES, first, self.memory()):
                if mib - then > self.options.growth:
                    self.wrong.append(f"a {role} grew from {then:.1f} to {mib:.1f} MiB")
        if self.wrong:
            self.wrong.append(self.cluster.logs())
        for about in self.about.values():
            about["median_ratio"], about["interval"] = median_and_interval(about["ratios"])
        return {"messages": sum(about["messages"] for about in self.about.values()), "roles": ROLES, "against": self.about,
                "grown_mib": [round(now - then, 1) for now, then in zip(self.memory(), first)] if not self.wrong else None,
                "wrong": [line[-6000:] for line in self.wrong]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("outrider")
    parser.add_argument("hostile", help="the program of hostile.cc")
    parser.add_argument("--messages", type=int, default=0, help="of each role, and of those without a key together, at least")
    parser.add_argument("--turns", type=int, default=1, help="of each kind, at least")
    parser.add_argument("--seconds", type=float, default=2, help="of a turn")
    parser.add_argument("--limit", type=float, default=7200, metavar="SECONDS", help="of all turns")
    parser.add_argument("--growth", type=float, default=64, metavar="MIB", help="of a process, at most")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--model", help="a pair's folder; else the one beside the program")
    parser.add_argument("--dtype", default="bf16")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hostile = Hostile(options, folder)
        try:
            result = hostile.run()
        finally:
            hostile.cluster.stop()
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
