#!/usr/bin/env python3
"""Trains drafters of models/nano: a whole Gemma 4 that is smaller (models/pico), and its own assistant.

    train.py BACKBONE OUT PHASE... [--seconds N] [--seed N] [--device cuda|cpu] [--batch N]

PHASE is one of, each within --seconds:
    text        OUT/text.npy: what the backbone writes, from <bos> on. Within an answer some streams take the likeliest
                token and others draw, as sequences in use do.
    model       OUT/pico/backbone, distilled from the backbone's distribution at each token of the text.
    assistant   OUT/pico/assistant, distilled from pico's in the same way.
Nothing but the backbone is read, so no corpus is needed. The weights are bfloat16, in the layout of published
checkpoints (docs/gemma4.md). Each phase prints how long the runs of drafts are that the backbone would accept.

Needs PyTorch, transformers and tokenizers. Ten minutes of one H100 made the weights that ship. The seed is fixed; the
time budget, and so the number of steps, is not.
"""
import argparse
import json
import math
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4Config, Gemma4ForCausalLM,
                          Gemma4TextConfig, GenerationConfig, LogitsProcessor, LogitsProcessorList)

LENGTH = 640  # tokens of a stream
WINDOW = 128
DRAFTS = 8    # of a round, for the figures that are printed
BOS, TURN_END = 2, 106


def load(directory, device):
    config = Gemma4TextConfig(**json.loads((directory / "config.json").read_text())["text_config"])
    config._attn_implementation = "sdpa"
    model = Gemma4ForCausalLM(config)
    weights = {k.replace("model.language_model.", "model."): v
               for k, v in load_file(directory / "model.safetensors").items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    wrong = model.load_state_dict(weights, strict=False)
    assert not wrong.unexpected_keys and not wrong.missing_keys, wrong
    return model.requires_grad_(False).eval().to(device, torch.bfloat16)


# ---- text

class AnswersCoolDown(LogitsProcessor):
    """In an answer, the scores are divided by the stream's temperature."""

    def __init__(self, mark, temperatures):
        self.mark, self.temperatures = mark, temperatures
        self.inside = torch.zeros(len(temperatures), dtype=torch.bool, device=temperatures.device)

    def __call__(self, ids, scores):
        if ids.shape[1] >= len(self.mark):
            self.inside |= (ids[:, -len(self.mark):] == self.mark).all(1)
        self.inside &= ids[:, -1] != TURN_END
        return torch.where(self.inside[:, None], scores / self.temperatures[:, None], scores)


def write_text(args):
    model = load(args.backbone, args.device)
    torch.backends.cuda.enable_cudnn_sdp(False)  # makes a plan for each length, which takes longer than the text
    tokenizer = Tokenizer.from_file(str(args.backbone / "tokenizer.json"))
    encode = lambda text: torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids, device=args.device)
    starts = [encode("<bos><|turn>user\n"), encode("<bos><|turn>user\n"), encode("<bos>")]
    temperatures = torch.tensor([0.02, 0.02, 0.7, 1.0], device=args.device).repeat(args.batch // 4)
    begin, streams = time.time(), []
    while not streams or time.time() - begin < args.seconds:
        start = starts[len(streams) % len(starts)]
        generation = GenerationConfig(do_sample=True, top_k=0, top_p=1.0, temperature=1.0, bos_token_id=BOS,
                                      eos_token_id=-1, pad_token_id=0, max_length=LENGTH + 1)
        cool = AnswersCoolDown(encode("<|turn>model\n"), temperatures)
        with torch.no_grad():
            ids = model.generate(input_ids=start[None].repeat(len(temperatures), 1), generation_config=generation,
                                 logits_processor=LogitsProcessorList([cool]))
        streams.append(ids.cpu().numpy().astype(np.uint16))
        print("streams", sum(map(len, streams)), "after", round(time.time() - begin, 1), "s", flush=True)
    streams = np.concatenate(streams)
    assert (streams == 0).mean() < 0.001, "streams end before they are full"
    print(repr(tokenizer.decode(streams[0], skip_special_tokens=False)[:600]))
    np.save(args.out / "text.npy", streams)


def streams_of(args):
    """All but the last 256, to learn from, and those that take the likeliest token among the last."""
    streams = np.load(args.out / "text.npy")
    held = streams[-256:].reshape(-1, 4, LENGTH + 1)[:, :2].reshape(-1, LENGTH + 1)
    return streams[:-256], torch.from_numpy(held.astype(np.int64)).to(args.device)


# ---- learning

class Masks:
    def __init__(self, device):
        self.at = torch.arange(LENGTH, device=device)
        self.sliding = self.window(self.at, self.at[:, None], 0)

    @staticmethod
    def window(key, query, shift):
        return ((key[None] <= query) & (key[None] > query - WINDOW - shift))[None, None]

    def forward(self, model, ids, **options):
        masks = {"full_attention": None, "sliding_attention": self.sliding}
        return model(input_ids=ids, attention_mask=masks, use_cache=False, **options)


def learn(parameters, batches, loss_of, seconds, peak):
    """Minimises loss_of(batch) -> (loss, agreement) for so many seconds."""
    matrices, vectors = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05},
                                   {"params": vectors, "weight_decay": 0.0}], lr=peak, betas=(0.9, 0.95), fused=True)
    begin, agreement = time.time(), None
    for step, batch in enumerate(batches):
        done = min(1, (time.time() - begin) / seconds)
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        loss, agree = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        agreement = agree if agreement is None else 0.98 * agreement + 0.02 * agree
        if step % 100 == 0:
            print("step", step, "loss", round(loss.item(), 4), "agreement", [round(v, 3) for v in agreement.tolist()],
                  "after", round(time.time() - begin, 1), "s", flush=True)
        if done >= 1:
            return


