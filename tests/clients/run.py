#!/usr/bin/env python3
"""Client libraries, as they come from PyPI and npm, against `outrider serve` with the nano pair.

    run.py --outrider build/outrider --work build/clients [CLIENT...]

Each client has a script here that makes its calls; nano need not be clever for them, what counts is that requests are
understood and replies are what the client reads. Prints one line a call, and fails if one does not work.
"""
import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]

# What each client's script wants from its registry.
PYTHON = {
    "openai": ["openai"],
    "anthropic": ["anthropic"],
    "litellm": ["litellm"],
    "langchain": ["langchain-openai"],
    "agents": ["openai-agents"],
    "instructor": ["instructor"],
    "llama_index": ["llama-index-llms-openai-like"],
    "pydantic_ai": ["pydantic-ai-slim[openai]"],
    "smolagents": ["smolagents[openai]"],
}
NODE = {
    "openai": ["openai"],
    "vercel": ["ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai", "zod"],
}


def serve(outrider):
    server = subprocess.Popen([outrider, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    if "listening at" not in line:
        sys.exit(f"outrider serve did not start: {line}")
    return server, line.split()[-1]


def command_of(client, work):
    """The script's command, with what it wants installed."""
    language, name = client.split(":")
    folder = work / f"{language}-{name}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)  # an installation that was cut short
        if language == "python":
            venv.create(folder, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "-q", *PYTHON[name]], check=True)
        else:
            folder.mkdir(parents=True)
            subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit", *NODE[name]], cwd=folder,
                           check=True)
        ready.touch()
    if language == "python":
        return [python, HERE / f"{name}_client.py"]
    script = folder / f"{name}_client.mjs"  # beside its modules, where node looks for them
    script.write_text((HERE / script.name).read_text())
    return ["node", script]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*",
                        default=[f"python:{name}" for name in PYTHON] + [f"node:{name}" for name in NODE])
    parser.add_argument("--outrider", default=REPOSITORY / "build" / "outrider", type=pathlib.Path)
    parser.add_argument("--work", default=REPOSITORY / "build" / "clients", type=pathlib.Path)
    arguments = parser.parse_args()
    server, url = serve(arguments.outrider.resolve())
    failed = []
    try:
        for client in arguments.clients:
            try:
                command = command_of(client, arguments.work.resolve())
            except (subprocess.CalledProcessError, FileNotFoundError) as error:
                print(f"{client}: cannot be installed here: {error}", flush=True)
                continue
            try:
                ended = subprocess.run(command, env={**os.environ, "OUTRIDER_URL": url}, timeout=300).returncode
            except subprocess.TimeoutExpired:
                ended = "not in 300 s"
            print(f"{client}: {'works' if ended == 0 else f'failed ({ended})'}", flush=True)
            if ended != 0:
                failed.append(client)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=20)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
