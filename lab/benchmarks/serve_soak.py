#!/usr/bin/env python3
"""Many clients at once against `outrider serve`: equal texts, latencies, what speculation brings, and what is left behind.

    lab/benchmarks/serve_soak.py build/outrider [--clients 32] [--seconds 300] [--disconnects 1000]

Phases of plain and speculative decoding take turns, so that a noisy machine slows both alike. Exits 1 when a request fails, when a text is
not the one that its prompt has alone, or when a session or a file handle is left after the disconnects."""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "integration"))
from serve_support import Server  # noqa: E402

PROMPTS = ["Write a short story about a dog called Max.", "Count from 3 to 20.", "What is 17 plus 25?", "Tell me a story about a lighthouse.",
           "Name three things that are blue.", "Write a poem about the sea.", "List the months of the year.", "Tell me a story about a lost key."]
MAX_TOKENS = 64


def body(prompt, draft_length):
    return json.dumps({"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": MAX_TOKENS, "stream": True,
                       "speculative": {"draft_length": draft_length}})


def stream(port, prompt, draft_length, stop_after=None):
    """The text, the seconds to the first piece, the gaps between pieces. stop_after: hang up after so many pieces."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    start = time.monotonic()
    connection.request("POST", "/v1/chat/completions", body(prompt, draft_length), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise RuntimeError(f"status {reply.status}: {reply.read(300)!r}")
    text, times = "", []
    for line in reply:
        line = line.strip()
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        piece = event["choices"][0]["delta"].get("content") if event["choices"] else None
        if not piece:
            continue
        times.append(time.monotonic())
        text += piece
        if stop_after is not None and len(times) >= stop_after:
            break
    connection.close()
    return text, times[0] - start if times else None, [b - a for a, b in zip(times, times[1:])], len(times)


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def phase(server, seconds, clients, draft_length, expected, failures):
    """Clients that ask one question after the other. @return first-piece times, gaps, tokens per second of all."""
    firsts, gaps, lock = [], [], threading.Lock()
    end = time.monotonic() + seconds

    def client(seed):
        chance = random.Random(seed)
        while time.monotonic() < end:
            prompt = chance.choice(PROMPTS)
            try:
                text, first, between, _ = stream(server.port, prompt, draft_length)
            except Exception as error:  # whatever it is, it is a failure of the server's
                failures.append(f"{prompt}: {error}")
                return
            if text != expected[prompt]:
                failures.append(f"{prompt}: another text than alone: {text!r}")
            with lock:
                firsts.append(first)
                gaps.extend(between)

    before, start = server.total("outrider:generation_tokens_total"), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return firsts, gaps, (server.total("outrider:generation_tokens_total") - before) / (time.monotonic() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--disconnects", type=int, default=1000)
    parser.add_argument("--draft-length", default="auto")
    flags = parser.parse_args()
    draft_length = flags.draft_length if flags.draft_length == "auto" else int(flags.draft_length)
    server = Server(flags.program, governed=True)
    failures = []
    try:
        expected = {prompt: stream(server.port, prompt, 0)[0] for prompt in PROMPTS}
        turns = 4
        results = {0: [[], [], []], draft_length: [[], [], []]}
        for turn in range(2 * turns):
            length = 0 if turn % 2 == 0 else draft_length
            firsts, gaps, rate = phase(server, flags.seconds / (2 * turns), flags.clients, length, expected, failures)
            results[length][0] += firsts
            results[length][1] += gaps
            results[length][2].append(rate)
        for length, (firsts, gaps, rates) in results.items():
            print(f"draft length {length}: {len(firsts)} answers, first piece p50 {quantile(firsts, 0.5):.3f} s p99 {quantile(firsts, 0.99):.3f} s, "
                  f"gap p50 {1e3 * quantile(gaps, 0.5):.1f} ms p99 {1e3 * quantile(gaps, 0.99):.1f} ms, tokens/s of each turn {', '.join(f'{rate:.0f}' for rate in rates)}")
        if flags.disconnects:
            disconnect(server, flags, draft_length, failures)
    finally:
        server.stop()
    for failure in failures[:20]:
        print(f"FAILED {failure}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


def disconnect(server, flags, draft_length, failures):
    """Clients that hang up at a random piece. Afterwards everything is as before."""
    handles = lambda: len(os.listdir(f"/proc/{server.process.pid}/fd"))
    before, left = handles(), [flags.disconnects]
    lock, chance = threading.Lock(), random.Random(1)

    def client(_):
        while True:
            with lock:
                if left[0] == 0:
                    return
                left[0] -= 1
                prompt, pieces = chance.choice(PROMPTS), chance.randrange(1, 12)
            try:
                stream(server.port, prompt, draft_length, stop_after=pieces)
            except Exception as error:
                failures.append(f"disconnecting: {error}")

    with concurrent.futures.ThreadPoolExecutor(flags.clients) as pool:
        list(pool.map(client, range(flags.clients)))
    for _ in range(100):  # what was under way ends within a round
        status = server.status()
        if status["sessions"] == 0 and handles() <= before:
            break
        time.sleep(0.1)
    kv = sum(worker.get("kv_bytes", 0) for worker in status["workers"])
    print(f"{flags.disconnects} disconnects: file handles {before} -> {handles()}, sessions {status['sessions']}, K/V bytes of sessions {kv}")
    if status["sessions"] or kv or handles() > before:
        failures.append("something was left behind")


if __name__ == "__main__":
    sys.exit(main())
