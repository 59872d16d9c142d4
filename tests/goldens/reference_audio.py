"""The feature extractor and audio tower of Gemma 4 E2B and E4B in numpy, float32: an executable form of docs/gemma4.md 9.

usage: reference_audio.py parity DIR     compare with a golden folder that has sounds (README.md says what it holds)

Shapes: t frames, H hidden, D head dim. One sound at a time. Only frames whose samples are all there are computed; transformers' padding
behind them never reaches them.
"""
from pathlib import Path

import numpy as np

from reference import F32, Backbone, load_safetensors, relative_error, rms_norm, softmax, split_heads
from reference_vision import Tower, embed_soft_tokens, layer_norm, merged, parity_main

# ---- features (9.1)

def mel_filters(bins=257, filters=128, top=8000.0):
    """[bins, filters]: triangles over frequency in Hz whose corners are evenly spaced in HTK's mel; not normalised by area."""
    mel = lambda f: 2595 * np.log10(1 + f / 700)
    corners = 700 * (10 ** (np.linspace(mel(0.0), mel(top), filters + 2) / 2595) - 1)
    f = np.linspace(0, top, bins)[:, None]
    rise = (f - corners[:-2]) / np.diff(corners)[:-1]
    fall = (corners[2:] - f) / np.diff(corners)[1:]
    return np.maximum(0, np.minimum(rise, fall))

def audio_features(samples):
    """16 kHz, one channel -> log-mel [t, 128]"""
    padded = np.pad(samples.astype(np.float64), (160, 0))
    starts = np.arange(0, len(padded) - 321 + 1, 160)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(320) / 320)
    magnitude = np.abs(np.fft.rfft(padded[starts[:, None] + np.arange(320)] * window, 512))
    return np.log(magnitude @ mel_filters() + 1e-3).astype(F32)

# ---- audio tower (9.2)

def silu(z):
    return z / (1 + np.exp(-z))

def conv_3x3_stride_2(x, kernel):
    """x [t, f, C] -> [ceil(t/2), ceil(f/2), C']; kernel [C', C, 3, 3], one zero row and column around."""
    x = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    rows, columns = (x.shape[0] - 3) // 2 + 1, (x.shape[1] - 3) // 2 + 1
    out = np.zeros((rows, columns, len(kernel)), F32)
    for i in range(3):
        for j in range(3):
            out += x[i:i + 2 * rows - 1:2, j:j + 2 * columns - 1:2] @ kernel[:, :, i, j].T
    return out

