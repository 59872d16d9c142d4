#!/usr/bin/env python3
"""Traces of `outrider serve`: what a collector gets, what stands in the files, and which requests are kept. Read
strictly by OpenTelemetry's published protocol (PyPI, opentelemetry-proto): a field that it does not have is an error.

usage: traces_test.py OUTRIDER
"""
import base64
import http.server
import json
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from serve_support import Server

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def strict(body):
    """The message; ids, which OTLP writes as hexadecimal digits and protobuf's JSON as base64, are turned first."""
    message = json.loads(body)
    for resource in message["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in span:
                        span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return json_format.ParseDict(message, ExportTraceServiceRequest())


def spans_of(messages):
    """Of several messages: (host, span, its attributes)."""
    found = []
    for message in messages:
        for resource in message.resource_spans:
            host = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.instance.id")
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
                    found.append((host, span, values))
    return found


class Collector:
    """What was posted to /v1/traces."""

    def __init__(self):
        bodies = self.bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                assert self.headers["Content-Type"] == "application/json"
                assert self.path == "/v1/traces"
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def ask(server, traceparent=None, **fields):
    body = {"messages": [{"role": "user", "content": "Count from 3 to 12."}], "temperature": 0, "max_tokens": 24} | fields
    headers = {"Content-Type": "application/json"} | ({"traceparent": traceparent} if traceparent else {})
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        reply = urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        reply = error
    return json.load(reply), reply.headers.get("traceparent")


class Traces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file, self.perfetto = Path(folder.name) / "traces.jsonl", Path(folder.name) / "trace.json"

    def test_every_host_has_its_part_of_a_request(self):
        collector = Collector()
        server = Server(OUTRIDER, "--draft-length", "4@0", "--trace", str(self.file), "--perfetto", str(self.perfetto),
                        "--otlp", collector.url)
        answer, traceparent = ask(server, f"00-{TRACE}-{PARENT}-01", n=2)
        self.assertEqual(server.stop(), 0)
        version, trace, own, flags = traceparent.split("-")
        self.assertEqual((version, trace, flags), ("00", TRACE, "01"))

        posted = spans_of(strict(body) for body in collector.bodies)
        written = spans_of(strict(line) for line in self.file.read_text().splitlines())
        self.assertEqual([(h, s, v) for h, s, v in posted], written)
        by_id = {span.span_id: span for _, span, _ in posted}
        self.assertEqual(len(by_id), len(posted))
        root = by_id[bytes.fromhex(own)]
        self.assertEqual(root.parent_span_id, bytes.fromhex(PARENT))
        self.assertEqual(root.name, "chat nano")
        for _, span, _ in posted:
            self.assertEqual(span.trace_id, bytes.fromhex(TRACE))
            if span is root:
                continue
            parent = by_id[span.parent_span_id]
            self.assertLessEqual(span.start_time_unix_nano, span.end_time_unix_nano)
            self.assertGreaterEqual(span.start_time_unix_nano, parent.start_time_unix_nano, span)
            self.assertLessEqual(span.end_time_unix_nano, parent.end_time_unix_nano, span)

        def of(name):
            return [(host, values) for host, span, values in posted if span.name == name]
        root_values = next(values for _, span, values in posted if span is root)
        self.assertEqual(root_values["gen_ai.usage.output_tokens"], answer["usage"]["completion_tokens"])
        self.assertEqual(root_values["http.response.status_code"], 200)
        self.assertEqual(root_values["http.route"], "/v1/chat/completions")
        self.assertEqual(root_values["gen_ai.operation.name"], "chat")
        self.assertEqual(root_values["gen_ai.provider.name"], "outrider")
        self.assertEqual(root_values["gen_ai.response.model"], answer["model"])
        self.assertEqual([value.string_value for value in root_values["gen_ai.response.finish_reasons"].values],
                         [choice["finish_reason"] for choice in answer["choices"]])
        rounds = [values for _, values in of("round")]
        self.assertEqual(len(rounds), answer["speculative"]["rounds"])
        self.assertEqual(sum(r["outrider.drafted"] for r in rounds), answer["speculative"]["drafted_tokens"])
        self.assertEqual(sum(r["outrider.accepted"] for r in rounds), answer["speculative"]["accepted_tokens"])
        self.assertEqual(len(of("prefill")), 2)
        self.assertEqual(len(of("verify")), len(rounds))
        for name, role in (("verify", "verifier-"), ("draft", "drafter-")):
            self.assertTrue(of(name))
            self.assertTrue(all(host.startswith(role) for host, _ in of(name)), of(name))
        lossy = sum(1 for r in rounds if r["outrider.accepted"] < r["outrider.drafted"])
        self.assertLessEqual(len(of("rejected")), lossy)

        events = json.loads(self.perfetto.read_text())
        slices = [e for e in events if e["ph"] == "X"]
        self.assertEqual(len(slices), len(posted))
        hosts = {e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.assertEqual(hosts, {host for host, _, _ in posted})
        self.assertEqual({e["name"] for e in slices if "cname" in e} - {"wire"}, {"rejected"} if of("rejected") else set())
        # What is on one track either lies in another or beside it, but for what a double makes of microseconds since 1970.
        microsecond = 1
        for track in {(e["pid"], e["tid"]) for e in slices}:
            open_ends = []
            for e in sorted((e for e in slices if (e["pid"], e["tid"]) == track), key=lambda e: (e["ts"], -e["dur"])):
                while open_ends and open_ends[-1] <= e["ts"] + microsecond:
                    open_ends.pop()
                end = e["ts"] + e["dur"]
                self.assertTrue(not open_ends or end <= open_ends[-1] + microsecond, e)
                open_ends.append(end)

    def test_what_failed_or_was_asked_for_is_kept_whatever_the_share(self):
        server = Server(OUTRIDER, "--draft-length", "2@0", "--trace", str(self.file), "--trace-share", "0")
        _, left_out = ask(server)
        self.assertTrue(left_out)
        _, asked = ask(server, f"00-{TRACE}-{PARENT}-01")
        refused, failed = ask(server, temperature=-1)
        self.assertIn("error", refused)
        for bad in (f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", "nonsense"):
            _, own = ask(server, bad)
            self.assertNotIn(TRACE, own)
        self.assertEqual(server.stop(), 0)
        roots = {span.trace_id.hex(): (span, values) for _, span, values in
                 spans_of(strict(line) for line in self.file.read_text().splitlines()) if "outrider.kept" in values}
        self.assertEqual({asked.split("-")[1]: "asked", failed.split("-")[1]: "failed"},
                         {trace: values["outrider.kept"] for trace, (_, values) in roots.items()})
        span, values = roots[failed.split("-")[1]]
        self.assertEqual(values["http.response.status_code"], 400)
        self.assertEqual(span.status.code, 2)
        self.assertIn("temperature", span.status.message)

    def test_without_a_place_for_them_there_are_none(self):
        server = Server(OUTRIDER)
        _, traceparent = ask(server, f"00-{TRACE}-{PARENT}-01")
        self.assertIsNone(traceparent)
        self.assertEqual(server.stop(), 0)

    def test_a_collector_that_is_gone_costs_spans_and_nothing_else(self):
        collector = Collector()
        server = Server(OUTRIDER, "--draft-length", "2@0", "--otlp", collector.url)
        collector.server.shutdown()
        collector.server.server_close()
        answer, _ = ask(server)
        self.assertEqual(len(answer["choices"]), 1)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
