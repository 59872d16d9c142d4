#!/usr/bin/env python3
"""Trains nano's matrices onto q4's grid (w = d (q - 8), one d for 32 inputs), as Google's QAT checkpoints are: with nano
itself as the teacher, on text that nano writes. OUT is an "unquantized" checkpoint: bfloat16 that lies exactly on the
grid (d has 5 significant bits, so that 7 d is a bfloat16). Tables and norms stay. One GPU, some 5 minutes in all.

usage: train_qat.py NANO OUT [--seconds 180] [TEXT ...]     (torch, transformers 5.17, tokenizers, safetensors)

Steps d are trained as in LSQ (arXiv 1902.08153); text and targets from the model itself are LLM-QAT's (arXiv 2305.17888).
"""
import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.func import functional_call
from transformers import DynamicCache, Gemma4ForCausalLM, Gemma4TextConfig

GROUP, BOS, PREFIX = 32, 2, "model.language_model."
SHARD_BYTES = 15_000_000


def load_text_model(folder, device):
    config = Gemma4TextConfig(**json.loads((folder / "config.json").read_text())["text_config"])
    config._attn_implementation = "sdpa"
    model = Gemma4ForCausalLM(config)
    tensors = {"model." + name.removeprefix(PREFIX): tensor
               for name, tensor in load_file(folder / "model.safetensors").items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.float().to(device).requires_grad_(False).eval()


def half_precision(device):
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def forward(model, weights, tokens):
    """@param weights  replace the model's, by name. @return float32 logits [batch, length, vocabulary]"""
    at = torch.arange(tokens.shape[1], device=tokens.device)
    sliding = (at <= at[:, None]) & (at > at[:, None] - model.config.sliding_window)
    masks = {"full_attention": None, "sliding_attention": sliding[None, None]}
    call = {"input_ids": tokens, "attention_mask": masks, "use_cache": False}
    return functional_call(model, weights, (), call).logits.float()


@torch.no_grad()
def write_text(model, batch, length):
    """Samples text from <bos> on, at temperature 1. @return tokens [batch, length]"""
    tokens = torch.full((batch, 1), BOS, device=model.device)
    cache, written = DynamicCache(config=model.config), [tokens]
    while len(written) < length:
        with half_precision(model.device):
            logits = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits[:, -1].float()
        tokens = torch.multinomial(logits.softmax(-1), 1)
        written.append(tokens)
    return torch.cat(written, 1)


def round_step(d):
    """Rounds to 5 significant bits."""
    mantissa, exponent = torch.frexp(d)
    return torch.ldexp(torch.round(mantissa * 32) / 32, exponent)


def straight_through(value, rounded):
    """@return `rounded`, with the gradient of `value`"""
    return value + (rounded - value).detach()


def first_steps(groups):
    """@param groups [outputs, n, 32]. @return d [outputs, n, 1] of the least squared error beside Q4_0's"""
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    best, least = None, None
    for steps in (-9, -8.5, -8, -7.5, -7, -6.5, -6):
        d = round_step(torch.where(largest == 0, 2.0 ** -20, largest / steps))
        error = (d * (groups / d).round().clamp(-8, 7) - groups).square().sum(2, keepdim=True)
        best = d if best is None else torch.where(error < least, d, best)
        least = error if least is None else torch.minimum(error, least)
    return best


class OnGrid(torch.nn.Module):
    """A weight on the grid."""

    def __init__(self, weight):
        super().__init__()
        self.shape = weight.shape
        self.groups = torch.nn.Parameter(weight.view(weight.shape[0], -1, GROUP).clone())
        self.first = torch.nn.Buffer(first_steps(self.groups.detach()))
        self.log_scale = torch.nn.Parameter(torch.zeros_like(self.first))

    def forward(self):
        free = self.first * self.log_scale.exp()
        d = straight_through(free, round_step(free.detach()))
        codes = (self.groups / d).clamp(-8, 7)
        return (d * straight_through(codes, codes.round())).view(self.shape)


@torch.no_grad()
def measure(name, teacher, weights, texts, tokenizer):
    """Prints the KL divergence from nano over the second halves of windows of 512 tokens that begin with <bos>, as
    `outrider perplexity` does, in float32."""
    for text in texts:
        ids = tokenizer.encode(text.read_text(), add_special_tokens=False).ids
        windows = torch.tensor([[BOS] + ids[i:i + 511] for i in range(0, len(ids) - 510, 511)], device=teacher.device)
        kld = loss = same = count = 0
        for window in windows.split(16):
            base, ours = (forward(teacher, w, window).log_softmax(-1)[:, 255:-1] for w in ({}, weights))
            kld += (base.exp() * (base - ours)).sum().item()
            loss += F.nll_loss(ours.flatten(0, 1), window[:, 256:].flatten(), reduction="sum").item()
            same += (base.argmax(-1) == ours.argmax(-1)).sum().item()
            count += window.shape[0] * 256
        print(f"{name}, {text.name}: mean KLD from nano {kld / count:.6f}, same top {100 * same / count:.2f} %, "
              f"perplexity {math.exp(loss / count):.4f}, {count} tokens", flush=True)


def train(teacher, grids, text, options):
    names = list(grids)

    def step(tokens):
        with half_precision(tokens.device):
            ours = forward(teacher, {name: grids[name]() for name in names}, tokens)
            with torch.no_grad():
                target = forward(teacher, {}, tokens).log_softmax(-1)
        return F.kl_div(ours.log_softmax(-1).flatten(0, 1), target.flatten(0, 1), log_target=True, reduction="batchmean")

    modules = grids.values()
    optimizer = torch.optim.AdamW([{"params": [m.groups for m in modules], "peak": options.rate},
                                   {"params": [m.log_scale for m in modules], "peak": options.rate}],
                                  betas=(0.9, 0.95), weight_decay=0.0)
    start, steps, shown = None, 0, 0.0
    while True:
        rows = torch.randint(len(text), (options.batch,), device=text.device)
        loss = step(text[rows])
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for m in modules for p in m.parameters()], 1.0)
        done = min(1.0, (time.time() - start) / options.seconds) if start else 0.0
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * min(1, (steps + 1) / 50) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        start, steps = start or time.time(), steps + 1
        if done >= shown:
            print(f"step {steps}, {done:.0%}: KLD {loss.item():.4f} on its own text", flush=True)
            shown += 0.05
        if done >= 1:
            return