def batches_of(streams, args):
    generator = np.random.default_rng(args.seed)
    while True:
        rows = streams[generator.integers(0, len(streams), args.rows)].astype(np.int64)
        yield torch.from_numpy(rows).pin_memory().to(args.device, non_blocking=True)


def divergence(target, scores):
    """Mean KL divergence of the student's distribution from the teacher's, up to the teacher's entropy."""
    return -(target.softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()


def scale_queries(model):
    """Attention of Gemma 4 has no factor of its own: the weights of its norm are it."""
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.q_norm.weight, layer.self_attn.head_dim ** -0.5)


def accepted_run(right):
    """right [streams, tokens]: of the drafts that follow each token, at most DRAFTS, how many the backbone accepts."""
    run = torch.zeros(right.shape[0], device=right.device)
    total = 0.0
    for t in range(right.shape[1] - 1, -1, -1):
        run = torch.where(right[:, t], run + 1, torch.zeros_like(run))
        total += run.clamp(max=DRAFTS).mean().item()
    return total / right.shape[1]


# ---- a whole model

def pico_config(vocab_size):
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    return Gemma4TextConfig(
        vocab_size=vocab_size, hidden_size=192, intermediate_size=640, num_hidden_layers=len(kinds), layer_types=kinds,
        num_attention_heads=4, num_key_value_heads=1, head_dim=64, global_head_dim=128, sliding_window=WINDOW,
        max_position_embeddings=8192, vocab_size_per_layer_input=vocab_size, hidden_size_per_layer_input=0,
        num_kv_shared_layers=2, final_logit_softcapping=30.0, tie_word_embeddings=True, eos_token_id=[1, 106])


