#!/usr/bin/env python3
"""Writes tests/goldens/deepspec: small random drafters with Gemma's layers, and what DeepSpec makes of them.

    pip install torch transformers==5.10.2
    git clone https://github.com/deepseek-ai/DeepSpec        # commit afdfa7c
    PYTHONPATH=DeepSpec python3 tests/goldens/make_deepspec_goldens.py tests/goldens/deepspec

dspark, dflash and eagle3 are checkpoints for tests/goldens/unified-12b, with configurations by DeepSpec's own
build_draft_config, as save_pretrained writes both. golden.safetensors beside them has, in float32, rows of a target's
hidden states, tokens, and the classes' scores: of blocks behind some anchors, as in its evaluator, and of steps of
EAGLE-3 (logits.j as in make_eagle3_goldens.py). Only dspark has an embedding and a head, here of its own: training
takes them from the target and freezes them. nano is for models/nano: no reference.
"""
import json
import pathlib
import sys
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

from deepspec.modeling.dspark.gemma4 import Gemma4DSparkModel
from deepspec.modeling.dspark.gemma4 import build_draft_config as build_block_config
from deepspec.modeling.eagle3.gemma4 import Gemma4Eagle3Model
from deepspec.modeling.eagle3.gemma4 import build_draft_config as build_eagle3_config

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS, ANCHORS, STEPS = 40, (1, 17, 30), 5
TABLES = ("embed_tokens.weight", "lm_head.weight")


class Options(SimpleNamespace):
    """The model's part of a recipe in DeepSpec's config/."""

    def __contains__(self, name):
        return hasattr(self, name)


def target_of(folder, **sizes):
    """The target's configuration, with sizes of the drafter's layers in place of the target's."""
    config = json.loads((ROOT / folder / "config.json").read_text())
    text = config.get("text_config", config)
    kept = {key: text[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "rope_parameters",
                                       "final_logit_softcapping", "max_position_embeddings")}
    return SimpleNamespace(model_type="gemma4",
                           text_config=Gemma4TextConfig(**kept, hidden_size_per_layer_input=0, **sizes))


def random_model(model_class, config):
    """Every number random, norms and factors around one, so that a skipped term shows."""
    config._attn_implementation = "sdpa"
    model = model_class(config).eval()
    for name, value in model.state_dict().items():
        noise = torch.randn(value.shape)
        around_one = value.dim() == 1 and ("norm" in name or "layer_scalar" in name)
        value.copy_(1 + 0.2 * noise if around_one else noise / value.shape[-1] ** 0.5)
    return model


def take_tables(model, table):
    model.embed_tokens.weight.copy_(table)
    model.lm_head.weight.copy_(table)


def save(folder, model, without=(), tensors=None):
    model.save_pretrained(folder)
    if without:
        kept = {name: value for name, value in load_file(folder / "model.safetensors").items() if name not in without}
        save_file(kept, folder / "model.safetensors")
    if tensors:
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "golden.safetensors")


def blocks(model):
    config = model.config
    block = config.block_size
    rows = torch.randn(1, ROWS, len(config.target_layer_ids) * config.hidden_size)
    tokens = torch.randint(0, config.vocab_size, (1, ROWS + block))
    logits, before, with_markov = [], [], []
    for anchor in ANCHORS:
        ids = torch.full((1, block), config.mask_token_id)
        ids[0, 0] = tokens[0, anchor]
        hidden = model._forward_backbone(position_ids=torch.arange(anchor + block)[None],
                                         noise_embedding=model.embed_tokens(ids),
                                         target_hidden_states=rows[:, :anchor], is_causal=False)
        logits.append(model.compute_logits(hidden))
        if model.markov_head is None:
            continue
        before.append(tokens[:, anchor : anchor + block])
        with_markov.append(model.markov_head.apply_block_logits(logits[-1][:, None], token_ids=before[-1][:, None],
                                                                hidden_states=hidden[:, None])[:, 0])
    tensors = {"rows": rows[0], "tokens": tokens[0], "anchors": torch.tensor(ANCHORS), "logits": torch.cat(logits)}
    return tensors | ({"before": torch.cat(before), "with_markov": torch.cat(with_markov)} if before else {})


