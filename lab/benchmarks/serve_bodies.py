#!/usr/bin/env python3
"""What requests cost `outrider serve` before they are admitted: its peak memory and time for the largest bodies of each kind.

    lab/benchmarks/serve_bodies.py build/outrider [--at-once 8]

Each kind is sent to a server of its own, once and then --at-once times side by side from one address. Memory is what its peak (VmHWM) rose by.
Standard library only."""
import argparse
import collections
import http.client
import json
import re
import subprocess
import threading
import time

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


def send(port, path, body, replies):
    start = time.monotonic()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("POST", path, body.encode(), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        replies.append((reply.status, time.monotonic() - start))
    except OSError as error:
        replies.append((type(error).__name__, time.monotonic() - start))


class Server:
    def __init__(self, program):
        self.process = subprocess.Popen([program, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])
        replies = []
        while not replies or replies[-1][0] != 200:  # until a verifier has joined, and everything was touched once
            send(self.port, COMPLETIONS, json.dumps({**STORY, "max_tokens": 20}), replies)

    def peak(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) / 1024

    def stop(self):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--at-once", type=int, default=8)
    flags = parser.parse_args()
    print(f"| body | MB | s, alone | MiB, alone | s, {flags.at_once} at once | MiB | answers |\n|---|---|---|---|---|---|---|")
    for kind, (path, body) in KINDS.items():
        cells = []
        for count in (1, flags.at_once):
            server, replies = Server(flags.program), []
            before, start = server.peak(), time.monotonic()
            threads = [threading.Thread(target=send, args=(server.port, path, body, replies)) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            cells += [f"{time.monotonic() - start:.1f}", f"{server.peak() - before:.0f}"]
            server.stop()
        answers = collections.Counter(status for status, _ in replies)
        print(f"| {kind} | {len(body.encode()) / 1e6:.1f} | {' | '.join(cells)} | {', '.join(f'{n} x {s}' for s, n in answers.items())} |", flush=True)


if __name__ == "__main__":
    main()
