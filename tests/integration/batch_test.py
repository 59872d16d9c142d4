#!/usr/bin/env python3
"""outrider batch: one file of results, the same bytes however it was made.

usage: batch_test.py OUTRIDER
"""
import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from batch_support import FastServer, Job, chat_line, completion_line, nano_lines, read_lines
from launch_support import eventually

NANO = ["--dtype", "f32"]
NANO_BACKBONE = pathlib.Path(__file__).resolve().parents[2] / "models" / "nano" / "backbone"


class Cluster:
    """Coordinator, verifiers and drafters as processes."""

    def __init__(self, drafters=1, verifiers=1):
        self.coordinator = subprocess.Popen([OUTRIDER, "coordinator", "--listen", "tcp://127.0.0.1:*"], stdout=subprocess.PIPE, text=True)
        self.address = self.coordinator.stdout.readline().split()[-1]
        self.workers = [subprocess.Popen([OUTRIDER, role, "--join", self.address, "--dtype", "f32"], stderr=subprocess.DEVNULL)
                        for role, count in (("verifier", verifiers), ("drafter", drafters)) for _ in range(count)]

    def stop(self):
        for process in [*self.workers, self.coordinator]:
            process.kill()
            process.wait()
        self.coordinator.stdout.close()


class BatchCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def server(self, **how):
        server = FastServer(**how)
        self.addCleanup(server.close)
        return server

    def job(self, lines, *options, name="out"):
        return Job(OUTRIDER, self.path, lines, *options, name=name)

    def expect(self, done, code, *parts):
        self.assertEqual(done.returncode, code, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)
        if code == 1:
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


class OfNano(BatchCase):
    """The model itself."""

    def test_bytes_do_not_depend_on_drafter_cluster_shard_order_or_concurrency(self):
        lines = nano_lines(14)
        whole = self.job(lines, *NANO)
        self.expect(whole.run(), 0)
        outputs = read_lines(whole.output)
        self.assertEqual([line["custom_id"] for line in outputs], [line["custom_id"] for line in lines])
        self.assertFalse(whole.errors.exists())
        wanted = whole.files()
        plain = self.job(None, *NANO, "--draft-length", "0", "--order", "input", "--concurrency", "1", name="plain")
        self.expect(plain.run(), 0)
        self.assertEqual(plain.files(), wanted)
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        shards = []
        for i in (3, 1, 2):
            shards.append(self.job(None, "--connect", cluster.address, "--shard", f"{i}/3", name=f"shard{i}"))
            self.expect(shards[-1].run(), 0)
        merged = self.job(None, name="merged")
        merge = subprocess.run([OUTRIDER, "batch", "merge", merged.output, *[shard.output for shard in shards]], capture_output=True, text=True)
        self.expect(merge, 0)
        self.assertEqual(merged.files(), wanted)
        onto = subprocess.run([OUTRIDER, "batch", "merge", shards[0].journal, shards[0].output], capture_output=True, text=True)
        self.expect(onto, 1, "is a shard's journal, wanted another output")
        missing = subprocess.run([OUTRIDER, "batch", "merge", merged.output, shards[0].output], capture_output=True, text=True)
        self.expect(missing, 1, "is shard 3/3, wanted 1/1")

    def test_what_http_refuses_is_an_error_of_its_line(self):
        lines = [chat_line("good", "Hi", max_tokens=2), chat_line("hot", "Hi", temperature=9),
                 "not json", chat_line("streamed", "Hi", stream=True), "", '{"custom_id": "half"',
                 completion_line("model", "Hi", model="gpt-5"), chat_line("long", "word " * 40000)]
        job = self.job(lines, *NANO)
        checked = job.run("--check")
        self.assertEqual(checked.returncode, 3)
        self.assertEqual([line.split(":")[0] for line in checked.stdout.splitlines()], ["line 2", "line 3", "line 4", "line 6", "line 7", "line 8"])
        self.assertFalse(job.journal.exists())
        self.expect(job.run(), 3, "out.errors.jsonl: 6 of 7 lines have errors; the first is line 2: temperature is 9")
        self.assertEqual([line["custom_id"] for line in read_lines(job.output)], ["good"])
        errors = read_lines(job.errors)
        self.assertEqual([(e["error"]["line"], e["custom_id"]) for e in errors],
                         [(2, "hot"), (3, None), (4, "streamed"), (6, None), (7, "model"), (8, "long")])
        self.assertEqual([e["response"] and e["response"]["status_code"] for e in errors], [400, None, None, None, 404, 400])
        self.assertEqual(errors[5]["error"]["code"], "context_length_exceeded")

    def test_a_model_that_cannot_be_loaded_ends_the_job_with_lines_under_way(self):
        backbone = pathlib.Path(shutil.copytree(NANO_BACKBONE, self.path / "backbone"))
        weights = backbone / "model.safetensors"
        weights.write_bytes(weights.read_bytes().replace(b"layers.1.mlp.down_proj.weight", b"layers.1.mlp.gone_proj.weight", 1))
        job = self.job(nano_lines(9), *NANO, "--backbone", backbone, "--draft-length", "0", "--concurrency", "2")
        self.expect(job.run(), 1, "layers.1.mlp.down_proj.weight")
        self.assertEqual(json.loads(job.progress.read_text())["state"], "stopped")


