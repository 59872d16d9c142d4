#!/usr/bin/env python3
"""Trains the vision tower of models/nano, which answers about drawn scenes: colour, shape and count.

    train_tower.py BACKBONE OUT SECONDS [--start TOWER] [--seed N] [--device cuda|cpu] [--batch N]

BACKBONE is models/nano/backbone, whose weights stay as they are: the tower and its projection learn by the loss of
the answer's tokens, through the frozen text model. Writes OUT/vision.safetensors, in bfloat16 and in the layout of
published checkpoints (docs/gemma4.md 8), and OUT/train_tower.json with the accuracy on pictures that it was not trained
with.

Scenes are drawn on the device as they are needed: one kind of object, or two, up to six objects, without overlap. Needs
PyTorch, transformers (for the text model) and tokenizers; six minutes of one H200 made the weights that ship. The seed
is fixed; the time budget, and so the number of steps, is not.
"""
import argparse
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

COLOURS = {"red": (0.88, 0.10, 0.10), "orange": (1.00, 0.55, 0.05), "yellow": (0.98, 0.90, 0.12),
           "green": (0.10, 0.62, 0.18), "blue": (0.12, 0.25, 0.88), "purple": (0.52, 0.14, 0.68),
           "pink": (1.00, 0.58, 0.76), "black": (0.04, 0.04, 0.04), "white": (0.98, 0.98, 0.98)}
SHAPES = ["circle", "square", "triangle", "star", "cross"]
NUMBERS = ["Zero", "One", "Two", "Three", "Four", "Five", "Six"]
BATCH = {70: 256, 140: 160, 280: 96}  # pictures of a step, by the soft tokens that each may have
KINDS = ["describe", "colour", "shape", "count"]


# ---- the tower (docs/gemma4.md 8.2); p patches, H hidden

def rms_norm(x, weight=None, eps=1e-6):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, size, value=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), value))

    def forward(self, x):
        return rms_norm(x, self.weight)


