#!/usr/bin/env python3
"""A server that drafts for another cluster while it is idle (serve --drafts-for), and what becomes of the texts of both.

usage: lending_test.py OUTRIDER
"""
import contextlib
import http.client
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from launch_support import HANG, eventually, free_ports
from serve_support import Server

MODELS = pathlib.Path(__file__).parents[2] / "models"
PROMPTS = ["Once upon a time a fox", "The rain in the hills", "Write a list of three animals."]
SAMPLED = {"temperature": 0.9, "seed": 5}


class Lending(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def start(self, *arguments):
        """A role, which logs into the folder."""
        with (self.path / "log").open("a") as log:
            process = subprocess.Popen([OUTRIDER, *arguments], stdout=subprocess.PIPE, stderr=log, text=True)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close()))
        return process

    def start_borrower(self, listen="tcp://127.0.0.1:*", model="nano", of_coordinator=(), keys=()):
        """A cluster without drafters of its own. @param keys  of its verifier and its server"""
        self.address = self.start("coordinator", "--listen", listen, *of_coordinator).stdout.readline().split()[-1]
        self.start("verifier", "--join", self.address, "--model", MODELS / model, "--threads", "1", *keys)
        self.borrower = self.serve("--connect", self.address, "--model", MODELS / model, *keys)

    def serve(self, *options):
        """A server; said() is what it complains of."""
        complaints = tempfile.NamedTemporaryFile("w", dir=self.path)
        self.addCleanup(complaints.close)
        server = Server(OUTRIDER, *options, stderr=complaints)
        server.said = pathlib.Path(complaints.name).read_text
        self.addCleanup(lambda: (server.process.kill(), server.stop()))
        return server

    def lend(self, *options, address=None):
        return self.serve("--drafts-for", address or self.address, *options)

    def drafters(self):
        return [worker for worker in self.borrower.status()["workers"] if worker["role"] == "drafter"]

    def answer(self, server, prompt, draft_length, **more):
        fields = {"prompt": prompt, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
        reply = server.post("/v1/completions", fields | more | {"speculative": {"draft_length": draft_length}})
        return reply["choices"][0]["text"], reply["speculative"]

    def texts(self, server, draft_length):
        """Of all prompts, greedy and sampled; and the numbers of drafts and of accepted ones."""
        answers = [self.answer(server, prompt, draft_length, **more) for prompt in PROMPTS for more in ({}, SAMPLED)]
        counts = [sum(said[name] for _, said in answers) for name in ("drafted_tokens", "accepted_tokens")]
        return [text for text, _ in answers], *counts

    def stream(self, server, tokens):
        """A stream whose first event is there, until its `sock` is shut down."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG)
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": "Tell me a tale", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
             "speculative": {"draft_length": 0}}), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.readline()

        def read():
            with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
                while reply.read(4096):
                    pass
        threading.Thread(target=read, daemon=True).start()
        return connection

    def while_busy(self, server):
        """texts() of the other cluster; none if the server was not busy all the while."""
        stream = self.stream(server, 8000)
        texts = self.texts(self.borrower, 4)
        was_busy = server.status()["sessions"] == 1
        stream.sock.shutdown(socket.SHUT_RDWR)
        return texts if was_busy else None

    def test_an_idle_server_drafts_for_another_model_of_its_tokens(self):
        self.start_borrower()
        plain = self.texts(self.borrower, 0)
        for model in "nano", "pico":
            server = self.lend("--model", MODELS / model)
            self.assertTrue(eventually(lambda: len(self.drafters()) == 1))
            own = self.texts(server, 0)[0]
            texts, drafted, accepted = self.texts(self.borrower, 4)
            self.assertEqual(texts, plain[0])
            self.assertGreater(accepted, 60)
            if model == "nano":  # the same bits, but for drafts behind the last token
                self.assertGreaterEqual(accepted, drafted - 8)
            self.assertEqual(self.texts(server, 4)[0], own)
            self.assertEqual(server.stop(), 0)
            self.assertTrue(eventually(lambda: not [one for one in self.drafters() if not one["draining"]]))
            self.assertTrue(eventually(lambda: not self.drafters()))

    def test_a_busy_server_does_not(self):
        self.start_borrower()
        server = self.lend("--model", MODELS / "pico")
        plain = self.texts(self.borrower, 0)[0]
        self.assertTrue(eventually(lambda: self.drafters()))

        texts, drafted, _ = eventually(lambda: self.while_busy(server))
        self.assertEqual((texts, drafted), (plain, 0))
        self.assertTrue(eventually(lambda: self.texts(self.borrower, 4)[2] > 60), "it has time again")

    def test_both_at_once(self):
        self.start_borrower()
        server = self.lend()
        self.assertTrue(eventually(lambda: self.drafters()))
        plain = self.texts(self.borrower, 0)[0]
        got = []

        def ask(of, draft_length):
            for _ in range(2):
                got.append(self.texts(of, draft_length)[0])
        threads = [threading.Thread(target=ask, args=(of, 4)) for of in (server, self.borrower, self.borrower)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(got, [plain] * 6)

    def test_its_end_disturbs_nobody(self):
        self.start_borrower()
        tale = self.answer(self.borrower, PROMPTS[0], 0, max_tokens=400)[0]
        for end in signal.SIGTERM, signal.SIGKILL:
            server = self.lend()
            self.assertTrue(eventually(lambda: [one for one in self.drafters() if not one["draining"]]))
            own, theirs = [], []
            threads = [threading.Thread(target=lambda of, into: into.append(self.answer(of, PROMPTS[0], 4, max_tokens=400)[0]), args=pair)
                       for pair in ((self.borrower, theirs), *([(server, own)] if end == signal.SIGTERM else []))]
            for thread in threads:
                thread.start()
            self.assertTrue(eventually(lambda: self.borrower.status()["sessions"] == 1 or theirs))
            self.assertTrue(end == signal.SIGKILL or eventually(lambda: server.status()["sessions"] == 1 or own))
            server.process.send_signal(end)
            for thread in threads:
                thread.join()
            self.assertEqual([theirs, own], [[tale], [tale] if end == signal.SIGTERM else []])
            self.assertEqual(server.process.wait(HANG), 0 if end == signal.SIGTERM else -signal.SIGKILL)

    def test_it_serves_while_the_coordinator_is_away(self):
        port, = free_ports(1)
        server = self.lend(address=f"tcp://127.0.0.1:{port}")
        self.assertTrue(self.answer(server, PROMPTS[0], 4)[0])
        self.assertTrue(eventually(lambda: "connection refused" in server.said()), server.said())
        self.start_borrower(listen=f"tcp://127.0.0.1:{port}")
        self.assertTrue(eventually(lambda: self.texts(self.borrower, 4)[2] > 60))

    def keys(self, name):
        """The path of a new key, and its public half."""
        path = self.path / name
        return path, subprocess.run([OUTRIDER, "keys", "new", "--key", path], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def test_a_key_is_needed_where_keys_are(self):
        (lender, public), (other, other_public) = self.keys("lender"), self.keys("other")
        coordinator, coordinator_public = self.keys("coordinator")
        listed = self.path / "authorized"
        listed.write_text("".join(f"{role} {other_public} other\n" for role in ("verifier", "client")))
        self.start_borrower(of_coordinator=["--key", coordinator, "--authorized", listed],
                            keys=["--key", other, "--coordinator-key", coordinator_public])
        server = self.lend("--key", lender, "--coordinator-key", coordinator_public)
        self.assertTrue(self.answer(server, PROMPTS[0], 4)[0])
        self.assertEqual(self.drafters(), [])
        with listed.open("a") as more:
            more.write(f"drafter {public} lender\n")
        self.assertTrue(eventually(lambda: self.texts(self.borrower, 4)[2] > 60), server.said())
        self.assertTrue(self.drafters()[0]["name"].startswith("lender/"))

    def test_other_tokens_are_refused_by_name(self):
        other = self.path / "other"
        shutil.copytree(MODELS / "nano", other)
        tokenizer = other / "backbone" / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text().replace("<unused12>", "<another12>"))
        self.start_borrower(model=other)
        server = self.lend()
        self.assertTrue(eventually(lambda: "tokenizer fingerprint" in server.said()))
        self.assertTrue(self.answer(server, PROMPTS[0], 4)[0])
        self.assertTrue(self.answer(self.borrower, PROMPTS[0], 4)[0])
        self.assertEqual(self.drafters(), [])
        self.assertEqual(server.said().count("tokenizer fingerprint"), 1)

    def test_what_cannot_be_meant_is_refused(self):
        def refusal(*options):
            done = subprocess.run([OUTRIDER, "serve", "--port", "0", *options], capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            return done.stderr
        self.assertIn("wanted tcp://", refusal("--drafts-for", "nowhere"))
        self.assertIn("one process", refusal("--drafts-for", "inproc://outrider-0"))
        self.assertIn("no private key nothing", refusal("--drafts-for", "tcp://192.0.2.1:5", "--key", "nothing"))
        self.assertIn("--connect", refusal("--drafts-for", "tcp://127.0.0.1:5", "--connect", "tcp://127.0.0.1:5"))
        self.assertIn("--processes", refusal("--drafts-for", "tcp://127.0.0.1:5", "--processes"))
        self.assertIn("--drafts-for", refusal("--coordinator-key", "0" * 64))


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main(verbosity=2)
