#!/usr/bin/env python3
"""outrider batch with --order prefix and input, in turns, of a file whose lines share beginnings: time and cached tokens.

usage: batch_order.py OUTRIDER [--prefixes 12] [--lines 96] [--words 150] [--rounds 3] [--memory MIB] [-- OPTIONS OF THE WORKERS]

Lines come in an order of chance. Each begins with one of some long instructions; a run's are its own, so that nothing is
cached of the run before. MIB is what the verifier has for K/V: with little, a beginning is gone before its next line. Cached tokens are those that the server counts.
"""
import argparse
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "integration"))
from batch_support import Job, chat_line  # noqa: E402
from serve_support import Server  # noqa: E402

CACHED = "outrider:prefix_cache_hits_total"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("outrider")
    parser.add_argument("--prefixes", type=int, default=12)
    parser.add_argument("--lines", type=int, default=96)
    parser.add_argument("--words", type=int, default=150, help="of an instruction")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", default="auto")
    parser.add_argument("--memory", default="0")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:at])

    def start(*command):
        return subprocess.Popen([args.outrider, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    coordinator = start("coordinator", "--listen", "tcp://127.0.0.1:*")
    address = coordinator.stdout.readline().split()[-1]
    workers = [start("verifier", "--join", address, "--memory", args.memory, *words[at + 1:]), start("drafter", "--join", address, *words[at + 1:])]
    server = Server(args.outrider, "--connect", address, governed=True)
    seconds, cached = {"prefix": [], "input": []}, {"prefix": [], "input": []}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(args.rounds):
                for order in ("prefix", "input") if turn % 2 == 0 else ("input", "prefix"):
                    before = server.total(CACHED)
                    seconds[order].append(run(args, folder, server.url, order, turn))
                    cached[order].append(server.total(CACHED) - before)
                    print(f"{order:>6}: {seconds[order][-1]:6.1f} s, {cached[order][-1]:.0f} tokens cached", flush=True)
    finally:
        server.stop()
        for process in (*workers, coordinator):
            process.kill()
            process.wait()
    for order, values in seconds.items():
        print(f"{order:>6}: median {statistics.median(values):.1f} s ({min(values):.1f} to {max(values):.1f}), {statistics.median(cached[order]):.0f} tokens cached")


def run(args, folder, url, order, turn):
    chance = random.Random(turn)  # both orders get the same lines, but for their first words
    names = ["fox", "dog", "cat", "bird", "fish", "boat", "river", "house", "tree", "song"]
    instructions = [f"{order} {turn} {i}: " + " ".join(chance.choice(names) for _ in range(args.words)) for i in range(args.prefixes)]
    lines = [chat_line(str(i), f"Story {i}.", system=instructions[i % args.prefixes], max_tokens=16, temperature=0, ignore_eos=True) for i in range(args.lines)]
    chance.shuffle(lines)
    job = Job(args.outrider, folder, lines, "--endpoint", url + "/v1", "--concurrency", args.concurrency, "--order", order)
    start = time.monotonic()
    job.run("--restart").check_returncode()
    return time.monotonic() - start


if __name__ == "__main__":
    main()