class OfJobs(BatchCase):
    """The files, with a server that answers at once."""

    def test_a_run_again_does_nothing_and_says_so_by_zero(self):
        server = self.server()
        job = self.job(nano_lines(20), "--endpoint", server.url)
        self.expect(job.run(), 0)
        before, requests = job.files(), server.requests
        self.expect(job.run(), 0)
        self.assertEqual((job.files(), server.requests), (before, requests))
        status = subprocess.run([OUTRIDER, "batch", "status", job.output], capture_output=True, text=True)
        self.assertRegex(status.stdout, "^20 of 20 lines, [0-9]+ tokens of prompts and [1-9][0-9]* of answers\n  shard: 1/1\n$")
        self.assertEqual(json.loads(job.progress.read_text())["state"], "done")

    def test_replies_have_nothing_of_time_or_chance(self):
        server = self.server(busy=0.3)
        job = self.job(nano_lines(60), "--endpoint", server.url)
        again = self.job(None, "--endpoint", server.url, "--order", "input", "--concurrency", "7", name="again")
        self.expect(job.run(), 0)
        self.expect(again.run(), 0)
        self.assertEqual(job.files(), again.files())
        self.assertEqual(read_lines(job.output)[0]["response"]["body"]["created"], 0)

    def test_another_job_is_refused_by_the_field(self):
        server = self.server()
        job = self.job(nano_lines(5), "--endpoint", server.url)
        self.expect(job.run(), 0)
        self.expect(job.run("--shard", "1/2"), 1, "was begun with requests '5', now it is '2'")
        self.expect(self.job(nano_lines(6), "--endpoint", server.url).run(), 1, "out.journal: was begun with input_bytes", "--restart")
        self.expect(job.run("--restart"), 0)
        self.assertEqual(len(read_lines(job.output)), 6)

    def test_two_lines_of_one_name_are_both_named(self):
        job = self.job([chat_line("a", "x"), chat_line("b", "x"), "", chat_line("a", "y")], "--endpoint", "http://127.0.0.1:1")
        self.expect(job.run(), 1, "in.jsonl: lines 1 and 4 have the same custom_id 'a'")

    def test_files_that_are_not_ours_are_left_alone(self):
        job = self.job(nano_lines(2), "--endpoint", "http://127.0.0.1:1")
        job.output.write_text("mine\n")
        self.expect(job.run(), 1, "out.jsonl: is there, and no journal")
        job.journal.write_text("SQLite format 3")
        self.expect(job.run(), 1, "out.journal: not a journal of outrider batch")
        job.journal.write_text('{"xxh3":"0123456789abcdef","line":1}\n')
        self.expect(job.run(), 1, "out.journal: not a journal of outrider batch")
        self.assertEqual(job.output.read_text(), "mine\n")
        lines, job.output = job.input.read_text(), job.input
        self.expect(job.run("--restart"), 1, "in.jsonl: is the input, wanted another output")
        self.assertEqual(job.input.read_text(), lines)

    def test_paths_that_cannot_be(self):
        job = self.job(nano_lines(2), "--endpoint", "http://127.0.0.1:1")
        job.output = self.path / "no" / "out.jsonl"
        self.expect(job.run(), 1, "no/out.journal: cannot create: No such file or directory")
        job = self.job(None, "--endpoint", "http://127.0.0.1:1")
        job.input = self.path / "none.jsonl"
        self.expect(job.run(), 1, "none.jsonl: cannot open: No such file or directory")
        job.input = self.path
        self.expect(job.run(), 1, "is a folder")
        job = self.job(nano_lines(2), "--endpoint", "https://somewhere")
        self.expect(job.run(), 1, "--endpoint is 'https://somewhere', wanted http://HOST:PORT/v1")

    def test_what_a_server_elsewhere_does_not_heed_is_refused(self):
        job = self.job(nano_lines(2), "--endpoint", "http://127.0.0.1:1")
        for option in (["--threads", "1"], ["--draft-length", "2"], ["--no-governor"], ["--served-model-name", "x"], ["--draft-model", "x"], ["--dtype", "f32"]):
            self.expect(job.run(*option), 2, " excludes ", "--endpoint", option[0])
        self.expect(job.run("--no-such-option"), 2)

    def test_a_full_disk_is_one_line_and_the_job_goes_on_later(self):
        server = self.server()
        job = self.job(nano_lines(300), "--endpoint", server.url)
        small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        limited = job.run(preexec_fn=small, restore_signals=False)  # SIGXFSZ stays ignored: the write fails
        self.expect(limited, 1, "cannot write: File too large")
        self.expect(job.run(), 0)
        self.assertEqual(len(read_lines(job.output)), 300)

    def test_closed_descriptors_become_no_files(self):
        job = self.job([completion_line("one", "Once"), "{"], "--endpoint", self.server().url)
        closed = subprocess.Popen(job.command(), preexec_fn=lambda: [os.close(number) for number in range(3)])
        self.assertEqual(closed.wait(600), 3)
        self.assertNotIn(b"outrider:", job.journal.read_bytes())
        self.expect(job.run(), 3)  # the journal is whole, and says that nothing is left

    def test_one_writer(self):
        job = self.job(nano_lines(2), "--endpoint", "http://127.0.0.1:1")
        with open(job.journal, "w") as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)
            self.expect(job.run(), 1, "out.journal: another process is writing it")

    def test_errors_are_tried_again_where_that_is_asked_for(self):
        status = {"now": 400}
        server = self.server(status_of=lambda body: status["now"] if body.get("seed") == 2 else 200)
        job = self.job(nano_lines(9), "--endpoint", server.url)
        self.expect(job.run(), 3, "1 of 9 lines have errors; the first is line 3: a 400")
        status["now"] = 200
        self.expect(job.run(), 3)
        self.expect(job.run("--retry-errors"), 0)
        self.assertEqual([line["custom_id"] for line in read_lines(job.output)], [line["custom_id"] for line in nano_lines(9)])
        self.assertFalse(job.errors.exists())

    def test_a_line_that_always_fails_ends_as_an_error(self):
        # Others must get replies while it is tried, or it is an outage: they take their time.
        server = self.server(delay=0.05, status_of=lambda body: 500 if body.get("seed") == 2 else 200)
        job = self.job(nano_lines(200), "--endpoint", server.url, "--concurrency", "2", "--order", "input")
        self.expect(job.run(), 3, "1 of 200 lines have errors; the first is line 3: a 500")

    def test_sigterm_lets_the_running_ones_end_and_exits_75(self):
        server = self.server(delay=0.3)
        job = self.job(nano_lines(200), "--endpoint", server.url, "--concurrency", "4")
        process = job.start()
        while server.requests < 9:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, err)
        self.assertIn("run the same command to continue", err)
        self.assertFalse(job.output.exists())
        done = len(job.journal.read_text().splitlines()) - 1
        self.assertEqual(done, server.requests)  # nothing that was sent is lost
        server.requests = 0
        self.expect(self.job(None, "--endpoint", server.url, "--concurrency", "64").run(), 0)
        self.assertEqual(server.requests, 200 - done)

    def test_a_job_that_is_stopped_says_why_it_came_no_further(self):
        job = self.job(nano_lines(2), "--endpoint", "http://127.0.0.1:1")
        process = job.start()
        while '"last_problem": "' not in (job.progress.read_text() if job.progress.exists() else ""):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, err)
        self.assertIn("0 of 2 lines done (the last retry: http://127.0.0.1:1: Connection refused); run the same command", err)

    def test_a_deadline_stops_it_before(self):
        server = self.server(delay=0.2)
        job = self.job(nano_lines(500), "--endpoint", server.url, "--concurrency", "1")
        soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 50))
        self.expect(job.run("--deadline", soon), 75, "0 of 500 lines done; run the same")
        self.expect(job.run("--deadline", "tomorrow"), 1, "--deadline is 'tomorrow'")
        environment = os.environ | {"SLURM_JOB_ID": "77", "PATH": f"{self.path}:{os.environ['PATH']}"}
        squeue = self.path / "squeue"
        squeue.write_text(f'#!/bin/sh\n[ "$*" = "-h -j 77 -o %e" ] && echo {soon}\n')
        squeue.chmod(0o755)
        self.expect(job.run("--deadline", "slurm", env=environment), 75)

    def test_concurrency_is_what_was_asked_for(self):
        # No request is answered before five are there.
        server = self.server(status_of=lambda body: 200 if eventually(lambda: server.most_running >= 5) else 500)
        self.expect(self.job(nano_lines(60), "--endpoint", server.url, "--concurrency", "5").run(), 0)
        self.assertEqual(server.most_running, 5)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main(verbosity=2)
