#!/usr/bin/env python3
"""outrider batch with fixed numbers of lines under way and with `auto`, in turns, on one cluster: tokens per second.

usage: batch_concurrency.py OUTRIDER [--lines 400] [--rounds 3] [--fixed 1,4,16,64] [--order prefix,input] [-- OPTIONS OF THE WORKERS]
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "integration"))
from batch_support import Job, chat_line, read_lines  # noqa: E402


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
    def line(i):
        animals = " ".join(f"{name}{arm}{turn}{i % 20}" for name in ("fox", "dog", "cat", "bird", "fish") * 2)
        return chat_line(str(i), f"Story {i}.", system=f"You tell stories of these: {animals}.", max_tokens=32, temperature=0, ignore_eos=True)
    job = Job(args.outrider, folder, map(line, range(args.lines)), "--connect", address, "--concurrency", arm[0], "--order", arm[1])
    start = time.monotonic()
    job.run("--restart").check_returncode()
    seconds = time.monotonic() - start
    return sum(result["response"]["body"]["usage"]["completion_tokens"] for result in read_lines(job.output)) / seconds


if __name__ == "__main__":
    main()
