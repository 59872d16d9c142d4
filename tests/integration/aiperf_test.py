#!/usr/bin/env python3
"""AIPerf as it comes, against outrider serve: its report has our acceptance, and its figures are those of /metrics.

usage: aiperf_test.py OUTRIDER
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from serve_support import Server

NANO = pathlib.Path(__file__).resolve().parents[2] / "models/nano/backbone"
REQUESTS = 8


class AiPerf(unittest.TestCase):
    def test_its_figures_are_ours(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = Server(OUTRIDER, "--metrics-prefix", "vllm", "--draft-length", "4")
        self.addCleanup(server.stop)
        before = server.metrics()
        run = subprocess.run(
            [pathlib.Path(sys.executable).with_name("aiperf"), "profile", "--url", server.url, "--model", "nano", "--tokenizer", str(NANO),
             "--endpoint-type", "chat", "--streaming", "--concurrency", "2", "--request-count", str(REQUESTS),
             "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "100", "--extra-inputs", "ignore_eos:true",
             "--extra-inputs", "temperature:0", "--use-server-token-count", "--ui", "none", "--output-artifact-dir", folder.name],
            capture_output=True, text=True, timeout=600)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        moved = server.moved(before)
        report = json.loads(next(pathlib.Path(folder.name).rglob("profile_export_aiperf.json")).read_text())

        def agrees(theirs, ours):
            print(f"AIPerf {theirs:.2f}, we {ours:.2f}")
            self.assertLess(abs(theirs - ours), 0.05 * ours)

        self.assertEqual(report["request_count"]["avg"], REQUESTS)
        self.assertEqual(report["total_output_tokens"]["avg"] if "total_output_tokens" in report else report["output_sequence_length"]["avg"] * REQUESTS,
                         moved("generation_tokens_total"))
        histogram = {int(kept): steps for kept, steps in report["pooled_spec_decode_acceptance_histogram"].items()}
        self.assertEqual(sum(histogram.values()), moved("spec_decode_num_drafts_total"))
        self.assertEqual(sum(kept * steps for kept, steps in histogram.items()), moved("spec_decode_num_accepted_tokens_total"))
        agrees(report["request_latency"]["avg"], 1e3 * moved("e2e_request_latency_seconds_sum") / moved("e2e_request_latency_seconds_count"))


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
