#!/usr/bin/env python3
"""A whole cluster is killed, frozen, cut off and short of disk at random moments: each text keeps its bytes.

A coordinator, two verifiers, two drafters and a server, each a process, over TCP with a relay before each one's
coordinator; clients that stream greedy, seeded and constrained texts from the server. OUTRIDER_FAULTS faults (10 unless
told), one after the other, of any of the six. A text must come whole, as it is without faults, without a gap or a
repeat; one whose own server was killed must have been its beginning, and a server that was just started may refuse
one while its coordinator is frozen (docs/protocol.md: one that has never been there has 3 s). Then nothing may be left: no session, no K/V but
the prefix cache's, no file handle. OUTRIDER_SEED repeats a choice of faults, though not what they meet.

usage: cluster_kill_test.py OUTRIDER
"""
import collections
import http.client
import json
import os
import pathlib
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from launch_support import eventually, free_ports

FAULTS = int(os.environ.get("OUTRIDER_FAULTS", "10"))
SEED = int(os.environ.get("OUTRIDER_SEED", time.time_ns() % 1000000))
FROZEN_S = 10  # longer than the 3 s of silence after which a peer is given up
HANG = 300  # seconds; ends a test that would hang, never a measure of speed
ROLES = ["coordinator", "verifier", "verifier", "drafter", "drafter", "serve"]
SERVE = ROLES.index("serve")
CLIENTS = 4
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"},
                                           "likes": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 3, "maxItems": 6}},
          "required": ["name", "age", "likes"], "additionalProperties": False}


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


class Cluster:
    """Six processes. `starts` of one counts how often it was started again."""

    def __init__(self, folder, choice):
        self.folder, self.choice = pathlib.Path(folder), choice
        self.ports = dict(zip(["coordinator", "serve"], free_ports(2)))
        self.relays = [Relay(self.ports["coordinator"]) for _ in ROLES]
        self.processes, self.starts, self.frozen = [None] * len(ROLES), [0] * len(ROLES), {}
        for i in range(len(ROLES)):
            self.start(i)

    def command(self, i):
        role, coordinator = ROLES[i], f"tcp://127.0.0.1:{self.relays[i].port}"
        if role == "coordinator":
            return ["--listen", f"tcp://127.0.0.1:{self.ports[role]}", "--failover-limit", "1000", "--failover-wait", str(HANG),
                    "--rejection-log", str(self.folder / "rejections"), "--policy-state", str(self.folder / "policy")]
        if role == "serve":
            return ["--port", str(self.ports[role]), "--connect", coordinator, "--failover-wait", str(HANG), "--no-governor",
                    "--trace", str(self.folder / "trace")]
        return ["--join", coordinator, *(["--threads", "1"] if role == "verifier" else [])]

    def start(self, i):
        """On a disk that is full after 100 kB a file, now and then."""
        full = self.starts[i] > 0 and self.choice.random() < 0.3
        limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))) if full else None
        with (self.folder / f"{i}-{ROLES[i]}.log").open("a") as log:
            self.processes[i] = subprocess.Popen([OUTRIDER, ROLES[i], *self.command(i)], stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=log, preexec_fn=limit, restore_signals=not full)

    def kill(self, i):
        self.frozen.pop(i, None)
        self.starts[i] += 1  # before anybody can miss it
        self.processes[i].kill()
        self.processes[i].wait()
        self.start(i)

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

    def status(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["serve"], timeout=HANG)
        try:
            connection.request("GET", "/v1/outrider/status")
            return json.load(connection.getresponse())
        except (OSError, ValueError, http.client.HTTPException):
            return None  # it is being started
        finally:
            connection.close()

    def whole(self):
        """The status, once every worker is there and no text is at work."""
        status = self.status()
        roles = collections.Counter(worker["role"] for worker in status.get("workers", [])) if status else None
        return status if roles == {"verifier": 2, "drafter": 2} and status["sessions"] == status["waiting"] == 0 else None

    def handles(self):
        return [len(os.listdir(f"/proc/{process.pid}/fd")) for process in self.processes]

    def stop(self):
        for process in filter(None, self.processes):
            process.kill()
            process.wait()


def requests():
    """Some hundred tokens each: what may be asked for, and in what form."""
    story = {"prompt": "Once upon a time a fox", "max_tokens": 200, "ignore_eos": True, "stream": True}
    sampled = story | {"temperature": 1, "top_k": 64, "top_p": 0.95, "frequency_penalty": 0.3}
    form = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": SCHEMA}}
    return [story | {"temperature": 0, "speculative": {"draft_length": 4}},
            story | {"temperature": 0, "prompt": "The dog"},
            sampled | {"seed": 11, "speculative": {"draft_length": 4}},
            sampled | {"seed": 12, "prompt": "Two birds", "speculative": {"draft_length": "tree:8"}},
            story | {"temperature": 0, "prompt": "A fox as JSON:", "ignore_eos": False, "response_format": form}]


