#!/usr/bin/env python3
"""The JSON Schema Test Suite (draft 2020-12, its required part) against common/decoding/grammar: no instance that the suite calls
invalid may pass the grammar of its schema. A schema that cannot be followed must be refused; a valid instance may be
shut out, since grammars are narrower than schemas (the order of properties, none but those that are named), and is counted.

    json_schema_suite.py PROBE [CACHE]

PROBE is the program grammar_probe. The suite is the one in the source distribution of the Python package jsonschema, which
is fetched once into CACHE (~/.cache/outrider) and checked; without a network the exit status is 77 (skipped)."""

import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile

VERSION = "4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
FOLDER = "/json/tests/draft2020-12/"


def archive(cache):
    path = cache / f"jsonschema-{VERSION}.tar.gz"
    if not path.exists():
        pip = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "jsonschema",
                              "-d", str(cache), f"jsonschema=={VERSION}"], capture_output=True, text=True)
        if pip.returncode != 0:
            print(f"skipped: cannot fetch jsonschema {VERSION}: {pip.stderr.strip()}")
            sys.exit(77)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"{path}: wrong SHA-256")
    return tarfile.open(fileobj=io.BytesIO(data))


def groups(tar):
    """(file, group) of the required part: those that are in the folder itself."""
    for member in sorted(tar.getmembers(), key=lambda entry: entry.name):
        where, _, rest = member.name.partition(FOLDER)
        if rest.endswith(".json") and "/" not in rest:
            for group in json.load(tar.extractfile(member)):
                yield rest, group


def main():
    home = os.environ.get("OUTRIDER_CACHE") or pathlib.Path.home() / ".cache" / "outrider"
    cache = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else home)
    probe = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    followed, refused, shut_out, valid, invalid, wrong = {}, {}, [], 0, 0, []
    for name, group in groups(archive(cache)):
        texts = [json.dumps(test["data"]) for test in group["tests"]]
        probe.stdin.write(json.dumps({"schema": group["schema"], "instances": texts}) + "\n")
        probe.stdin.flush()
        reply = json.loads(probe.stdout.readline())
        if "error" in reply:
            refused.setdefault(name, []).append((group["description"], reply["error"]))
            continue
        followed[name] = followed.get(name, 0) + 1
        for test, text, accepted in zip(group["tests"], texts, reply["accepted"]):
            valid += test["valid"]
            invalid += not test["valid"]
            where = f"{name}: {group['description']}: {test['description']}: {text}"
            if accepted and not test["valid"]:
                wrong.append(where + " by " + json.dumps(group["schema"]))
            if test["valid"] and not accepted:
                shut_out.append(where)
    probe.stdin.close()
    probe.wait()
    number = sum(followed.values()), sum(len(list) for list in refused.values())
    print(f"{number[0]} schemas followed, {number[1]} refused; of those followed {invalid} invalid instances, "
          f"{len(wrong)} of them let through, and {valid} valid ones, {len(shut_out)} of them shut out")
    for line in wrong:
        print("LET THROUGH", line)
    if "--verbose" in sys.argv:
        for name, list in refused.items():
            for description, why in list:
                print("refused", name, description, "|", why)
        for line in shut_out:
            print("shut out", line)
    sys.exit(1 if wrong or number[0] < 100 else 0)


main()
