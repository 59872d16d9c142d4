#!/usr/bin/env python3
"""A night of simulated histories on many cores, whose sum several nights add to.

Gives out seeds, a few at a time, to processes of simulation_test until the time is over, and after each adds what it
says to the sums in a file: histories, rounds, who crashed, and every failure with its shrunk history. A run that is
stopped loses no more than the seeds that were out; the next one with the same file goes on where it ended.

usage: night.py SIMULATION_TEST --seconds S [--cores N] [--sums FILE] [--first SEED]
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

AT_ONCE = 20  # seeds of one process: some seconds
FAILURES_KEPT = 20  # with what was said; of the others only which seeds


class Night:
    def __init__(self, options):
        self.options, self.lock, self.children = options, threading.Lock(), set()
        self.begin, self.over = time.monotonic(), False
        known = options.sums.exists()
        self.sums = json.loads(options.sums.read_text()) if known else {"next_seed": options.first, "seconds": 0, "failures": []}
        self.seconds_before = self.sums["seconds"]

    def play(self):
        """One core's part."""
        while True:
            with self.lock:
                late = time.monotonic() - self.begin > self.options.seconds
                if self.over or late:
                    return
                first = self.sums["next_seed"]
                self.sums["next_seed"] += AT_ONCE
                child = subprocess.Popen(
                    [self.options.program, "--gtest_filter=*AsManyRoundsAsWanted"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL, text=True, env=os.environ | {"OUTRIDER_SIM_SEEDS": f"{first}:{AT_ONCE}"})
                self.children.add(child)
            said = child.communicate()[0]
            with self.lock:
                self.children.discard(child)
                self.add(first, child.returncode, said)

    def add(self, first, status, said):
        survived = re.search(r"^survived: (.*)$", said, re.MULTILINE)
        for name, value in re.findall(r"(\w+)=(\S+)", survived[1] if survived else ""):
            number = float(value) if name == "healing_s" else int(value)
            self.sums[name] = max(self.sums.get(name, 0), number) if name == "healing_s" else self.sums.get(name, 0) + number
        if self.over and status < 0:
            self.sums.setdefault("stopped", []).append(f"{first}:{AT_ONCE}")
        elif status != 0 or not survived:
            kept = len(self.sums["failures"]) < FAILURES_KEPT
            self.sums["failures"].append({"seeds": f"{first}:{AT_ONCE}", "status": status} | ({"said": said[-4000:]} if kept else {}))
        self.sums["seconds"] = round(self.seconds_before + time.monotonic() - self.begin)
        new = self.options.sums.with_suffix(".new")
        new.write_text(json.dumps(self.sums, indent=1) + "\n")
        new.replace(self.options.sums)

    def stop(self, *_):
        self.over = True
        for child in list(self.children):
            child.kill()

    def run(self):
        """Returns whether nothing failed."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        players = [threading.Thread(target=self.play) for _ in range(self.options.cores)]
        for player in players:
            player.start()
        said = self.begin
        while any(player.is_alive() for player in players):
            time.sleep(0.2)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                with self.lock:
                    print({name: value for name, value in self.sums.items() if name != "failures"}, flush=True)
        print(json.dumps(self.sums, indent=1))
        return not self.sums["failures"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", help="simulation_test")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sums", type=pathlib.Path, default=pathlib.Path("night.json"), help="is read, and added to")
    parser.add_argument("--first", type=int, default=1_000_000, help="seed, where there are no sums yet")
    sys.exit(0 if Night(parser.parse_args()).run() else 1)


if __name__ == "__main__":
    main()