def attention(w, x, config):
    """A frame sees itself and those before it; transformers' chunks do not show in the result."""
    width, past = x.shape[1], config["attention_context_left"] - 1
    head_dim = width // config["num_attention_heads"]
    q, k, v = (split_heads(w.clipped(name, x), head_dim) for name in ("q_proj", "k_proj", "v_proj"))
    q = q * F32(head_dim ** -0.5 / np.log(2)) * np.log1p(np.exp(w["per_dim_scale"]))
    k = k * F32(np.log(1 + np.e) / np.log(2))
    distance = np.arange(len(x))[:, None] - np.arange(len(x))                         # query minus key
    inv = np.exp(-np.arange(width // 2) * np.log(10000) / (width // 2 - 1))
    angles = np.arange(past)[:, None] * inv                                           # row d: distance d
    relative = w.linear("relative_k_proj", np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(F32))
    by_distance = q @ split_heads(relative, head_dim).transpose(0, 2, 1)              # [heads, t, past]
    in_table = np.broadcast_to(np.clip(distance, 0, past - 1), (len(q),) + distance.shape)
    scores = q @ k.transpose(0, 2, 1) + np.take_along_axis(by_distance, in_table, axis=-1)
    cap = F32(config["attention_logit_cap"])
    scores = np.where((distance >= 0) & (distance < past), cap * np.tanh(scores / cap), F32(-1e9))
    return w.clipped("post", (softmax(scores) @ v).transpose(1, 0, 2).reshape(len(x), -1))

def audio_tower(w, config, features):
    """features [t, 128] -> {name: value}; "rows" is [ceil(t/4), output_proj_dims]"""
    trace, x = {}, features[:, :, None]
    for block in (w.under("subsample_conv_projection.layer0"), w.under("subsample_conv_projection.layer1")):
        x = np.maximum(layer_norm(conv_3x3_stride_2(x, block["conv.weight"]), block["norm.weight"], eps=1e-6), 0)
    x = trace["subsampled"] = w.linear("subsample_conv_projection.input_proj_linear", x.reshape(len(x), -1))    # frequency outer, channel inner
    bound = F32(min(config["gradient_clipping"], np.finfo(F32).max))
    clamp = lambda z: np.clip(z, -bound, bound)

    def feed_forward(f, x):
        y = f.clipped("ffw_layer_2", silu(f.clipped("ffw_layer_1", f.norm("pre_layer_norm", clamp(x)))))
        return x + F32(config["residual_weight"]) * f.norm("post_layer_norm", clamp(y))

    for i in range(config["num_hidden_layers"]):
        layer = w.under(f"layers.{i}")
        x = feed_forward(layer.under("feed_forward1"), x)
        a = attention(layer.under("self_attn"), layer.norm("norm_pre_attn", clamp(x)), config)
        x = x + layer.norm("norm_post_attn", clamp(a))
        c = layer.under("lconv1d")
        content, gate = np.split(c.clipped("linear_start", c.norm("pre_layer_norm", x)), 2, axis=-1)
        kernel = c["depthwise_conv1d.weight"][:, 0]                                   # [H, taps]; the last tap is the present frame
        taps = kernel.shape[1]
        y = np.pad(content / (1 + np.exp(-gate)), ((taps - 1, 0), (0, 0)))
        y = sum(y[j:j + len(x)] * kernel[:, j] for j in range(taps))
        x = x + c.clipped("linear_end", silu(c.norm("conv_norm", clamp(y))))
        x = feed_forward(layer.under("feed_forward2"), x)
        x = trace[f"layers.{i}.output"] = layer.norm("norm_out", clamp(x))
    trace["rows"] = w.linear("output_proj", x) + w["output_proj.bias"]
    return trace

def hear_samples(tensors, config, samples, eps=1e-6):
    """12B, which has no tower (9.4): samples -> {"soft_tokens": [ceil(samples / width), text H]}"""
    width = config["audio_config"]["audio_embed_dim"]
    frames = np.pad(samples, (0, -len(samples) % width)).reshape(-1, width)
    return {"soft_tokens": embed_soft_tokens(Tower(tensors, "model.embed_audio.", eps), frames)}

def hear(tensors, config, features, eps=1e-6):
    """audio_tower()'s values, and "soft_tokens" [ceil(t/4), text H]"""
    trace = audio_tower(Tower(tensors, "model.audio_tower.", eps), config["audio_config"], features)
    trace["soft_tokens"] = embed_soft_tokens(Tower(tensors, "model.embed_audio.", eps), trace["rows"])
    return trace

# ---- comparison

def parity(folder):
    """{what: relative error}"""
    g = load_safetensors(Path(folder) / "golden.safetensors")
    backbone = Backbone(Path(folder) / "backbone")
    config = backbone.raw_config
    valid = g["input_features_mask"][0].astype(bool)
    heard = hear(backbone.tensors, config, g["input_features"][0][valid])
    x, ids = merged(backbone, g["audio.input_ids"][0], heard["soft_tokens"], config["audio_token_id"])
    report = {"rows": relative_error(heard["rows"], g["audio.last_hidden_state"][0][:len(heard["rows"])]),
              "soft tokens": relative_error(heard["soft_tokens"], g["audio.soft_tokens"]),
              "logits": relative_error(backbone.forward(ids, x=x).logits, g["audio.logits"])}
    sounds = load_safetensors(Path(__file__).resolve().parent / "sounds" / "features.safetensors")
    report["features"] = relative_error(np.exp(audio_features(sounds["samples"])), np.exp(sounds["features"]))
    return report

if __name__ == "__main__":
    parity_main(parity, __doc__)
