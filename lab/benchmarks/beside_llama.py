#!/usr/bin/env python3
"""Outrider beside llama.cpp and OpenVINO on one machine: tokens per second, plain and with drafts at equal acceptance.

    lab/benchmarks/beside_llama.py --gguf TARGET.gguf --assistant ASSISTANT.gguf [--llama-server PATH] \\
        [--outrider build/outrider] [--shape e4b] [--dtypes int4 int8] [--threads 2 8 16] [--turns 3]

llama.cpp runs its server on the two GGUF files, with its MTP drafts, and accepts drafts at the rates of --rates
(--spec-synth-rates). Outrider runs the same target GGUF plainly, where it is to be found as --gguf, and `bench
speculative` on random weights of --shape, whose time does not depend on the weights' values, with the same rates.
OpenVINO runs the matrix products of --gguf alone (openvino_products.py), beside whole passes of `bench engine`.
All arms take turns; each figure is the median over the turns. Beside them: the memory's read bandwidth, before and
after. SIGTERM or Ctrl-C ends the turns early, and the table shows the arms measured so far.

Both come from PyPI into ~/.cache/outrider: OpenVINO's wheel, and llama.cpp's source in llama-cpp-python. Its server is
built there, unless --llama-server names another (Debian's llama.cpp).
"""
import argparse
import itertools
import json
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from contextlib import contextmanager

STARTED_S = 600  # ends a run whose server does not come up
CACHE = pathlib.Path.home() / ".cache" / "outrider"
LLAMA = "llama-cpp-python==0.3.36 --hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
OPENVINO = ("openvino==2026.4.0"  # the wheels for Python 3.11, 3.12 and 3.13
            " --hash=sha256:71ee4e65a914044a510af43da16f3279c8f9dae22cbc8eac63d4a785c4a9c03f"
            " --hash=sha256:75245768f656afffd49078cee55b50b9501bb6778798aec3cc30e5613a86e370"
            " --hash=sha256:186abfe5f355c33f19b50fe48340f9af0110e92fd279b7358a023fcbd225c380")


def run(*command, **options):
    return subprocess.run(list(map(str, command)), check=True, text=True, **options).stdout


def pinned(python, requirement, *command):
    """Runs pip on one requirement, whose hash pip checks."""
    run(python, "-m", "pip", *command, "--quiet", "--no-deps", "--require-hashes", "-r", "/dev/stdin",
        input=requirement, stdout=sys.stderr)


def fetch_llama_server():
    folder = CACHE / "beside-llama.cpp-0.3.36"
    server = folder / "build" / "bin" / "llama-server"
    if not server.exists():
        pinned(sys.executable, LLAMA, "download", "--no-binary", "llama-cpp-python", "--dest", folder)
        run("tar", "-xzf", folder / "llama_cpp_python-0.3.36.tar.gz", "-C", folder, "--strip-components=1")
        run("cmake", "-S", folder / "vendor/llama.cpp", "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release",
            "-DLLAMA_OPENSSL=OFF", stdout=sys.stderr)
        run("cmake", "--build", folder / "build", "--target", "llama-server", "--parallel", stdout=sys.stderr)
    return server


def fetch_openvino():
    """The Python that has it."""
    folder = CACHE / "beside-openvino-2026.4.0"
    python = folder / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import openvino"], stderr=subprocess.DEVNULL).returncode:
        run(sys.executable, "-m", "venv", folder)
        run(python, "-m", "pip", "install", "--quiet", "numpy", stdout=sys.stderr)
        pinned(python, OPENVINO, "install")
    return python


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
    log = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would fill, and stop the server
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    try:
        for _ in range(STARTED_S):
            if server.poll() is not None:
                log.seek(0)
                sys.exit(f"{' '.join(map(str, command))}:\n{log.read()[-2000:]}")
            try:
                ask(port, "/health")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(1)
        yield port
    finally:
        server.kill()
        server.wait()


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


def openvino_products(arguments, threads, dtype):
    program = pathlib.Path(__file__).with_name("openvino_products.py")
    return json.loads(run(arguments.openvino, program, dtype, threads, input=json.dumps(arguments.model),
                          stdout=subprocess.PIPE))


def outrider_json(arguments, *words):
    return json.loads(run(arguments.outrider, *words, "--json", stdout=subprocess.PIPE))


def outrider_bench(arguments, threads, dtype, which, *words):
    return outrider_json(arguments, "bench", which, "--shape", arguments.shape, "--layers",
                         len(arguments.model["layers"]), "--dtype", dtype, "--threads", threads, *words)


def outrider_passes(arguments, threads, dtype):
    """Whole passes, in the units of openvino_products.py."""
    report = outrider_bench(arguments, threads, dtype, "engine", "--rows", 1, 5, "--prefill", 512)
    return {"ms, 1 row": report["forward_ms"]["1"], "ms, 5 rows": report["forward_ms"]["5"],
            "prompt tok/s": report["prefill_tok_s"]["512"]}


def outrider_on_gguf(arguments, threads, dtype):
    ids = ",".join(map(str, prompt_of(32)))
    answer = outrider_json(arguments, "run", "--backbone", arguments.gguf, "--no-assistant", "--prompt-ids", ids,
                           "--max-tokens", arguments.tokens, "--min-tokens", arguments.tokens, "--dtype", dtype,
                           "--draft-length", 0, "--threads", threads)
    return {"tok/s": answer["metrics"]["speculative_tok_per_sec"]}


def outrider_rounds(arguments, threads, dtype):
    report = outrider_bench(arguments, threads, dtype, "speculative", "--synthetic-acceptance", *arguments.rates)
    return {"tok/s": report["speculative_tok_per_sec"], "plain tok/s": report["backbone_only_tok_per_sec"]}


def bandwidth(arguments):
    found = re.search(r"([\d.]+) GB/s", run(arguments.outrider, "doctor", stdout=subprocess.PIPE))
    return float(found[1]) if found else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", help="a build of llama.cpp other than PyPI's source")
    parser.add_argument("--gguf", required=True, help="of the target")
    parser.add_argument("--assistant", required=True, help="GGUF of its assistant")
    parser.add_argument("--outrider", default="build/outrider")
    parser.add_argument("--shape", default="e4b", help="the target's shape, for `bench`, which runs as many layers as it has")
    parser.add_argument("--dtypes", nargs="+", default=["int4", "int8"])
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.84, 0.60, 0.39, 0.27],
                        help="at which at least 1, 2, ... drafts of a round are accepted")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    arguments.model = outrider_json(arguments, "inspect", arguments.gguf)
    arguments.llama_server = arguments.llama_server or fetch_llama_server()
    arguments.openvino = fetch_openvino()
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    arms = {"llama.cpp, plain": lambda t: llama(arguments, t, drafts=False),
            f"llama.cpp, {len(arguments.rates)} drafts": lambda t: llama(arguments, t, drafts=True)}
    for dtype in arguments.dtypes:
        arms[f"Outrider {dtype}, the GGUF, plain"] = lambda t, d=dtype: outrider_on_gguf(arguments, t, d)
        arms[f"Outrider {dtype}, {len(arguments.rates)} drafts"] = lambda t, d=dtype: outrider_rounds(arguments, t, d)
        arms[f"Outrider {dtype}, whole passes"] = lambda t, d=dtype: outrider_passes(arguments, t, d)
        if dtype in ("int4", "int8"):
            arms[f"OpenVINO {dtype}, products alone"] = lambda t, d=dtype: openvino_products(arguments, t, d)
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
