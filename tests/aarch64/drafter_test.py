#!/usr/bin/env python3
"""A drafter of aarch64 drafts for a coordinator and a verifier of this machine. The text is that of `outrider run`, and
so many drafts hold as of a drafter of this machine: qemu-user is slow and exact.

usage: drafter_test.py OUTRIDER UNDER_QEMU OUTRIDER_OF_AARCH64"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PROMPT = ["Write a short story about a fox.", "--max-tokens", "60", "--draft-length", "4", "--json"]
HANG = 300  # seconds; ends a test that would hang, never a measure of speed


def answer(outrider, *options):
    run = subprocess.run([outrider, "run", *PROMPT, *options], stdout=subprocess.PIPE, text=True, timeout=HANG, check=True)
    return json.loads(run.stdout)


def check(outrider, drafter, dtype, folder):
    """`drafter` is the command whose program drafts."""
    wanted = answer(outrider, "--dtype", dtype)
    addresses = folder / "addresses"
    started = []

    def start(command, *options, **keywords):
        started.append(subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, **keywords))
        return started[-1]

    try:
        start([outrider], "coordinator", "--listen", "tcp://127.0.0.1:*", "--address-file", addresses)
        deadline = time.monotonic() + HANG
        while not (addresses.exists() and addresses.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        address = addresses.read_text().split()[0]
        start([outrider], "verifier", "--join", address, "--dtype", dtype, "--threads", "1")
        log = folder / "drafter"
        with log.open("w") as file:
            worker = start(drafter, "drafter", "--join", address, "--dtype", dtype, stderr=file,
                           env=os.environ | {"OUTRIDER_LOG": "info"})
        # Before the drafter has joined texts are decoded plainly, and are the same.
        while True:
            assert worker.poll() is None, f"the drafter ended: {log.read_text()}"
            got = answer(outrider, "--connect", address)
            assert got["text"] == wanted["text"], f"{dtype}: '{got['text']}', wanted '{wanted['text']}'"
            if got["metrics"]["drafted_tokens"] > 0:
                break
            assert time.monotonic() < deadline, f"nothing was drafted: {log.read_text()}"
        got = answer(outrider, "--connect", address)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(HANG)
    assert got["text"] == wanted["text"], f"{dtype}: '{got['text']}', wanted '{wanted['text']}'"
    accepted, native = (of["metrics"]["accepted_tokens"] for of in (got, wanted))
    rounds = got["metrics"]["rounds"]
    loaded = next(line for line in log.read_text().splitlines() if "event=loaded" in line)
    print(f"{dtype}: {accepted} drafts of {got['metrics']['drafted_tokens']} held in {rounds} rounds, {native} of a drafter of"
          f" this machine's in {wanted['metrics']['rounds']}; {loaded}")
    # Sums are rounded in another order, so a draft here and there may be another.
    assert accepted >= 0.8 * native > 0, "too few drafts held"


def main():
    outrider, under_qemu, program = sys.argv[1:]
    for cpu, dtype in (("max", "int8"), ("max", "bf16"), ("max", "int4"), ("neoverse-n1", "int8"), ("cortex-a72", "int8")):
        drafter = [under_qemu, cpu, program]
        probe = subprocess.run([*drafter, "doctor", "--help"], stdout=subprocess.DEVNULL)
        if probe.returncode == 77:
            sys.exit(77)
        print(cpu, end=" ")
        with tempfile.TemporaryDirectory() as folder:
            check(outrider, drafter, dtype, pathlib.Path(folder))


main()
