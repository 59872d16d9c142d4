"""Sounds: the audio tower, sounds to hear, and questions about them."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from layers import NUMBERS, Embedder, Inner, Norm

RATE = 16000
SORTS = ["low beep", "high beep", "buzz", "hiss", "rising tone", "falling tone"]
DIAL_ROWS, DIAL_COLUMNS = (697, 770, 852, 941), (1209, 1336, 1477)  # Hz, of a telephone's keys (ITU-T Q.23)
MOST = 6  # events of a sound


# ---- features (docs/gemma4.md 9.1)

def mel_filters(bins=257, filters=128, top=8000.0):
    def mel(f):
        return 2595 * math.log10(1 + f / 700)
    corners = 700 * (10 ** (torch.linspace(mel(0.0), mel(top), filters + 2, dtype=torch.float64) / 2595) - 1)
    f = torch.linspace(0, top, bins, dtype=torch.float64)[:, None]
    rise = (f - corners[:-2]) / (corners[1:] - corners[:-1])[:-1]
    fall = (corners[2:] - f) / (corners[1:] - corners[:-1])[1:]
    return torch.minimum(rise, fall).clamp(min=0).float()


def features(samples):
    """samples [B, n] of 16 kHz -> log-mel [B, frames, 128]"""
    frames = (160 + samples.shape[1] - 321) // 160 + 1
    windows = F.pad(samples, (160, 0)).unfold(1, 320, 160)[:, :frames]
    spectrum = torch.fft.rfft(windows * torch.hann_window(320, device=samples.device), 512).abs()
    return torch.log(spectrum @ mel_filters().to(samples.device) + 1e-3)


# ---- the tower (docs/gemma4.md 9.2); t rows, H hidden. Nothing is clamped: no value comes near a published bound.

class Subsampling(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv, self.norm = nn.Module(), nn.Module()
        self.conv.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3) * (9 * inputs) ** -0.5)
        self.norm.weight = nn.Parameter(torch.ones(outputs))

    def forward(self, x):
        """x [B, t, pitches, C] -> half of t and pitches. One product of matrices: backwards, a convolution of few
        channels is slower by far."""
        t, pitches = (x.shape[1] + 1) // 2, (x.shape[2] + 1) // 2
        x = F.pad(x, (0, 0, 1, 1, 1, 1))
        x = torch.cat([x[:, i:i + 2 * t - 1:2, j:j + 2 * pitches - 1:2] for i in range(3) for j in range(3)], -1)
        x = x @ self.conv.weight.permute(2, 3, 1, 0).flatten(0, 2)                      # [9 C, C']
        return F.relu(F.layer_norm(x, x.shape[-1:], self.norm.weight, None, 1e-6))


class FeedForward(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.pre_layer_norm, self.post_layer_norm = Norm(hidden), Norm(hidden)
        self.ffw_layer_1, self.ffw_layer_2 = Inner(hidden, 4 * hidden), Inner(4 * hidden, hidden)

    def forward(self, x):
        return x + 0.5 * self.post_layer_norm(self.ffw_layer_2(F.silu(self.ffw_layer_1(self.pre_layer_norm(x)))))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.heads = c["hidden_size"], c["num_attention_heads"]
        self.past, self.cap = c["attention_context_left"] - 1, c["attention_logit_cap"]
        self.q_proj, self.k_proj, self.v_proj, self.post = (Inner(hidden, hidden) for _ in range(4))
        self.per_dim_scale = nn.Parameter(torch.zeros(hidden // self.heads))
        self.relative_k_proj = nn.Linear(hidden, hidden, bias=False)
        inv = torch.exp(-torch.arange(hidden // 2) * math.log(10000) / (hidden // 2 - 1))
        angles = torch.arange(self.past)[:, None] * inv
        self.register_buffer("distances", torch.cat([angles.sin(), angles.cos()], -1), persistent=False)

    def forward(self, x):
        def split(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
        q, k, v = (split(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        q = q * (F.softplus(self.per_dim_scale) / (math.sqrt(q.shape[-1]) * math.log(2)))
        k = k * (math.log(1 + math.e) / math.log(2))
        by_distance = q @ split(self.relative_k_proj(self.distances)).transpose(-1, -2)   # [B, heads, t, past]
        t = torch.arange(x.shape[1], device=x.device)
        distance = t[:, None] - t                                                         # query minus key
        at = distance.clamp(0, self.past - 1).expand(by_distance.shape[:-1] + (len(t),))
        scores = (q @ k.transpose(-1, -2)).float() + by_distance.gather(-1, at).float()
        scores = self.cap * torch.tanh(scores / self.cap)
        scores = scores.masked_fill((distance < 0) | (distance >= self.past), -1e9)
        return self.post((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(-2))


class Convolution(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.taps = c["hidden_size"], c["conv_kernel_size"]
        self.pre_layer_norm, self.conv_norm = Norm(hidden), Norm(hidden)
        self.linear_start, self.linear_end = Inner(hidden, 2 * hidden), Inner(hidden, hidden)
        self.depthwise_conv1d = nn.Conv1d(hidden, hidden, self.taps, groups=hidden, bias=False)

    def forward(self, x):
        y = F.glu(self.linear_start(self.pre_layer_norm(x)))
        y = self.depthwise_conv1d(F.pad(y.transpose(1, 2), (self.taps - 1, 0))).transpose(1, 2)
        return x + self.linear_end(F.silu(self.conv_norm(y)))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden = c["hidden_size"]
        self.feed_forward1, self.feed_forward2 = FeedForward(hidden), FeedForward(hidden)
        self.self_attn, self.lconv1d = Attention(c), Convolution(c)
        self.norm_pre_attn, self.norm_post_attn, self.norm_out = (Norm(hidden) for _ in range(3))

    def forward(self, x):
        x = self.feed_forward1(x)
        x = x + self.norm_post_attn(self.self_attn(self.norm_pre_attn(x)))
        return self.norm_out(self.feed_forward2(self.lconv1d(x)))


class Tower(nn.Module):
    """Its state is the checkpoint's, under "model."."""

    def __init__(self, c, text_width, soft_rms):
        super().__init__()
        hidden, channels = c["hidden_size"], c["subsampling_conv_channels"]
        self.audio_tower = nn.Module()
        self.audio_tower.subsample_conv_projection = nn.Module()
        start = self.audio_tower.subsample_conv_projection
        start.layer0, start.layer1 = Subsampling(1, channels[0]), Subsampling(*channels)
        start.input_proj_linear = nn.Linear(32 * channels[1], hidden, bias=False)
        self.audio_tower.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.audio_tower.output_proj = nn.Linear(hidden, c["output_proj_dims"])
        self.embed_audio = Embedder(c["output_proj_dims"], text_width, soft_rms)

    def forward(self, mel):
        """mel [B, frames, 128] -> [B, soft tokens, text width]"""
        start = self.audio_tower.subsample_conv_projection
        x = start.layer1(start.layer0(mel[..., None]))                    # [B, t, 32, C]
        x = start.input_proj_linear(x.flatten(2))
        for layer in self.audio_tower.layers:
            x = layer(x)
        return self.embed_audio(self.audio_tower.output_proj(x))


