"""Goldens that reference.py computes (numpy), beside those of Hugging Face transformers.

usage: make_numpy_goldens.py odd              the folder odd: every feature at once, in sizes that no published model has
       make_numpy_goldens.py random DIR SEED  a pair of another architecture for each seed, to compare by hand: outrider parity DIR
       make_numpy_goldens.py moe              moe.safetensors of moe-26b-a4b and odd: what the router and the experts compute
       make_numpy_goldens.py vision           the folder vision-odd: a tower as 26B-A4B's and 31B's, without bounds and standardized; what dense-31b
                                              makes of soft tokens that see both ways, and the greedy text after the picture of multimodal-e4b
       make_numpy_goldens.py audio            the folder audio-odd: an audio tower in sizes that no published model has; sound.json of multimodal-e4b, the
                                              greedy text after sounds
       make_numpy_goldens.py unified          the folder unified-media: what stands before unified-12b for pictures and sounds, and a text with both
       make_numpy_goldens.py gguf             the folder gguf: blocks of every type of GGUF that is read, and what gguf-py makes of them (pip install gguf)
       make_numpy_goldens.py points           common/compute/tensor/iq_points.inc, from gguf-py
       make_numpy_goldens.py pictures         the folder pictures but for huggingface*.png, with Pillow, which Hugging Face's image processor calls

What transformers' goldens cannot tell is whether the code took a size from them, and what hidden states cannot tell is whether the
router's weights are renormalised in the right order: the norm after the experts cancels it. moe.safetensors has, of the first and the
last layer: input (the residual stream, which the router reads), chosen and weights [n, top_k], experts_input, experts_output.
"""
import json
import struct
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np

import reference
import reference_audio
import reference_vision
from reference import FULL, SLIDING

HERE = Path(__file__).resolve().parent
DRAFT_STEPS = 6
ODD = dict(vocab_size=210, hidden_size=40, intermediate_size=52, num_hidden_layers=7, num_attention_heads=6, num_key_value_heads=3,
           head_dim=16, global_head_dim=48, num_global_key_value_heads=2, attention_k_eq_v=True, sliding_window=5,
           layer_types=[SLIDING, FULL, FULL, SLIDING, SLIDING, FULL, FULL], num_kv_shared_layers=2, use_double_wide_mlp=True,
           hidden_size_per_layer_input=24, vocab_size_per_layer_input=217, enable_moe_block=True, num_experts=5, top_k_experts=2,
           moe_intermediate_size=12, final_logit_softcapping=None, ordered=True, centroids=14, old_spelling=True, bf16=True, text_only=False,
           prompt=29)

TRACED = {"after_attention": "input", "router.chosen": "chosen", "router.weights": "weights", "experts_input": "experts_input",
          "experts_output": "experts_output"}

def random_settings(seed):
    """Any of the facts that differ between the published models, in any combination."""
    rng = np.random.default_rng(seed)
    pick = lambda *values: values[rng.integers(len(values))]
    kv, full_kv = pick((1, 1), (2, 1), (3, 2), (2, 4), (4, 4))
    layers = int(rng.integers(4, 10))
    kinds = [pick(SLIDING, SLIDING, FULL) for _ in range(layers)]
    kinds[:2], kinds[-1] = (pick((SLIDING, FULL), (FULL, SLIDING))), FULL
    experts = int(rng.integers(2, 14))
    return dict(vocab_size=210, hidden_size=8 * int(rng.integers(3, 12)), intermediate_size=4 * int(rng.integers(5, 40)), num_hidden_layers=layers,
                num_attention_heads=12, num_key_value_heads=kv, num_global_key_value_heads=full_kv, head_dim=pick(8, 16, 24, 26),
                global_head_dim=pick(16, 32, 40, 50), attention_k_eq_v=pick(True, False), sliding_window=int(rng.integers(1, 20)), layer_types=kinds,
                num_kv_shared_layers=int(rng.integers(0, layers - 1)), use_double_wide_mlp=pick(True, False),
                hidden_size_per_layer_input=pick(0, 0, 7, 24), vocab_size_per_layer_input=215, enable_moe_block=pick(True, False), num_experts=experts,
                top_k_experts=int(rng.integers(1, experts + 1)), moe_intermediate_size=int(rng.integers(3, 40)),
                final_logit_softcapping=pick(None, 3.0, 30.0), ordered=pick(True, False), centroids=pick(7, 14, 30), old_spelling=pick(True, False),
                bf16=pick(True, False), text_only=pick(True, False), prompt=int(rng.integers(3, 70)))

