#!/usr/bin/env python3
"""Runs the commands of docs/tutorials.md as they stand, and compares what they print with what the page prints.

usage: tutorial_test.py OUTRIDER PAGE

A block of ```console has lines "HOST$ COMMAND", each with the lines that it prints. Every host of a tutorial is a home
folder on this machine. "..." stands for anything, KEY_OF_BIG for the key that was printed there first. The page's
address becomes a free port of the loopback interface, where the programs go without keys unless an option names some:
the options are added with the files that the programs would have taken.
"""
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from launch_support import HANG, eventually, free_ports

ADDRESS = "10.0.0.1:7070"
PROMPT = re.compile(r"(\w+)\$ (.*)")


def tutorials(text):
    """Title and steps of each section: host, command, expected lines."""
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        steps = [step for block in re.findall(r"^```console\n(.*?)^```", body, re.M | re.S) for step in steps_of(block)]
        if steps:
            yield title, steps


def steps_of(block):
    lines = iter(block.splitlines())
    step = None
    for line in lines:
        prompt = PROMPT.match(line)
        if not prompt:
            step[2].append(line)
            continue
        if step:
            yield step
        host, command = prompt.groups()
        if "<<'END'" in command:
            for more in lines:
                command += "\n" + more
                if more == "END":
                    break
        step = (host, command, [])
    yield step


class Walk:
    """One tutorial, its hosts and what still runs on them."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.keys = {}
        self.running = []
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        (bin_folder / "outrider").symlink_to(OUTRIDER)

    def real(self, text):
        for name, key in self.keys.items():
            text = text.replace(name, key)
        return text.replace(ADDRESS, self.address)

    def with_keys(self, command):
        if "--coordinator-key" in command:
            return command
        if "coordinator --listen" in command:
            return command + " --authorized ~/.config/outrider/authorized_keys"
        if "--join" in command or "--connect tcp" in command:
            return command + " --coordinator-key ~/.config/outrider/known_coordinator"
        return command

    def take(self, host, command, expected):
        home = self.folder / host
        home.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        environment |= {"HOME": str(home), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        log = home / "printed"
        with open(log, "w") as output:
            process = subprocess.Popen(["bash", "-ec", self.with_keys(self.real(command))], cwd=home, env=environment,
                                       stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)
        stays = re.match(r"outrider (coordinator|verifier|drafter) ", command)
        if stays:
            self.running.append(process)
            log = log.rename(home / f"printed.{len(self.running)}")
            eventually(lambda: self.matches(log.read_text(), expected) or process.poll() is not None)
        else:
            process.wait(timeout=HANG)
        # How far a long command is, every ten seconds: a fast machine prints nothing.
        printed = re.sub(r"^outrider: .*\b\d+ of \d+.*\n", "", log.read_text(), flags=re.M)
        assert process.poll() in ((None,) if stays else (0,)), f"{command}: status {process.poll()}\n{printed}"
        assert self.matches(printed, expected, whole=not stays), f"{command}: wanted {expected}, printed:\n{printed}"

    def matches(self, printed, expected, whole=False):
        """Whether the lines are there, in this order; whole: and no others, unless a line is "..."."""
        pattern = ""
        for line in expected:
            name = re.fullmatch(r"KEY_OF_\w+", line)
            if line == "...":
                pattern += r"(?:.*\n)*?"
            elif name and line not in self.keys:
                pattern += rf"(?P<{line}>[0-9a-f]{{64}})\n"
            else:
                pattern += ".*".join(map(re.escape, self.real(line).split("..."))) + r"\n"
                pattern += "" if whole else r"(?:.*\n)*?"
        found = (re.fullmatch if whole else re.search)(pattern, printed)
        if found:
            self.keys |= found.groupdict()
        return found is not None

    def end(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(timeout=HANG)


class Tutorials(unittest.TestCase):
    def test_every_command_does_what_the_page_says(self):
        pages = list(tutorials(PAGE.read_text()))
        self.assertGreaterEqual(len(pages), 3)
        for title, steps in pages:
            with self.subTest(title), tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                walk = Walk(folder)
                try:
                    for host, command, expected in steps:
                        if command.startswith("outrider ready"):  # the page: ask again while a worker loads
                            command = f"for i in $(seq 60); do {walk.with_keys(command)} 2>&1 && break; sleep 1; done"
                            expected = ["...", *expected]
                        walk.take(host, command, expected)
                finally:
                    walk.end()
                print(f"{title}: {len(steps)} commands, {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    PAGE = Path(sys.argv.pop(2)).resolve()
    OUTRIDER = Path(sys.argv.pop(1)).resolve()
    unittest.main()
