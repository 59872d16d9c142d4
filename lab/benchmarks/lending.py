#!/usr/bin/env python3
"""A server that lends its idle time (serve --drafts-for): its own requests with and without, and what the other cluster gains.

    lab/benchmarks/lending.py [--outrider build/outrider] [--lends models/pico] [--pass-us 30000] [--turns 12]

The server has core 0 and one thread, the other cluster's verifier (nano, its passes --pass-us longer) and its clients
core 1. All arms take turns, on the same processes:

    plain   the other cluster decodes plainly all the time: nothing is lent
    drafts  it decodes with 8 drafts in every round, whoever is busy
    auto    it decodes as `auto` says

In each turn the server gets short requests (8 tokens, after a pause in which it lends) and streams of 64 tokens.
`idle` is the other cluster's speed while the server gets none. Without a second core of its own the figures tell nothing.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "integration"))
from serve_support import Server  # noqa: E402

ARMS = {"plain": 0, "drafts": 8, "auto": "auto"}
TOPICS = ["a fox", "the rain", "a golden key", "bread", "a lighthouse", "two brothers", "the moon", "a letter"]


def ask(server, topic, tokens, draft_length):
    """Seconds of the whole request, and milliseconds a token after the first."""
    body = {"prompt": f"Once upon a time {topic}", "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
            "speculative": {"draft_length": draft_length}}
    began = time.perf_counter()
    metrics = server.post("/v1/completions", body)["metrics"]
    return time.perf_counter() - began, metrics["mean_itl_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default=str(ROOT / "build/outrider"))
    parser.add_argument("--lends", default=str(ROOT / "models/pico"))
    parser.add_argument("--pass-us", default="30000")
    parser.add_argument("--turns", type=int, default=12)
    arguments = parser.parse_args()
    outrider = arguments.outrider
    os.sched_setaffinity(0, {1})  # also of what is started from here on
    coordinator = subprocess.Popen([outrider, "coordinator", "--listen", "tcp://127.0.0.1:*"], stdout=subprocess.PIPE, text=True)
    address = coordinator.stdout.readline().split()[-1]
    verifier = subprocess.Popen([outrider, "verifier", "--join", address, "--threads", "1", "--added-verify-us", arguments.pass_us])
    other = Server(outrider, "--connect", address)
    os.sched_setaffinity(0, {0})
    lender = Server(outrider, "--drafts-for", address, "--model", arguments.lends, "--threads", "1", "--draft-length", "0")
    os.sched_setaffinity(0, {1})
    figures = {arm: defaultdict(list) for arm in ARMS}
    try:
        while len(other.status()["workers"]) < 2:
            time.sleep(0.1)
        for turn in range(arguments.turns):
            topic = TOPICS[turn % len(TOPICS)]
            for arm, draft_length in ARMS.items():
                over, into = threading.Event(), figures[arm]

                def borrow():
                    while not over.is_set():
                        ask(other, random.choice(TOPICS), 32, draft_length)
                thread = threading.Thread(target=borrow)
                into["idle, tokens/s"].append(1000 / ask(other, topic, 128, draft_length)[1])
                thread.start()
                for _ in range(8):
                    time.sleep(random.uniform(0.02, 0.2))
                    into["short request, ms"].append(1000 * ask(lender, topic, 8, 0)[0])
                for _ in range(4):
                    into["stream, ms/token"].append(ask(lender, topic, 64, 0)[1])
                over.set()
                thread.join()
    finally:
        for server in (lender, other):
            server.stop()
        for process in (verifier, coordinator):
            process.kill()
    for arm, into in figures.items():
        for what, values in into.items():
            base = figures["plain"][what]
            low, high = statistics.median(values), statistics.quantiles(values, n=20)[-1]
            print(f"{arm:7} {what:18} median {low:8.2f} ({low / statistics.median(base):.2f})  "
                  f"95 % {high:8.2f} ({high / statistics.quantiles(base, n=20)[-1]:.2f})  of {len(values)}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
