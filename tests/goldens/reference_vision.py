"""The image processor and vision tower of Gemma 4 in numpy, float32: an executable form of docs/gemma4.md 8.

usage: reference_vision.py parity DIR     compare with a golden folder that has pictures (README.md says what it holds)

Shapes: p patches, H hidden, D head dim. One picture at a time.
"""
import sys
from pathlib import Path

import numpy as np

from reference import F32, Backbone, Weights, gelu_tanh, load_safetensors, relative_error, rms_norm, softmax, split_heads


class Tower(Weights):
    """Weights with clipped linears: four scalars per linear bound its input and output; absent where the tower does not clip."""

    def under(self, name):
        return Tower(self.tensors, f"{self.prefix}{name}.", self.eps)

    def clipped(self, name, x):
        clips = self.has(name + ".input_min")
        if clips:
            x = np.clip(x, self[name + ".input_min"], self[name + ".input_max"])
        x = self.linear(name + ".linear", x)
        return np.clip(x, self[name + ".output_min"], self[name + ".output_max"]) if clips else x

# ---- image processor (8.1)

def target_size(height, width, soft_tokens=280, patch=16, pool=3):
    side, budget = patch * pool, soft_tokens * pool * pool
    factor = np.sqrt(budget * patch * patch / (height * width))
    new = [int(np.floor(edge * factor / side)) * side for edge in (height, width)]
    if new == [0, 0]:
        raise ValueError("image too small")
    if new[0] == 0:
        new = [side, min(width // height * side, soft_tokens * side)]
    elif new[1] == 0:
        new = [min(height // width * side, soft_tokens * side), side]
    return new

def resize_axis(image, size):
    """Bicubic (a = -0.5) along axis 0 of 8-bit data, as Pillow does it: the kernel widens when shrinking, weights in fixed point, 8-bit result."""
    length, bits = len(image), 22
    scale = length / size
    stretch = max(scale, 1.0)
    out = np.empty((size,) + image.shape[1:], np.uint8)
    for i in range(size):
        centre = (i + 0.5) * scale
        first, last = max(int(centre - 2 * stretch + 0.5), 0), min(int(centre + 2 * stretch + 0.5), length)
        d = np.abs((np.arange(first, last) - centre + 0.5) / stretch)
        weights = np.where(d < 1, (1.5 * d - 2.5) * d * d + 1, np.where(d < 2, ((-0.5 * d + 2.5) * d - 4) * d + 2, 0))
        fixed = np.round(weights / weights.sum() * (1 << bits)).astype(np.int64)
        total = np.tensordot(fixed, image[first:last].astype(np.int64), axes=1) + (1 << (bits - 1))
        out[i] = np.clip(total >> bits, 0, 255)
    return out

def resized(rgb, soft_tokens=280, patch=16, pool=3):
    """[h, w, 3] 8-bit -> the same picture in the size that the tower sees"""
    height, width = target_size(*rgb.shape[:2], soft_tokens, patch, pool)
    if (height, width) == rgb.shape[:2]:
        return rgb
    rgb = resize_axis(rgb.transpose(1, 0, 2), width).transpose(1, 0, 2)          # columns first, then rows
    return resize_axis(rgb, height)

def patches_of(rgb, patch=16):
    """[h, w, 3] 8-bit -> patches [p, 3*patch*patch] in [0, 1], positions (x, y) [p, 2]"""
    rows, columns = rgb.shape[0] // patch, rgb.shape[1] // patch
    values = rgb.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1)
    y, x = np.divmod(np.arange(rows * columns), columns)
    return (values / 255).astype(F32), np.stack([x, y], axis=-1)

# ---- vision tower (8.2)

def rotate_2d(z, positions, theta):
    """z [heads, p, D]: the first half of the dims turns with x, the second with y, half-split inside each half."""
    parts = []
    for part, position in zip(np.split(z, 2, axis=-1), positions.T):
        width = part.shape[-1]
        inv_freq = F32(theta) ** (-np.arange(0, width, 2, dtype=F32) / F32(width))
        angles = np.tile(position[:, None].astype(F32) * inv_freq, 2)
        a, b = np.split(part, 2, axis=-1)
        parts.append(part * np.cos(angles) + np.concatenate([-b, a], axis=-1) * np.sin(angles))
    return np.concatenate(parts, axis=-1)

def vision_tower(w, config, pixels, positions):
    """pixels [p, 3*patch*patch] in [0, 1], positions [p, 2] (x, y) -> {name: value}; "pooled" is [soft tokens, H]"""
    trace = {}
    table = w["patch_embedder.position_embedding_table"]                             # [2, side, H]
    x = w.linear("patch_embedder.input_proj", 2 * (pixels - F32(0.5)))
    x = trace["patch_embedding"] = x + (table[0][positions[:, 0]] + table[1][positions[:, 1]])
    for i in range(config["num_hidden_layers"]):
        layer = w.under(f"encoder.layers.{i}")
        a = layer.under("self_attn")
        n = layer.norm("input_layernorm", x)
        q, k, v = (split_heads(a.clipped(name, n), config["head_dim"]) for name in ("q_proj", "k_proj", "v_proj"))
        theta = config["rope_parameters"]["rope_theta"]
        q, k = rotate_2d(a.norm("q_norm", q), positions, theta), rotate_2d(a.norm("k_norm", k), positions, theta)
        scores = q @ k.transpose(0, 2, 1)                                            # not scaled, nothing masked
        mixed = (softmax(scores) @ rms_norm(v, None, w.eps)).transpose(1, 0, 2).reshape(len(x), -1)
        x = x + layer.norm("post_attention_layernorm", a.clipped("o_proj", mixed))
        n, m = layer.norm("pre_feedforward_layernorm", x), layer.under("mlp")
        f = m.clipped("down_proj", gelu_tanh(m.clipped("gate_proj", n)) * m.clipped("up_proj", n))
        x = trace[f"layers.{i}.output"] = x + layer.norm("post_feedforward_layernorm", f)
    pool = config["pooling_kernel_size"]
    group = positions[:, 0] // pool + (positions[:, 0].max() + 1) // pool * (positions[:, 1] // pool)
    pooled = np.zeros((group.max() + 1, x.shape[1]), F32)
    np.add.at(pooled, group, x / F32(pool * pool))
    pooled *= F32(config["hidden_size"] ** 0.5)
    trace["pooled"] = (pooled - w["std_bias"]) * w["std_scale"] if config.get("standardize") else pooled
    return trace

def embed_soft_tokens(w, x):
    """Into the text model's width; not multiplied by the text embedding's factor."""
    return w.linear("embedding_projection", rms_norm(x, None, w.eps))

# ---- 12B, which has no tower (8.4)

def layer_norm(x, weight, bias=0, eps=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + F32(eps)) * weight + bias

def embed_patches(w, pixels, positions):
    """pixels [p, 3*side*side] in [0, 1] of patches that are soft tokens, positions [p, 2] (x, y) -> {name: value}; "placed" is [p, H]"""
    norm = lambda name, x: layer_norm(x, w[name + ".weight"], w[name + ".bias"])
    trace, table = {}, w["pos_embedding"]                                            # [side, 2, H]
    x = trace["patch_embedding"] = norm("patch_ln2", w.linear("patch_dense", norm("patch_ln1", pixels)) + w["patch_dense.bias"])
    trace["placed"] = norm("pos_norm", x + (table[positions[:, 0], 0] + table[positions[:, 1], 1]))
    return trace

def see(tensors, config, pixels, positions, eps=1e-6):
    """What comes before the text, by name, and "soft_tokens" [soft tokens, text H]"""
    if config["vision_config"]["model_type"] == "gemma4_unified_vision":
        trace = embed_patches(Tower(tensors, "model.vision_embedder.", eps), pixels, positions)
        trace["soft_tokens"] = embed_soft_tokens(Tower(tensors, "model.embed_vision.", eps), trace["placed"])
        return trace
    trace = vision_tower(Tower(tensors, "model.vision_tower.", eps), config["vision_config"], pixels, positions)
    trace["soft_tokens"] = embed_soft_tokens(Tower(tensors, "model.embed_vision.", eps), trace["pooled"])
    return trace

# ---- in the text (8.3)

def merged(backbone, ids, soft, placeholder):
    """The text's input rows with soft tokens in place of the placeholders, and the ids that the per-layer table sees: the pad id there."""
    x = backbone.embed(ids)
    x[ids == placeholder] = soft
    return x, np.where(ids == placeholder, 0, ids)

def greedy(backbone, ids, soft, placeholder, count):
    return greedy_after(backbone, *merged(backbone, ids, soft, placeholder), count)

def greedy_after(backbone, x, ids, count):
    """The text after a prompt of these input rows, whose per-layer table sees these ids."""
    cache, tokens = {}, []
    while len(tokens) < count:
        logits = backbone.forward(ids, cache, x).logits
        tokens.append(int(np.argmax(logits[-1])))
        ids, x = np.array(tokens[-1:]), None
    return tokens

def parity(folder):
    """{what: relative error}"""
    g = load_safetensors(Path(folder) / "golden.safetensors")
    backbone = Backbone(Path(folder) / "backbone")
    config = backbone.raw_config
    seen = see(backbone.tensors, config, g["pixel_values"][0], g["image_position_ids"][0])
    x, ids = merged(backbone, g["image.input_ids"][0], seen["soft_tokens"], config["image_token_id"])
    report = {"pooled": relative_error(seen["pooled"], g["vision.last_hidden_state"]),
              "soft tokens": relative_error(seen["soft_tokens"], g["vision.soft_tokens"]),
              "logits": relative_error(backbone.forward(ids, x=x).logits, g["image.logits"])}
    return report

def parity_main(parity, usage):
    """The command line of a tower's reference: `parity`, which reports relative errors, of a golden folder."""
    if len(sys.argv) != 3 or sys.argv[1] != "parity":
        raise SystemExit(usage)
    report = parity(sys.argv[2])
    fine = max(report.values()) < 1e-4
    print(f"{sys.argv[2]}: {'ok' if fine else 'MISMATCH'}: " + ", ".join(f"{name} {error:.1e}" for name, error in report.items()))
    sys.exit(0 if fine else 1)

if __name__ == "__main__":
    parity_main(parity, __doc__)
