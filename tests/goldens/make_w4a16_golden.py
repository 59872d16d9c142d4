#!/usr/bin/env python3
"""Writes tests/goldens/w4a16: the model of tests/goldens/e4b with half its vocabulary, quantised and saved by
compressed-tensors as `*-it-qat-w4a16-ct` are (int4, symmetric, groups of 32), and what transformers computes in float32
with the weights that it dequantises itself.

    pip install torch==2.11.0 transformers==5.17.0 compressed-tensors==0.20.1
    python3 tests/goldens/make_w4a16_golden.py
"""
import json
from pathlib import Path

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme,
                                             apply_quantization_config)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import CompressedTensorsConfig, Gemma4Config, Gemma4ForConditionalGeneration

GOLDENS = Path(__file__).parent
VOCABULARY, GROUP, PROMPT = 256, 32, 12


def small_model():
    config = Gemma4Config(**json.loads((GOLDENS / "e4b/backbone/config.json").read_text()))
    config.text_config.vocab_size = config.text_config.vocab_size_per_layer_input = VOCABULARY
    model = Gemma4ForConditionalGeneration(config)
    tensors = {name: tensor[:VOCABULARY] if "embed_tokens" in name else tensor
               for name, tensor in load_file(GOLDENS / "e4b/backbone/model.safetensors").items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.to(torch.bfloat16)


def quantise(model):
    """As llm-compressor does: a scale for each group, of its least and greatest weights."""
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP)
    # per_layer_projection has 8 inputs.
    apply_quantization_config(model, QuantizationConfig(
        config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=args)},
        ignore=["lm_head", "re:.*per_layer_projection$"], format="pack-quantized"))
    for module in model.modules():
        if getattr(module, "quantization_scheme", None):
            groups = module.weight.unflatten(1, (-1, GROUP))
            scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
            module.weight_scale.data.copy_(scale)


def main():
    out = GOLDENS / "w4a16"
    model = small_model()
    quantise(model)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(out / "backbone")
    compressor.update_config(out / "backbone")

    model = Gemma4ForConditionalGeneration.from_pretrained(
        out / "backbone", dtype=torch.float32, quantization_config=CompressedTensorsConfig(run_compressed=False)).eval()
    weight = model.model.language_model.layers[0].mlp.down_proj.weight
    assert weight.dtype == torch.float32 and weight.unflatten(1, (-1, GROUP))[0, 0].unique().numel() <= 16
    ids = torch.randint(VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(44))
    with torch.no_grad():
        result = model(input_ids=ids, output_hidden_states=True)
    golden = {f"hidden_states.{i}": state[0].contiguous() for i, state in enumerate(result.hidden_states)}
    save_file({"input_ids": ids, "logits": result.logits[0].contiguous(), **golden}, out / "golden.safetensors")


if __name__ == "__main__":
    main()
