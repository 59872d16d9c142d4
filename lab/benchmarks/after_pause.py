#!/usr/bin/env python3
"""Is the first request after a pause slower than the second, and does a core spin while nobody asks?

    lab/benchmarks/after_pause.py [--pause 1] [--repeat 20] build/outrider [options of `outrider serve`]

Prints the medians of the first and of the second request after a pause, and how much processor time the server took in
the pauses. Each pair of requests is side by side, so that a noisy machine slows both.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "integration"))
from serve_support import Server  # noqa: E402

REQUEST = {"messages": [{"role": "user", "content": "Write a short story about a fox."}], "max_tokens": 32,
           "temperature": 0}


def processor_s(pid):
    """Seconds of processor time that a process and its threads have taken."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(server):
    start = time.monotonic()
    server.post("/v1/chat/completions", REQUEST)
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--pause", type=float, default=1, help="seconds")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("serve", nargs=argparse.REMAINDER, help="options of `outrider serve`")
    flags = parser.parse_args()
    server = Server(flags.program, *flags.serve, governed=True)
    pid = server.process.pid
    try:
        for _ in range(3):
            ask(server)
        first, second, idle = [], [], []
        for _ in range(flags.repeat):
            busy = processor_s(pid)
            time.sleep(flags.pause)
            idle.append((processor_s(pid) - busy) / flags.pause)
            first.append(ask(server))
            second.append(ask(server))
        ratio = statistics.median(a / b for a, b in zip(first, second))
        print(f"first request after {flags.pause:g} s: {1e3 * statistics.median(first):.1f} ms, second: "
              f"{1e3 * statistics.median(second):.1f} ms, median of the ratios {ratio:.3f}")
        print(f"share of a core while nobody asks: {statistics.mean(idle):.4f}")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