def save(folder, nano, grids):
    """Writes shards of at most SHARD_BYTES, as save_pretrained does."""
    tensors = load_file(nano / "model.safetensors")
    for name, grid in grids.items():
        weight = grid().detach().cpu()
        tensors[PREFIX + name.removeprefix("model.")] = half = weight.to(torch.bfloat16)
        assert torch.equal(half.float(), weight), name
    shards, size = [{}], 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > SHARD_BYTES:
            shards, size = shards + [{}], 0
        shards[-1][name] = tensor.contiguous()
        size += tensor.nbytes
    files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for file, shard in zip(files, shards):
        save_file(shard, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
             "weight_map": {name: file for file, shard in zip(files, shards) for name in shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nano", type=Path, metavar="NANO", help="models/nano/backbone")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("texts", nargs="*", type=Path, metavar="TEXT", help="held-out text to measure on")
    parser.add_argument("--seconds", type=float, default=180, help="of training")
    parser.add_argument("--rows", type=int, default=4096, help="windows of text that nano writes")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a window")
    parser.add_argument("--batch", type=int, default=64, help="windows of a step")
    parser.add_argument("--rate", type=float, default=3e-4)
    options = parser.parse_intermixed_args()
    torch.manual_seed(44)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.out.mkdir(parents=True, exist_ok=True)
    teacher = load_text_model(options.nano, device)
    tokenizer = Tokenizer.from_file(str(options.nano / "tokenizer.json"))

    start = time.time()
    text = torch.cat([write_text(teacher, min(2048, options.rows), options.length)
                      for _ in range(0, options.rows, 2048)])
    print(f"{text.numel()} tokens of text in {time.time() - start:.0f} s, begins {tokenizer.decode(text[0, :40].tolist())!r}",
          flush=True)

    matrices = {name: p for name, p in teacher.named_parameters() if p.dim() == 2 and "embed" not in name}
    grids = torch.nn.ModuleDict({name.replace(".", "/"): OnGrid(p) for name, p in matrices.items()})
    grids = {name.replace("/", "."): grid for name, grid in grids.items()}
    print(f"{len(grids)} matrices, {sum(p.numel() for p in matrices.values())} weights", flush=True)

    def weights():
        with torch.no_grad():
            return {name: grid() for name, grid in grids.items()}

    measure("rounded", teacher, weights(), options.texts, tokenizer)
    train(teacher, grids, text, options)
    measure("trained", teacher, weights(), options.texts, tokenizer)
    save(options.out, options.nano, grids)


if __name__ == "__main__":
    main()
