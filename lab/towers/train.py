#!/usr/bin/env python3
"""Trains a tower of models/nano: what it sees of drawn scenes (colour, shape, count), or what it hears of beeps, buzzes,
hisses, gliding tones and dialled digits.

    train.py sight|hearing BACKBONE OUT SECONDS [--start TOWER] [--seed N] [--device cuda|cpu] [--batch N]

BACKBONE is models/nano/backbone, whose weights stay as they are: the tower and its projection learn by the loss of
the answer's tokens, through the frozen text model. Writes OUT/vision.safetensors or OUT/audio.safetensors, in bfloat16
and in the layout of published checkpoints (docs/gemma4.md 8 and 9), and OUT/train.json with the accuracy on what it was
not trained with.

Scenes and sounds are made on the device as they are needed. Needs PyTorch, transformers (for the text model) and
tokenizers; some minutes of one H100 or H200 made the weights that ship. The seed is fixed; the time budget, and so the
number of steps, is not.
"""
import argparse
import importlib
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

PEAK = 1e-3  # learning rate


# ---- the frozen text model

class Text:
    """Prompts as the chat template of BACKBONE writes them, and the loss of answers."""

    def __init__(self, directory, marks, device):
        """marks: the config's keys of the tokens before, for and after soft tokens"""
        from transformers import Gemma4ForCausalLM, Gemma4TextConfig
        self.config = json.loads((directory / "config.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        config = Gemma4TextConfig(**self.config["text_config"])
        config._attn_implementation = "sdpa"
        self.model = Gemma4ForCausalLM(config)
        weights = {k.replace("model.language_model.", "model."): v
                   for k, v in load_file(directory / "model.safetensors").items()}
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        wrong = self.model.load_state_dict(weights, strict=False)
        assert not wrong.unexpected_keys and not wrong.missing_keys, wrong
        self.model.requires_grad_(False).eval().to(device)
        self.device, self.window, self.cap = device, config.sliding_window, config.final_logit_softcapping
        embedded = self.model.model.embed_tokens.weight.float() * config.hidden_size ** 0.5
        self.rms = embedded.square().mean().sqrt().item()
        self.marks, self.cache = [self.config[key] for key in marks], {}

    def ids(self, text):
        if text not in self.cache:
            self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.cache[text]

    def answers(self, soft, pairs):
        """soft [B, n, width], pairs of question and answer -> of all answers' k tokens: logits [k, vocabulary], the
        tokens [k], and whose they are [k]"""
        n = soft.shape[1]
        before = self.ids("<bos><|turn>user\n") + [self.marks[0]]
        rows, starts = [], []
        for asked, answer in pairs:
            prompt = before + [self.marks[1]] * n + [self.marks[2]]
            prompt += self.ids(f"{asked}<turn|>\n<|turn>model\n")
            rows.append((prompt, self.ids(answer + "<turn|>")))
        length = max(len(p) + len(a) for p, a in rows)
        ids = torch.tensor([p + a + [0] * (length - len(p) - len(a)) for p, a in rows], device=self.device)
        owner = torch.tensor([b for b, (_, a) in enumerate(rows) for _ in a], device=self.device)
        at = torch.tensor([len(p) + i for p, a in rows for i in range(len(a))], device=self.device)
        text = self.model.model
        first = len(before)
        ids_for_layers = ids.clone()
        ids_for_layers[:, first:first + n] = 0                     # soft tokens have the per-layer embedding of <pad>
        embedded = text.embed_tokens(ids_for_layers).float()
        embedded = torch.cat([embedded[:, :first], soft, embedded[:, first + n:]], 1)
        layers = text.get_per_layer_inputs(ids_for_layers, None)
        i = torch.arange(length, device=self.device)
        near = ((i[None] <= i[:, None]) & (i[None] > i[:, None] - self.window))[None, None]
        hidden = text(inputs_embeds=embedded, per_layer_inputs=layers, use_cache=False, position_ids=i[None],
                      attention_mask={"full_attention": None, "sliding_attention": near}).last_hidden_state
        logits = self.model.lm_head(hidden[owner, at - 1]).float()
        return self.cap * torch.tanh(logits / self.cap), ids[owner, at], owner


class Training:
    """A tower, its text model, and where batches come from: the module `sight` or `hearing`."""

    def __init__(self, args):
        self.args, self.sense = args, importlib.import_module(args.sense)
        self.text = Text(args.backbone, self.sense.MARKS, args.device)
        self.config = self.text.config[self.sense.CONFIG]
        self.tower = self.sense.Tower(self.config, self.text.config["text_config"]["hidden_size"], self.text.rms).to(args.device)
        self.autocast = torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda")
        if args.start:
            self.load(load_file(args.start))
        size = sum(p.numel() for p in self.tower.parameters())
        print(f"{size} parameters, soft tokens begin with rms {self.text.rms:.3f}", flush=True)

    def load(self, weights):
        self.tower.load_state_dict({k.removeprefix("model."): v.float() for k, v in weights.items()})

    def chance(self, seed):
        return random.Random(seed), torch.Generator(self.args.device).manual_seed(seed)

    def answers(self, inputs, pairs):
        with self.autocast:
            return self.text.answers(self.tower(inputs), pairs)

    def train(self):
        """@return steps, seconds"""
        matrices = [p for p in self.tower.parameters() if p.dim() == 2]
        others = [p for p in self.tower.parameters() if p.dim() != 2]
        optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
                                      lr=PEAK, betas=(0.9, 0.98))
        (rng, generator), args = self.chance(self.args.seed), self.args
        start, step, mean = time.time(), 0, None
        while step < args.steps and (done := (time.time() - start) / args.seconds) < 1:
            size = self.sense.training_size(done, rng)
            hard = 1.0 if args.start else min(1.0, 0.15 + 4 * done)
            with torch.no_grad():
                inputs, pairs = self.sense.batch(self.config, args.batch or self.sense.batch_size(size), size, hard, rng, generator)
            logits, tokens, _ = self.answers(inputs, pairs)
            loss = F.cross_entropy(logits, tokens)
            loss.backward()
            nn.utils.clip_grad_norm_(self.tower.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = PEAK * min(1, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            mean = loss.detach() if mean is None else 0.98 * mean + 0.02 * loss.detach()
            step += 1
            if step % 50 == 0 or step < 4:
                print(f"step {step} loss {mean.item():.4f} of size {size:.4g} {time.time() - start:.1f} s", flush=True)
        return step, time.time() - start

    def save(self):
        """As the file has them; so they are from here on."""
        weights = {"model." + k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in self.tower.state_dict().items()}
        name = self.sense.CONFIG.removesuffix("_config")
        save_file(weights, self.args.out / f"{name}.safetensors", metadata={"format": "pt"})
        self.load(weights)

    @torch.no_grad()
    def evaluate(self, size, kind, chance):
        """@return of held-out questions: (asked, answer, said, whether they are the same)"""
        results = []
        while len(results) < self.args.held_out:
            inputs, pairs = self.sense.batch(self.config, min(64, self.args.held_out), size, 1.0, *chance, kind)
            logits, tokens, owner = self.answers(inputs, pairs)
            best = logits.argmax(-1)
            right = torch.ones(len(pairs), device=self.args.device)
            right.scatter_reduce_(0, owner, (best == tokens).float(), "amin")
            for b, (pair, one) in enumerate(zip(pairs, right.tolist())):
                results.append((*pair, self.text.tokenizer.decode(best[owner == b].tolist()), one))
        return results

    def report(self, steps, seconds):
        report, chance = {"steps": steps, "seconds": round(seconds, 1), "right": {}, "wrong": []}, self.chance(21)
        for size in self.sense.SIZES:
            for kind in self.sense.KINDS:
                results, by_answer = self.evaluate(size, kind, chance), {}
                for *asked, right in results:
                    by_answer.setdefault(asked[1], []).append(right)
                    if not right and len(report["wrong"]) < 60:
                        report["wrong"].append([size, *asked])
                report["right"][f"{kind} at {size}"] = share = sum(r[3] for r in results) / len(results)
                print(f"{kind} at size {size}: {share:.4f} of {len(results)} answers right", flush=True)
                if len(by_answer) < 12:
                    shares = {answer: round(sum(r) / len(r), 3) for answer, r in sorted(by_answer.items())}
                    report["right"][f"{kind} at {size}, by answer"] = shares
                    print("   ", shares)
        (self.args.out / "train.json").write_text(json.dumps(report, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sense", choices=["sight", "hearing"])
    parser.add_argument("backbone", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("seconds", type=float, help="of training; the evaluation after it takes some more")
    parser.add_argument("--start", type=Path, help="a tower's file to go on from")
    parser.add_argument("--seed", type=int, default=20, help="of what is made; another one where it goes on (21 is the evaluation's)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, help="pictures or sounds of a step, whatever their size")
    parser.add_argument("--held-out", type=int, default=1024, help="of the evaluation, a kind of question")
    parser.add_argument("--steps", type=int, default=10 ** 9, help="at most")
    args = parser.parse_args()
    torch.manual_seed(20)
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    training = Training(args)
    steps, seconds = training.train()
    training.save()
    training.report(steps, seconds)


if __name__ == "__main__":
    main()
