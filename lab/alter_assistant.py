#!/usr/bin/env python3
"""Writes an assistant whose layers have a lower rank, or are damped: what do drafts lose? (docs/lab/drafter.md)

    lab/alter_assistant.py ASSISTANT -o DIR --rank K [--matrices query|inputs|all] [--sinks T]
    lab/alter_assistant.py ASSISTANT -o DIR --damping S

ASSISTANT and DIR are folders as Hugging Face has them, so whatever reads an assistant reads the new one. A matrix of
rank K is stored multiplied out and takes as long as before. A target is refused: another target is another text.
Needs numpy.
"""
import argparse
import json
import pathlib
import shutil
import sys

import numpy as np

FILE = "model.safetensors"
# Which matrices get a lower rank: q, of what HyperTensor projects (q, k, v) all that an assistant has; all that read a
# layer's normed row; or, with them, those that write it, and the two projections.
MATRICES = ["query", "inputs", "all"]


class Checkpoint:
    """One safetensors file: its tensors as float64, and a copy of it with some of them changed."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        if not self.config.get("model_type", "").endswith("_assistant"):
            raise ValueError(f"{folder} is a {self.config.get('model_type')}, not an assistant: its text would change")
        self.data = np.memmap(self.folder / FILE, np.uint8, "r")
        header_end = 8 + int(self.data[:8].view("<u8")[0])
        self.entries = json.loads(bytes(self.data[8:header_end]))
        self.metadata = self.entries.pop("__metadata__", {})
        self.data = self.data[header_end:]
        self.layers = [f"model.layers.{i}." for i in range(self.config["text_config"]["num_hidden_layers"])]
        self.hidden_size = self.config["text_config"]["hidden_size"]

    def bytes_of(self, name):
        begin, end = self.entries[name]["data_offsets"]
        return self.data[begin:end]

    def __getitem__(self, name):
        entry, raw = self.entries[name], self.bytes_of(name)
        if entry["dtype"] == "BF16":
            values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        elif entry["dtype"] == "F32":
            values = raw.view("<f4")
        else:
            raise ValueError(f"{self.folder / FILE}: {name} is {entry['dtype']}; BF16 and F32 can be altered")
        return values.reshape(entry["shape"]).astype(np.float64)

    def write(self, folder, changed):
        """A copy of the folder, in which `changed` has the tensors that differ, as float32."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True)  # what is there already is not overwritten
        for path in self.folder.iterdir():
            if path.is_file() and path.name != FILE:
                shutil.copy(path, folder)
        header, parts, at = {"__metadata__": self.metadata}, [], 0
        for name, entry in self.entries.items():
            raw, dtype = self.bytes_of(name), entry["dtype"]
            if name in changed:
                raw, dtype = changed[name].astype("<f4"), "F32"
            header[name] = {"dtype": dtype, "shape": entry["shape"], "data_offsets": [at, at + raw.nbytes]}
            parts.append(raw)
            at += raw.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / FILE, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for part in parts:
                part.tofile(out)


def leading_eigenvectors(gram, rank):
    return np.linalg.eigh(gram)[1][:, ::-1][:, :rank]


