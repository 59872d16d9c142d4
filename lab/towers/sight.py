"""Pictures: the vision tower, scenes to look at, and questions about them."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from layers import NUMBERS, Embedder, Inner, Norm, rms_norm

COLOURS = {"red": (0.88, 0.10, 0.10), "orange": (1.00, 0.55, 0.05), "yellow": (0.98, 0.90, 0.12),
           "green": (0.10, 0.62, 0.18), "blue": (0.12, 0.25, 0.88), "purple": (0.52, 0.14, 0.68),
           "pink": (1.00, 0.58, 0.76), "black": (0.04, 0.04, 0.04), "white": (0.98, 0.98, 0.98)}
SHAPES = ["circle", "square", "triangle", "star", "cross"]


# ---- the tower (docs/gemma4.md 8.2); p patches, H hidden

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


class PatchEmbedder(nn.Module):
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
        self.vision_tower.patch_embedder = PatchEmbedder(c)
        self.vision_tower.encoder = nn.Module()
        self.vision_tower.encoder.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.embed_vision = Embedder(c["hidden_size"], text_width, soft_rms)

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
        return self.embed_vision(x * c["hidden_size"] ** 0.5)


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


def scenes(count, height, width, hard, rng, generator):
    """count scenes: their groups, a list of (colour, shape, number), and pictures [count, 3, height, width]
    hard: 0 to 1, how many of the scenes have several objects."""
    names, all_groups, device = list(COLOURS), [], generator.device
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


# ---- what train.py wants of a sense

CONFIG = "vision_config"
MARKS = ["boi_token_id", "image_token_id", "eoi_token_id"]
KINDS = ["describe", "colour", "shape", "count"]
SIZES = [70, 280]  # soft tokens at most, of the evaluation


def training_size(done, rng):
    """Few soft tokens first: they are cheap, and where there is nothing to see yet, detail is no help."""
    return rng.choices([70, 140, 280], [0.8, 0.15, 0.05] if done < 0.4 else [0.4, 0.2, 0.4])[0]


def batch_size(size):
    return {70: 256, 140: 160, 280: 96}[size]


def batch(config, count, size, hard, rng, generator, kind=None):
    """Scenes of a file's size, resized to the tower's; a question about each. hard: 0 to 1"""
    aspect = 1.0 if rng.random() < 0.35 else math.exp(rng.uniform(-0.6, 0.6))
    area = rng.randint(110, 460) ** 2
    height, width = round((area / aspect) ** 0.5), round((area * aspect) ** 0.5)
    groups, pictures = scenes(count, height, width, hard, rng, generator)
    target = target_size(height, width, config["patch_size"] * config["pooling_kernel_size"], size)
    pictures = F.interpolate(pictures, target, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
    return pictures, [question(g, kind or rng.choice(KINDS), rng) for g in groups]
