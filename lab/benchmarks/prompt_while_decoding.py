#!/usr/bin/env python3
"""A long prompt while others decode: what the decoding sequences keep of their rate, and how long the prompt takes.

    lab/benchmarks/prompt_while_decoding.py [--outrider build/outrider] [--decoding 8] [--prompt 2000] [--turns 5] -- \\
        [options of serve: --model DIR --threads N --draft-length 0 ...]

In turns: the prompt alone, and the prompt while --decoding streams generate. Prompts are random token ids, so that no
prefix is cached. Medians over the turns.
"""
import argparse
import json
import pathlib
import random
import statistics
import sys
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "integration"))
from serve_support import Server  # noqa: E402


def generate(server, length, tokens, arrived):
    """Streams an answer to `length` random ids. `arrived` is called with the number of tokens in each piece; False ends it."""
    body = {"prompt": [random.randrange(300, 2000) for _ in range(length)], "max_tokens": tokens, "ignore_eos": True,
            "temperature": 0, "stream": True, "return_token_ids": True}  # also tokens without a text make a piece
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        for line in reply:
            event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
            if "error" in event:
                sys.exit(f"{server.url}: {event['error']['message']}")
            if event.get("choices") and not arrived(len(event["choices"][0].get("token_ids") or [])):
                return


def first_token_s(server, length):
    began = time.perf_counter()
    generate(server, length, 1, lambda count: count == 0)
    return time.perf_counter() - began


class Stream(threading.Thread):
    """A sequence that decodes until it is stopped."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.count, self.over = server, 0, False
        self.start()

    def run(self):
        generate(self.server, 16, 4000, self.arrived)

    def arrived(self, count):
        self.count += count
        return not self.over


def turn(server, arguments, into):
    into["prompt alone, s"].append(first_token_s(server, arguments.prompt))
    streams = [Stream(server) for _ in range(arguments.decoding)]
    while min(stream.count for stream in streams) < 8:
        if not all(stream.is_alive() for stream in streams):
            sys.exit("a stream has ended")
        time.sleep(0.01)

    def rate(wait):
        before, began = sum(stream.count for stream in streams), time.perf_counter()
        wait()
        return (sum(stream.count for stream in streams) - before) / (time.perf_counter() - began)
    calm = rate(lambda: time.sleep(5))
    beside = rate(lambda: into["prompt beside, s"].append(first_token_s(server, arguments.prompt)))
    into["tokens/s of all, calm"].append(calm)
    into["tokens/s of all, beside the prompt"].append(beside)
    for stream in streams:
        stream.over = True
    for stream in streams:
        stream.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default=str(ROOT / "build/outrider"))
    parser.add_argument("--decoding", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("serve", nargs="*", metavar="-- OPTION", help="of outrider serve")
    arguments = parser.parse_args()
    server = Server(arguments.outrider, *arguments.serve)
    into = {name: [] for name in ("prompt alone, s", "prompt beside, s", "tokens/s of all, calm", "tokens/s of all, beside the prompt")}
    try:
        for _ in range(arguments.turns):
            turn(server, arguments, into)
    finally:
        server.stop()
    median = {name: statistics.median(values) for name, values in into.items()}
    alone, beside, calm, busy = median.values()
    for name, value in median.items():
        print(f"{name:36} {value:8.3f}")
    print(f"decoding keeps {busy / calm:.2f} of its rate; the prompt takes {beside / alone:.2f} times as long")


if __name__ == "__main__":
    main()
