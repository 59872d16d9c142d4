#!/usr/bin/env python3
"""Outrider beside llama.cpp on one machine: tokens per second, plain and with drafts at equal acceptance.

    lab/benchmarks/beside_llama.py --llama-server PATH --gguf TARGET.gguf --assistant ASSISTANT.gguf \\
        [--outrider build/outrider] [--shape e4b] [--dtypes int4 int8] [--threads 2 8 16] [--turns 3]

llama.cpp runs its server on the two GGUF files, with its MTP drafts, and accepts drafts at the rates of --rates
(--spec-synth-rates). Outrider runs the same target GGUF plainly, where it is to be found as --gguf, and `bench
speculative` on random weights of --shape, whose time does not depend on the weights' values, with the same rates. All
arms take turns; each figure is the median over the turns. Beside them: the memory's read bandwidth, before and after.
SIGTERM or Ctrl-C ends the turns early, and the table shows the arms measured so far.

llama-server: Debian's llama.cpp, or built of the source in PyPI's llama-cpp-python (`pip download --no-deps --no-binary
:all: llama-cpp-python==0.3.36`): cmake -S vendor/llama.cpp -B B -DLLAMA_OPENSSL=OFF && cmake --build B -t llama-server
"""
import argparse
import itertools
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from contextlib import contextmanager

STARTED_S = 600  # ends a run whose server does not come up


def ask(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=STARTED_S) as reply:
        return json.load(reply)


@contextmanager
def llama_server(arguments, threads, drafts):
    """Its port, once the model is loaded."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [arguments.llama_server, "-m", arguments.gguf, "-t", str(threads), "-tb", str(threads), "-c", "2048", "-np",
               "1", "--host", "127.0.0.1", "--port", str(port), "--no-webui", "--cache-ram", "0"]
    if drafts:
        rates = ",".join(map(str, arguments.rates))
        command += ["-md", arguments.assistant, "--spec-type", "draft-mtp", "--spec-draft-n-max", str(len(arguments.rates)),
                    "--spec-synth-rates", rates]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(STARTED_S):
            if server.poll() is not None:
                sys.exit(f"{' '.join(command)}:\n{server.stderr.read()[-2000:]}")
            try:
                ask(port, "/health")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(1)
        yield port
    finally:
        server.kill()
        server.communicate()


def prompt_of(tokens):
    """Ids that are neither control tokens nor bytes, the same for both."""
    return [2] + [1000 + 37 * i % 4000 for i in range(tokens - 1)]


def llama(arguments, threads, drafts):
    with llama_server(arguments, threads, drafts) as port:
        def decode(prompt, count):
            return ask(port, "/completion", {"prompt": prompt_of(prompt), "n_predict": count, "ignore_eos": True,
                                             "temperature": 0, "cache_prompt": False})["timings"]
        decode(16, 4)  # what is used for the first time
        timings = decode(32, arguments.tokens)
        figures = {"tok/s": timings["predicted_per_second"]}
        if not drafts:
            figures["prompt tok/s"] = decode(512, 1)["prompt_per_second"]
        return figures


def outrider_json(arguments, *words):
    return json.loads(subprocess.run([arguments.outrider, *words, "--json"], check=True, stdout=subprocess.PIPE).stdout)


def outrider_on_gguf(arguments, threads, dtype):
    ids = ",".join(map(str, prompt_of(32)))
    answer = outrider_json(arguments, "run", "--backbone", arguments.gguf, "--no-assistant", "--prompt-ids", ids,
                           "--max-tokens", str(arguments.tokens), "--min-tokens", str(arguments.tokens), "--dtype", dtype,
                           "--draft-length", "0", "--threads", str(threads))
    return {"tok/s": answer["metrics"]["speculative_tok_per_sec"]}


def outrider_rounds(arguments, threads, dtype):
    report = outrider_json(arguments, "bench", "speculative", "--shape", arguments.shape, "--dtype", dtype, "--threads",
                           str(threads), "--synthetic-acceptance", *map(str, arguments.rates))
    return {"tok/s": report["speculative_tok_per_sec"], "plain tok/s": report["backbone_only_tok_per_sec"]}


def bandwidth(arguments):
    text = subprocess.run([arguments.outrider, "doctor"], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.search(r"([\d.]+) GB/s", text)
    return float(found[1]) if found else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--gguf", required=True, help="of the target")
    parser.add_argument("--assistant", required=True, help="GGUF of its assistant")
    parser.add_argument("--outrider", default="build/outrider")
    parser.add_argument("--shape", default="e4b", help="the target's, for `bench speculative`")
    parser.add_argument("--dtypes", nargs="+", default=["int4", "int8"])
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.84, 0.60, 0.39, 0.27],
                        help="at which at least 1, 2, ... drafts of a round are accepted")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    arms = {"llama.cpp, plain": lambda t: llama(arguments, t, drafts=False),
            f"llama.cpp, {len(arguments.rates)} drafts": lambda t: llama(arguments, t, drafts=True)}
    for dtype in arguments.dtypes:
        arms[f"Outrider {dtype}, the GGUF, plain"] = lambda t, d=dtype: outrider_on_gguf(arguments, t, d)
        arms[f"Outrider {dtype}, {len(arguments.rates)} drafts"] = lambda t, d=dtype: outrider_rounds(arguments, t, d)
    read = [bandwidth(arguments)]
    figures = defaultdict(list)
    try:
        for turn, threads, name in itertools.product(range(arguments.turns), arguments.threads, arms):
            for unit, value in arms[name](threads).items():
                figures[threads, name, unit].append(value)
            print(f"turn {turn + 1} of {arguments.turns}, {threads} threads: {name}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped before all turns were over", file=sys.stderr)
    read.append(bandwidth(arguments))
    print(f"read bandwidth {read[0]:.1f} GB/s before, {read[1]:.1f} GB/s after; medians over the turns\n\n"
          "| threads | arm | figure | least to most | turns |\n|---|---|---|---|---|")
    for (threads, name, unit), values in figures.items():
        print(f"| {threads} | {name} | {statistics.median(values):.1f} {unit} | {min(values):.1f} to {max(values):.1f} | {len(values)} |")


if __name__ == "__main__":
    main()
