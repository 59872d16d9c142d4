#!/usr/bin/env python3
"""How long does a text pause when its verifier dies, beside a prefill of the same tokens?

A coordinator, two verifiers, two drafters and a server, each a process. A greedy stream has got to `--tokens` tokens,
prompt and answer together, when its verifier is killed with SIGKILL; the other one goes on. Printed are, in seconds:

    pause      between the two rounds around the kill, as the client sees it
    resume     failover_ms of the answer: from when the verifier was missed until the other one had caught up
    known      from the kill until the coordinator's log says that the verifier is gone
    prefill    of as many tokens that nobody has seen, while nothing else is at work (median of three)
    token      of the answer before the kill, on average

The answer must have the tokens of the undisturbed one, else this fails. Widths of a published model come from
lab/benchmarks/make_checkpoint; its random weights are as slow as real ones, but most of their tokens have no text in
nano's tokenizer. A stream says nothing of these until one has, so each round is asked for as an event of its own.

    lab/benchmarks/resume_time.py build/outrider [--model PAIR] [--dtype TYPE] [--threads N] [--repeat 5] [--tokens 1000]
"""
import argparse
import datetime
import http.client
import json
import pathlib
import random
import re
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "integration"))
from cluster_support import HANG, ROLES, Cluster  # noqa: E402
from launch_support import eventually  # noqa: E402

ANSWER, AFTER = 150, 50  # of the tokens when the kill comes; that follow
ID_MIN, ID_MAX = 300, 8000  # of random prompts: no control token


class Rig:
    def __init__(self, flags, folder):
        self.flags, self.choice = flags, random.Random(flags.seed)
        model = (["--model", flags.model] if flags.model else []) + (["--dtype", flags.dtype] if flags.dtype else [])
        drafter = [*model, "--threads", str(max(1, flags.threads // 4))]  # or each would have a thread on every core
        self.cluster = Cluster(flags.outrider, folder, {"verifier": [*model, "--memory", "4096"], "drafter": drafter,
                                                        "serve": ["--model", flags.model] if flags.model else []},
                               verifier_threads=flags.threads)

    def prompt(self, tokens):
        return [2] + [self.choice.randrange(ID_MIN, ID_MAX) for _ in range(tokens - 1)]

    def stream(self, prompt, max_tokens, on_token=lambda count: None):
        """Token ids, when each came, and the last event."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                "return_token_ids": True, "cache_salt": str(self.choice.random()),
                "speculative": {"draft_length": 4, "report_rounds": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.ports["serve"], timeout=HANG)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        ids, times, last = [], [], {}
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit(f"{event}{self.cluster.logs()}")
            last = event if "speculative" in event else last
            new = event.get("outrider_round", {}).get("token_ids", [])
            ids += new
            times += [time.monotonic()] * len(new)
            if new:
                on_token(len(ids))
        connection.close()
        return ids, times, last

    def busy_verifier(self):
        names = [worker["name"] for worker in self.cluster.status()["workers"] if worker["role"] == "verifier" and worker["sessions"]]
        return next((i for i, process in enumerate(self.cluster.processes)
                     if ROLES[i] == "verifier" and any(name.endswith(f"-{process.pid}") for name in names)), None)

    def measure(self):
        """None where the text was over before its verifier was found."""
        if not eventually(self.cluster.whole, HANG):
            sys.exit(f"the workers have not joined{self.cluster.logs()}")
        prompt = self.prompt(self.flags.tokens - ANSWER)
        wanted, _, _ = self.stream(prompt, ANSWER + AFTER)
        killed, victim = {}, []
        look = threading.Thread(target=lambda: victim.append(self.busy_verifier()))

        def kill(count):
            if look.ident is None:
                look.start()
            if count >= ANSWER and not killed and victim and victim[0] is not None:
                killed.update(at=time.monotonic(), wall=time.time(), after=count)
                self.cluster.processes[victim[0]].kill()

        ids, times, last = self.stream(prompt, ANSWER + AFTER, kill)
        look.join()
        if ids != wanted:
            sys.exit(f"another text: {ids} for {wanted}")
        if not killed or killed["after"] == len(ids):
            return None
        log = (self.cluster.folder / f"0-{ROLES[0]}.log").read_text()
        came = sorted(set(times))
        pause = max(after - before for before, after in zip(came, came[1:]) if after > killed["at"])
        self.cluster.kill(victim[0])  # is dead; starts it again
        if not eventually(self.cluster.whole, HANG):
            sys.exit(f"the workers have not come back{self.cluster.logs()}")
        prefill = statistics.median(self.stream(self.prompt(self.flags.tokens), 1)[2]["timings"]["prompt_ms"] for _ in range(3)) / 1e3
        found = {"pause": pause, "known": known_at(log, killed["wall"]), "resume": last["speculative"]["failover_ms"] / 1e3,
                 "prefill": prefill, "token": (times[ANSWER - 1] - times[0]) / (ANSWER - 1)}
        return {name: round(seconds, 3) for name, seconds in found.items()} | {"tokens": len(prompt) + killed["after"]}


def known_at(log, killed):
    """Seconds from then until the coordinator's log says that a verifier is gone."""
    clock = re.findall(r"^([\d:]+\.\d+) .* closed its connection$", log, re.MULTILINE)[-1]
    then = datetime.datetime.fromtimestamp(killed)
    return (datetime.datetime.combine(then.date(), datetime.time.fromisoformat(clock)) - then).total_seconds()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outrider")
    parser.add_argument("--model")
    parser.add_argument("--dtype")
    parser.add_argument("--threads", type=int, default=1, help="of each verifier")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(flags, folder)
        try:
            for _ in range(flags.repeat):
                print(json.dumps(rig.measure() or "the text was over too soon"), flush=True)
        finally:
            rig.cluster.stop()


if __name__ == "__main__":
    main()