class LowRank:
    """Matrices W ~ W P P' with a basis P of `rank` directions of the rows that they read, or P P' W of those that they
    write. `changed` has them, and the counts what a step multiplies, before and in two products each."""

    def __init__(self, checkpoint, rank, sinks):
        self.checkpoint, self.rank, self.sinks = checkpoint, rank, sinks
        self.changed, self.before, self.after = {}, 0, 0

    def reads(self, *names):
        """Matrices [outputs, h] that read the same row, and so share P: the leading eigenvectors of the sum of their
        Grams, each over its Frobenius norm, without which the largest matrix would choose alone. The `sinks` columns
        of the highest norm stay as they are, and are no part of that."""
        weights = [self.checkpoint[name] for name in names]
        grams = [w.T @ w for w in weights]
        norms = sum(np.diag(g) / np.linalg.norm(g) for g in grams)
        exact = np.zeros(len(norms), bool)
        exact[np.argsort(-norms, kind="stable")[:self.sinks]] = True
        rests = [np.where(exact, 0, w) for w in weights]
        basis = leading_eigenvectors(sum(r.T @ r / np.linalg.norm(r.T @ r) for r in rests), self.rank)
        for name, w, rest in zip(names, weights, rests):
            self.changed[name] = np.where(exact, w, rest @ basis @ basis.T)
        outputs, h = sum(len(w) for w in weights), len(norms)
        self.before += outputs * h
        self.after += self.rank * (outputs + h) + self.sinks * outputs

    def writes(self, name):
        """A matrix [h, inputs] by itself."""
        w = self.checkpoint[name]
        basis = leading_eigenvectors(w @ w.T, self.rank)
        self.changed[name] = basis @ (basis.T @ w)
        self.before += w.size
        self.after += self.rank * sum(w.shape)


def low_rank(checkpoint, rank, matrices="query", sinks=0):
    """@return LowRank, applied to the matrices of that kind."""
    result = LowRank(checkpoint, rank, sinks)
    for layer in checkpoint.layers:
        result.reads(layer + "self_attn.q_proj.weight")
        if matrices != "query":
            result.reads(layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight")
        if matrices == "all":
            result.writes(layer + "self_attn.o_proj.weight")
            result.writes(layer + "mlp.down_proj.weight")
    if matrices == "all":
        result.reads("post_projection.weight")
        result.writes("pre_projection.weight")
    return result


def damping_factors(layer, layers, strength):
    """What AttnRes multiplies the residual row by: after attention, and after the MLP."""
    depth = (layer + 1) / layers
    return max(0.70, 1 - 0.12 * strength * depth), max(0.65, 1 - 0.18 * strength * depth)


def damped(checkpoint, strength):
    """The tensors of an assistant that multiplies its residual row by damping_factors(). With a and b for them,
    b (a x + f) = a b (x + f / a), and f does not depend on the scale of x, which is normed before the MLP: so a damped
    layer is a layer with another layer_scalar and another last norm."""
    changed = {}
    for i, layer in enumerate(checkpoint.layers):
        a, b = damping_factors(i, len(checkpoint.layers), strength)
        norm, scalar = layer + "post_feedforward_layernorm.weight", layer + "layer_scalar"
        changed[norm] = checkpoint[norm] / a
        changed[scalar] = checkpoint[scalar] * a * b
    return changed


def alter(flags):
    checkpoint = Checkpoint(flags.assistant)
    if flags.damping is not None:
        if flags.sinks or flags.matrices != MATRICES[0]:
            raise ValueError("--matrices and --sinks are of --rank, and damping has neither")
        return checkpoint.write(flags.out, damped(checkpoint, flags.damping))
    h = checkpoint.hidden_size
    for name, value, least, most in (("rank", flags.rank, 1, h), ("sinks", flags.sinks, 0, h - 1)):
        if not least <= value <= most:
            raise ValueError(f"--{name} {value} is not within {least} .. {most} (hidden_size {h})")
    result = low_rank(checkpoint, flags.rank, flags.matrices, flags.sinks)
    checkpoint.write(flags.out, result.changed)
    print(f"{len(result.changed)} matrices of rank {flags.rank}: a step multiplies {result.before} of their numbers, "
          f"in two products each {result.after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("assistant", type=pathlib.Path)
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True, help="folder to make")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--rank", type=int)
    what.add_argument("--damping", type=float, help="strength of AttnRes; 0: none")
    parser.add_argument("--matrices", choices=MATRICES, default=MATRICES[0])
    parser.add_argument("--sinks", type=int, default=0, help="columns of each matrix that stay exact")
    try:
        alter(parser.parse_args())
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"alter_assistant: {error}")


if __name__ == "__main__":
    main()
