#!/usr/bin/env python3
"""A drafter of aarch64 drafts for a coordinator and a verifier of this machine. The text is that of `outrider run`, and
as many drafts hold as of a drafter of this machine, nearly: qemu-user is slow and exact.

usage: drafter_test.py OUTRIDER UNDER_QEMU OUTRIDER_OF_AARCH64"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PROMPT = ["Write a short story about a fox.", "--max-tokens", "60", "--draft-length", "4", "--no-governor", "--json"]
DRAFTS = 40  # to be verified
HANG = 900  # seconds; ends a test that would hang, never a measure of speed


def answer(outrider, *options):
    run = subprocess.run([outrider, "run", *PROMPT, *options], stdout=subprocess.PIPE, text=True, timeout=HANG, check=True)
    return json.loads(run.stdout)


def check(outrider, drafter, dtype, folder):
    """`drafter` is the command whose program drafts."""
    wanted = answer(outrider, "--dtype", dtype)
    addresses, joined, log = folder / "addresses", folder / "coordinator", folder / "drafter"
    started = []
    deadline = time.monotonic() + HANG

    def start(command, *options, errors=None):
        with open(errors or os.devnull, "w") as file:
            started.append(subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=file, env=os.environ | {"OUTRIDER_LOG": "info"}))
        return started[-1]

    def wait_for(file, text):
        while not (file.exists() and text in file.read_text()):
            assert time.monotonic() < deadline, f"no '{text}' in {file.name}"
            time.sleep(0.05)

    try:
        start([outrider], "coordinator", "--listen", "tcp://127.0.0.1:*", "--address-file", addresses, errors=joined)
        wait_for(addresses, "\n")
        address = addresses.read_text().split()[0]
        start([outrider], "verifier", "--join", address, "--dtype", dtype, "--threads", "1")
        worker = start(drafter, "drafter", "--join", address, "--dtype", dtype, errors=log)
        wait_for(joined, "joined as verifier")
        # A text is the same whether the drafter has joined, is late (as under an emulator it may be) or drafts.
        drafted = accepted = answers = 0
        while drafted < DRAFTS:
            assert worker.poll() is None, f"the drafter ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"{drafted} tokens were drafted, wanted {DRAFTS}: {log.read_text()}"
            got = answer(outrider, "--connect", address)
            assert got["text"] == wanted["text"], f"{dtype}: '{got['text']}', wanted '{wanted['text']}'"
            drafted += got["metrics"]["drafted_tokens"]
            accepted += got["metrics"]["accepted_tokens"]
            answers += 1
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(HANG)
    native = wanted["metrics"]["accepted_tokens"] / wanted["metrics"]["drafted_tokens"]
    loaded = next(line for line in log.read_text().splitlines() if "event=loaded" in line)
    print(f"{dtype}: {accepted} of {drafted} drafts held in {answers} answers ({accepted / drafted:.2f}; of a drafter of this"
          f" machine {native:.2f}); {loaded}", flush=True)
    # Sums are rounded in another order, so one draft may be another, and rounds may begin elsewhere.
    assert accepted / drafted >= 0.8 * native > 0, "too few drafts held"


def main():
    outrider, under_qemu, program = sys.argv[1:]
    for cpu, dtype in (("max", "int8"), ("max", "bf16"), ("max", "int4"), ("neoverse-n1", "int8"), ("cortex-a72", "int8")):
        drafter = [under_qemu, cpu, program]
        probe = subprocess.run([*drafter, "doctor", "--help"], stdout=subprocess.DEVNULL)
        if probe.returncode == 77:
            sys.exit(77)
        print(cpu, end=" ", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            check(outrider, drafter, dtype, pathlib.Path(folder))


main()
