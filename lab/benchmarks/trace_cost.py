#!/usr/bin/env python3
"""What traces cost a server: the processor time of a token, with and without them.

    lab/benchmarks/trace_cost.py build/outrider [--turns 9] [--requests 12] [--tokens 128] [--clients 1] [--model DIR]

Two servers stand side by side and are asked in turn, one at a time, for the same answers (4 drafts a round, greedy), so that a noisy machine
slows both alike. Processor time is that of the whole process (utime + stime), the thread that writes included: each turn ends once the file has
the turn's last request. Prints the medians of the ratio and of the difference per round. Standard library only."""
import argparse
import http.client
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time

PROMPTS = ["Write a short story about a dog called Max.", "Tell me a story about a lighthouse.", "Write a poem about the sea.", "Tell me a story about a lost key."]


class Server:
    def __init__(self, program, model, *options):
        self.process = subprocess.Popen([program, "serve", "--port", "0", "--draft-length", "4@0", "--no-governor", *(["--model", model] if model else []), *options],
                                        stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])
        while self.request("GET", "/ready")[0] != 200:
            time.sleep(0.1)

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        reply = connection.getresponse()
        return reply.status, reply.read()

    def seconds(self):
        """Of processor time, in steps far below a tick: of all threads, and of the one that writes, which has the lowest priority."""
        total = writer = 0
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{task}/schedstat") as file:
                spent = int(file.read().split()[0])
            with open(f"/proc/{self.process.pid}/task/{task}/stat") as file:
                nice = int(file.read().rsplit(")", 1)[1].split()[16])
            total += spent
            writer += spent if nice == 19 else 0
        return total / 1e9, writer / 1e9

    def ask(self, prompt, tokens):
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        status, reply = self.request("POST", "/v1/chat/completions", json.dumps(body))
        assert status == 200, reply
        return json.loads(reply)["speculative"]["rounds"]


def turn(server, arguments):
    """Processor seconds of all threads and of the writing one, and rounds, of so many requests."""
    rounds = []

    def client(number):
        for i in range(arguments.requests // arguments.clients):
            rounds.append(server.ask(PROMPTS[(number + i) % len(PROMPTS)], arguments.tokens))
    before = server.seconds()
    clients = [threading.Thread(target=client, args=(n,)) for n in range(arguments.clients)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    time.sleep(0.5)  # longer than traces wait to be written; a server that is asked nothing takes next to no time
    after = server.seconds()
    return after[0] - before[0], after[1] - before[1], sum(rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ways = {"--trace": ["--trace", f"{folder}/traces.jsonl"],
                "--trace and --perfetto": ["--trace", f"{folder}/both.jsonl", "--perfetto", f"{folder}/trace.json"]}
        servers = {"without": Server(arguments.program, arguments.model)}
        servers |= {way: Server(arguments.program, arguments.model, *options) for way, options in ways.items()}
        costs, writing = {way: [] for way in servers}, {way: [] for way in servers}
        for number in range(arguments.turns + 1):
            for way, server in servers.items():
                seconds, writer, rounds = turn(server, arguments)
                if number > 0:  # the first pages in what the others find
                    costs[way].append(seconds / rounds)
                    writing[way].append(writer / rounds)
        for server in servers.values():
            server.process.terminate()
            server.process.wait(60)
    plain = statistics.median(costs["without"])
    print(f"without: {1e6 * plain:.1f} us of processor time a round, median of {arguments.turns} turns")
    for way in ways:
        ratio = statistics.median(a / b for a, b in zip(costs[way], costs["without"]))
        more = statistics.median(a - b for a, b in zip(costs[way], costs["without"]))
        print(f"{way}: {100 * (ratio - 1):+.2f} %, {1e6 * more:+.1f} us a round; the writing thread alone {1e6 * statistics.median(writing[way]):.1f} us")


if __name__ == "__main__":
    main()
