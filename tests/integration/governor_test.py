#!/usr/bin/env python3
"""With --no-governor a fixed draft length stays what it is, in serve and in batch; without, the governor ends drafts that cost
more than they bring.

A drafter that takes 60 ms a draft on purpose, where plain decoding takes some milliseconds a token. How many rounds had
drafts is told by the coordinator's log of those that lost one.

usage: governor_test.py OUTRIDER
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from batch_support import Job, completion_line
from launch_support import HANG, eventually

PROMPT = "Once upon a time a fox"
FIELDS = {"max_tokens": 60, "ignore_eos": True, "temperature": 0, "speculative": {"draft_length": 4}}


class Governed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.log = self.path / "rejections"
        coordinator = self.start("coordinator", "--listen", "tcp://127.0.0.1:*", "--rejection-log", self.log)
        self.address = coordinator.stdout.readline().split()[-1]
        self.start("verifier", "--join", self.address)
        self.start("drafter", "--join", self.address, "--added-draft-us", "60000")

    def start(self, *arguments):
        process = subprocess.Popen([OUTRIDER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close()))
        return process

    def drafted(self, ask):
        """Rounds that lost a draft while it was asked, and the text."""
        count = lambda: len(self.log.read_text().splitlines()) if self.log.exists() else 0
        before, text = count(), ask()
        return count() - before, text

    def expect_few_and_many(self, governed, fixed):
        (few, text), (many, same) = governed, fixed
        self.assertEqual(text, same)
        self.assertGreater(many, 10)
        self.assertLess(3 * few, many)

    def serve(self, *options):
        server = self.start("serve", "--port", "0", "--connect", self.address, *options)
        url = server.stdout.readline().split()[-1]

        def workers():
            status = json.load(urllib.request.urlopen(f"{url}/v1/outrider/status"))
            return len(status["workers"]) == 2
        self.assertTrue(eventually(workers))
        body = json.dumps({"prompt": PROMPT} | FIELDS).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=HANG))["choices"][0]["text"]

    def batch(self, name, *options):
        job = Job(OUTRIDER, self.path, [completion_line("one", PROMPT, **FIELDS)], "--connect", self.address, *options, name=name)
        done = job.run()
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(job.output.read_text())["response"]["body"]["choices"][0]["text"]

    def test_serve_and_batch(self):
        self.serve()  # until the workers have joined
        self.expect_few_and_many(self.drafted(self.serve), self.drafted(lambda: self.serve("--no-governor")))
        self.expect_few_and_many(self.drafted(lambda: self.batch("governed")), self.drafted(lambda: self.batch("fixed", "--no-governor")))


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main(verbosity=2)
