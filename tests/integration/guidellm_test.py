#!/usr/bin/env python3
"""GuideLLM as it comes, against outrider serve: it runs, and its figures are those of /metrics.

usage: guidellm_test.py OUTRIDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from serve_support import Server

NANO = pathlib.Path(__file__).resolve().parents[2] / "models/nano/backbone"
REQUESTS = 6


class GuideLlm(unittest.TestCase):
    def test_its_figures_are_ours(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        report = pathlib.Path(folder.name) / "report.json"
        server = Server(OUTRIDER, "--metrics-prefix", "vllm")
        self.addCleanup(server.stop)
        before = server.metrics()
        run = subprocess.run(
            [pathlib.Path(sys.executable).with_name("guidellm"), "run", "--backend", f"kind=openai_http,target={server.url},model=nano",
             "--tokenizer", f"kind=hf_auto,model={NANO}", "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=100",
             "--profile", "kind=synchronous", "--constraint", f"kind=max_requests,count={REQUESTS}",
             "--output", f"kind=json,path={report}", "--disable-console-interactive"],
            capture_output=True, text=True, timeout=600, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        moved = server.moved(before)
        benchmark = json.loads(report.read_text())["benchmarks"][0]
        metrics = benchmark["metrics"]

        def agrees(theirs, ours):
            print(f"GuideLLM {theirs:.3f}, we {ours:.3f}")
            self.assertLess(abs(theirs - ours), 0.05 * ours)

        unlike = {how: requests for how, requests in benchmark.get("requests", {}).items() if how != "successful"}
        self.assertEqual(metrics["request_totals"]["successful"], REQUESTS, f"{metrics['request_totals']}: {unlike}")
        self.assertEqual(metrics["output_token_count"]["successful"]["total_sum"], moved("generation_tokens_total"))
        agrees(metrics["request_latency"]["successful"]["mean"],
               moved("e2e_request_latency_seconds_sum") / moved("e2e_request_latency_seconds_count"))


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
