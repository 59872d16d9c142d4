#!/usr/bin/env python3
"""What traces cost a server: processor time and throughput with and without them.

    lab/benchmarks/trace_cost.py build/outrider [--starts 8] [--turns 16] [--tokens 128] [--threads 2] [--model DIR]

Servers stand side by side, each role of each a process: two servers without traces, one with --trace, one with --perfetto too; of both every request is
kept. In a turn each is asked the same question, one after the other in random order, for the same answer (4 drafts a round, greedy), so that a noisy
machine slows all alike. All are started anew now and then, since where a process's pages happen to lie makes it a few percent faster or slower for its
whole life. Printed are, against the first server without traces, medians over all turns with the middle 95 % of 2000 bootstrap resamples of starts and
their turns; what the second one without traces shows is what this machine can tell apart. All that is done for traces is done by the front end, with its
writing thread, and by the coordinator, which tells it of each round: their processor time is compared by itself, which verifier and drafter would
drown in their own noise. The writing thread's time, which comes later, is that of a start divided by its rounds, and is in it. Standard library only."""
import argparse
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "integration"))
import serve_support  # noqa: E402

PROMPTS = ["Write a short story about a dog called Max.", "Tell me a story about a lighthouse.", "Write a poem about the sea.", "Tell me a story about a lost key."]
WRITER_NICE = 19  # the thread that writes has the lowest priority


def cpu_s(pid):
    """Processor time of all threads of a process, those that have ended too (clock_getcpuclockid), in steps far below a tick."""
    return time.clock_gettime(~pid << 3 | 2)


class Server(serve_support.Server):
    def __init__(self, arguments, *options):
        super().__init__(arguments.program, "--processes", "--draft-length", "4@0", "--threads", str(arguments.threads),
                         *(["--model", arguments.model] if arguments.model else []), *options)
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        roles = {}
        for pid in children:
            with open(f"/proc/{pid}/cmdline") as file:
                roles[file.read().split("\0")[1]] = pid
        self.telling, self.computing = (self.process.pid, roles["coordinator"]), (roles["verifier"], roles["drafter"])

    def writing_s(self):
        """Processor time of the writing thread, in steps far below a tick."""
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            try:
                with open(f"/proc/{self.process.pid}/task/{task}/stat") as stat, open(f"/proc/{self.process.pid}/task/{task}/schedstat") as spent:
                    if int(stat.read().rsplit(")", 1)[1].split()[16]) == WRITER_NICE:
                        return int(spent.read().split()[0]) / 1e9
            except (FileNotFoundError, ProcessLookupError):
                pass  # a connection's thread has ended
        return 0

    def busy_s(self):
        """Of front end and coordinator without the writing thread, and of all."""
        telling = sum(map(cpu_s, self.telling)) - self.writing_s()
        return telling, telling + sum(map(cpu_s, self.computing))

    def ask(self, prompt, tokens):
        """Of an answer: processor seconds as busy_s() has them, seconds, rounds."""
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        before, start = self.busy_s(), time.monotonic()
        reply = self.post("/v1/chat/completions", body)
        took = time.monotonic() - start
        after = self.busy_s()
        return after[0] - before[0], after[1] - before[1], took, reply["speculative"]["rounds"]


def one_start(arguments, ways):
    """Of each way by turn: processor seconds a round of front end and coordinator, of all, and tokens a second. And the writing thread's seconds a round."""
    servers = {way: Server(arguments, *options) for way, options in ways.items()}
    turns, writing = {way: [] for way in ways}, {}
    for server in servers.values():
        server.ask(PROMPTS[0], arguments.tokens)  # pages in what the others find
    time.sleep(1)
    before, rounds_of = {way: server.writing_s() for way, server in servers.items()}, dict.fromkeys(ways, 0)
    for turn in range(arguments.turns):
        for way in random.sample(list(servers), len(servers)):
            telling, busy, took, rounds = servers[way].ask(PROMPTS[turn % len(PROMPTS)], arguments.tokens)
            turns[way].append((telling / rounds, busy / rounds, arguments.tokens / took))
            rounds_of[way] += rounds
    time.sleep(1)  # longer than traces wait to be written
    for way, server in servers.items():
        writing[way] = (server.writing_s() - before[way]) / rounds_of[way]
        server.stop()
    return turns, writing


def interval(starts, unit):
    """The median of all values, and of resamples: of starts, and of turns within each."""
    def once(pick):
        return statistics.median(value for start in pick(starts) for value in pick(start))
    resamples = sorted(once(lambda values: random.choices(values, k=len(values))) for _ in range(2000))
    return f"{once(lambda values: values):+.2f} {unit} ({resamples[50]:+.2f} to {resamples[-50]:+.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    starts = []
    for _ in range(arguments.starts):
        with tempfile.TemporaryDirectory() as folder:
            starts.append(one_start(arguments, {
                "without": [], "without, once more": [], "--trace": ["--trace", f"{folder}/traces.jsonl"],
                "--trace and --perfetto": ["--trace", f"{folder}/both.jsonl", "--perfetto", f"{folder}/trace.json"]}))
    def versus(way, compare):
        return [[compare(ours, theirs, writing[way]) for ours, theirs in zip(turns[way], turns["without"])] for turns, writing in starts]
    telling, busy = (statistics.median(turn[i] for turns, _ in starts for turn in turns["without"]) for i in (0, 1))
    print(f"without: {1e6 * busy:.0f} us of processor time a round, {1e6 * telling:.0f} of it of front end and coordinator; "
          f"medians of {arguments.starts} starts with {arguments.turns} turns each")
    for way in list(starts[0][0])[1:]:
        print(f"{way}: front end and coordinator {interval(versus(way, lambda a, b, w: 1e6 * (a[0] + w - b[0])), 'us a round')}, of all processor time "
              f"{interval(versus(way, lambda a, b, w: 100 * (a[0] + w - b[0]) / busy), '%')}; all {interval(versus(way, lambda a, b, w: 100 * ((a[1] + w) / b[1] - 1)), '%')}, "
              f"tokens a second {interval(versus(way, lambda a, b, _: 100 * (a[2] / b[2] - 1)), '%')}; "
              f"the writing thread alone {1e6 * statistics.median(writing[way] for _, writing in starts):.1f} us a round")


if __name__ == "__main__":
    main()
