#!/usr/bin/env python3
"""Requests without end on clusters that are disturbed now and then: no answer differs, and nothing grows.

The clients ask for texts of every kind: greedy and seeded, one choice and two, by a schema, completions and chats, streams
and not, 1 to 16 tokens and 64. One client in twenty leaves in mid-stream. Every `--fault-every` seconds comes a fault of
the fleet (soak_fleets.py): by default a cluster of six processes (a coordinator, two verifiers, two drafters and a server;
nano), one of which is killed with SIGKILL and started again; a real Kubernetes or Slurm with `--fleet`. Each answer must
be that of the undisturbed cluster; only one whose own server was killed may fail. With `--batch N` a job of N lines runs
meanwhile, again and again; its files must have the undisturbed job's bytes, whoever dies. From when a process has warmed
up until its end its memory may grow by no more than --growth MiB; afterwards no session, no K/V of one and no file handle
is left.

usage: soak_test.py OUTRIDER [--requests N] [--seconds S] [--clusters K] [--fault-every S] [--growth MIB] [--batch N]
                    [--clients N] [--think S] [--model DIR] [--dtype TYPE]
                    [--fleet kubernetes [--machines COMMAND] | --fleet slurm --slurm-packages FOLDER]
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import multiprocessing
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

from batch_support import Job, nano_lines
from cluster_support import AS_SCHEMA, HANG, Answer
from launch_support import eventually
from soak_fleets import FLEETS

PROMPTS = ["Once upon a time a fox", "The dog", "Two birds", "A long day", "My friend said"]
MOST_WRONG = 100  # then it ends
CALM_S = 10  # after a fault whose workers are all back


def requests():
    """Paths and bodies: of every kind, each with another length."""
    found = []
    for number, (prompt, kind) in enumerate(itertools.product(PROMPTS, range(9))):
        body = {"max_tokens": 1 + number % 16, "stream": kind % 2 == 0, "temperature": 0}
        if kind in (1, 2, 3, 4):
            body |= {"temperature": 1, "seed": number}
        if kind in (3, 4):
            body["n"] = 2
        if kind == 5:
            body |= {"response_format": AS_SCHEMA, "max_tokens": 16}
        if kind in (2, 6):
            body["speculative"] = {"draft_length": 4}
        if kind == 8:
            body |= {"max_tokens": 64, "ignore_eos": True}
        if kind in (4, 7):
            found.append(("/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}))
        else:
            found.append(("/v1/completions", body | {"prompt": prompt}))
    return found


REQUESTS = requests()


def say(text):
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


class Memory:
    """What one process holds, from one start to its end, sampled once it is warm (Soak.sample)."""

    WINDOW = 10  # samples: the least of these has few connections, which hold up to 83 KiB each while they are open

    def __init__(self, role, requests, batches):
        self.role, self.begin, self.until, self.samples = role, requests, requests, []
        self.batches = batches  # begun before

    @property
    def warm(self):
        return min(self.samples[:self.WINDOW], default=None)

    @property
    def last(self):
        return min(self.samples[-self.WINDOW:], default=None)

    def growth(self):
        return None if self.warm is None else self.last - self.warm


class Soak:
    """One cluster's part."""

    def __init__(self, options, number):
        self.options, self.choice = options, random.Random(f"{options.seed} {number}")
        self.requests = options.requests // options.clusters
        self.warm_after = max(50, min(self.requests // 5, 500))
        self.counts, self.wrong, self.lock = collections.Counter(), [], threading.Lock()
        self.lives, self.faults, self.silences, self.asked = {}, [], [], 0
        self.batches_begun = self.batches_ended = 0

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            self.folder = pathlib.Path(folder)
            self.fleet = FLEETS[self.options.fleet](self.options, self.folder)
            try:
                return self.soak()
            finally:
                self.fleet.stop()

    def soak(self):
        if not eventually(self.fleet.whole, HANG):
            return {"wrong": [f"the workers have not joined{self.fleet.logs()}"]}
        answers = [self.answer(body, path) for path, body in REQUESTS]
        self.wanted = [dict(answer.texts) for answer in answers]
        failed = [answer.error for answer in answers if answer.error]
        if failed:
            return {"wrong": [f"undisturbed: {failed}"]}
        if self.options.batch > 0:
            begin = time.monotonic()
            self.wanted_batch = self.batch("undisturbed")
            say(f"the undisturbed batch took {time.monotonic() - begin:.0f} s")
        handles = self.fleet.handles()
        begin = time.monotonic()
        self.end = begin + self.options.seconds
        clients = [threading.Thread(target=self.ask_on, args=(random.Random(f"{self.options.seed} {i}"),)) for i in range(self.options.clients)]
        threads = [*clients, threading.Thread(target=self.batches, args=(clients,)), threading.Thread(target=self.disturb, args=(clients,))]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(self.fleet.sample_s)
            try:
                self.sample()
            except Exception as failed:  # or the threads would go on without an end
                self.complain(f"no sample: {failed!r}")
        seconds = time.monotonic() - begin
        self.finish(handles)
        for life in self.lives.values():
            if life.growth() is not None and life.growth() > self.options.growth:
                self.complain(f"a {life.role} grew from {life.warm:.1f} to {life.last:.1f} MiB within {life.until - life.begin} requests")
        return {"seconds": seconds, "counts": self.counts, "wrong": self.wrong, "faults": self.told_faults(), "lives": [
            {"role": life.role, "requests": life.until - life.begin, "warm_mib": life.warm, "end_mib": life.last} for life in self.lives.values()]}

    def answer(self, body, path, read_max=None):
        return Answer(self.fleet.port, body, path, read_max, host=self.fleet.host, key=self.fleet.key)

    def complain(self, text):
        say(f"WRONG: {text}")
        self.wrong.append(text)

    def disturb(self, clients):
        """One fault after the other, each when all workers are back."""
        deck = []
        due = time.monotonic()
        while any(client.is_alive() for client in clients):
            due = max(time.monotonic(), due + self.options.fault_every)
            while time.monotonic() < due:
                if not any(client.is_alive() for client in clients):
                    return
                time.sleep(0.2)
            if not deck:
                deck = list(self.fleet.faults)
                self.choice.shuffle(deck)
            name, do = deck.pop()
            fault = {"name": name, "begin": time.monotonic(), "under_way": self.under_way(), "wrong": len(self.wrong)}
            self.faults.append(fault)
            say(f"{name}, with {fault['under_way']} requests under way")
            try:
                do()
            except Exception as failed:
                self.complain(f"{name}: {failed!r}")
            done = time.monotonic()
            if not eventually(self.fleet.complete, HANG):
                self.complain(f"{name}: not all workers are back {HANG} s later{self.fleet.logs()}")
            fault["end"] = time.monotonic()
            say(f"{name}: done after {done - fault['begin']:.1f} s, all back {fault['end'] - done:.1f} s later; {dict(self.counts)}")

    def told_faults(self):
        """Of each fault how often it came, how long until all was done and back, and the longest silence of a stream meanwhile."""
        told = {}
        for fault in self.faults:
            one = told.setdefault(fault["name"], {"times": 0, "under_way": 0, "most_s": 0, "silence_s": 0})
            begin, end = fault["begin"], fault.get("end", fault["begin"]) + CALM_S
            within = [pause for pause in self.silences if pause[1] > begin and pause[0] < end]
            self.silences = [pause for pause in self.silences if pause not in within]
            one["times"] += 1
            one["under_way"] += fault["under_way"]
            one["most_s"] = max(one["most_s"], round(end - CALM_S - begin, 1))
            one["silence_s"] = max([one["silence_s"], *(round(end - begin, 1) for begin, end in within)])
        told["none"] = {"silence_s": max((round(end - begin, 1) for begin, end in self.silences), default=0)}
        return told

    def batch(self, name):
        """The files of a job, once it has ended well; None otherwise."""
        job = Job(self.options.outrider, self.folder, nano_lines(self.options.batch), *self.fleet.batch_options, name=name)
        done = subprocess.run(job.command(), capture_output=True, text=True)
        if done.returncode != 0:
            self.complain(f"a batch ended with status {done.returncode}: {done.stderr[-1000:]}")
        return job.files()

    def batches(self, clients):
        """Runs jobs beside the clients: at least one, however slow the machine is. Beside clients that think a job is
        followed by a pause of its own length."""
        while self.options.batch > 0 and len(self.wrong) < MOST_WRONG:
            begin = time.monotonic()
            self.batches_begun += 1
            files = self.batch("again")
            self.batches_ended += 1
            say(f"a batch took {time.monotonic() - begin:.0f} s")
            if files != self.wanted_batch:
                self.complain("a batch has other bytes than the undisturbed one")
            self.counts["batches with the undisturbed bytes"] += files == self.wanted_batch
            for file in self.folder.glob("again.*"):
                file.unlink()
            resume = 2 * time.monotonic() - begin if self.options.think else 0
            while any(client.is_alive() for client in clients) and time.monotonic() < resume:
                time.sleep(0.2)
            if not any(client.is_alive() for client in clients):
                return

    def finish(self, handles):
        status = eventually(self.fleet.whole, HANG)
        if not status or any(worker["sessions"] or worker.get("kv_bytes") for worker in status["workers"]):
            self.complain(f"left behind: {self.fleet.status()}{self.fleet.logs()}")
        if not eventually(lambda: all(now <= before for now, before in zip(self.fleet.handles(), handles)), HANG):
            self.complain(f"file handles: {handles} before, {self.fleet.handles()} now")
        if self.wrong:
            self.wrong.append(self.fleet.logs())

    def sample(self):
        done = self.counts["requests"]
        for surprise in self.fleet.surprises():
            self.complain(surprise)
        for process, (role, mib) in self.fleet.memory().items():
            life = self.lives.setdefault(process, Memory(role, done, self.batches_begun))
            life.until = done
            # A verifier's first batch adds up to 54 MiB (docs/lab/cluster.md).
            met_batch = self.options.batch == 0 or self.batches_ended > life.batches
            if met_batch and done - life.begin >= self.warm_after:
                life.samples.append(mib)

    def under_way(self):
        return self.counts["requests"] - self.asked

    def ask_on(self, choice):
        while time.monotonic() < self.end and len(self.wrong) < MOST_WRONG:
            if self.options.think:
                time.sleep(min(choice.expovariate(1 / self.options.think), max(0, self.end - time.monotonic())))
            with self.lock:
                if self.counts["requests"] >= self.requests or time.monotonic() >= self.end:
                    return
                self.counts["requests"] += 1
            self.ask(choice.randrange(len(self.wanted)), leaves=choice.random() < 0.05)

    def ask(self, number, leaves):
        path, body = REQUESTS[number]
        cuts, begin = self.fleet.cuts, time.monotonic()
        answer = self.answer(body | ({"stream": True, "max_tokens": 200} if leaves else {}), path, 1 if leaves else None)
        excused = answer.error and self.fleet.may_excuse(answer, cuts)
        with self.lock:
            self.asked += 1
            if body["stream"]:
                self.silences.append(answer.silence)
            if leaves and not answer.error:
                self.counts["left in mid-stream"] += 1
            elif answer.error is None and dict(answer.texts) == self.wanted[number]:
                self.counts["whole"] += 1
            elif excused:
                self.counts["failed with their own server"] += 1
            else:
                self.complain(f"{path} {json.dumps(body)}: {answer.error} after {time.monotonic() - begin:.1f} s, "
                              f"{dict(answer.texts)} for {self.wanted[number]}")
        if answer.broken:
            self.fleet.recover()


def run_one(arguments):
    return Soak(*arguments).run()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("outrider", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--requests", type=int, default=1000, help="of all clusters together")
    parser.add_argument("--seconds", type=float, default=3600, help="at most")
    parser.add_argument("--clusters", type=int, default=1, help="side by side")
    parser.add_argument("--fault-every", type=float, default=60, metavar="S", help="seconds")
    parser.add_argument("--growth", type=float, default=32, metavar="MIB", help="of a process, at most")
    parser.add_argument("--batch", type=int, default=0, metavar="LINES", help="of a job beside the requests")
    parser.add_argument("--clients", type=int, default=16, help="of a cluster")
    parser.add_argument("--think", type=float, default=0, metavar="S", help="seconds between a client's requests, on average")
    parser.add_argument("--model", help="a pair's folder or pack; else the one beside the program")
    parser.add_argument("--dtype")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fleet", choices=FLEETS, default="processes")
    parser.add_argument("--machines", metavar="COMMAND", help="of Kubernetes: cuts a node's network, kills a pod's program")
    parser.add_argument("--slurm-packages", metavar="FOLDER", help="as for launch_slurm_test.py")
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
        "faults": [result.get("faults") for result in results],
        "memory": {role: {"lives": len(lives), "most_mib": max(end for _, _, end in lives), "most_growth_mib": max(lives)[0], "over_requests": max(lives)[1]}
                   for role, lives in grown.items()},
        "wrong": [line[-4000:] for line in wrong]}, indent=1))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