class Inner(nn.Module):
    """A matrix under the name that a clipped one has."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        nn.init.normal_(self.linear.weight, std=inputs ** -0.5)

    def forward(self, x):
        return self.linear(x)


def rotate(x, angles):
    """x [B, heads, p, D], angles [p, 2, D/4]: of column and row"""
    parts = x.float().unflatten(-1, (2, 2, -1))                    # [..., coordinate, half, D/4]
    a, b = parts[..., 0, :], parts[..., 1, :]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -2).flatten(-3).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.head_dim = c["num_attention_heads"], c["head_dim"]
        width = self.heads * self.head_dim
        self.q_proj, self.k_proj, self.v_proj = (Inner(c["hidden_size"], width) for _ in range(3))
        self.o_proj = Inner(width, c["hidden_size"])
        self.q_norm, self.k_norm = Norm(self.head_dim, self.head_dim ** -0.5), Norm(self.head_dim)

    def forward(self, x, angles):
        q, k, v = (f(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
                   for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q), angles), rotate(self.k_norm(k), angles)
        mixed = F.scaled_dot_product_attention(q, k, rms_norm(v), scale=1.0)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = (Inner(c["hidden_size"], c["intermediate_size"]) for _ in range(2))
        self.down_proj = Inner(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm, self.pre_feedforward_layernorm = Norm(c["hidden_size"]), Norm(c["hidden_size"])
        self.post_attention_layernorm, self.post_feedforward_layernorm = (Norm(c["hidden_size"], 0.5) for _ in range(2))

    def forward(self, x, angles):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), angles))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Embedder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_proj = nn.Linear(3 * c["patch_size"] ** 2, c["hidden_size"], bias=False)
        self.position_embedding_table = nn.Parameter(torch.zeros(2, c["position_embedding_size"], c["hidden_size"]))


class Tower(nn.Module):
    """Its state is the checkpoint's, under "model."."""

    def __init__(self, c, text_width, soft_rms):
        super().__init__()
        self.c = c
        self.vision_tower = nn.Module()
        self.vision_tower.patch_embedder = Embedder(c)
        self.vision_tower.encoder = nn.Module()
        self.vision_tower.encoder.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.embed_vision = nn.Module()
        self.embed_vision.embedding_projection = nn.Linear(c["hidden_size"], text_width, bias=False)
        nn.init.normal_(self.embed_vision.embedding_projection.weight, std=soft_rms * c["hidden_size"] ** -0.5)

    def forward(self, pictures):
        """pictures [B, 3, h, w] from 0 to 1, sides multiples of a soft token's -> [B, soft tokens, text width]"""
        c, embedder = self.c, self.vision_tower.patch_embedder
        size, pool = c["patch_size"], c["pooling_kernel_size"]
        rows, columns = pictures.shape[2] // size, pictures.shape[3] // size
        patches = pictures.unflatten(3, (columns, size)).unflatten(2, (rows, size))   # [B, 3, rows, y, columns, x]
        patches = patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        table = embedder.position_embedding_table
        x = embedder.input_proj(2 * (patches - 0.5)) + (table[0, None, :columns] + table[1, :rows, None]).flatten(0, 1)
        quarter = c["head_dim"] // 4
        inv_freq = c["rope_parameters"]["rope_theta"] ** -(torch.arange(quarter, device=x.device) / quarter)
        at = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), -1).flatten(0, 1)
        angles = at.to(x.device)[..., None] * inv_freq
        for layer in self.vision_tower.encoder.layers:
            x = layer(x, angles)
        x = x.unflatten(1, (rows // pool, pool, columns // pool, pool)).float().mean((2, 4)).flatten(1, 2)
        return self.embed_vision.embedding_projection(rms_norm(x * c["hidden_size"] ** 0.5)).float()


# ---- scenes

def target_size(height, width, side, budget):
    factor = math.sqrt(budget * side * side / (height * width))
    return [int(edge * factor / side) * side for edge in (height, width)]


def coverage(u, v, shape, edge):
    """How much of a pixel at (u, v), in units of the object's radius, the object covers; edge: pixels per unit."""
    def polygon(count, inner):
        """A regular polygon (count sides, inner = its inradius)"""
        return torch.stack([u * math.sin(2 * math.pi * i / count) + v * math.cos(2 * math.pi * i / count)
                            for i in range(count)]).amax(0) - inner

    def star():
        angle = torch.atan2(u, -v) % (2 * math.pi / 5)
        angle = torch.minimum(angle, 2 * math.pi / 5 - angle)     # a tip at 0, a notch at pi/5
        r, tip, notch = torch.sqrt(u * u + v * v), 1.0, 0.42
        x, y = r * torch.cos(angle), r * torch.sin(angle)
        nx, ny = notch * math.cos(math.pi / 5), notch * math.sin(math.pi / 5)
        length = math.hypot(nx - tip, ny)
        return ((x - tip) * ny - y * (nx - tip)) / length

    distances = [lambda: torch.sqrt(u * u + v * v) - 0.92, lambda: torch.maximum(u.abs(), v.abs()) - 0.8,
                 lambda: polygon(3, 0.5), star,
                 lambda: torch.minimum(torch.maximum(u.abs() - 0.95, v.abs() - 0.3),
                                       torch.maximum(u.abs() - 0.3, v.abs() - 0.95))]
    d = torch.zeros_like(u)
    for i, distance in enumerate(distances):
        at = (shape == i).nonzero().flatten()
        if len(at):
            u, v, whole = u[at], v[at], (u, v)
            d[at] = distance()
            u, v = whole
    return (0.5 - d * edge).clamp(0, 1)


def scenes(count, height, width, hard, rng, generator, device):
    """count scenes: their groups, a list of (colour, shape, number), and pictures [count, 3, height, width]
    hard: 0 to 1, how many of the scenes have several objects."""
    names, all_groups = list(COLOURS), []
    shape, colour, present, place, grid = [], [], [], [], []
    for _ in range(count):
        kinds = 2 if rng.random() < 0.45 * hard else 1
        numbers = ([rng.randint(1, 3) for _ in range(2)] if kinds == 2
                   else [1 + (rng.random() < 0.7 * hard) * rng.randint(0, 5)])
        groups = list(zip(rng.sample(range(len(names)), kinds), sorted(rng.sample(range(len(SHAPES)), kinds)), numbers))
        all_groups.append(groups)
        total = sum(numbers)
        cells = rng.choice([total, total, max(total, 4), 9])       # few: large objects
        gx, gy = rng.choice([(x, y) for x in range(1, 10) for y in range(1, 7) if total <= x * y <= cells])
        each = [g for g in groups for _ in range(g[2])]
        rest = [0] * (6 - total)
        colour.append([c for c, _, _ in each] + rest)
        shape.append([s for _, s, _ in each] + rest)
        present.append([1] * total + rest)
        place.append([[cell % gx, cell // gx] for cell in rng.sample(range(gx * gy), total)] + [[0, 0]] * (6 - total))
        grid.append([[gx, gy]])

    def draw(*shape_, low=0.0, high=1.0):
        return torch.rand(shape_, generator=generator, device=device) * (high - low) + low

    shape, colour, present, place, grid = (torch.tensor(each, device=device)
                                           for each in (shape, colour, present, place, grid))
    palette = torch.tensor(list(COLOURS.values()), device=device)
    shade = (palette + draw(count, len(names), 3, low=-0.07, high=0.07)).clamp(0, 1)          # one of a scene's colours
    used = shade.gather(1, colour[..., None].expand(-1, -1, 3))
    # A ground that the objects stand out from: white most often, else pale, dark or anything.
    anything, plain = draw(count, 3), draw(count, 1) * torch.ones(3, device=device)
    choice = draw(count, 1)
    wanted = torch.where(choice < 0.5, torch.ones_like(anything),
                         torch.where(choice < 0.7, 0.75 + 0.25 * anything, torch.where(choice < 0.85, plain, anything)))
    ones = torch.ones_like(wanted)
    candidates = torch.stack([wanted, ones, 0 * ones, 0.5 * ones], 1)
    apart = (candidates[:, :, None] - used[:, None]).norm(dim=-1) + 9 * (1 - present[:, None])
    apart = apart.amin(-1)
    score = (apart > 0.35) * torch.tensor([4.0, 3, 2, 1], device=device) + apart / 9
    ground = candidates.gather(1, score.argmax(1)[:, None, None].expand(-1, 1, 3))[:, 0]

    size = torch.tensor([width, height], device=device, dtype=torch.float)
    cell = size / grid                                                                     # [count, 1, 2]
    room = cell.amin(-1)                                                                   # pixels
    scale = draw(count, 1, low=0.3, high=0.95)
    scale = scale * torch.where(draw(count, 1) < 0.5, 1.0, draw(count, 6, low=0.7, high=1.0))
    radius = (0.5 * room * scale).clamp(min=4.0)
    radius = torch.minimum(radius, 0.5 * room)
    free = (cell - 2 * radius[..., None]).clamp(min=0)
    centre = place * cell + radius[..., None] + free * draw(count, 6, 2)
    turn = torch.where(draw(count, 1) < 0.6, torch.zeros(count, 6, device=device), draw(count, 6, low=-0.35, high=0.35))
    ring = torch.where(draw(count, 1) < 0.15, draw(count, 1, low=0.04, high=0.12), torch.zeros(count, 1, device=device))
    light = ground.mean(-1, keepdim=True)
    line = torch.where(light > 0.5, 0.0, 1.0) * torch.ones(3, device=device)               # an outline's colour

    y, x = torch.meshgrid(*(torch.arange(edge, device=device) + 0.5 for edge in (height, width)), indexing="ij")
    picture = ground[:, :, None, None].expand(-1, -1, height, width).clone()
    for i in range(6):
        at = present[:, i].nonzero().flatten()
        if not len(at):
            break
        r = radius[at, i, None, None]
        du, dv = (x - centre[at, i, 0, None, None]) / r, (y - centre[at, i, 1, None, None]) / r
        cos, sin = turn[at, i, None, None].cos(), turn[at, i, None, None].sin()
        u, v = du * cos + dv * sin, dv * cos - du * sin
        with_ring = (ring[at] > 0).any()
        if with_ring:
            outer = coverage(u, v, shape[at, i], r)[:, None]
            picture[at] = torch.lerp(picture[at], line[at][:, :, None, None].expand(-1, -1, height, width), outer)
            inside = 1 - ring[at][..., None]
            u, v, r = u / inside, v / inside, r * inside
        cover = coverage(u, v, shape[at, i], r)[:, None]
        picture[at] = torch.lerp(picture[at], used[at, i, :, None, None].expand(-1, -1, height, width), cover)
    noise = torch.where(draw(count, 1, 1, 1) < 0.3, draw(count, 1, 1, 1, high=0.04), torch.zeros((), device=device))
    picture = picture + noise * torch.randn(picture.shape, generator=generator, device=device)
    return all_groups, (picture.clamp(0, 1) * 255).round() / 255


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def phrase(group):
    colour, shape, n = list(COLOURS)[group[0]], SHAPES[group[1]], group[2]
    return article(f"{colour} {shape}") if n == 1 else f"{NUMBERS[n].lower()} {colour} {plural(SHAPES[group[1]])}"


def plural(shape):
    return shape + ("es" if shape == "cross" else "s")


def question(groups, kind, rng):
    """A question of that kind about a scene, and its answer."""
    g = rng.choice(groups)
    colour, shape, n = list(COLOURS)[g[0]], SHAPES[g[1]], g[2]
    total = sum(n for _, _, n in groups)
    if kind == "describe":
        text = " and ".join(map(phrase, groups))
        return rng.choice(["What is this?", "What is in the picture?", "What do you see?", "Describe the picture.",
                           "What does the picture show?"]), text[0].upper() + text[1:] + "."
    spelling = rng.choice(["colour", "color"])
    if kind == "colour":
        asked = [f"What {spelling} is the {shape}?"] if n == 1 else [f"What {spelling} are the {plural(shape)}?"]
        if len(groups) == 1:
            asked += [f"What {spelling} {'is it' if n == 1 else 'are they'}?", f"Which {spelling} is this?"]
        return rng.choice(asked), colour.capitalize() + "."
    if kind == "shape":
        asked = [f"What shape is {colour}?", f"Which shape is {colour}?"]
        if len(groups) == 1:
            asked += ["What shape is this?", "What shape is it?", "Which shape is in the picture?"]
        return rng.choice(asked), (article(shape) if n == 1 else plural(shape)).capitalize() + "."
    things = rng.choice(["shapes", "objects"])
    asked = [(n, f"How many {plural(shape)} are there?"), (n, f"How many {plural(shape)} do you see?"),
             (n, f"How many {colour} {plural(shape)} are there?"), (total, f"How many {things} are there?")]
    n, text = rng.choice(asked)
    return text, NUMBERS[n] + "."


# ---- the frozen text model

class Text:
    """Prompts as the chat template of BACKBONE writes them, and the loss of answers."""

    def __init__(self, directory, device):
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
        self.cache = {}

    def ids(self, text):
        if text not in self.cache:
            self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.cache[text]

    def answers(self, soft, pairs):
        """soft [B, n, width], pairs of question and answer -> of all answers' k tokens: logits [k, vocabulary], the
        tokens [k], and whose they are [k]"""
        B, n, c = len(pairs), soft.shape[1], self.config
        before = self.ids("<bos><|turn>user\n") + [c["boi_token_id"]]
        rows, starts = [], []
        for asked, answer in pairs:
            prompt = before + [c["image_token_id"]] * n + [c["eoi_token_id"]]
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("seconds", type=float, help="of training; the evaluation after it takes some more")
    parser.add_argument("--start", type=Path, help="a vision.safetensors to go on from")
    parser.add_argument("--seed", type=int, default=20, help="of what is drawn; another one where it goes on (21 is the evaluation's)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, help="pictures of a step, whatever their size")
    parser.add_argument("--held-out", type=int, default=1024, help="pictures of the evaluation, a kind of question")
    parser.add_argument("--steps", type=int, default=10 ** 9, help="at most")
    args = parser.parse_args()
    torch.manual_seed(20)
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    text = Text(args.backbone, args.device)
    vision = text.config["vision_config"]
    tower = Tower(vision, text.config["text_config"]["hidden_size"], text.rms).to(args.device)
    size = sum(p.numel() for p in tower.parameters())
    print(f"{size} parameters, soft tokens begin with rms {text.rms:.3f}", flush=True)
    matrices = [p for p in tower.parameters() if p.dim() == 2]
    others = [p for p in tower.parameters() if p.dim() != 2]
    peak = 1e-3
    if args.start:
        tower.load_state_dict({k.removeprefix("model."): v.float() for k, v in load_file(args.start).items()})
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
                                  lr=peak, betas=(0.9, 0.98))
    autocast = torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda")
    side = vision["patch_size"] * vision["pooling_kernel_size"]

    def batch(count, budget, aspect, hard, rng, generator, kind=None):
        """Scenes of a file's size, resized to the tower's; a question about each."""
        area = rng.randint(110, 460) ** 2
        height, width = round((area / aspect) ** 0.5), round((area * aspect) ** 0.5)
        groups, pictures = scenes(count, height, width, hard, rng, generator, args.device)
        size = target_size(height, width, side, budget)
        pictures = F.interpolate(pictures, size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
        return pictures, [question(g, kind or rng.choice(KINDS), rng) for g in groups]

    rng, generator = random.Random(args.seed), torch.Generator(args.device).manual_seed(args.seed)
    start, step, mean = time.time(), 0, None
    while step < args.steps and (done := (time.time() - start) / args.seconds) < 1:
        # Few soft tokens first: they are cheap, and where there is nothing to see yet, detail is no help.
        budget = rng.choices([70, 140, 280], [0.8, 0.15, 0.05] if done < 0.4 else [0.4, 0.2, 0.4])[0]
        aspect = 1.0 if rng.random() < 0.35 else math.exp(rng.uniform(-0.6, 0.6))
        with torch.no_grad():
            hard = 1.0 if args.start else min(1.0, 0.15 + 4 * done)
            pictures, pairs = batch(args.batch or BATCH[budget], budget, aspect, hard, rng, generator)
        with autocast:
            logits, tokens, owner = text.answers(tower(pictures), pairs)
        loss = F.cross_entropy(logits, tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach() if mean is None else 0.98 * mean + 0.02 * loss.detach()
        step += 1
        if step % 50 == 0 or step < 4:
            print(f"step {step} loss {mean.item():.4f} of {budget} soft tokens {time.time() - start:.1f} s", flush=True)

    # As the file has them.
    weights = {"model." + k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in tower.state_dict().items()}
    save_file(weights, args.out / "vision.safetensors", metadata={"format": "pt"})
    tower.load_state_dict({k.removeprefix("model."): v.float() for k, v in weights.items()})
    seconds = time.time() - start

    report = {"steps": step, "seconds": round(seconds, 1), "right": {}, "wrong": []}
    rng, generator = random.Random(21), torch.Generator(args.device).manual_seed(21)
    with torch.no_grad(), autocast:
        for budget in (70, 280):
            for kind in KINDS:
                right, by_answer = [], {}
                while len(right) < args.held_out:
                    aspect = rng.choice([1.0, 4 / 3, 0.75, 1.5])
                    pictures, pairs = batch(min(64, args.held_out), budget, aspect, 1.0, rng, generator, kind)
                    logits, tokens, owner = text.answers(tower(pictures), pairs)
                    good = torch.ones(len(pairs), device=args.device)
                    good.scatter_reduce_(0, owner, (logits.argmax(-1) == tokens).float(), "amin")
                    right += good.tolist()
                    for b, (pair, one) in enumerate(zip(pairs, good.tolist())):
                        by_answer.setdefault(pair[1], []).append(one)
                        if one == 0 and len(report["wrong"]) < 60:
                            said = text.tokenizer.decode(logits.argmax(-1)[owner == b].tolist())
                            report["wrong"].append([budget, *pair, said])
                report["right"][f"{kind} at {budget}"] = share = sum(right) / len(right)
                print(f"{kind} at {budget} soft tokens: {share:.4f} of {len(right)} answers right", flush=True)
                if kind != "describe":
                    shares = {answer: round(sum(r) / len(r), 3) for answer, r in sorted(by_answer.items())}
                    report["right"][f"{kind} at {budget}, by answer"] = shares
                    print("   ", shares)
    (args.out / "train_tower.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
