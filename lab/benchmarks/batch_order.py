#!/usr/bin/env python3
"""outrider batch with --order prefix and input, in turns, of a file whose lines share beginnings: time and cached tokens.

usage: batch_order.py OUTRIDER [--prefixes 12] [--lines 96] [--words 150] [--rounds 3] [--memory MIB] [-- OPTIONS OF THE WORKERS]

Lines come in an order of chance. Each begins with one of some long instructions; a run's are its own, so that nothing is
cached of the run before. MIB is what the verifier has for K/V: with little, a beginning is gone before its next line. Cached tokens are those that the server counts.
"""
import argparse
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request


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
    server = start("serve", "--port", "0", "--connect", address)
    url = server.stdout.readline().split()[-1]
    seconds, cached = {"prefix": [], "input": []}, {"prefix": [], "input": []}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(args.rounds):
                for order in ("prefix", "input") if turn % 2 == 0 else ("input", "prefix"):
                    before = cached_tokens(url)
                    seconds[order].append(run(args, pathlib.Path(folder), url, order, turn))
                    cached[order].append(cached_tokens(url) - before)
                    print(f"{order:>6}: {seconds[order][-1]:6.1f} s, {cached[order][-1]} tokens cached", flush=True)
    finally:
        for process in (server, *workers, coordinator):
            process.kill()
            process.wait()
    for order, values in seconds.items():
        print(f"{order:>6}: median {statistics.median(values):.1f} s ({min(values):.1f} to {max(values):.1f}), {statistics.median(cached[order]):.0f} tokens cached")


def cached_tokens(url):
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(value) for value in re.findall(r"^\S*prefix_cache_hits_total(?:{[^}]*})? (\S+)$", text, re.M))


def run(args, folder, url, order, turn):
    chance = random.Random(turn)  # both orders get the same lines, but for their first words
    file, output = folder / "in.jsonl", folder / "out.jsonl"
    names = ["fox", "dog", "cat", "bird", "fish", "boat", "river", "house", "tree", "song"]
    instructions = [f"{order} {turn} {i}: " + " ".join(chance.choice(names) for _ in range(args.words)) for i in range(args.prefixes)]
    lines = [(i, instructions[i % args.prefixes]) for i in range(args.lines)]
    chance.shuffle(lines)
    with file.open("w") as text:
        for i, instruction in lines:
            body = {"messages": [{"role": "system", "content": instruction}, {"role": "user", "content": f"Story {i}."}], "max_tokens": 16, "temperature": 0, "ignore_eos": True}
            text.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
    start = time.monotonic()
    subprocess.run([args.outrider, "batch", file, "--output", output, "--endpoint", url + "/v1", "--concurrency", args.concurrency, "--order", order, "--restart"], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


if __name__ == "__main__":
    main()
