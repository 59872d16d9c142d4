#!/usr/bin/env python3
"""Writes tests/goldens/eagle3: small random EAGLE-3 drafters, and what speculators makes of them.

    pip install speculators==0.9.0
    python3 tests/goldens/make_eagle3_goldens.py tests/goldens/eagle3

llama and qwen3 are checkpoints for tests/goldens/e4b as speculators itself saves them. golden.safetensors beside them
has, in float32, rows of a target's hidden states, tokens, and the logits of STEPS steps behind each row (logits.j),
where step j follows row p with the tokens p + 1 to p + 1 + j: the package's own forward pass, recorded at its head.
qwen3 has neither embedding nor head: the package takes them from the target. nano is for models/nano: no reference.
"""
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

from make_block_goldens import begin, randomize, text_config

ROWS, STEPS = 40, 5


def make_model(layers, **options):
    speculators = SpeculatorsConfig(algorithm="eagle3", default_proposal_method="greedy",
                                    proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
                                    verifier=VerifierConfig(name_or_path=None, architectures=[]))
    layers._attn_implementation = "eager"
    model = Eagle3DraftModel(Eagle3SpeculatorConfig(transformer_layer_config=layers, speculators_config=speculators,
                                                    **options))
    randomize(model)
    if model.use_draft_vocab:
        chosen = torch.zeros(layers.vocab_size, dtype=torch.bool)
        chosen[torch.randperm(layers.vocab_size)[: options["draft_vocab_size"]]] = True
        ids = chosen.nonzero()[:, 0]
        model.t2d.copy_(chosen)
        model.d2t.copy_(ids - torch.arange(len(ids)))
    return model


def record(folder, model):
    config = model.config
    layers = config.transformer_layer_config
    rows = torch.randn(1, ROWS, len(config.eagle_aux_hidden_state_layer_ids) * layers.hidden_size)
    tokens = torch.randint(0, layers.vocab_size, (1, ROWS + STEPS))
    logits = []
    hook = model.lm_head.register_forward_hook(lambda _module, _inputs, output: logits.append(output[0].clone()))
    # A row is paired with the token behind it; later steps take the tokens from there on, as padded rows lack theirs.
    padded = torch.cat([rows, torch.zeros(1, STEPS - 1, rows.shape[2])], dim=1)
    model(padded, tokens[:, 1:], torch.zeros(1, ROWS + STEPS - 1, dtype=torch.long), ttt_steps=STEPS)
    hook.remove()
    tensors = {"rows": rows[0], "tokens": tokens[0]}
    tensors |= {f"logits.{j}": value[:ROWS] for j, value in enumerate(logits)}
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "golden.safetensors")


def make(folder, model):
    model.save_pretrained(folder)
    (folder / "config.py").unlink(missing_ok=True)
    record(folder, model)


def drop(folder, names):
    tensors = {name: value for name, value in load_file(folder / "model.safetensors").items() if name not in names}
    save_file(tensors, folder / "model.safetensors")


def make_for_nano(folder, target):
    hidden = target["hidden_size"]
    layers = LlamaConfig(vocab_size=target["vocab_size"], hidden_size=hidden, intermediate_size=64,
                         num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    model = make_model(layers, draft_vocab_size=512, eagle_aux_hidden_state_layer_ids=[2, 5, 9])
    model.norm.weight.copy_(torch.ones(hidden))
    model.layers[0].self_attn.q_proj.weight.mul_(4)  # attention that chooses and counts, so that rows matter
    model.layers[0].self_attn.o_proj.weight.mul_(8)
    model = model.bfloat16()
    model.save_pretrained(folder)
    (folder / "config.py").unlink(missing_ok=True)
    drop(folder, {"embed_tokens.weight"})


def main():
    out = pathlib.Path(sys.argv[1])
    tiny, table = begin(44)
    vocab, hidden = tiny["vocab_size"], tiny["hidden_size"]
    sizes = {"vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 48, "num_attention_heads": 4,
             "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
    make(out / "llama", make_model(LlamaConfig(num_hidden_layers=1, **sizes), draft_vocab_size=vocab // 2,
                                   norm_before_residual=True, eagle_aux_hidden_state_layer_ids=[4, 1, 2]))
    rope = {"rope_type": "default", "rope_theta": 5e5}
    qwen3 = make_model(Qwen3Config(num_hidden_layers=2, head_dim=32, rope_parameters=rope, **sizes),
                       draft_vocab_size=vocab, fc_norm=True, norm_output=True,
                       eagle_aux_hidden_state_layer_ids=[1, 3])
    qwen3.embed_tokens.weight.copy_(table)
    qwen3.lm_head.weight.copy_(table)
    make(out / "qwen3", qwen3)
    drop(out / "qwen3", {"embed_tokens.weight", "lm_head.weight"})
    make_for_nano(out / "nano", text_config("models/nano/backbone"))


if __name__ == "__main__":
    main()