def save_safetensors(path, tensors, bf16=False):
    header, blobs, offset = {}, [], 0
    for name, value in sorted(tensors.items()):
        value = np.ascontiguousarray(value)
        kind = {"f": "F32", "i": "I64", "u": "U8"}[value.dtype.kind]
        data = value.astype({"F32": "<f4", "I64": "<i8", "U8": "u1"}[kind]).tobytes()
        if kind == "F32" and bf16:
            kind, data = "BF16", (np.frombuffer(data, "<u4") >> 16).astype("<u2").tobytes()     # exact: the values are bfloat16's
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [offset, offset + len(data)]}
        blobs.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))

class Maker:
    """Random tensors, scaled so that activations stay near one."""

    def __init__(self, seed, bf16):
        self.rng, self.bf16, self.tensors = np.random.default_rng(seed), bf16, {}

    def put(self, name, shape, mean=0.0, deviation=1.0):
        value = (mean + deviation * self.rng.standard_normal(shape)).astype(np.float32)
        if self.bf16:                                    # cut to bfloat16, so that both sides compute with the same values
            value = (value.view(np.uint32) & 0xFFFF0000).view(np.float32)
        self.tensors[name] = value

    def matrix(self, name, *shape):
        self.put(name, shape, deviation=shape[-1] ** -0.5)

    def norm(self, name, width, mean=1.0):
        self.put(name, (width,), mean, 0.2 * mean)

    def layer(self, prefix, hidden, heads, head_dim, kv_heads, inner, owns_kv, k_eq_v, ple=0, experts=0, moe_inner=0):
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            self.norm(f"{prefix}{name}_layernorm.weight", hidden)
        self.put(prefix + "layer_scalar", (1,), 0.8, 0.1)
        attention = prefix + "self_attn."
        self.matrix(attention + "q_proj.weight", heads * head_dim, hidden)
        self.matrix(attention + "o_proj.weight", hidden, heads * head_dim)
        self.norm(attention + "q_norm.weight", head_dim, head_dim ** -0.5)
        if owns_kv:
            self.matrix(attention + "k_proj.weight", kv_heads * head_dim, hidden)
            self.norm(attention + "k_norm.weight", head_dim)
            if not k_eq_v:
                self.matrix(attention + "v_proj.weight", kv_heads * head_dim, hidden)
        self.matrix(prefix + "mlp.gate_proj.weight", inner, hidden)
        self.matrix(prefix + "mlp.up_proj.weight", inner, hidden)
        self.matrix(prefix + "mlp.down_proj.weight", hidden, inner)
        if ple:
            self.matrix(prefix + "per_layer_input_gate.weight", ple, hidden)
            self.matrix(prefix + "per_layer_projection.weight", hidden, ple)
            self.norm(prefix + "post_per_layer_input_norm.weight", hidden)
        if experts:
            for name in ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"):
                self.norm(f"{prefix}{name}.weight", hidden)
            self.put(prefix + "router.proj.weight", (experts, hidden))
            self.norm(prefix + "router.scale", hidden)
            self.norm(prefix + "router.per_expert_scale", experts)
            self.matrix(prefix + "experts.gate_up_proj", experts, 2 * moe_inner, hidden)
            self.matrix(prefix + "experts.down_proj", experts, hidden, moe_inner)

def spelled(text, kinds, old):
    """The shapes of full layers in the older spelling, or in the newer one with zero-padded keys."""
    text = dict(text)
    if not old:
        head_dim, own = text.pop("global_head_dim"), text.pop("num_global_key_value_heads")
        entry = {"head_dim": head_dim, **({"num_key_value_heads": own} if text["attention_k_eq_v"] else {})}
        text["per_layer_config"] = {f"{i:03}": entry for i, kind in enumerate(kinds) if kind == FULL}
    return text

