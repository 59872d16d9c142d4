#!/usr/bin/env python3
"""Is the first request after a pause slower than the second, and does a core spin while nobody asks?

    lab/benchmarks/after_pause.py [--pause 1] [--repeat 20] build/outrider [options of `outrider serve`]

Prints the medians of the first and of the second request after a pause, and how much processor time the server took in
the pauses. Each pair of requests is side by side, so that a noisy machine slows both.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

REQUEST = {"messages": [{"role": "user", "content": "Write a short story about a fox."}], "max_tokens": 32,
           "temperature": 0}


def processor_s(pid):
    """Seconds of processor time that a process and its threads have taken."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(url):
    start = time.monotonic()
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(REQUEST).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        json.load(answer)
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--pause", type=float, default=1, help="seconds")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("serve", nargs=argparse.REMAINDER, help="options of `outrider serve`")
    flags = parser.parse_args()
    server = subprocess.Popen([flags.program, "serve", "--port", "0", *flags.serve],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        url = None
        for line in server.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                url = found.group()
            if line.startswith("ready in"):
                break
        if url is None:
            sys.exit("the server has not started")
        for _ in range(3):
            ask(url)
        first, second, idle = [], [], []
        for _ in range(flags.repeat):
            busy = processor_s(server.pid)
            time.sleep(flags.pause)
            idle.append((processor_s(server.pid) - busy) / flags.pause)
            first.append(ask(url))
            second.append(ask(url))
        ratio = statistics.median(a / b for a, b in zip(first, second))
        print(f"first request after {flags.pause:g} s: {1e3 * statistics.median(first):.1f} ms, second: "
              f"{1e3 * statistics.median(second):.1f} ms, median of the ratios {ratio:.3f}")
        print(f"share of a core while nobody asks: {statistics.mean(idle):.4f}")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


if __name__ == "__main__":
    main()