class Answer:
    """A text as it streams: `text` so far, `error` where it ended otherwise than whole, `broken` where the connection did."""

    def __init__(self, port, body):
        self.text, self.error, self.broken = "", None, False
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            if reply.status != 200:
                self.error = f"{reply.status} {reply.read(300)!r}"
            else:
                self.read(reply)
        except (OSError, http.client.HTTPException) as broken:
            self.broken, self.error = True, repr(broken)
        finally:
            connection.close()

    def read(self, reply):
        for line in reply:
            if line.strip() == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    self.error = str(event["error"])
                    return
                self.text += "".join(choice.get("text", "") for choice in event["choices"])
        self.broken, self.error = True, "the stream ended without [DONE]"


class ClusterKilled(unittest.TestCase):
    def setUp(self):
        print(f"OUTRIDER_SEED={SEED}", file=sys.stderr)
        self.choice, folder = random.Random(SEED), tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cluster = Cluster(folder.name, self.choice)
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
            starts = self.cluster.starts[SERVE]
            served = self.served()
            answer = Answer(self.cluster.ports["serve"], requests()[number])
            wanted, killed = self.wanted[number], not served or self.cluster.starts[SERVE] != starts
            if answer.error is None and answer.text == wanted:
                self.counts["whole"] += 1
            elif answer.broken and killed and wanted.startswith(answer.text):
                self.counts["broken with the server"] += 1
                time.sleep(0.1)
            elif not answer.text and answer.error.startswith("503") and "has not answered for 3 s" in answer.error:
                self.counts["refused by a new server without a coordinator"] += 1
                time.sleep(0.1)
            else:
                self.wrong.append(f"request {number}, {len(answer.text)} of {len(wanted)} characters, {answer.error}: ...{answer.text[-80:]!r}")

    def served(self):
        """The server is there."""
        try:
            socket.create_connection(("127.0.0.1", self.cluster.ports["serve"]), timeout=1).close()
            return True
        except OSError:
            return False

    def test_at_random_moments(self):
        self.wait_until(self.cluster.whole, lambda: f"the workers have not joined{self.logs()}")
        self.wanted = []
        for body in requests():
            answer = Answer(self.cluster.ports["serve"], body)
            self.assertIsNone(answer.error)
            self.assertGreater(len(answer.text), 60)
            self.wanted.append(answer.text)
        handles = self.cluster.handles()

        clients = [threading.Thread(target=self.ask_on, args=(SEED + i,), daemon=True) for i in range(CLIENTS)]
        for client in clients:
            client.start()
        for fault in range(FAULTS):
            whole = self.counts["whole"]
            self.counts[self.cluster.one_fault()] += 1
            pause = time.monotonic() + self.choice.uniform(0, 3)
            # A text at least comes whole now and then, or no fault would meet one that has begun.
            self.wait_until(lambda: self.cluster.thaw() or self.wrong or time.monotonic() > pause and
                            (fault % 4 or self.counts["whole"] > whole), lambda: f"no text came to its end{self.logs()}")
            if self.wrong:
                break
        self.over = True
        self.wait_until(lambda: self.cluster.thaw() or not any(client.is_alive() for client in clients),
                        lambda: f"a text does not end{self.logs()}")
        print(f"{FAULTS} faults: {dict(sorted(self.counts.items()))}", file=sys.stderr)
        self.assertEqual(self.wrong, [], self.logs())

        self.cluster.thaw(all_of_them=True)
        status = self.wait_until(self.cluster.whole, lambda: f"not all is as before: {self.cluster.status()}{self.logs()}")
        self.assertEqual(status["failovers"]["inexact"] + status["failovers"]["failed"], 0)
        self.wait_until(lambda: all(now <= before for now, before in zip(self.cluster.handles(), handles)),
                        lambda: f"file handles: {handles} before, {self.cluster.handles()} now")
        for body, wanted in zip(requests(), self.wanted):
            self.assertEqual(Answer(self.cluster.ports["serve"], body).text, wanted)

    def logs(self):
        return "".join(f"\n--- {log.name}\n{log.read_text()[-1500:]}" for log in sorted(self.cluster.folder.glob("*.log")))


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main(verbosity=2)
