#!/usr/bin/env python3
"""What do busy neighbours cost a forward pass, and is one binary faster than another beside them?

    lab/benchmarks/neighbours.py OLD NEW [--loops 0 1 N] [--threads 1 2] [--dtypes int8 int4] [--turns 5] [...]

Runs `bench engine` of both binaries in turns, while so many other processes loop (N: one for each core), and prints the
medians of the turns: what the rows of a forward pass and of prompts cost, how much faster NEW is, and what share of its
speed without neighbours each keeps. One timed pass a turn, for the best of several would hide the neighbours.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def neighbours(count):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(binary, dtype, threads, flags):
    """Speeds by name: passes a second by their rows, prompt tokens a second, GB/s read."""
    run = subprocess.run([binary, "bench", "engine", "--json", "--shape", flags.shape, "--layers", str(flags.layers),
                          "--dtype", dtype, "--threads", str(threads), "--repeat", str(flags.repeat),
                          "--rows", *map(str, flags.rows), "--prefill", *map(str, flags.prefill)],
                         stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(run.stdout)
    speeds = {f"{rows} rows": 1e3 / ms for rows, ms in report["forward_ms"].items()}
    speeds |= {f"prompt of {length}": speed for length, speed in report["prefill_tok_s"].items()}
    return speeds | {"GB/s": report["read_bandwidth_gb_s"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--loops", nargs="+", default=["0", "1", "N"], help="other processes that loop; N: one a core")
    parser.add_argument("--threads", nargs="+", type=int, default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--dtypes", nargs="+", default=["int8"])
    parser.add_argument("--shape", default="e4b")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 5, 9, 16])
    parser.add_argument("--prefill", nargs="+", type=int, default=[256])
    parser.add_argument("--repeat", type=int, default=1, help="passes of a turn, of which the best counts")
    parser.add_argument("--turns", type=int, default=5)
    flags = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}; {flags.shape}, {flags.layers} layers; medians of "
          f"{flags.turns} turns: passes or tokens a second\n")
    print("| type | threads | neighbours | what | old | new | new / old | old keeps | new keeps |")
    print("|---|---|---|---|---|---|---|---|---|")
    for dtype in flags.dtypes:
        for threads in flags.threads:
            alone = None
            for loops in flags.loops:
                turns = {flags.old: [], flags.new: []}
                with neighbours(cores if loops == "N" else int(loops)):
                    for turn in range(flags.turns):
                        for binary in sorted(turns, key=list(turns).index, reverse=turn % 2 == 1):
                            turns[binary].append(measure(binary, dtype, threads, flags))
                medians = [{what: statistics.median(speeds[what] for speeds in turns[binary])
                            for what in turns[binary][0]} for binary in (flags.old, flags.new)]
                if alone is None:
                    alone = medians
                for what, old in medians[0].items():
                    new = medians[1][what]
                    print(f"| {dtype} | {threads} | {loops} | {what} | {old:.2f} | {new:.2f} | {new / old:.2f} | "
                          f"{old / alone[0][what]:.2f} | {new / alone[1][what]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
