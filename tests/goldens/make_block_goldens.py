#!/usr/bin/env python3
"""Writes tests/goldens/block: small random block drafters, and what speculators makes of them.

    pip install speculators==0.9.0
    python3 tests/goldens/make_block_goldens.py tests/goldens/block

dspark and dflash are checkpoints for tests/goldens/e4b as speculators itself saves them; golden.safetensors beside them
has, in float32, rows of a target's hidden states and what the package says of blocks in a text with these rows. The
target's embedding, unscaled, and a head of the whole vocabulary are not in a checkpoint: the package takes them from
the target. nano is a DFlash checkpoint for models/nano in z-lab's format: no reference.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

ROWS, ANCHORS = 40, (1, 17, 30)


def randomize(model):
    """Every parameter random, norms around one, so that a skipped term shows."""
    for name, value in model.state_dict().items():
        if name in ("t2d", "d2t"):
            continue
        noise = torch.randn(value.shape)
        value.copy_(1 + 0.2 * noise if value.dim() == 1 and "norm" in name else noise / value.shape[-1] ** 0.5)


def record(out, model, target_layers, hidden, vocab):
    config = model.config
    block = config.block_size
    rows = torch.randn(1, ROWS, target_layers * hidden)
    tokens = torch.randint(0, vocab, (1, ROWS + block))
    # Anchors are drawn from where the mask is set; it keeps a block's length from the end.
    padded = torch.cat([rows, torch.zeros(1, block, rows.shape[2])], dim=1)
    mask = torch.zeros(1, ROWS + block)
    mask[0, list(ANCHORS)] = 1
    with torch.no_grad():
        hidden_out, logits, *_ = model._backbone_forward(
            padded, tokens, mask, torch.zeros(1, ROWS + block, hidden), torch.zeros(1, ROWS + block, dtype=torch.long),
            max_anchors=len(ANCHORS))
        logits = logits.view(len(ANCHORS), block, -1)
        tensors = {"rows": rows[0], "tokens": tokens[0], "anchors": torch.tensor(ANCHORS), "logits": logits}
        if getattr(model, "markov_head", None) is not None:
            places = torch.tensor(ANCHORS)[:, None] + torch.arange(block)[None, :]
            before = tokens[0][places] if config.sample_from_anchor else tokens[0][(places - 1).clamp(min=0)]
            bias = model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden_out.view(len(ANCHORS), block, -1))
            tensors |= {"before": before, "with_markov": logits + bias}
    save_file({name: value.contiguous() for name, value in tensors.items()}, out / "golden.safetensors")


def make(out, name, config_class, model_class, target, table, **options):
    hidden, vocab = target["hidden_size"], target["vocab_size"]
    layers = options.pop("layers")
    speculators = SpeculatorsConfig(algorithm=name, default_proposal_method="greedy",
                                    proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=4)],
                                    verifier=VerifierConfig(name_or_path=None, architectures=[]))
    layer_config = Qwen3Config(vocab_size=vocab, hidden_size=hidden, intermediate_size=48, num_hidden_layers=len(layers),
                               num_attention_heads=4, num_key_value_heads=2, head_dim=16, layer_types=layers,
                               use_sliding_window=True, sliding_window=6, rms_norm_eps=1e-5,
                               rope_parameters={"rope_type": "default", "rope_theta": 5e5},
                               hidden_act=options.pop("hidden_act"))
    layer_config._attn_implementation = "eager"
    model = model_class(config_class(transformer_layer_config=layer_config, speculators_config=speculators, **options))
    randomize(model)
    model.embed_tokens.weight.copy_(table)
    if not model.use_draft_vocab:
        model.lm_head.weight.copy_(table)
    if model.use_draft_vocab:
        chosen = torch.zeros(vocab, dtype=torch.bool)
        chosen[torch.randperm(vocab)[: options["draft_vocab_size"]]] = True
        ids = chosen.nonzero()[:, 0]
        model.t2d.copy_(chosen)
        model.d2t.copy_(ids - torch.arange(len(ids)))
    folder = out / name
    model.save_pretrained(folder)
    (folder / "config.py").unlink(missing_ok=True)
    record(folder, model, len(options["aux_hidden_state_layer_ids"]), hidden, vocab)


def make_for_nano(out, target):
    hidden, inner, heads, kv_heads, dim, layers = target["hidden_size"], 64, 4, 2, 16, 2
    shapes = {"fc.weight": (hidden, 2 * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(layers):
        at = f"layers.{i}."
        shapes |= {at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,),
                   at + "self_attn.q_norm.weight": (dim,), at + "self_attn.k_norm.weight": (dim,),
                   at + "self_attn.q_proj.weight": (heads * dim, hidden),
                   at + "self_attn.k_proj.weight": (kv_heads * dim, hidden),
                   at + "self_attn.v_proj.weight": (kv_heads * dim, hidden),
                   at + "self_attn.o_proj.weight": (hidden, heads * dim),
                   at + "mlp.gate_proj.weight": (inner, hidden), at + "mlp.up_proj.weight": (inner, hidden),
                   at + "mlp.down_proj.weight": (hidden, inner)}
    tensors = {name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape) / shape[-1] ** 0.5).bfloat16()
               for name, shape in shapes.items()}
    for i in range(layers):  # attention that chooses and counts, so that other rows give other drafts
        tensors[f"layers.{i}.self_attn.q_norm.weight"] *= 4
        tensors[f"layers.{i}.self_attn.o_proj.weight"] *= 16
    config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "vocab_size": target["vocab_size"],
              "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim, "hidden_act": "silu",
              "rms_norm_eps": 1e-6, "rope_theta": 1e6, "block_size": 6, "use_sliding_window": True,
              "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"],
              "final_logit_softcapping": target.get("final_logit_softcapping"),
              "dflash_config": {"mask_token_id": 4, "target_layer_ids": [1, target["num_hidden_layers"] - 3]}}
    folder = out / "nano"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, folder / "model.safetensors")


ROOT = pathlib.Path(__file__).resolve().parents[2]


def text_config(target):
    config = json.loads((ROOT / target / "config.json").read_text())
    return config.get("text_config", config)


def begin(seed):
    """Seeds the weights to come. Returns the configuration and the embedding of the target of the small drafters."""
    torch.manual_seed(seed)
    torch.set_grad_enabled(False)
    target = "tests/goldens/e4b/backbone"
    weights = load_file(ROOT / target / "model.safetensors")
    table = next(value for name, value in weights.items() if name.endswith(".embed_tokens.weight"))
    return text_config(target), table.float()


def main():
    out = pathlib.Path(sys.argv[1])
    tiny, table = begin(43)
    make(out, "dspark", DSparkSpeculatorConfig, DSparkDraftModel, tiny, table, layers=["sliding_attention", "full_attention"],
         hidden_act="silu", block_size=5, draft_vocab_size=tiny["vocab_size"], aux_hidden_state_layer_ids=[1, 3],
         mask_token_id=7, markov_rank=8)
    make(out, "dflash", DFlashSpeculatorConfig, DFlashDraftModel, tiny, table,
         layers=["full_attention", "sliding_attention", "full_attention"], hidden_act="gelu_pytorch_tanh", block_size=4,
         draft_vocab_size=tiny["vocab_size"] // 2, aux_hidden_state_layer_ids=[4, 1, 2], mask_token_id=9,
         sliding_window_non_causal=True)
    make_for_nano(out, text_config("models/nano/backbone"))


if __name__ == "__main__":
    main()
