#!/usr/bin/env python3
"""The memory of outrider batch with a large input and long replies, from a server that answers at once.

usage: batch_memory.py OUTRIDER [--lines 1000000] [--seconds 600]     after so many seconds it is told to stop
"""
import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "integration"))
from batch_support import FastServer, Job, chat_line  # noqa: E402


class LongWinded(FastServer):
    @staticmethod
    def answer(path, body):
        reply = FastServer.answer(path, body)
        reply["choices"][0]["message"]["content"] *= 100  # 19,200 characters
        return reply


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("outrider")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600)
    args = parser.parse_args()
    server = LongWinded()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(args.outrider, folder, None, "--endpoint", server.url, "--concurrency", "64")
        with job.input.open("w") as lines:
            for i in range(args.lines):
                lines.write(json.dumps(chat_line(f"request-{i}", f"Line {i}: " + "word " * 30, max_tokens=16)) + "\n")
        print(f"input: {job.input.stat().st_size} bytes", flush=True)
        process = job.start()
        end = time.monotonic() + args.seconds
        while time.monotonic() < end and process.poll() is None:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            peak = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), 0)
            done = json.loads(job.progress.read_text())["completed"] if job.progress.exists() else 0
            print(f"{done} replies, at most {int(peak) / 1024:.0f} MiB", flush=True)
            time.sleep(5)
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
        print(f"status {process.returncode}")
    server.close()


if __name__ == "__main__":
    main()