# ---- sounds

def draw_events(kind, room, hard, rng):
    """What happens in a sound, for a question of that kind: groups of (sort, number), or the digits that are dialled.
    room: events that it has time for; hard: 0 to 1."""
    if kind == "dial" or (kind == "describe" and rng.random() < 0.15):
        return [], [rng.randrange(10) for _ in range(rng.randint(1, max(1, round(min(room, 5) * hard))))]
    if kind == "order" or (kind in ("describe", "count") and rng.random() < 0.45 * hard):
        sorts = rng.sample(range(len(SORTS)), 2)
        return [(sort, rng.randint(1, max(1, min(3, room // 2)))) for sort in sorts], []
    sort = rng.choice([0, 1, 4, 5]) if kind == "pitch" else rng.randrange(len(SORTS))
    return [(sort, rng.randint(1, max(1, round(min(room, MOST) * hard))))], []


def place_events(count, seconds, rng):
    """(start, length) of each, in seconds, in order and apart"""
    lengths = [rng.uniform(0.09, 0.2) for _ in range(count)]
    gaps = [rng.uniform(0.07, 0.12)] + [rng.uniform(0.08, 0.2) for _ in range(count - 1)] + [0.03]
    factor = min(1.0, (seconds - sum(lengths)) / sum(gaps))
    if factor < 0.75:                                                      # shorter ones
        squeeze = seconds / (sum(lengths) + sum(gaps))
        lengths, gaps, factor = [x * squeeze for x in lengths], [x * squeeze for x in gaps], 1.0
    spare, at, placed = max(0.0, seconds - sum(lengths) - factor * sum(gaps)), 0.0, []
    shares = sorted(rng.random() for _ in range(count)) if rng.random() < 0.5 else [rng.random()] * count
    before = 0.0
    for i, length in enumerate(lengths):
        at += factor * gaps[i] + spare * (shares[i] - before)
        before = shares[i]
        placed.append((at, length))
        at += length
    return placed


def frequencies(sort, digit, rng, own):
    """Of an event: how it sounds (0 a sum of two sines, 1 a buzz, 2 a hiss), and both sines' Hz at its start and end.
    own: what one sound's events of a sort have in common, by sort"""
    if digit is not None:
        place = 10 if digit == 0 else digit - 1
        a, b = DIAL_ROWS[place // 3], DIAL_COLUMNS[place % 3]
        return 0, a, a, b, b
    if sort not in own or rng.random() < 0.1:
        own[sort] = rng.random()
    share = own[sort]
    if sort in (4, 5):
        low = 250 * 3.0 ** share
        high = low * rng.uniform(2.2, 4)
        a, b = (low, high) if sort == 4 else (high, low)
        return 0, a, b, a, b
    hz = (140 * 2.4 ** share, 1100 * 2.6 ** share, 70 * 1.9 ** share, 0)[sort]
    return (0, 0, 1, 2)[sort], hz, hz, hz, hz


def render(events, seconds, generator):
    """events of each sound: (start, length, timbre, a0, a1, b0, b1, loudness) -> samples [B, n]"""
    device, n = generator.device, int(seconds * RATE)
    rows = [row + [(9.0, 1.0, 0, 0, 0, 0, 0, 0)] * (MOST - len(row)) for row in events]   # 9.0: after the end
    table = torch.tensor(rows, device=device)                                              # [B, events, 8]

    def draw(*shape, low=0.0, high=1.0):
        return torch.rand(shape, generator=generator, device=device) * (high - low) + low

    t = torch.arange(n, device=device) / RATE
    sound = torch.zeros(len(events), n, device=device)
    for i in range(MOST):
        start, length, timbre, a0, a1, b0, b1, loud = (x[:, None] for x in table[:, i].unbind(-1))
        tau = t - start
        inside = ((tau > 0) & (tau < length)).float()
        edge = (torch.minimum(tau, length - tau) / 0.008).clamp(0, 1)
        turn = 2 * math.pi * draw(len(events), 2)

        def phase(f0, f1, which):
            return 2 * math.pi * (f0 * tau + (f1 - f0) * tau * tau / (2 * length)) + turn[:, which:which + 1]

        sines = 0.5 * (torch.sin(phase(a0, a1, 0)) + torch.sin(phase(b0, b1, 1)))
        buzz = sum(torch.sin(k * phase(a0, a1, 0)) / k for k in range(1, 13)) * 0.6
        noise = torch.randn(sound.shape, generator=generator, device=device) * 0.5
        wave = torch.where(timbre == 0, sines, torch.where(timbre == 1, buzz, noise))
        sound += wave * inside * (0.5 - 0.5 * torch.cos(math.pi * edge)) * loud
    level = 10 ** draw(len(events), 1, low=-4.5, high=-2.0)
    return sound + level * torch.randn(sound.shape, generator=generator, device=device)


def sounds(kinds, seconds, hard, rng, generator):
    """A sound for a question of each kind: what happens in it, and samples [B, n]"""
    scenes, events, room = [], [], max(1, min(MOST, int((seconds - 0.1) / 0.24)))
    for kind in kinds:
        groups, digits = draw_events(kind, room, hard, rng)
        each = [(sort, None) for sort, n in groups for _ in range(n)] or [(None, digit) for digit in digits]
        loud, own, row = 10 ** rng.uniform(-1.6, -0.2), {}, []
        for (start, length), (sort, digit) in zip(place_events(len(each), seconds, rng), each):
            row.append((start, length, *frequencies(sort, digit, rng, own), loud * rng.uniform(0.8, 1.0)))
        scenes.append((groups, digits))
        events.append(row)
    return scenes, render(events, seconds, generator)


# ---- questions

def plural(noun):
    return noun + ("es" if noun.endswith(("ss", "zz")) else "s")


def phrase(group):
    noun = SORTS[group[0]]
    return f"a {noun}" if group[1] == 1 else f"{NUMBERS[group[1]].lower()} {plural(noun)}"


def sentence(text):
    return text[0].upper() + text[1:] + "."


def question(scene, kind, rng):
    """A question of that kind about a sound, and its answer."""
    groups, digits = scene
    number = "".join(map(str, digits))
    if kind == "dial":
        return rng.choice(["What number is dialled?", "Which digits are dialled?", "What number do you hear?"]), number + "."
    if kind == "describe":
        asked = rng.choice(["What is this?", "What do you hear?", "Describe the sound.", "What sound is this?"])
        return asked, sentence(f"a phone dials {number}" if digits else ", then ".join(map(phrase, groups)))
    if kind == "order":
        first = rng.random() < 0.5
        asked = ["What comes first?", "What do you hear first?"] if first else ["What comes last?", "What do you hear at the end?"]
        return rng.choice(asked), sentence(phrase(groups[0 if first else 1]))
    if kind == "pitch":
        sort = groups[0][0]
        return ("Is it high or low?", SORTS[sort].split()[0].capitalize() + ".") if sort < 2 else \
            ("Does it rise or fall?", "It rises." if sort == 4 else "It falls.")
    sort, n = rng.choice(groups)
    total = sum(n for _, n in groups)
    asked = [(total, "How many sounds are there?"), (total, "How many sounds do you hear?"),
             (n, f"How many {plural(SORTS[sort])} are there?"), (n, f"How many {plural(SORTS[sort])} do you hear?")]
    if len(groups) == 1:
        asked.append((n, f"How many {plural(SORTS[sort].split()[-1])} are there?"))
    n, text = rng.choice(asked)
    return text, NUMBERS[n] + "."


# ---- what train.py wants of a sense

CONFIG = "audio_config"
MARKS = ["boa_token_id", "audio_token_id", "eoa_token_index"]
KINDS = ["describe", "count", "order", "pitch", "dial"]
SHARES = [3, 3, 3, 1, 1]  # of the kinds in training
SIZES = [1.6, 3.2]  # seconds, of the evaluation


def training_size(done, rng):
    return rng.uniform(0.6, 1.6) if done < 0.2 else rng.uniform(0.6, 3.6)


def batch_size(size):
    return 192


def batch(config, count, size, hard, rng, generator, kind=None):
    """Features of sounds of that many seconds; a question about each. hard: 0 to 1"""
    kinds = [kind] * count if kind else rng.choices(KINDS, SHARES, k=count)
    scenes, samples = sounds(kinds, size, hard, rng, generator)
    samples = (samples.clamp(-1, 1) * 32767).round() / 32768                # as a file of 16 bits has them
    return features(samples), [question(scene, kind, rng) for scene, kind in zip(scenes, kinds)]