def write_pair(out, s, seed):
    kinds = s["layer_types"]
    first_shared = s["num_hidden_layers"] - s["num_kv_shared_layers"]
    while any(kind not in kinds[:first_shared] for kind in (SLIDING, FULL)):       # every shared layer and the assistant need a donor
        first_shared += 1
    s["num_kv_shared_layers"] = s["num_hidden_layers"] - first_shared
    full_kv = s["num_global_key_value_heads"] if s["attention_k_eq_v"] else s["num_key_value_heads"]
    shapes = {SLIDING: (s["head_dim"], s["num_key_value_heads"]), FULL: (s["global_head_dim"], full_kv)}
    hidden, ple = s["hidden_size"], s["hidden_size_per_layer_input"]

    backbone = Maker(seed, s["bf16"])
    prefix = "model." if s["text_only"] else "model.language_model."
    backbone.matrix(prefix + "embed_tokens.weight", s["vocab_size"], hidden)
    backbone.norm(prefix + "norm.weight", hidden)
    if ple:
        backbone.put(prefix + "embed_tokens_per_layer.weight", (s["vocab_size_per_layer_input"], s["num_hidden_layers"] * ple), deviation=0.5)
        backbone.matrix(prefix + "per_layer_model_projection.weight", s["num_hidden_layers"] * ple, hidden)
        backbone.norm(prefix + "per_layer_projection_norm.weight", ple)
    for i, kind in enumerate(kinds):
        shared = i >= first_shared
        backbone.layer(f"{prefix}layers.{i}.", hidden, s["num_attention_heads"], *shapes[kind],
                       s["intermediate_size"] * (2 if shared and s["use_double_wide_mlp"] else 1), not shared,
                       kind == FULL and s["attention_k_eq_v"], ple, s["num_experts"] if s["enable_moe_block"] else 0, s["moe_intermediate_size"])
    ours = ("ordered", "centroids", "old_spelling", "bf16", "text_only", "prompt")
    text = spelled({"model_type": "gemma4_text", **{k: v for k, v in s.items() if k not in ours}}, kinds, s["old_spelling"])
    if not ple:
        text["vocab_size_per_layer_input"] = 0
    write(out / "backbone", text if s["text_only"] else {"model_type": "gemma4", "text_config": text}, backbone.tensors, s["bf16"])

    assistant, small, count = Maker(seed + 1, s["bf16"]), 24, 3
    draft_kinds = [SLIDING, FULL, FULL]
    assistant.matrix("pre_projection.weight", small, 2 * hidden)
    assistant.matrix("post_projection.weight", hidden, small)
    assistant.matrix("model.embed_tokens.weight", s["vocab_size"], small)
    assistant.norm("model.norm.weight", small)
    for j, kind in enumerate(draft_kinds):
        assistant.layer(f"model.layers.{j}.", small, s["num_attention_heads"], *shapes[kind], 36, False, False)
    if s["ordered"]:
        assistant.matrix("masked_embedding.centroids.weight", s["centroids"], small)
        assistant.tensors["masked_embedding.token_ordering"] = np.random.default_rng(seed).permutation(s["vocab_size"])
    keys = ("vocab_size", "num_attention_heads", "num_key_value_heads", "num_global_key_value_heads", "head_dim", "global_head_dim", "attention_k_eq_v",
            "sliding_window")
    text = {"model_type": "gemma4_text", **{k: s[k] for k in keys}, "hidden_size": small, "intermediate_size": 36, "num_hidden_layers": count,
            "layer_types": draft_kinds, "num_kv_shared_layers": count, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    config = {"model_type": "gemma4_assistant", "backbone_hidden_size": hidden, "use_ordered_embeddings": s["ordered"], "num_centroids": s["centroids"],
              "centroid_intermediate_top_k": 3, "text_config": spelled(text, draft_kinds, not s["old_spelling"])}
    write(out / "assistant", config, assistant.tensors, s["bf16"])

def write(folder, config, tensors, bf16):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_safetensors(folder / "model.safetensors", tensors, bf16)

def make_pair(out, settings, seed):
    write_pair(out, settings, seed)
    prompt = np.random.default_rng(seed).integers(0, settings["vocab_size"], settings["prompt"])
    golden = {"input_ids": prompt[None]}
    save_safetensors(out / "golden.safetensors", golden)
    _, _, _, _, run, (ids, logits, states) = reference.run_golden(out)
    golden["logits"] = run.logits
    golden.update({f"hidden_states.{i}": h for i, h in enumerate(run.hidden_states)})
    for kind, (k, v) in run.shared_kv.items():
        golden[f"shared_kv.{kind}.key"], golden[f"shared_kv.{kind}.value"] = k, v
    for j in range(DRAFT_STEPS):
        golden[f"draft.{j}.logits"], golden[f"draft.{j}.hidden"] = logits[j], states[j]
    save_safetensors(out / "golden.safetensors", golden)
    notes = {"draft_first_token": int(np.argmax(run.logits[-1])), "draft_position_id": len(prompt), "draft_tokens": [int(i) for i in ids]}
    (out / "golden.json").write_text(json.dumps(notes) + "\n")

def trace_moe(folder):
    reference.Weights.traced, reference.Weights.trace_prefix = {}, ""
    _, backbone, *_ = reference.run_golden(folder)
    reference.Weights.trace_prefix = None
    save_safetensors(folder / "moe.safetensors", {f"layers.{i}.{ours}": reference.Weights.traced[f"{backbone.w.prefix}layers.{i}.{theirs}"]
                                                  for i in (0, backbone.config.layer_count - 1) for theirs, ours in TRACED.items()})

TOWER = dict(model_type="gemma4_vision", hidden_size=36, intermediate_size=50, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
             head_dim=12, patch_size=2, pooling_kernel_size=2, position_embedding_size=11, rope_parameters={"rope_theta": 50.0, "rope_type": "default"},
             use_clipped_linears=False, standardize=True)

def make_tower(out, t, rows, columns):
    """A tower alone, its weights of random means and sizes, and a picture of rows x columns patches."""
    text_hidden, hidden, heads = 44, t["hidden_size"], t["num_attention_heads"] * t["head_dim"]
    maker = Maker(20, bf16=False)
    for name, shape in (("vision_tower.patch_embedder.input_proj.weight", (hidden, 3 * t["patch_size"] ** 2)),
                        ("embed_vision.embedding_projection.weight", (text_hidden, hidden))):
        maker.matrix("model." + name, *shape)
    maker.put("model.vision_tower.patch_embedder.position_embedding_table", (2, t["position_embedding_size"], hidden))
    maker.norm("model.vision_tower.std_bias", hidden)
    maker.norm("model.vision_tower.std_scale", hidden, 0.5)
    for i in range(t["num_hidden_layers"]):
        prefix = f"model.vision_tower.encoder.layers.{i}."
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            maker.norm(f"{prefix}{name}_layernorm.weight", hidden)
        for name in ("q_norm", "k_norm"):
            maker.norm(f"{prefix}self_attn.{name}.weight", t["head_dim"], 0.5)
        for name, shape in (("self_attn.q_proj", (heads, hidden)), ("self_attn.k_proj", (heads, hidden)), ("self_attn.v_proj", (heads, hidden)),
                            ("self_attn.o_proj", (hidden, heads)), ("mlp.gate_proj", (t["intermediate_size"], hidden)),
                            ("mlp.up_proj", (t["intermediate_size"], hidden)), ("mlp.down_proj", (hidden, t["intermediate_size"]))):
            maker.matrix(f"{prefix}{name}.linear.weight", *shape)
    config = {"model_type": "gemma4", "text_config": {"hidden_size": text_hidden}, "vision_config": t}
    write(out / "backbone", config, maker.tensors, bf16=False)
    pixels = np.random.default_rng(21).random((rows * columns, 3 * t["patch_size"] ** 2), np.float32)
    y, x = np.divmod(np.arange(rows * columns), columns)
    golden = reference_vision.see(maker.tensors, config, pixels, np.stack([x, y], axis=-1))
    save_safetensors(out / "golden.safetensors", {"pixel_values": pixels[None], "image_position_ids": np.stack([x, y], axis=-1)[None], **golden})

def make_soft_texts():
    """picture.json and pictures.safetensors of multimodal-e4b, and picture.safetensors of dense-31b: two pictures of random rows, the first wider than
    the window."""
    folder = HERE / "multimodal-e4b"
    golden, backbone = reference.load_safetensors(folder / "golden.safetensors"), reference.Backbone(folder / "backbone")
    ids = golden["image.input_ids"][0]
    tokens = reference_vision.greedy(backbone, ids, golden["vision.soft_tokens"], backbone.raw_config["image_token_id"], 24)
    image, begin, end = (backbone.raw_config[key] for key in ("image_token_id", "boi_token_id", "eoi_token_id"))

    # 8-bit pixels that a test makes by this formula.
    def soft_of(height, width, step):
        rgb = ((np.arange(height * width * 3) * step + 11) % 256).astype(np.uint8).reshape(height, width, 3)
        return reference_vision.see(backbone.tensors, backbone.raw_config, *reference_vision.patches_of(rgb, patch=4))["soft_tokens"]

    of_bytes = reference_vision.greedy(backbone, ids, soft_of(24, 36, 37), image, 24)
    notes = {"prompt": ids.tolist(), "greedy": tokens, "greedy_of_bytes": of_bytes, "texts": []}
    soft_tokens = {}
    for name, shapes in (("portrait", [(48, 24, 7)]), ("panorama", [(12, 96, 101)]), ("two", [(24, 36, 37), (36, 12, 53)]),
                         ("video", [(24, 36, 37), (24, 36, 53), (24, 36, 71)])):
        prompt, soft, pictures = [2, 20], [], []
        token = backbone.raw_config["video_token_id"] if name == "video" else image
        for height, width, step in shapes:
            soft.append(soft_of(height, width, step))
            pictures.append({"first": len(prompt) + 1, "height": height, "width": width, "step": step})
            prompt += [begin] + [token] * len(soft[-1]) + [end, 30 + len(prompt)]
        soft_tokens[name] = np.concatenate(soft)
        prompt += [31, 32, 33]
        greedy = reference_vision.greedy(backbone, np.array(prompt), soft_tokens[name], token, 24)
        notes["texts"].append({"name": name, "pictures": pictures, "prompt": prompt, "greedy": greedy})
    (folder / "picture.json").write_text(json.dumps(notes) + "\n")
    save_safetensors(folder / "pictures.safetensors", soft_tokens)
    folder = HERE / "dense-31b"
    backbone, rng = reference.Backbone(folder / "backbone"), np.random.default_rng(31)
    ids, both_ways = rng.integers(1, 500, 40), [(3, 17), (21, 26)]
    x = backbone.embed(ids)
    for first, end in both_ways:
        x[first:end] = rng.standard_normal((end - first, x.shape[1]), np.float32)
    logits = backbone.forward(ids, x=x, both_ways=both_ways).logits
    save_safetensors(folder / "picture.safetensors", {"input_ids": ids[None], "pictures": np.array(both_ways), "rows": x, "logits": logits})

AUDIO_TOWER = dict(model_type="gemma4_audio", hidden_size=24, num_hidden_layers=2, num_attention_heads=3, subsampling_conv_channels=[6, 5],
                   conv_kernel_size=3, attention_context_left=5, attention_context_right=0, attention_logit_cap=4.0, gradient_clipping=1.5,
                   residual_weight=0.7, output_proj_dims=20, use_clipped_linears=False)

def make_audio_tower(out, t, frames):
    """A tower alone, its weights of random means and sizes, and so many frames."""
    text_hidden, hidden, dims = 44, t["hidden_size"], t["output_proj_dims"]
    first, second = t["subsampling_conv_channels"]
    maker, tower = Maker(40, bf16=False), "model.audio_tower."
    maker.matrix("model.embed_audio.embedding_projection.weight", text_hidden, dims)
    for i, (channels_in, channels) in enumerate(((1, first), (first, second))):
        prefix = f"{tower}subsample_conv_projection.layer{i}."
        maker.put(prefix + "conv.weight", (channels, channels_in, 3, 3), deviation=(9 * channels_in) ** -0.5)
        maker.norm(prefix + "norm.weight", channels)
    maker.matrix(tower + "subsample_conv_projection.input_proj_linear.weight", hidden, 32 * second)
    maker.matrix(tower + "output_proj.weight", dims, hidden)
    maker.put(tower + "output_proj.bias", (dims,), deviation=0.3)
    for i in range(t["num_hidden_layers"]):
        prefix = f"{tower}layers.{i}."
        for name in ("feed_forward1.pre_layer_norm", "feed_forward1.post_layer_norm", "feed_forward2.pre_layer_norm", "feed_forward2.post_layer_norm",
                     "norm_pre_attn", "norm_post_attn", "norm_out", "lconv1d.pre_layer_norm", "lconv1d.conv_norm"):
            maker.norm(f"{prefix}{name}.weight", hidden)
        for name, shape in (("feed_forward1.ffw_layer_1", (4 * hidden, hidden)), ("feed_forward1.ffw_layer_2", (hidden, 4 * hidden)),
                            ("feed_forward2.ffw_layer_1", (4 * hidden, hidden)), ("feed_forward2.ffw_layer_2", (hidden, 4 * hidden)),
                            ("self_attn.q_proj", (hidden, hidden)), ("self_attn.k_proj", (hidden, hidden)), ("self_attn.v_proj", (hidden, hidden)),
                            ("self_attn.post", (hidden, hidden)), ("lconv1d.linear_start", (2 * hidden, hidden)), ("lconv1d.linear_end", (hidden, hidden))):
            maker.matrix(f"{prefix}{name}.linear.weight", *shape)
        maker.matrix(f"{prefix}self_attn.relative_k_proj.weight", hidden, hidden)
        maker.put(f"{prefix}self_attn.per_dim_scale", (hidden // t["num_attention_heads"],), deviation=0.5)
        maker.put(f"{prefix}lconv1d.depthwise_conv1d.weight", (hidden, 1, t["conv_kernel_size"]), deviation=t["conv_kernel_size"] ** -0.5)
    config = {"model_type": "gemma4", "text_config": {"hidden_size": text_hidden}, "audio_config": t}
    write(out / "backbone", config, maker.tensors, bf16=False)
    features = np.random.default_rng(41).standard_normal((frames, 128), np.float32)
    save_safetensors(out / "golden.safetensors", {"features": features, **reference_audio.hear(maker.tensors, config, features)})

def make_sound_texts():
    """sound.json of multimodal-e4b: the greedy text after a sound, after a picture and a sound, and with a sound between two pictures, which tests make by these
    formulas."""
    folder = HERE / "multimodal-e4b"
    backbone = reference.Backbone(folder / "backbone")
    config = backbone.raw_config
    image, sound = config["image_token_id"], config["audio_token_id"]

    def heard(count, step):
        samples = ((np.arange(count) * step) % 256 - 128).astype(np.float32) / 256
        return reference_audio.hear(backbone.tensors, config, reference_audio.audio_features(samples))["soft_tokens"]

    def seen(height, width, step):
        rgb = ((np.arange(height * width * 3) * step + 11) % 256).astype(np.uint8).reshape(height, width, 3)
        return reference_vision.see(backbone.tensors, config, *reference_vision.patches_of(rgb, patch=4))["soft_tokens"]

    texts = []
    picture, short = (image, seen(24, 36, 37)), (sound, heard(2000, 11))
    for name, media in (("sound", [(sound, heard(6000, 37))]), ("picture and sound", [picture, short]),
                        ("sound between pictures", [picture, short, (image, seen(36, 12, 53))])):
        prompt, firsts = [2, 20], []
        for token, soft in media:
            begin, end = (config["boi_token_id"], config["eoi_token_id"]) if token == image else (config["boa_token_id"], config["eoa_token_index"])
            firsts.append(len(prompt) + 1)
            prompt += [begin] + [token] * len(soft) + [end, 30 + len(prompt)]
        ids = np.array(prompt + [31, 32, 33])
        x, tokens = backbone.embed(ids), np.where((ids == image) | (ids == sound), 0, ids)
        for first, (_, soft) in zip(firsts, media):
            x[first:first + len(soft)] = soft
        texts.append({"name": name, "prompt": ids.tolist(), "firsts": firsts, "greedy": reference_vision.greedy_after(backbone, x, tokens, 24)})
    (folder / "sound.json").write_text(json.dumps({"texts": texts}) + "\n")

UNIFIED_VISION = dict(model_type="gemma4_unified_vision", patch_size=2, pooling_kernel_size=3, mm_embed_dim=44, mm_posemb_size=9, output_proj_dims=44)
UNIFIED_AUDIO = dict(model_type="gemma4_unified_audio", audio_embed_dim=40)

def make_unified(out):
    """Without the text model, which is that of unified-12b. Its ids are as those of multimodal-e4b, since its vocabulary is as small."""
    text_folder, maker = HERE / "unified-12b" / "backbone", Maker(60, bf16=False)
    config = json.loads((text_folder / "config.json").read_text())
    config.update(vision_config=UNIFIED_VISION, audio_config=UNIFIED_AUDIO, image_token_id=500, video_token_id=501, audio_token_id=502, boi_token_id=503,
                  eoi_token_id=504, boa_token_id=505, eoa_token_index=506)
    hidden, text_hidden, side = UNIFIED_VISION["mm_embed_dim"], config["text_config"]["hidden_size"], 6
    for name, width in (("patch_ln1", 3 * side * side), ("patch_ln2", hidden), ("pos_norm", hidden)):
        maker.norm(f"model.vision_embedder.{name}.weight", width)
        maker.put(f"model.vision_embedder.{name}.bias", (width,), deviation=0.3)
    maker.matrix("model.vision_embedder.patch_dense.weight", hidden, 3 * side * side)
    maker.put("model.vision_embedder.patch_dense.bias", (hidden,), deviation=0.3)
    maker.put("model.vision_embedder.pos_embedding", (UNIFIED_VISION["mm_posemb_size"], 2, hidden))
    maker.matrix("model.embed_vision.embedding_projection.weight", text_hidden, hidden)
    maker.matrix("model.embed_audio.embedding_projection.weight", text_hidden, UNIFIED_AUDIO["audio_embed_dim"])
    write(out / "backbone", config, maker.tensors, bf16=False)

    # 8-bit pixels and samples that a test makes by these formulas.
    rgb = ((np.arange(12 * 18 * 3) * 37 + 11) % 256).astype(np.uint8).reshape(12, 18, 3)
    samples = ((np.arange(230) * 7) % 256 - 128).astype(np.float32) / 256
    pixels, positions = reference_vision.patches_of(rgb, patch=side)
    seen = reference_vision.see(maker.tensors, config, pixels, positions)
    heard = reference_audio.hear_samples(maker.tensors, config, samples)
    backbone = reference.Backbone(text_folder)
    ids = np.array([2, 20, 503] + [500] * 6 + [504, 31, 505] + [502] * 6 + [506, 32, 33])
    x = backbone.embed(ids)
    x[ids == 500], x[ids == 502] = seen["soft_tokens"], heard["soft_tokens"]
    logits = backbone.forward(ids, x=x, both_ways=[(3, 9)]).logits
    golden = {"pixel_values": pixels[None], "image_position_ids": positions[None], "samples": samples, "input_ids": ids[None], "logits": logits,
              **{"vision." + name: value for name, value in seen.items()}, "audio.soft_tokens": heard["soft_tokens"]}
    save_safetensors(out / "golden.safetensors", golden)

def make_pictures(out):
    """Files of every kind that is read, each with what Pillow makes of it (decoded.safetensors), and pictures resized by Pillow."""
    from PIL import Image, ImageOps
    out.mkdir(exist_ok=True)
    y, x = np.mgrid[0:26, 0:38]
    rgb = np.stack([x * 6, y * 9, (x * y) % 256], axis=-1).astype(np.uint8)
    rgba = np.concatenate([rgb, (255 - 5 * x).astype(np.uint8)[..., None]], axis=-1)
    picture, grey = Image.fromarray(rgb), Image.fromarray(rgb).convert("L")
    files = {"rgb.png": (picture, {}), "alpha.png": (Image.fromarray(rgba), {}), "grey.png": (grey, {}), "bits.png": (picture.convert("1"), {}),
             "palette.png": (picture.convert("P"), {}), "rgb.jpeg": (picture, {"quality": 95}), "grey.jpeg": (grey, {}),
             "progressive.jpeg": (picture, {"progressive": True}), "cmyk.jpeg": (picture.convert("CMYK"), {}),
             "lossless.webp": (picture, {"lossless": True}), "lossy.webp": (picture, {}),
             "alpha.webp": (Image.fromarray(rgba), {"lossless": True, "exact": True})}
    for orientation in range(1, 9):
        turned = Image.Exif()
        turned[0x0112] = orientation
        files[f"turned{orientation}.jpeg"] = (picture, {"exif": turned, "quality": 95, "subsampling": 0})
        if orientation == 6:
            files["turned6.png"] = (picture, {"exif": turned})
            files["turned6.webp"] = (picture, {"exif": turned.tobytes(), "lossless": True})
    save_png16(out / "rgb16.png", rgb.astype(np.uint16) * 256 + 255 - rgb, 2)
    decoded = {"rgb16.png": np.asarray(Image.open(out / "rgb16.png").convert("RGB"))}
    for name, (image, settings) in files.items():
        image.save(out / name, **settings)
        decoded[name] = np.asarray(ImageOps.exif_transpose(Image.open(out / name)).convert("RGB"))
    del decoded["cmyk.jpeg"]                             # refused
    save_safetensors(out / "decoded.safetensors", decoded)
    for name, (height, width), tokens in (("portrait", (500, 333), 70), ("panorama", (30, 1500), 70), ("small", (5, 7), 140), ("same", (336, 480), 70)):
        y, x = np.mgrid[0:height, 0:width]
        rgb = np.stack([x * 255 // width, (x // 8 + y // 8) % 2 * 255, y * 255 // height], axis=-1).astype(np.uint8)
        size = reference_vision.target_size(height, width, tokens)
        Image.fromarray(rgb).save(out / f"{name}.png", optimize=True)
        Image.fromarray(rgb).resize(size[::-1], Image.BICUBIC).save(out / f"{name}_{tokens}.png", optimize=True)

def save_png16(path, values, colour_type):
    """16 bits a sample, which Pillow does not write."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, colour_type, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))

# Where the halves lie that scale a block; MXFP4 has an exponent of 8 bits instead.
HALVES = dict(Q4_0=[0], Q4_1=[0, 2], Q5_0=[0], Q5_1=[0, 2], Q8_0=[0], Q2_K=[80, 82], Q3_K=[108], Q4_K=[0, 2], Q5_K=[0, 2], Q6_K=[208], IQ4_NL=[0],
              IQ4_XS=[0], MXFP4=[], IQ2_XXS=[0], IQ2_XS=[0], IQ2_S=[0], IQ3_XXS=[0], IQ3_S=[0])

POINTS = dict(IQ2_XXS=256, IQ2_XS=512, IQ2_S=1024, IQ3_XXS=256, IQ3_S=512)

def every_point(name, permute, blocks):
    """Puts each point of the type's lattice into as many of the blocks as that takes."""
    per_block = 32 if name.startswith("IQ2") else 64
    points = permute(POINTS[name]).reshape(-1, per_block)
    blocks = blocks[:len(points)]
    low, high = points & 255, points >> 8
    if name == "IQ2_XXS":
        blocks[:, 2:66].reshape(-1, 8, 8)[:, :, :4] = low.reshape(-1, 8, 4)
    elif name == "IQ2_XS":
        blocks[:, 2:66:2] = low
        blocks[:, 3:66:2] = blocks[:, 3:66:2] & 254 | high
    else:
        blocks[:, 2:2 + per_block] = low
    if name == "IQ2_S":
        blocks[:, 66:74] = (high.reshape(-1, 8, 4) << np.array([0, 2, 4, 6])).sum(-1)
    elif name == "IQ3_S":
        blocks[:, 66:74] = (high.reshape(-1, 8, 8) << np.arange(8)).sum(-1)
    return blocks

def write_iq_points(path):
    """gguf-py's lattices, 16 bits a point."""
    from gguf import quants
    lines = ["// Written by `make_numpy_goldens.py points` from gguf-py's tables, which are ggml's (MIT, LICENSE.ggml).",
             "// A point has 8 elements of 2 bits (IQ2) or 4 of 4 bits (IQ3), the first lowest.", "// clang-format off"]
    for name in POINTS:
        points = np.frombuffer(bytes.fromhex(getattr(quants, name).grid_hex.decode()), "<u2")
        words = name.replace("_", " ").title().replace(" ", "")
        lines += [f"constexpr std::array<std::uint16_t, {len(points)}> k{words}Points = {{"]
        lines += textwrap.wrap(", ".join(map(str, points)) + "};", 120)
    path.write_text("\n".join(lines) + "\n")

def make_gguf_blocks(out):
    """Random bits, so every code and every scale; halves finite, also subnormal and negative. TYPE.blocks [n, bytes], TYPE.values [n, elements]."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
    rng = np.random.default_rng(11)
    tensors = {}
    for name, halves in HALVES.items():
        kind = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (2 if elements == 256 else 8, size), dtype=np.uint8)
        if name.startswith(("IQ2", "IQ3")):
            blocks = every_point(name, rng.permutation, rng.integers(0, 256, (32, size), dtype=np.uint8))
        for at in halves:
            blocks[:, at + 1] &= 0xBB                     # an exponent below 31: neither infinite nor NaN
        blocks[0, halves[-1:]] = 1                        # the least scale but for its upper byte
        blocks[0, [at + 1 for at in halves[-1:]]] = 0     # which makes it subnormal
        if name == "MXFP4":
            blocks[:, 0] = [0, 1, 2, 100, 127, 130, 250, 253]
        tensors[name + ".blocks"], tensors[name + ".values"] = blocks, dequantize(blocks, kind)
    out.mkdir(exist_ok=True)
    save_safetensors(out / "blocks.safetensors", tensors)

def main(arguments):
    if arguments == ["vision"]:
        make_tower(HERE / "vision-odd", TOWER, 4, 10)
        make_soft_texts()
    elif arguments == ["audio"]:
        make_audio_tower(HERE / "audio-odd", AUDIO_TOWER, 41)
        make_sound_texts()
    elif arguments == ["unified"]:
        make_unified(HERE / "unified-media")
    elif arguments == ["pictures"]:
        make_pictures(HERE / "pictures")
    elif arguments == ["gguf"]:
        make_gguf_blocks(HERE / "gguf")
    elif arguments == ["points"]:
        write_iq_points(HERE.parents[1] / "common/compute/tensor/iq_points.inc")
    elif arguments == ["odd"]:
        make_pair(HERE / "odd", dict(ODD), 0)
    elif arguments == ["moe"]:
        trace_moe(HERE / "moe-26b-a4b")
        trace_moe(HERE / "odd")
    elif len(arguments) == 3 and arguments[0] == "random":
        make_pair(Path(arguments[1]), random_settings(int(arguments[2])), int(arguments[2]))
    else:
        raise SystemExit(__doc__)

if __name__ == "__main__":
    main(sys.argv[1:])
