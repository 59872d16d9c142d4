#!/usr/bin/env python3
"""Runs llama.cpp's or vLLM's own tests of a server against `outrider serve` with the nano pair.

    run.py llama|vllm --outrider build/outrider --work build/suites [pytest's arguments]

Their tests come from a source distribution on PyPI, whose hash is checked, and stay in the work folder. What is changed
in them is said in ADAPTED below: paths, the model's name, and what text and numbers of tokens another model gives. A
case that fails must stand in expected_failures_SUITE.txt, with the reason, and one that stands there must fail.
"""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import venv

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]

SUITES = {
    "llama": {
        "project": "llama-cpp-python",
        "file": "llama_cpp_python-0.3.36.tar.gz",
        "sha256": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "folder": "vendor/llama.cpp/tools/server/tests",
        # The others want embeddings, reranking, infill, adapters, pictures, other models' templates, a router, tools
        # that the server runs, or its slots' files.
        "cases": ["unit/test_" + name + ".py" for name in (
            "basic", "chat_completion", "compat_anthropic", "compat_oai_responses", "completion", "ctx_shift",
            "ignore_eos", "security", "tokenize", "tool_call")],
        "arguments": ["-m", "not slow"],
        "key": "sk-this-is-the-secret-key",
        "packages": ["pytest", "pytest-timeout", "requests", "openai"],
    },
    "vllm": {
        "project": "vllm",
        "file": "vllm-0.33.0.tar.gz",
        "sha256": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
        "folder": "tests",
        # Those that ask a server over HTTP for text.
        "cases": ["entrypoints/" + name for name in (
            "anthropic/test_messages.py", "openai/chat_completion/test_chat.py",
            "openai/chat_completion/test_chat_completion.py",
            "openai/chat_completion/test_chat_echo.py", "openai/chat_completion/test_chat_logit_bias_validation.py",
            "openai/chat_completion/test_completion_with_function_calling.py",
            "openai/chat_completion/test_enable_force_include_usage.py",
            "openai/chat_completion/test_include_reasoning.py", "openai/chat_completion/test_logprob_token_ids.py",
            "openai/chat_completion/test_root_path.py", "openai/completion/test_completion.py",
            "openai/completion/test_prompt_validation.py", "openai/completion/test_token_in_token_out.py",
            "openai/models/test_models.py", "openai/responses/test_basic.py",
            "openai/responses/test_function_call.py", "openai/responses/test_simple.py",
            "openai/responses/test_stateful.py", "openai/responses/test_structured_output.py",
            "openai/test_chunked_prompt.py", "openai/test_return_token_ids.py",
            "openai/test_return_tokens_as_ids.py", "serve/instrumentator/test_basic.py",
            "serve/tokenize/test_tokenization.py")],
        "arguments": ["-o", "asyncio_mode=auto"],
        "key": "abc-123",
        "packages": ["pytest", "pytest-asyncio", "pytest-timeout", "requests", "httpx2", "openai", "anthropic",
                     "jsonschema", "regex", "tokenizers"],
    },
}

WIT = "nano "  # so begins the reason of a case that only another model could pass

