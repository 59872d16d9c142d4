#!/usr/bin/env python3
"""Records what Hugging Face tokenizers makes of seeded random texts: writes nano_cases.json.

Needs `pip install tokenizers` (0.23.3 wrote the file here). One case a line:
text; ids, with special tokens looked for; plain_ids, with special tokens taken as text (left out
where the same); decoded, of ids with nothing skipped (left out where it equals the text).
"""
import json
import pathlib
import random

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZER = HERE.parents[2] / "models/nano/backbone/tokenizer.json"
CASES = 400

WORDS = """the and of to a in is it you that story once upon time little river village return value
list json name age place Python git commit branch def class import lambda None True 1234 3.14 naïve
café über Straße _private __init__ x+y==z --flag `code` "quoted" it's http://example.com/a?b=c""".split()
ODD = ["▁", "\u00a0", "\u200d", "\u2028", "\ufeff", "\ufffd", "\x00", "\x7f", "\u0301", "漢", "字", "か",
       "한", "ا", "ש", "🙂", "🚀", "😀", "👩\u200d🚀", "🇫🇷", "𝑥", "\U0010ffff", "<0x41>", "<0x", "<", "|", ">"]
SPECIAL = ["<bos>", "<eos>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>",
           "<channel|>", "<unused5>", "<unused55>", "<unused", "<|turn", "turn|>", "<<bos>>", "<unk>", "<pad>"]


def text(rng: random.Random, vocab: list[str]) -> str:
    kinds = [
        lambda: rng.choice(WORDS),
        lambda: " " * rng.randint(1, 12),
        lambda: "\n" * rng.randint(1, 9),
        lambda: rng.choice(["\t", "\r\n", ". ", ", ", "? ", "-" * rng.randint(1, 40), "=" * rng.randint(1, 40)]),
        lambda: rng.choice(ODD),
        lambda: rng.choice(vocab).replace("▁", " "),
        lambda: "".join(rng.choice("abcdehinorst") for _ in range(rng.randint(1, 20))),
        lambda: chr(rng.choice([rng.randint(0, 0xFF), rng.randint(0, 0xD7FF), rng.randint(0xE000, 0x10FFFF)])),
        lambda: rng.choice(SPECIAL),
    ]
    # Most texts use a few kinds, so that each is seen next to itself.
    some = rng.sample(kinds, rng.randint(1, 4))
    return "".join(rng.choice(some)() for _ in range(rng.randint(1, 25)))


def main() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    vocab = sorted(tokenizer.get_vocab())
    rng = random.Random(7)
    lines = []
    for _ in range(CASES):
        case = {"text": text(rng, vocab)}
        tokenizer.encode_special_tokens = False
        case["ids"] = tokenizer.encode(case["text"], add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        plain_ids = tokenizer.encode(case["text"], add_special_tokens=False).ids
        if plain_ids != case["ids"]:
            case["plain_ids"] = plain_ids
        decoded = tokenizer.decode(case["ids"], skip_special_tokens=False)
        if decoded != case["text"]:
            case["decoded"] = decoded
        lines.append(json.dumps(case))
    (HERE / "nano_cases.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
