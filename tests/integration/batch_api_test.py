#!/usr/bin/env python3
"""/v1/files and /v1/batches of outrider serve as the official OpenAI client sees them.

usage: batch_api_test.py OUTRIDER
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import openai

from batch_support import Job, chat_line, nano_lines


class Server:
    def __init__(self, data_dir, *options):
        self.process = subprocess.Popen([OUTRIDER, "serve", "--port", "0", "--api-key", "key", "--dtype", "f32", "--data-dir", str(data_dir), *options],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.client = openai.OpenAI(base_url=line.split()[-1] + "/v1", api_key="key", max_retries=0) if line else None

    def end(self, kill=False):
        self.process.kill() if kill else self.process.terminate()
        code = self.process.wait(60)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


class BatchApi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.start()
        self.addCleanup(lambda: self.server.end(kill=True))

    def start(self, *options):
        self.server = Server(self.path / "data", *options)
        self.client = self.server.client

    def batch_of(self, lines, **fields):
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        file = self.client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
        self.assertEqual((file.bytes, file.filename, file.purpose), (len(text), "in.jsonl", "batch"))
        return self.client.batches.create(input_file_id=file.id, **{"endpoint": "/v1/chat/completions", "completion_window": "24h"} | fields)

    def until(self, batch, *states):
        deadline = time.time() + 300
        while batch.status not in states and time.time() < deadline:
            time.sleep(0.1)
            batch = self.client.batches.retrieve(batch.id)
        self.assertIn(batch.status, states, batch)
        return batch

    def chats(self, count):
        return [line for line in nano_lines(count * 2) if line["url"] == "/v1/chat/completions"][:count]

    def test_a_batch_is_what_the_command_makes_of_it(self):
        lines = self.chats(9) + [chat_line("hot", "Hi", temperature=9), "not json"]
        batch = self.until(self.batch_of(lines, metadata={"for": "test"}), "completed")
        self.assertEqual((batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed), (11, 9, 2))
        self.assertEqual(batch.metadata, {"for": "test"})
        output = self.client.files.content(batch.output_file_id).read()
        job = Job(OUTRIDER, self.path, lines, "--dtype", "f32")
        self.assertEqual(job.run().returncode, 3)
        self.assertEqual(output, job.output.read_bytes())
        self.assertEqual(self.client.files.content(batch.error_file_id).read(), job.errors.read_bytes())
        replies = [json.loads(line)["response"]["body"] for line in output.decode().splitlines()]
        self.assertEqual(batch.usage.output_tokens, sum(reply["usage"]["completion_tokens"] for reply in replies))
        self.assertEqual(batch.usage.output_tokens_details.reasoning_tokens,
                         sum(reply["usage"]["completion_tokens_details"]["reasoning_tokens"] for reply in replies))
        self.assertGreaterEqual(batch.usage.input_tokens_details.cached_tokens, 0)
        self.assertEqual([one.id for one in self.client.batches.list()], [batch.id])
        self.assertEqual(len(list(self.client.files.list())), 3)
        self.assertTrue(self.client.files.delete(batch.output_file_id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(batch.output_file_id)
        self.assertEqual(self.server.end(), 0)

    def test_a_server_that_was_killed_goes_on_where_it_was(self):
        lines = self.chats(40)
        batch = self.batch_of(lines)
        while self.client.batches.retrieve(batch.id).request_counts.completed < 3:
            time.sleep(0.02)
        with self.assertRaises(openai.ConflictError):
            self.client.files.delete(batch.input_file_id)
        second = Server(self.path / "data")
        self.assertIn("another process is writing it", second.process.stderr.read())
        second.end()
        self.server.end(kill=True)
        self.start()
        batch = self.until(self.client.batches.retrieve(batch.id), "completed")
        self.assertEqual(batch.request_counts.completed, 40)
        job = Job(OUTRIDER, self.path, lines, "--dtype", "f32")
        self.assertEqual(job.run().returncode, 0)
        self.assertEqual(self.client.files.content(batch.output_file_id).read(), job.output.read_bytes())

    def test_cancelled_it_has_what_was_done(self):
        batch = self.batch_of([line | {"body": line["body"] | {"max_tokens": 200, "ignore_eos": True}} for line in self.chats(200)])
        while self.client.batches.retrieve(batch.id).request_counts.completed < 1:
            time.sleep(0.05)
        self.assertEqual(self.client.batches.cancel(batch.id).status, "cancelling")
        batch = self.until(batch, "cancelled")
        done = self.client.files.content(batch.output_file_id).read().decode().splitlines()
        self.assertEqual(len(done), batch.request_counts.completed)
        self.assertLess(len(done), 200)
        with self.assertRaises(openai.ConflictError):
            self.client.batches.cancel(batch.id)

    def test_a_batch_whose_time_is_over_names_the_lines_that_were_not_done(self):
        lines = [line | {"body": line["body"] | {"max_tokens": 200, "ignore_eos": True}} for line in self.chats(200)]
        batch = self.batch_of(lines)
        while self.client.batches.retrieve(batch.id).request_counts.completed < 1:
            time.sleep(0.05)
        self.server.end(kill=True)
        file = self.path / "data" / "batches" / f"{batch.id}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"expires_at": 1}))
        self.start()
        batch = self.until(self.client.batches.retrieve(batch.id), "expired")
        done = [json.loads(line) for line in self.client.files.content(batch.output_file_id).read().decode().splitlines()]
        errors = [json.loads(line) for line in self.client.files.content(batch.error_file_id).read().decode().splitlines()]
        self.assertEqual({line["error"]["code"] for line in errors}, {"batch_expired"})
        self.assertEqual((batch.request_counts.completed, batch.request_counts.failed), (len(done), len(errors)))
        self.assertEqual(sorted(line["custom_id"] for line in done + errors), sorted(line["custom_id"] for line in lines))

    def test_lists_come_in_pages_and_files_expire_when_asked_to(self):
        files = [self.client.files.create(file=(f"{i}.jsonl", b"\n"), purpose="batch") for i in range(3)]
        self.assertEqual([file.id for file in self.client.files.list(order="asc")],
                         [file.id for file in self.client.files.list()][::-1])
        self.assertEqual(len(list(self.client.files.list(purpose="batch"))), len(files))
        self.assertEqual(list(self.client.files.list(purpose="batch_output")), [])
        page = self.client.files.list(limit=2)
        self.assertEqual((len(page.data), page.has_more), (2, True))
        self.assertEqual(sorted(file.id for file in page), sorted(file.id for file in files))  # the client turns the page
        last = self.client.files.list(limit=2, after=page.data[-1].id)
        self.assertEqual((len(last.data), last.has_more), (1, False))
        for wrong, kind in (({"limit": 0}, openai.BadRequestError), ({"after": "file-no"}, openai.NotFoundError)):
            with self.assertRaises(kind):
                self.client.files.list(**wrong)
        soon = {"anchor": "created_at", "seconds": 3600}
        file = self.client.files.create(file=("in.jsonl", b"\n"), purpose="batch", expires_after=soon)
        self.assertEqual(file.expires_at, file.created_at + 3600)
        for wrong in ({"seconds": 1}, {"anchor": "now"}):
            with self.assertRaises(openai.BadRequestError):
                self.client.files.create(file=("in.jsonl", b"\n"), purpose="batch", expires_after=soon | wrong)

    def test_what_a_batch_writes_expires_when_asked_to(self):
        after = {"anchor": "created_at", "seconds": 7200}
        batch = self.until(self.batch_of(self.chats(2) + ["not json"], extra_body={"output_expires_after": after}), "completed")
        files = [self.client.files.retrieve(id) for id in (batch.output_file_id, batch.error_file_id)]
        self.assertEqual([file.expires_at - file.created_at for file in files], [7200, 7200])
        self.assertNotIn("outrider", batch.to_json())
        for wrong in ({"seconds": 1}, {"anchor": "now"}):
            with self.assertRaises(openai.BadRequestError) as raised:
                self.client.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h",
                                           extra_body={"output_expires_after": after | wrong})
            self.assertEqual(raised.exception.param, "output_expires_after." + next(iter(wrong)))
        self.server.end()
        kept = self.path / "data" / "files" / f"{batch.output_file_id}.json"
        kept.write_text(json.dumps(json.loads(kept.read_text()) | {"expires_at": 1}))
        self.start()
        with self.assertRaises(openai.NotFoundError):
            self.client.files.content(batch.output_file_id)
        self.assertFalse(kept.exists() or kept.with_suffix(".jsonl").exists())
        self.assertEqual(self.client.files.retrieve(batch.error_file_id).id, batch.error_file_id)

    def test_the_store_is_bounded_also_for_what_batches_write(self):
        self.server.end()
        self.start("--data-mib", "1")
        # Some 200 kB a line: scores of twenty tokens at each place.
        lines = [line | {"body": line["body"] | {"max_tokens": 100, "ignore_eos": True, "n": 1, "logprobs": True, "top_logprobs": 20}} for line in self.chats(40)]
        batch = self.until(self.batch_of(lines), "failed")
        self.assertIn("more than 1048576 bytes of files", batch.errors.data[0].message)
        done = self.client.files.content(batch.output_file_id).read()
        self.assertEqual(len(done.decode().splitlines()), batch.request_counts.completed)
        self.assertGreater(batch.request_counts.completed, 0)
        self.assertLess(batch.request_counts.completed, 40)
        with self.assertRaises(openai.APIStatusError) as raised:
            self.client.files.create(file=("in.jsonl", b"x" * (1 << 20)), purpose="batch")
        self.assertEqual(raised.exception.status_code, 413)

    def test_what_is_wrong_is_said(self):
        file = self.client.files.create(file=("in.jsonl", b"\n"), purpose="batch")
        for fields in ({"input_file_id": "file-no"}, {"endpoint": "/v1/embeddings"}, {"completion_window": "1h"}):
            with self.assertRaises(openai.BadRequestError) as raised:
                self.client.batches.create(**{"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"} | fields)
            self.assertEqual(raised.exception.param, next(iter(fields)))
        with self.assertRaises(openai.BadRequestError):
            self.client.files.create(file=("in.jsonl", b"x"), purpose="fine-tune")
        with self.assertRaises(openai.NotFoundError):
            self.client.batches.retrieve("batch_no")
        empty = self.client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        self.assertEqual(self.until(empty, "failed").errors.data[0].message, "the input file has no lines")
        twice = self.batch_of([chat_line("a", "x"), chat_line("a", "x")])
        self.assertIn("lines 1 and 2", self.until(twice, "failed").errors.data[0].message)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main(verbosity=2)