# (suite, pattern, replacement), on every test file.
ADAPTED = [
    ("llama", r'model="(gpt|davinci)[^"]*"', 'model="nano"'),
    ("llama", r'== "llama-test-model"', '== "nano"'),
    ("llama", r'server\.model_alias$', '"nano"'),
    ("llama", r'== n_prompt$', '> 0'),                                   # another tokenizer
    ("llama", r'"<s> " \+ prompt', '"<bos>" + prompt'),
    ("llama", r'bosId = 1\b', 'bosId = 2'),
    ("llama", r'assert match_regex\(.*$', 'pass'),                       # another model's text
    ("llama", r'assert len\(res\.body\["content"\]\) > 10$', 'pass'),     # it may end at once
    ("llama", r'"/completions"', '"/completion"'),                       # here the former is OpenAI's
    # OpenAI's first delta of a stream has "", theirs null.
    ("llama", r'(delta(?:"\]\["|\.)content(?:"\])?) is None', r'\1 in (None, "")'),
    ("llama", r"(choice\['delta'\]\.get\('content'\)) is not None:", r"\1:"),
    ("llama", r'-?\b128, (("\(Aside[^"]*", )104), 128', r'8, \1, 8'),         # nano ends earlier
    # Gemma's template.
    ("llama", r'"<s> <\|start_header_id\|>system[^"]*"',
     r'"<bos><|turn>system\\nBook<turn|>\\n<|turn>user\\nWhat is the best book<turn|>\\n<|turn>model\\n"'),
    ("llama", r'<\|start_header_id\|>user<[^"]*assistant<\|end_header_id\|>\\n\\nWhill',
     r'<|turn>user\\nWhat is the best book<turn|>\\n<|turn>model\\nWhill'),
    ("llama", r'"<\|START_OF_TURN_TOKEN\|>[^"]*"',
     r'"<bos><|turn>system\\nYou are a test.<turn|>\\n<|turn>user\\nHi there<turn|>\\n<|turn>model\\n"'),
    ("vllm", r'^MODEL_NAME = .*', 'MODEL_NAME = "nano"'),
    ("vllm", r'"HuggingFaceH4/zephyr-7b-beta"|"claude-3-7-sonnet-latest"', '"nano"'),
    ("vllm", r', "zephyr-lora"\]', ']'),                                  # an adapter of that model
    ("vllm", r'"openai-community/gpt2"|"Qwen/Qwen3-0.6B"', '"nano"'),
    # Another model's template, text and counts.
    ("vllm", r'<\|im_start\|>system\\n', r'<bos><|turn>system\\n'),
    ("vllm", r'<\|im_end\|>\\n<\|im_start\|>assistant\\n', r'<turn|>\\n<|turn>model\\n'),
    ("vllm", r'<\|im_end\|>', '<turn|>'),
    ("vllm", r'^( *)assert "(312|30|QED|Mark|John)" (not )?in .*$', r'\1pass'),
    ("vllm", r'^( *)assert (event(\[|\.)|len\(participants\)|participants\[).*$', r'\1pass'),
    ("vllm", r'assert content == "2"', 'assert content'),
    ("vllm", r'assert loaded == \{"result": 2\}', 'assert isinstance(loaded, dict)'),
    ("vllm", r'usage == openai\.types\.CompletionUsage\(\s+completion_tokens=5, [^)]*\)',
     'usage.completion_tokens == 5'),
    ("vllm", r'usage\.prompt_tokens == 5$', 'usage.prompt_tokens > 0'),
    ("vllm", r'usage\.total_tokens == 10$', 'usage.total_tokens > 5'),
    ("vllm", r'("Hello, my name is", )\[0, 0, 0, 0, 0\]', r'\1[366, 366, 366, 366, 366]'),  # "!" of either model
    ("vllm", r'tokenizer\.encode\(text\)$', 'tokenizer.encode(text, add_special_tokens=False)'),  # which has no <bos>
    ("vllm", r'"prompt": "Give me a long story",', r'\g<0> "ignore_eos": True,'),  # nano's is over in 0.1 s
    # Other words of errors.
    ("vllm", r'"(greater|less)_than_equal" in', '"seed" in'),
    ("vllm", r'Either prompt or prompt_embeds must be provided and non-empty\.', 'prompt'),
    ("vllm", r'out of vocabulary', 'wanted token ids'),
]


def say(text):
    print(text, flush=True)


def fetch(suite, work):
    """The unpacked folder of the suite's tests, as they came."""
    archive = work / suite["file"]
    if not archive.exists():
        page = urllib.request.urlopen(f"https://pypi.org/simple/{suite['project']}/", timeout=60).read().decode()
        link = re.search(r'href="([^"#]*' + re.escape(suite["file"]) + ')#', page).group(1)
        say(f"fetching {link}")
        archive.write_bytes(urllib.request.urlopen(link, timeout=600).read())
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != suite["sha256"]:
        sys.exit(f"{archive}: SHA-256 is {found}, wanted {suite['sha256']}")
    unpacked = work / archive.name.removesuffix(".tar.gz")
    if not unpacked.exists():
        with tarfile.open(archive) as files:
            prefix = f"{unpacked.name}/{suite['folder']}/"
            files.extractall(work, [file for file in files if file.name.startswith(prefix)], filter="data")
    return unpacked / suite["folder"]


