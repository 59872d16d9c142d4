#!/usr/bin/env python3
"""A whole cluster is killed, frozen, cut off and short of disk at random moments: each text keeps its bytes.

A coordinator, two verifiers, two drafters and a server, each a process, over TCP with a relay before each one's
coordinator; clients that stream greedy, seeded and constrained texts from the server. OUTRIDER_FAULTS faults (10 unless
told), one after the other, of any of the six. A text must come whole, as it is without faults, without a gap or a
repeat; one whose own server was killed must have been its beginning, and a server that was just started may refuse
one while its coordinator is frozen (docs/protocol.md: one that has never been there has 3 s). Then nothing may be left: no session, no K/V but
the prefix cache's, no file handle. OUTRIDER_SEED (a number, or random) chooses the faults, though not the moments that they meet.

usage: cluster_kill_test.py OUTRIDER
"""
import collections
import os
import random
import resource
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

from cluster_support import AS_SCHEMA, HANG, ROLES, SERVE, Answer, Cluster
from launch_support import eventually, take_seed

FAULTS = int(os.environ.get("OUTRIDER_FAULTS", "10"))
FROZEN_S = 10  # longer than the 3 s of silence after which a peer is given up
CLIENTS = 4


class Relay:
    """TCP connections to a port, through this one: they can be cut, or go silent without being closed (half-open)."""

    def __init__(self, target):
        self.target, self.silent_until, self.cutting, self.pairs = target, 0, False, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def cut(self):
        self.cutting = True

    def silence(self):
        """What comes in the next while is lost, and so the connections with it once that is over."""
        self.silent_until = time.monotonic() + FROZEN_S

    def run(self):
        was_silent = False
        while True:
            sides = {side: other for pair in self.pairs for side, other in (pair, pair[::-1])}
            ready, _, _ = select.select([self.listener, *sides], [], [], 0.05)
            silent = time.monotonic() < self.silent_until
            if self.cutting or (was_silent and not silent):
                for pair in self.pairs:
                    self.close(pair)
                self.cutting, self.pairs, ready = False, [], []
            was_silent = silent
            for side in ready:
                self.accept() if side is self.listener else self.forward(side, sides[side], silent)

    def accept(self):
        near, _ = self.listener.accept()
        try:
            self.pairs.append((near, socket.create_connection(("127.0.0.1", self.target))))
        except OSError:
            near.close()  # nobody listens there just now

    def forward(self, side, other, silent):
        try:
            if (data := side.recv(1 << 18)) and not silent:
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            gone = [pair for pair in self.pairs if side in pair]
            self.pairs = [pair for pair in self.pairs if side not in pair]
            for pair in gone:
                self.close(pair)

    @staticmethod
    def close(pair):
        for side in pair:
            side.close()


class FaultyCluster(Cluster):
    """Whose processes have relays to their coordinator, and now and then, once restarted, a disk that is full after 100 kB a file."""

    def __init__(self, outrider, folder, choice):
        self.choice, self.frozen, self.relays = choice, {}, []
        super().__init__(outrider, folder, {"coordinator": ["--rejection-log", f"{folder}/rejections"],
                                            "serve": ["--trace", f"{folder}/trace"]})

    def coordinator_port(self, i):
        if not self.relays:
            self.relays = [Relay(self.ports["coordinator"]) for _ in ROLES]
        return self.relays[i].port

    def start(self, i):
        full = self.kills[i] > 0 and self.choice.random() < 0.3
        super().start(i, (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))) if full else None)

    def kill(self, i):
        self.frozen.pop(i, None)
        super().kill(i)

    def freeze(self, i):
        self.processes[i].send_signal(signal.SIGSTOP)
        self.frozen[i] = time.monotonic() + FROZEN_S

    def thaw(self, all_of_them=False):
        for i, until in list(self.frozen.items()):
            if all_of_them or time.monotonic() > until:
                self.processes[i].send_signal(signal.SIGCONT)
                del self.frozen[i]

    def one_fault(self):
        """Returns its name."""
        i = self.choice.randrange(len(ROLES))
        kinds = ["kill", "kill", "freeze"] + ([] if ROLES[i] == "coordinator" else ["cut", "half-open"])
        kind = self.choice.choice([kind for kind in kinds if kind != "freeze" or i not in self.frozen])
        {"kill": lambda: self.kill(i), "freeze": lambda: self.freeze(i), "cut": self.relays[i].cut,
         "half-open": self.relays[i].silence}[kind]()
        return f"{kind} {ROLES[i]}"


