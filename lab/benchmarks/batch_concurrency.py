#!/usr/bin/env python3
"""outrider batch with fixed numbers of lines under way and with `auto`, in turns, on one cluster: tokens per second.

usage: batch_concurrency.py OUTRIDER [--lines 400] [--rounds 3] [--fixed 1,4,16,64] [--order prefix,input] [-- OPTIONS OF THE WORKERS]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("outrider")
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fixed", default="1,4,16,64")
    parser.add_argument("--order", default="prefix")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:at])
    args.worker = words[at + 1:]
    arms = [(number, order) for order in args.order.split(",") for number in ["auto", *args.fixed.split(",")]]
    rates = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        coordinator = subprocess.Popen([args.outrider, "coordinator", "--listen", "tcp://127.0.0.1:*"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        address = coordinator.stdout.readline().split()[-1]
        workers = [subprocess.Popen([args.outrider, role, "--join", address, *args.worker], stderr=subprocess.DEVNULL) for role in ("verifier", "drafter")]
        try:
            for turn in range(args.rounds):
                for arm in arms if turn % 2 == 0 else reversed(arms):
                    rates[arm].append(run(args, folder, address, arm, turn))
                    print(f"{arm[0]:>5} {arm[1]:>6}: {rates[arm][-1]:8.1f} tok/s", flush=True)
        finally:
            for process in [*workers, coordinator]:
                process.kill()
                process.wait()
    for arm, values in rates.items():
        print(f"{arm[0]:>5} {arm[1]:>6}: median {statistics.median(values):8.1f}, {min(values):.1f} to {max(values):.1f}")


def run(args, folder, address, arm, turn):
    """A job whose prompts no earlier one had: of 20 beginnings, each some 100 tokens, in turns."""
    file, output = folder / "in.jsonl", folder / "out.jsonl"
    with file.open("w") as lines:
        for i in range(args.lines):
            animals = " ".join(f"{name}{arm}{turn}{i % 20}" for name in ("fox", "dog", "cat", "bird", "fish") * 2)
            body = {"messages": [{"role": "system", "content": f"You tell stories of these: {animals}."}, {"role": "user", "content": f"Story {i}."}],
                    "max_tokens": 32, "temperature": 0, "ignore_eos": True}
            lines.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
    start = time.monotonic()
    subprocess.run([args.outrider, "batch", file, "--output", output, "--connect", address, "--concurrency", arm[0], "--order", arm[1], "--restart"], check=True)
    seconds = time.monotonic() - start
    return sum(json.loads(line)["response"]["body"]["usage"]["completion_tokens"] for line in output.open()) / seconds


if __name__ == "__main__":
    main()