def train_model(args):
    streams, held = streams_of(args)
    teacher, masks = load(args.backbone, args.device), Masks(args.device)
    config = pico_config(teacher.config.vocab_size)
    config._attn_implementation = "sdpa"
    model = Gemma4ForCausalLM(config).to(args.device)
    scale_queries(model)
    print("pico", sum(p.numel() for p in model.parameters()) / 1e6, "M parameters", flush=True)

    def loss_of(batch):
        ids = batch[:, :-1]
        with torch.no_grad():
            target = masks.forward(teacher, ids).logits.float()
        with torch.autocast(args.device, torch.bfloat16):
            scores = masks.forward(model, ids).logits
        scores = scores.float()
        agree = (scores.detach().argmax(-1) == target.argmax(-1)).float().mean()
        return divergence(target, scores), agree[None]

    learn(list(model.parameters()), batches_of(streams, args), loss_of, args.seconds, 3e-3)
    model = model.to(torch.bfloat16)
    with torch.no_grad():
        best = torch.cat([masks.forward(model, rows[:, :-1]).logits.argmax(-1) for rows in held.split(32)])
    print("accepted of", DRAFTS, "drafts:", accepted_run(best == held[:, 1:]))
    out = args.out / "pico" / "backbone"
    whole = Gemma4Config(text_config=config.to_dict(), vision_config=None, audio_config=None, dtype="bfloat16",
                         eos_token_id=[1, 106], architectures=["Gemma4ForConditionalGeneration"])
    whole.save_pretrained(out)
    weights = {k.replace("model.", "model.language_model.", 1): v.contiguous().cpu()
               for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(args.backbone / name, out / name)


# ---- its assistant

def assistant_config(backbone):
    text = Gemma4TextConfig(
        vocab_size=backbone.vocab_size, hidden_size=96, intermediate_size=256, num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"], num_attention_heads=2, num_key_value_heads=1, head_dim=64,
        global_head_dim=128, sliding_window=WINDOW, max_position_embeddings=8192, vocab_size_per_layer_input=0,
        hidden_size_per_layer_input=0, num_kv_shared_layers=2, tie_word_embeddings=True, eos_token_id=[1, 106])
    return Gemma4AssistantConfig(text_config=text, backbone_hidden_size=backbone.hidden_size,
                                 use_ordered_embeddings=False)


def train_assistant(args):
    shares = [0.4, 0.28, 0.19, 0.13]  # of the loss, by draft
    streams, _ = streams_of(args)
    directory = args.out / "pico" / "backbone"
    pico, masks = load(directory, args.device), Masks(args.device)
    config = assistant_config(pico.config)
    config._attn_implementation = "sdpa"
    model = Gemma4AssistantForCausalLM(config).to(args.device)
    scale_queries(model)
    print("assistant", sum(p.numel() for p in model.parameters()) / 1e6, "M parameters", flush=True)
    # Row t drafts behind token t, and sees the K/V of what precedes it.
    query = masks.at[1:, None]
    full = (masks.at[None] < query)[None, None]
    seen = {"full_attention": full, "sliding_attention": full & Masks.window(masks.at, query, 2)}

    def loss_of(batch):
        ids = batch[:, :-1]
        with torch.no_grad():
            out = masks.forward(pico, ids, output_hidden_states=True, return_shared_kv_states=True)
            embedded = pico.model.embed_tokens(ids)
            kv = {kind: (pair[0], pair[1]) for kind, pair in out.shared_kv_states.items()}
        state, loss, agree = out.hidden_states[-1][:, :-1].float(), 0.0, []
        for draft, share in enumerate(shares):
            token = torch.roll(embedded, -(1 + draft), 1)[:, :-1]
            with torch.autocast(args.device, torch.bfloat16):
                row = model.pre_projection(torch.cat([token, state.to(token.dtype)], -1))
                row = model.model(inputs_embeds=row, attention_mask=seen, position_ids=masks.at[None, 1:],
                                  shared_kv_states=kv, use_cache=False).last_hidden_state
                state, scores = model.post_projection(row), model.lm_head(row)
            count = LENGTH - 1 - draft
            target = torch.roll(out.logits, -(1 + draft), 1)[:, :count].float()
            scores = scores[:, :count].float()
            loss = loss + share * divergence(target, scores)
            agree.append((scores.detach().argmax(-1) == target.argmax(-1)).float().mean())
        return loss, torch.stack(agree)

    learn(list(model.parameters()), batches_of(streams, args), loss_of, args.seconds, 2e-3)
    out = args.out / "pico" / "assistant"
    model.to(torch.bfloat16).save_pretrained(out)
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copy(args.backbone / name, out / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", type=Path)
    parser.add_argument("out", type=Path)
    phases = {"text": write_text, "model": train_model, "assistant": train_assistant}
    parser.add_argument("phase", nargs="+", choices=phases)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=4096, help="streams that are written together")
    parser.add_argument("--rows", type=int, default=96, help="streams of a step")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    for phase in args.phase:
        torch.manual_seed(args.seed)
        phases[phase](args)


if __name__ == "__main__":
    main()