def requests():
    """Some hundred tokens each: what may be asked for, and in what form."""
    story = {"prompt": "Once upon a time a fox", "max_tokens": 200, "ignore_eos": True, "stream": True}
    sampled = story | {"temperature": 1, "top_k": 64, "top_p": 0.95, "frequency_penalty": 0.3}
    return [story | {"temperature": 0, "speculative": {"draft_length": 4}},
            story | {"temperature": 0, "prompt": "The dog"},
            sampled | {"seed": 11, "speculative": {"draft_length": 4}},
            sampled | {"seed": 12, "prompt": "Two birds", "speculative": {"draft_length": "tree:8"}},
            story | {"temperature": 0, "prompt": "A fox as JSON:", "ignore_eos": False, "response_format": AS_SCHEMA}]


class ClusterKilled(unittest.TestCase):
    def setUp(self):
        self.seed = take_seed()
        self.choice, folder = random.Random(self.seed), tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cluster = FaultyCluster(OUTRIDER, folder.name, self.choice)
        self.addCleanup(self.cluster.stop)
        self.counts, self.wrong, self.over = collections.Counter(), [], False

    def wait_until(self, condition, what):
        """What the condition gave. what() is said of one that never holds."""
        found = eventually(condition, HANG)
        if not found:
            self.fail(f"after {HANG} s: {what()}")
        return found

    def ask_on(self, seed):
        """A client: one text after the other until the faults are over."""
        choice = random.Random(seed)
        while not self.over and not self.wrong:
            number = choice.randrange(len(self.wanted))
            kills = self.cluster.kills[SERVE]
            served = self.cluster.served()
            answer = Answer(self.cluster.ports["serve"], requests()[number])
            wanted, killed = self.wanted[number], not served or self.cluster.may_have_died(SERVE, kills)
            if answer.error is None and answer.text == wanted:
                self.counts["whole"] += 1
            elif answer.broken and killed and wanted.startswith(answer.text):
                self.counts["broken with the server"] += 1
                time.sleep(0.1)
            elif not answer.text and (answer.error or "").startswith("503") and "has not answered for 3 s" in answer.error:
                self.counts["refused by a new server without a coordinator"] += 1
                time.sleep(0.1)
            else:
                self.wrong.append(f"request {number}, {len(answer.text)} of {len(wanted)} characters, {answer.error}: ...{answer.text[-80:]!r}")

    def test_at_random_moments(self):
        self.wait_until(self.cluster.whole, lambda: f"the workers have not joined{self.cluster.logs()}")
        self.wanted = []
        for body in requests():
            answer = Answer(self.cluster.ports["serve"], body)
            self.assertIsNone(answer.error)
            self.assertGreater(len(answer.text), 60)
            self.wanted.append(answer.text)
        handles = self.cluster.handles()

        clients = [threading.Thread(target=self.ask_on, args=(self.seed + i,), daemon=True) for i in range(CLIENTS)]
        for client in clients:
            client.start()
        for fault in range(FAULTS):
            whole = self.counts["whole"]
            self.counts[self.cluster.one_fault()] += 1
            pause = time.monotonic() + self.choice.uniform(0, 3)
            # A text at least comes whole now and then, or no fault would meet one that has begun.
            self.wait_until(lambda: self.cluster.thaw() or self.wrong or time.monotonic() > pause and
                            (fault % 4 or self.counts["whole"] > whole), lambda: f"no text came to its end{self.cluster.logs()}")
            if self.wrong:
                break
        self.over = True
        self.wait_until(lambda: self.cluster.thaw() or not any(client.is_alive() for client in clients),
                        lambda: f"a text does not end{self.cluster.logs()}")
        print(f"{FAULTS} faults: {dict(sorted(self.counts.items()))}", file=sys.stderr)
        self.assertEqual(self.wrong, [], self.cluster.logs())

        self.cluster.thaw(all_of_them=True)
        status = self.wait_until(self.cluster.whole, lambda: f"not all is as before: {self.cluster.status()}{self.cluster.logs()}")
        self.assertEqual(status["failovers"]["inexact"] + status["failovers"]["failed"], 0)
        self.wait_until(lambda: all(now <= before for now, before in zip(self.cluster.handles(), handles)),
                        lambda: f"file handles: {handles} before, {self.cluster.handles()} now")
        for body, wanted in zip(requests(), self.wanted):
            self.assertEqual(Answer(self.cluster.ports["serve"], body).text, wanted)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main(verbosity=2)
