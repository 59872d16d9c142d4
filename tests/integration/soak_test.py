#!/usr/bin/env python3
"""Requests without end on clusters whose processes are killed now and then: no answer differs, and nothing grows.

Each cluster (a coordinator, two verifiers, two drafters and a server, each a process; nano) answers its part of the
requests: greedy and seeded, one choice and two, by a schema, completions and chats, streams and not, 1 to 16 tokens.
One client in twenty leaves in mid-stream. Every `--kill-every` seconds one process is killed with SIGKILL and started
again. Each answer must be that of the undisturbed cluster; only one whose own server died, or is being started, may
fail. With `--batch N` a job of N lines runs meanwhile, again and again; its files must have the undisturbed job's bytes,
whoever dies. From when a process has warmed up until its end its memory may grow by no more than --growth MiB; afterwards no
session, no K/V of one and no file handle is left.

usage: soak_test.py OUTRIDER [--requests N] [--seconds S] [--clusters K] [--kill-every S] [--growth MIB]
                    [--batch N] [--model DIR] [--dtype TYPE]
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import threading
import time

from batch_support import Job, nano_lines
from cluster_support import AS_SCHEMA, HANG, ROLES, SERVE, Answer, Cluster, resident_mib
from launch_support import eventually

CLIENTS = 16  # of a cluster
# Of who is killed: workers mostly, the others now and then.
WEIGHTS = [{"verifier": 4, "drafter": 4, "coordinator": 2, "serve": 2}[role] for role in ROLES]
SAMPLE_S = 0.5
PROMPTS = ["Once upon a time a fox", "The dog", "Two birds", "A long day", "My friend said"]


def requests():
    """Paths and bodies: of every kind, each with another length."""
    found = []
    for number, (prompt, kind) in enumerate(itertools.product(PROMPTS, range(8))):
        body = {"max_tokens": 1 + number % 16, "stream": kind % 2 == 0, "temperature": 0}
        if kind in (1, 2, 3, 4):
            body |= {"temperature": 1, "seed": number}
        if kind in (3, 4):
            body["n"] = 2
        if kind == 5:
            body |= {"response_format": AS_SCHEMA, "max_tokens": 16}
        if kind in (2, 6):
            body["speculative"] = {"draft_length": 4}
        if kind in (4, 7):
            found.append(("/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}))
        else:
            found.append(("/v1/completions", body | {"prompt": prompt}))
    return found


REQUESTS = requests()


class Memory:
    """What one process holds, from one start to its end: `warm` once it has lived through so many requests."""

    def __init__(self, role, requests):
        self.role, self.begin, self.warm, self.last, self.until = role, requests, None, 0, requests

    def growth(self):
        return None if self.warm is None else self.last - self.warm


class Soak:
    """One cluster's part."""

    def __init__(self, options, number):
        self.options, self.choice = options, random.Random(f"{options.seed} {number}")
        self.requests = options.requests // options.clusters
        self.warm_after = max(50, min(self.requests // 5, 2000))
        self.counts, self.wrong, self.lock = collections.Counter(), [], threading.Lock()
        self.memory, self.past = {}, []

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            model = ["--model", self.options.model] if self.options.model else []
            dtype = ["--dtype", self.options.dtype] if self.options.dtype else []
            self.cluster = Cluster(self.options.outrider, folder, {"verifier": [*model, *dtype, "--memory", "16"],
                                                                   "drafter": [*model, *dtype], "serve": model})
            try:
                return self.soak()
            finally:
                self.cluster.stop()

    def soak(self):
        if not eventually(self.cluster.whole, HANG):
            return {"wrong": [f"the workers have not joined{self.cluster.logs()}"]}
        port = self.cluster.ports["serve"]
        answers = [Answer(port, body, path) for path, body in REQUESTS]
        self.wanted = [dict(answer.texts) for answer in answers]
        failed = [answer.error for answer in answers if answer.error]
        if failed:
            return {"wrong": [f"undisturbed: {failed}"]}
        if self.options.batch > 0:
            self.wanted_batch = self.batch("undisturbed")
        handles = self.cluster.handles()
        begin = time.monotonic()
        self.end = begin + self.options.seconds
        clients = [threading.Thread(target=self.ask_on, args=(random.Random(f"{self.options.seed} {i}"),)) for i in range(CLIENTS)]
        jobs = threading.Thread(target=self.batches, args=(clients,))
        for client in [*clients, jobs]:
            client.start()
        next_kill = begin + self.options.kill_every
        while jobs.is_alive() or any(client.is_alive() for client in clients):
            time.sleep(SAMPLE_S)
            self.sample()
            if time.monotonic() > next_kill:
                next_kill += self.options.kill_every
                i = self.choice.choices(range(len(ROLES)), WEIGHTS)[0]
                self.past.append(self.memory.pop(i))
                self.counts[f"killed {ROLES[i]}"] += 1
                self.cluster.kill(i)
        seconds = time.monotonic() - begin
        self.finish(handles)
        self.past += self.memory.values()
        for life in self.past:
            if life.growth() is not None and life.growth() > self.options.growth:
                self.wrong.append(f"a {life.role} grew from {life.warm:.1f} to {life.last:.1f} MiB within {life.until - life.begin} requests")
        return {"seconds": seconds, "counts": self.counts, "wrong": self.wrong, "lives": [
            {"role": life.role, "requests": life.until - life.begin, "warm_mib": life.warm, "end_mib": life.last} for life in self.past]}

    def batch(self, name):
        """The files of a job, once it has ended well; None otherwise."""
        options = ["--connect", f"tcp://127.0.0.1:{self.cluster.ports['coordinator']}", "--failover-wait", str(HANG)]
        model = ["--model", self.options.model] if self.options.model else []
        job = Job(self.options.outrider, self.cluster.folder, nano_lines(self.options.batch), *options, *model, name=name)
        done = subprocess.run(job.command(), capture_output=True, text=True)
        if done.returncode != 0:
            self.wrong.append(f"a batch ended with status {done.returncode}: {done.stderr[-1000:]}")
        return job.files()

    def batches(self, clients):
        """Runs jobs beside the clients: at least one, however slow the machine is."""
        while self.options.batch > 0 and not self.wrong:
            files = self.batch("again")
            if files != self.wanted_batch:
                self.wrong.append("a batch has other bytes than the undisturbed one")
            self.counts["batches with the undisturbed bytes"] += files == self.wanted_batch
            for file in self.cluster.folder.glob("again.*"):
                file.unlink()
            if not any(client.is_alive() for client in clients):
                return

    def finish(self, handles):
        status = eventually(self.cluster.whole, HANG)
        if not status or any(worker["sessions"] or worker.get("kv_bytes") for worker in status["workers"]):
            self.wrong.append(f"left behind: {self.cluster.status()}{self.cluster.logs()}")
        if not eventually(lambda: all(now <= before for now, before in zip(self.cluster.handles(), handles)), HANG):
            self.wrong.append(f"file handles: {handles} before, {self.cluster.handles()} now")
        if self.wrong:
            self.wrong.append(self.cluster.logs())

    def sample(self):
        done = self.counts["requests"]
        for i, process in enumerate(self.cluster.processes):
            life = self.memory.setdefault(i, Memory(ROLES[i], done))
            try:
                life.last, life.until = resident_mib(process), done
            except OSError:
                self.wrong.append(f"a {ROLES[i]} ended by itself")
                continue
            if life.warm is None and done - life.begin >= self.warm_after:
                life.warm = life.last

    def ask_on(self, choice):
        while time.monotonic() < self.end and not self.wrong:
            with self.lock:
                if self.counts["requests"] >= self.requests:
                    return
                self.counts["requests"] += 1
            self.ask(choice.randrange(len(self.wanted)), leaves=choice.random() < 0.05)

    def ask(self, number, leaves):
        path, body = REQUESTS[number]
        kills = self.cluster.kills[SERVE]
        answer = Answer(self.cluster.ports["serve"], body | ({"stream": True, "max_tokens": 200} if leaves else {}), path, 1 if leaves else None)
        killed = self.cluster.may_have_died(SERVE, kills) or (answer.broken and "refused" in answer.error)
        with self.lock:
            if leaves and not answer.error:
                self.counts["left in mid-stream"] += 1
            elif answer.error is None and dict(answer.texts) == self.wanted[number]:
                self.counts["whole"] += 1
            elif answer.broken and killed:
                self.counts["broken with the server"] += 1
            elif not answer.text and answer.error and answer.error.startswith("503") and "has not answered for 3 s" in answer.error:
                self.counts["refused by a new server without a coordinator"] += 1
            else:
                self.wrong.append(f"{path} {json.dumps(body)}: {answer.error}, {dict(answer.texts)} for {self.wanted[number]}")
        if answer.broken:
            eventually(self.cluster.served, HANG)


def run_one(arguments):
    return Soak(*arguments).run()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("outrider")
    parser.add_argument("--requests", type=int, default=1000, help="of all clusters together")
    parser.add_argument("--seconds", type=float, default=3600, help="at most")
    parser.add_argument("--clusters", type=int, default=1, help="side by side")
    parser.add_argument("--kill-every", type=float, default=60, metavar="S", help="seconds")
    parser.add_argument("--growth", type=float, default=32, metavar="MIB", help="of a process, at most")
    parser.add_argument("--batch", type=int, default=0, metavar="LINES", help="of a job beside the requests")
    parser.add_argument("--model", help="a pair's folder or pack; else the one beside the program")
    parser.add_argument("--dtype")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"--seed {options.seed}", file=sys.stderr)
    with concurrent.futures.ProcessPoolExecutor(options.clusters, multiprocessing.get_context("spawn")) as clusters:
        results = list(clusters.map(run_one, [(options, number) for number in range(options.clusters)]))
    counts = sum((collections.Counter(result.get("counts", {})) for result in results), collections.Counter())
    wrong = [line for result in results for line in result["wrong"]]
    grown = collections.defaultdict(list)
    for life in (life for result in results for life in result.get("lives", []) if life["warm_mib"] is not None):
        grown[life["role"]].append((round(life["end_mib"] - life["warm_mib"], 1), life["requests"], round(life["end_mib"], 1)))
    print(json.dumps({
        "seed": options.seed, "seconds": round(max(result.get("seconds", 0) for result in results), 1), "counts": dict(sorted(counts.items())),
        "memory": {role: {"lives": len(lives), "most_mib": max(end for _, _, end in lives), "most_growth_mib": max(lives)[0], "over_requests": max(lives)[1]}
                   for role, lives in grown.items()},
        "wrong": [line[-4000:] for line in wrong]}, indent=1))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