def steps(model):
    config = model.config
    rows = torch.randn(1, ROWS, len(config.target_layer_ids) * config.hidden_size)
    tokens = torch.randint(0, config.vocab_size, (1, ROWS + STEPS))
    logits = [[] for _ in range(STEPS)]
    for row in range(ROWS):
        cache = DynamicCache()
        hidden = model.extend_draft_cache(rows[:, : row + 1], tokens[:, 1 : row + 2], torch.arange(row + 1)[None], cache)
        for j in range(STEPS):
            if j > 0:
                at = row + j
                hidden = model(hidden_states=hidden, input_ids=tokens[:, at + 1 : at + 2],
                               position_ids=torch.tensor([[at]]), past_key_values=cache, use_cache=True)
            logits[j].append(model.compute_logits(hidden)[0, 0])
    return {"rows": rows[0], "tokens": tokens[0]} | {f"logits.{j}": torch.stack(all) for j, all in enumerate(logits)}


def block_options(**changed):
    return Options(**({"num_anchors": 8, "markov_rank": 8, "markov_head_type": "vanilla", "confidence_head_alpha": 1.0,
                       "confidence_head_with_markov": True} | changed))


def main():
    out = pathlib.Path(sys.argv[1])
    torch.manual_seed(45)
    torch.set_grad_enabled(False)
    target = "tests/goldens/unified-12b/backbone"
    layers = {"intermediate_size": 48, "num_attention_heads": 4, "global_head_dim": 32}
    shared = target_of(target, attention_k_eq_v=True, num_global_key_value_heads=1, **layers)
    config = build_block_config(shared, block_options(block_size=5, num_draft_layers=2, target_layer_ids=[1, 4],
                                                      mask_token_id=7))
    dspark = random_model(Gemma4DSparkModel, config)
    save(out / "dspark", dspark, tensors=blocks(dspark))

    own = target_of(target, attention_k_eq_v=False, num_key_value_heads=2, rms_norm_eps=1e-5, **layers)
    config = build_block_config(own, block_options(block_size=4, num_draft_layers=2, target_layer_ids=[0, 2, 3],
                                                   mask_token_id=9, markov_rank=0, confidence_head_alpha=0.0))
    dflash = random_model(Gemma4DSparkModel, config)
    table = next(value for name, value in load_file(ROOT / target / "model.safetensors").items()
                 if name.endswith("embed_tokens.weight"))
    take_tables(dflash, table)
    save(out / "dflash", dflash, without=TABLES, tensors=blocks(dflash))

    options = Options(target_model_name_or_path="", target_layer_ids=[0, 1, 2, 3, 4], ttt_length=STEPS,
                      step_loss_decay=0.8, draft_num_hidden_layers=1)
    eagle3 = random_model(Gemma4Eagle3Model, build_eagle3_config(target_config=shared, model_args=options))
    take_tables(eagle3, table)
    save(out / "eagle3", eagle3, without=TABLES, tensors=steps(eagle3))

    nano = target_of("models/nano/backbone", intermediate_size=64, num_attention_heads=16, global_head_dim=16,
                     attention_k_eq_v=True, num_global_key_value_heads=1)
    config = build_block_config(nano, block_options(block_size=6, num_draft_layers=1, target_layer_ids=[1, 9],
                                                    mask_token_id=4, markov_rank=4, confidence_head_alpha=0.0))
    model = random_model(Gemma4DSparkModel, config)
    for layer in model.layers:  # attention that chooses and counts, so that other rows give other drafts
        layer.self_attn.q_norm.weight.mul_(2)
        layer.post_attention_layernorm.weight.mul_(32)
    save(out / "nano", model.bfloat16(), without=TABLES)


if __name__ == "__main__":
    main()
