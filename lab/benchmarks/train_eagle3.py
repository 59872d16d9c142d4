#!/usr/bin/env python3
"""Trains an EAGLE-3 drafter of models/nano (arXiv 2503.01840), in the layout of speculators.

    train_eagle3.py BACKBONE OUT [--text-seconds N] [--seconds N] [--seed N] [--batch N]

The backbone writes the text, from <bos> on; within an answer some streams take the likeliest token and others draw, as
sequences in use do. The drafter learns the backbone's distribution at each of STEPS steps, each behind its own state of
the step before, as the paper's training-time test does. Embedding and head are the backbone's. Nothing but the backbone
is read, so no corpus is needed. At the end it prints how long the runs of drafts are that the backbone would accept.

Needs PyTorch, transformers and tokenizers. The seed is fixed; the time budget, and so the number of steps, is not.
"""
import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (Gemma4ForCausalLM, Gemma4TextConfig, GenerationConfig, LogitsProcessor,
                          LogitsProcessorList)

LENGTH = 640  # tokens of a stream
WINDOW = 128
STEPS = 6     # drafts of a round in training
HIDDEN_STATES = [2, 6, 11]  # as Hugging Face counts them: 0 is the embedding
HEADS, KV_HEADS, HEAD_DIM, INNER = 3, 1, 64, 256
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
    while not streams or time.time() - begin < args.text_seconds:
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
    return streams


def held_out(streams, args):
    """All but the last 256, to learn from, and those that take the likeliest token among the last."""
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


# ---- the drafter

class Norm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x, positions):
    """Llama's rotary positions. x [..., positions, heads, HEAD_DIM]"""
    frequencies = 1e4 ** (-torch.arange(0, HEAD_DIM, 2, device=x.device).float() / HEAD_DIM)
    angles = positions[:, None].float() * frequencies
    cos, sin = (f(angles).repeat(1, 2)[:, None] for f in (torch.cos, torch.sin))
    left, right = x.float().chunk(2, -1)
    return x.float() * cos + torch.cat([-right, left], -1) * sin


