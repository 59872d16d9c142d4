#!/usr/bin/env python3
"""What requests cost `outrider serve` before they are admitted: its peak memory and time for the largest bodies of each kind.

    lab/benchmarks/serve_bodies.py build/outrider [--at-once 8]

Each kind is sent to a server of its own, once and then --at-once times side by side from one address. Memory is what its peak (VmHWM) rose by.
Standard library only."""
import argparse
import collections
import concurrent.futures
import http.client
import json
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "integration"))
from serve_support import Server  # noqa: E402

MIB = 1 << 20
LONGEST = 4 * MIB


def filled(before, piece, after):
    return before + piece * ((LONGEST - len(before) - len(after)) // len(piece)) + after


CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
STORY = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
KINDS = {
    "numbers in an unknown field": (COMPLETIONS, filled('{"prompt":"x","max_tokens":1,"x":[', "1,", "1]}")),
    "lists": (COMPLETIONS, filled('{"prompt":"x","max_tokens":1,"x":[', "[],", "1]}")),
    "objects": (COMPLETIONS, filled('{"prompt":"x","max_tokens":1,"x":[', '{"":0},', "1]}")),
    "objects as messages": (CHAT, filled('{"messages":[', '{"role":"user","content":""},', '{"role":"user","content":""}]}')),
    "spaces": (TOKENIZE, filled('{"prompt":"', " ", '"}')),
    "one letter": (TOKENIZE, filled('{"prompt":"', "a", '"}')),
    "words": (TOKENIZE, filled('{"prompt":"', "Once upon a time there was a fox. ", '"}')),
    "ideographs": (TOKENIZE, '{"prompt":"' + "漢字" * (LONGEST // 6 - 10) + '"}'),
    "a million ids, n 64": (COMPLETIONS, json.dumps({"prompt": [5] * 1_000_000, "n": 64})),
    "2000 ids, n 64": (COMPLETIONS, json.dumps({"prompt": [5] * 2000, "n": 64, "max_tokens": 1})),
    "500 tokens, 20 top_logprobs": (COMPLETIONS, json.dumps({**STORY, "max_tokens": 500, "logprobs": 20})),
}


def send(port, path, body):
    """The answer's status, or what went wrong."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("POST", path, body.encode(), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        return reply.status
    except OSError as error:
        return type(error).__name__


def peak_mib(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--at-once", type=int, default=8)
    flags = parser.parse_args()
    print(f"| body | MB | s, alone | MiB, alone | s, {flags.at_once} at once | MiB | answers |\n|---|---|---|---|---|---|---|")
    for kind, (path, body) in KINDS.items():
        cells = []
        for count in (1, flags.at_once):
            server = Server(flags.program, governed=True)
            server.post(COMPLETIONS, {**STORY, "max_tokens": 20})  # everything is touched once
            before, start = peak_mib(server), time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                answers = collections.Counter(pool.map(send, [server.port] * count, [path] * count, [body] * count))
            cells += [f"{time.monotonic() - start:.1f}", f"{peak_mib(server) - before:.0f}"]
            server.stop()
        print(f"| {kind} | {len(body.encode()) / 1e6:.1f} | {' | '.join(cells)} | {', '.join(f'{n} x {s}' for s, n in answers.items())} |", flush=True)


if __name__ == "__main__":
    main()
