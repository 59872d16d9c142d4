#!/usr/bin/env python3
"""What do drafts lose when an assistant gets a lower rank, or is damped? Drafts of four along nano's greedy answers, by
the reference in numpy, float32: the same figures on every machine. Needs numpy.

    lab/benchmarks/altered_assistants.py [--questions recorded|heldout] [VARIANT...]

A VARIANT is rank:MATRICES:K, rank:MATRICES:K:SINKS or damping:S, as lab/alter_assistant.py has them; none: all that
docs/lab/compress.md shows. heldout: user turns of tests/goldens/heldout/chats.txt, for which tokenizers is needed too.
"""
import argparse
import json
import pathlib
import re
import sys
import tempfile

import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(SOURCE / "lab"), str(SOURCE / "tests/goldens")]
import alter_assistant  # noqa: E402
import reference  # noqa: E402

PAIR = SOURCE / "models/nano"
HELDOUT_QUESTIONS, MAX_TOKENS = 24, 96
RANKS = {"query": [96, 48, 32, 24, 16, 8, 4], "inputs": [176, 144, 96, 64, 32, 16], "all": [184, 176, 144, 96, 64, 32]}
# With sinks, as many numbers as without them in rank 48, 32, 32, 24, 96 and 64.
SINKS = ["query:38:16", "query:22:16", "query:27:8", "query:14:16", "inputs:83:16", "inputs:51:16"]
DAMPINGS = [-1, -0.5, -0.25, 0.1, 0.25, 0.35, 0.5, 1, 2, 3]


class Text:
    """A greedy answer, and the backbone's rows along all of it."""

    def __init__(self, backbone, prompt, answer):
        self.prompt_length, self.ids = len(prompt), prompt + answer
        output = backbone.forward(self.ids)
        self.hidden, self.kv = output.hidden_states[-1], output.shared_kv

    def before(self, position):
        """K and V of the positions before that one."""
        return {kind: tuple(rows[:, :position] for rows in pair) for kind, pair in self.kv.items()}


def texts(backbone, which):
    if which == "recorded":
        cases = json.loads((SOURCE / "tests/goldens/nano/generate_golden.json").read_text())
        return [Text(backbone, case["prompt_ids"], case["greedy"]) for case in cases]
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(PAIR / "backbone/tokenizer.json"))
    turns = re.findall(r"<\|turn>user\n.*?<turn\|>\n<\|turn>model\n",
                       (SOURCE / "tests/goldens/heldout/chats.txt").read_text(), re.S)
    prompts = [tokenizer.encode("<bos>" + turn, add_special_tokens=False).ids
               for turn in turns[::len(turns) // HELDOUT_QUESTIONS][:HELDOUT_QUESTIONS]]
    return [Text(backbone, prompt, reference.greedy(backbone, prompt, MAX_TOKENS)) for prompt in prompts]


def measure(assistant, backbone, text):
    """@return drafted, accepted, rounds and tokens of rounds of four; and the log-probability of every token."""
    drafted = accepted = rounds = tokens = 0
    log_probability, next_round = [], text.prompt_length
    for at in range(text.prompt_length, len(text.ids) - 1):
        kv, token, state, held, holds = text.before(at), text.ids[at], text.hidden[at - 1], 0, True
        for j in range(min(reference.DRAFTS_PER_ROUND, len(text.ids) - at - 2)):
            scores, state = assistant.step(backbone.embed(token), state, kv, at)
            if j == 0:
                wide = scores.astype(np.float64) - scores.max()
                log_probability.append(wide[text.ids[at + 1]] - np.log(np.exp(wide).sum()))
                if at != next_round:
                    break
            token = int(np.argmax(scores))
            drafted += 1
            holds = holds and token == text.ids[at + 1 + j]
            held += holds
            if token in backbone.stop_ids:
                break
        if at == next_round:
            accepted, rounds, tokens, next_round = accepted + held, rounds + 1, tokens + held + 1, at + held + 1
    return drafted, accepted, rounds, tokens, log_probability


def variant(checkpoint, name):
    """@return the tensors that differ, and the share of their numbers that a step would multiply in two products"""
    kind, *rest = name.split(":")
    if kind == "damping":
        return alter_assistant.damped(checkpoint, float(rest[0])), 1.0
    matrices, rank, sinks = rest[0], int(rest[1]), int(rest[2]) if len(rest) > 2 else 0
    result = alter_assistant.low_rank(checkpoint, rank, matrices, sinks)
    return result.changed, result.after / result.before


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", choices=["recorded", "heldout"], default="recorded")
    parser.add_argument("variants", nargs="*", metavar="VARIANT")
    flags = parser.parse_args()
    everything = ([f"rank:{matrices}:{k}" for matrices, ranks in RANKS.items() for k in ranks] +
                  [f"rank:{sinks}" for sinks in SINKS] + [f"damping:{s}" for s in DAMPINGS])
    backbone = reference.Backbone(PAIR / "backbone")
    asked = texts(backbone, flags.questions)
    checkpoint = alter_assistant.Checkpoint(PAIR / "assistant")
    print("| assistant | numbers | accepted of drafted | tokens a round | difference | perplexity |\n"
          "|---|---|---|---|---|---|")
    plain = None
    for name in ["as it is"] + (flags.variants or everything):
        changed, share = ({}, 1.0) if plain is None else variant(checkpoint, name)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.write(pathlib.Path(folder) / "altered", changed)
            assistant = reference.Assistant(pathlib.Path(folder) / "altered")
        rows = [measure(assistant, backbone, text) for text in asked]
        drafted, accepted, rounds, tokens = (sum(row[i] for row in rows) for i in range(4))
        rates = np.array([row[3] / row[2] for row in rows])
        plain = rates if plain is None else plain
        error = np.std(rates - plain, ddof=1) / len(rates) ** 0.5
        perplexity = np.exp(-np.mean(sum((row[4] for row in rows), [])))
        print(f"| {name} | {share:.2f} | {accepted} of {drafted}: {accepted / drafted:.3f} | {tokens / rounds:.2f} | "
              f"{np.mean(rates - plain):+.2f} ± {error:.2f} | {perplexity:.2f} |", flush=True)


if __name__ == "__main__":
    main()