def adapt(name, suite, source, to):
    """Copies the test files with what ADAPTED says."""
    rules = [(re.compile(pattern, re.MULTILINE), new) for suite_name, pattern, new in ADAPTED if suite_name == name]
    for file in source.rglob("*.py"):
        relative = file.relative_to(source)
        if relative.name == "conftest.py" and name == "llama":
            continue  # it downloads models
        if name == "vllm" and relative.parts[0] not in ("entrypoints", "__init__.py"):
            continue
        text = file.read_text()
        for pattern, new in rules:
            text = pattern.sub(new, text)
        target = to / ("tests" if name == "vllm" else ".") / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return to


def environment(name, suite, work):
    """A Python with what the tests want."""
    folder = work / f"venv-{name}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)  # an installation that was cut short
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *suite["packages"]], check=True)
        ready.touch()
    return python


def serve(outrider, *options):
    """A server and its port."""
    server = subprocess.Popen([outrider, "serve", "--port", "0", "--served-model-name", "nano", *options],
                              stdout=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    if "listening at" not in line:
        sys.exit(f"outrider serve did not start: {line}")
    return server, line.rsplit(":", 1)[1].strip()


def expected_failures(name):
    """Case -> reason."""
    lines = (HERE / f"expected_failures_{name}.txt").read_text().splitlines()
    return dict(line.split(" # ", 1) for line in lines if line and not line.startswith("#"))


def outcomes(report):
    """Case -> whether it passed; cases that were skipped are not there."""
    lines = [line.rstrip("\n").split(" ", 1) for line in report.read_text().splitlines()]
    return {case: outcome == "passed" for outcome, case in lines if outcome != "skipped"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--outrider", default=REPOSITORY / "build" / "outrider", type=pathlib.Path)
    parser.add_argument("--work", default=REPOSITORY / "build" / "suites", type=pathlib.Path)
    arguments, others = parser.parse_known_args()
    suite, work = SUITES[arguments.suite], arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    tests = adapt(arguments.suite, suite, fetch(suite, work), work / f"adapted-{arguments.suite}")
    python = environment(arguments.suite, suite, work)
    report = work / f"outcomes-{arguments.suite}.txt"
    report.unlink(missing_ok=True)
    plain, port = serve(arguments.outrider.resolve(), "--allowed-origin", "*")
    guarded, guarded_port = serve(arguments.outrider.resolve(), "--allowed-origin", "*", "--root-path", "/llm",
                                  "--api-key", suite["key"])
    try:
        variables = {**os.environ, "OUTRIDER_PORT": port, "OUTRIDER_GUARDED_PORT": guarded_port,
                     "OUTRIDER_OUTCOMES": str(report), "OUTRIDER_MODEL": str(REPOSITORY / "models/nano/backbone"),
                     "PYTHONPATH": f"{HERE}:{tests}"}
        prefix = "tests/" if arguments.suite == "vllm" else ""
        subprocess.run([python, "-m", "pytest", "-q", "--rootdir", tests, "--timeout", "120",
                        "-p", f"{arguments.suite}_adapter", "-p", "no:cacheprovider", *suite["arguments"],
                        *(others or [prefix + case for case in suite["cases"]])],
                       cwd=tests, env=variables, check=False)
    finally:
        for server in (plain, guarded):
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=20)
    ran, expected = outcomes(report), expected_failures(arguments.suite)
    failed = sorted(case for case, passed in ran.items() if not passed)
    surprises = [case for case in failed if case not in expected]
    mended = [case for case in expected if ran.get(case, False)]
    wit = [case for case in failed if expected.get(case, "").startswith(WIT)]
    say(f"{arguments.suite}: {sum(ran.values())} of {len(ran)} cases pass, {len(failed)} fail, "
        f"{len(wit)} of these for want of another model")
    for case in surprises:
        say(f"failed and was not expected to: {case}")
    for case in mended:
        say(f"passes and was expected to fail: {case}")
    return 1 if surprises or mended else 0


if __name__ == "__main__":
    sys.exit(main())