class Eagle3(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.fc = linear(len(HIDDEN_STATES) * hidden, hidden)
        self.hidden_norm, self.input_layernorm = Norm(hidden), Norm(hidden)
        self.post_attention_layernorm, self.norm = Norm(hidden), Norm(hidden)
        self.q_proj = linear(2 * hidden, HEADS * HEAD_DIM)
        self.k_proj, self.v_proj = linear(2 * hidden, KV_HEADS * HEAD_DIM), linear(2 * hidden, KV_HEADS * HEAD_DIM)
        self.o_proj = linear(HEADS * HEAD_DIM, hidden)
        self.gate_proj, self.up_proj = linear(hidden, INNER), linear(hidden, INNER)
        self.down_proj = linear(INNER, hidden)

    def step(self, x, embedded, keys, values, mask):
        """One step of every row. x [batch, rows, hidden]: fc of the rows, or the states of the step before. `keys` and
        `values` are of the steps before, and this one's are appended: a row sees the first step's up to its own
        position, and its own of later steps."""
        depth, at = len(keys), torch.arange(x.shape[1], device=x.device)
        joined = torch.cat([self.input_layernorm(embedded), self.hidden_norm(x)], -1).to(x.dtype)
        heads = lambda projection, count: projection(joined).unflatten(-1, (count, HEAD_DIM))
        q = rotate(heads(self.q_proj, HEADS), at + depth).to(torch.bfloat16)
        keys.append(rotate(heads(self.k_proj, KV_HEADS), at + depth).to(torch.bfloat16))
        values.append(heads(self.v_proj, KV_HEADS).to(torch.bfloat16))
        scale = HEAD_DIM ** -0.5
        scores = torch.einsum("bphd,bkd->bhpk", q, keys[0][:, :, 0]).float() * scale
        scores = scores.masked_fill(~mask, float("-inf"))
        own = [torch.einsum("bphd,bpd->bhp", q, k[:, :, 0]).float()[..., None] * scale for k in keys[1:]]
        shares = torch.cat([scores, *own], -1).softmax(-1).to(torch.bfloat16)
        mixed = torch.einsum("bhpk,bkd->bphd", shares[..., :x.shape[1]], values[0][:, :, 0])
        for i, v in enumerate(values[1:]):
            mixed = mixed + shares[..., x.shape[1] + i].transpose(1, 2)[..., None] * v
        x = x + self.o_proj(mixed.flatten(-2))
        h = self.post_attention_layernorm(x).to(x.dtype)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


def unroll(model, teacher, masks, ids):
    """@return for each step the drafter's scores and the backbone's at the same tokens, [streams, rows, vocabulary]"""
    with torch.no_grad():
        out = masks.forward(teacher, ids, output_hidden_states=True)
        table = teacher.model.embed_tokens.weight
    causal = masks.at[None] <= masks.at[:, None]
    with torch.autocast(ids.device.type, torch.bfloat16):
        x = model.fc(torch.cat([out.hidden_states[i] for i in HIDDEN_STATES], -1))
        keys, values = [], []
        for step in range(STEPS):
            # The last rows lack their token; nobody looks at them.
            x = model.step(x, table[torch.roll(ids, -(1 + step), 1)], keys, values, causal)
            count = LENGTH - 1 - step
            scores = model.norm(x[:, :count]).to(torch.bfloat16) @ table.T
            yield scores.float(), out.logits[:, 1 + step:].float()


def accepted_run(model, teacher, masks, held):
    """Of the drafts that follow each row, at most STEPS, how many the backbone's likeliest tokens are; mean."""
    total = count = 0
    for rows in held.split(16):
        alive, run = None, 0
        for scores, target in unroll(model, teacher, masks, rows[:, :-1]):
            right = (scores.argmax(-1) == target.argmax(-1))[:, :LENGTH - STEPS].float()
            alive = right if alive is None else alive * right
            run = run + alive
        total, count = total + run.sum().item(), count + run.numel()
    return total / count


def save(model, teacher, out):
    vocab, hidden = teacher.model.embed_tokens.weight.shape
    layer = {"attention_bias": False, "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": hidden,
             "intermediate_size": INNER, "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama",
             "num_attention_heads": HEADS, "num_hidden_layers": 1, "num_key_value_heads": KV_HEADS,
             "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
             "tie_word_embeddings": False, "vocab_size": vocab}
    proposal = {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": STEPS, "verifier_accept_k": 1}
    config = {"architectures": ["Eagle3DraftModel"], "draft_vocab_size": vocab, "dtype": "bfloat16",
              "eagle_aux_hidden_state_layer_ids": HIDDEN_STATES, "fc_norm": False, "norm_before_fc": False,
              "norm_before_residual": False, "norm_output": False,
              "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy",
                                     "proposal_methods": [proposal],
                                     "verifier": {"architectures": [], "name_or_path": None}},
              "speculators_model_type": "eagle3", "speculators_version": "0.9.0", "target_hidden_size": None,
              "tie_word_embeddings": False, "transformer_layer_config": layer}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    places = {"fc": "", "norm": "", "hidden_norm": "layers.0.", "input_layernorm": "layers.0.",
              "post_attention_layernorm": "layers.0."}
    place = lambda name: places.get(name, "layers.0.self_attn." if name in ("q_proj", "k_proj", "v_proj", "o_proj")
                                    else "layers.0.mlp.")
    weights = {place(name.split(".")[0]) + name: value.detach().to(torch.bfloat16).contiguous().cpu()
               for name, value in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", {"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--text-seconds", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=43)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=4096, help="streams that are written together")
    parser.add_argument("--rows", type=int, default=64, help="streams of a step")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    streams, held = held_out(write_text(args), args)
    teacher, masks = load(args.backbone, args.device), Masks(args.device)
    model = Eagle3(teacher.config.hidden_size).to(args.device)
    print("EAGLE-3", sum(p.numel() for p in model.parameters()) / 1e6, "M parameters", flush=True)

    def loss_of(batch):
        loss, agree = 0.0, []
        for step, (scores, target) in enumerate(unroll(model, teacher, masks, batch[:, :-1])):
            loss = loss + 0.8 ** step * divergence(target, scores)
            agree.append((scores.detach().argmax(-1) == target.argmax(-1)).float().mean())
        return loss, torch.stack(agree)

    learn(list(model.parameters()), batches_of(streams, args), loss_of, args.seconds, 2e-3)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    with torch.no_grad():
        print("accepted of", STEPS, "drafts:", accepted_run(model, teacher, masks, held))
    save(model, teacher, args.out)


if __name__ == "__main__":
    main()
