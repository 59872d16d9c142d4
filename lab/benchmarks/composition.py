#!/usr/bin/env python3
"""What do ways of drafting bring together? Every combination of shape, drafting ahead, draft vocabulary and wire, on
nano's recorded prompts: tokens a round, acceptance and speed-up, each beside plain decoding in the same run.

    lab/benchmarks/composition.py build/outrider [--limit N] [--max-tokens N]
"""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SHAPES = ["4@0", "4@8", "12@0", "12@8", "tree:15"]  # nobody drafts ahead of a tree
VOCABULARY_TOKENS = [None, 1000]
WIRES = ["exact", "int8"]


def run(arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=96)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        questions, vocabulary = folder / "questions.jsonl", folder / "vocabulary.txt"
        golden = json.loads((SOURCE / "tests/goldens/nano/generate_golden.json").read_text())
        questions.write_text("".join(json.dumps({"category": "nano", "turns": [q["prompt"]]}) + "\n" for q in golden))
        texts = sorted((SOURCE / "tests/goldens/heldout").glob("*.txt"))
        run([flags.program, "draft-vocabulary", *texts, "-o", vocabulary])
        most_used = vocabulary.read_text().split("\n")
        print("| shape | vocabulary | wire | tokens a round | accepted | times plain |\n|---|---|---|---|---|---|")
        for shape, size, wire in itertools.product(SHAPES, VOCABULARY_TOKENS, WIRES):
            arguments = [flags.program, "bench", "ask", questions, "--json", "--limit", flags.limit, "--max-tokens",
                         flags.max_tokens, "--draft-length", shape, "--wire", wire]
            if size is not None:
                vocabulary.write_text("\n".join(most_used[:size]) + "\n")
                arguments += ["--draft-vocabulary", vocabulary]
            row = json.loads(run(arguments))["categories"][-1]
            print(f"| `{shape}` | {size or 'all'} | {wire} | {row['tokens_per_round']:.2f} | {row['acceptance']:.2f} | "
                  f"{row['speedup']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
