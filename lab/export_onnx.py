#!/usr/bin/env python3
"""Writes one draft step of an assistant as an ONNX graph, float32: for a runtime that is not ours.

    lab/export_onnx.py ASSISTANT -o DIR

ASSISTANT is a folder as Hugging Face has it; DIR gets step.onnx and its weights.bin. Needs numpy and onnx.

A step (docs/gemma4.md 4.2) is of one text. B is the backbone's hidden size, n the length of its text so far:

    embedding [B]                               the backbone's row of the last token, scaled as its own input is (3.1)
    state [B]                                   the backbone's hidden row, or the step before's next_state
    position []                                 int64; n in every step of a round
    {sliding,full}_attention.{key,value} [kv heads, n, D]  the donors' rows as cached; of sliding rows the last W + 1 do
    -> ids [m], scores [m]                      what the head scores: the tokens of the best centroids (4.3), or all;
                                                the draft is the id of the highest score, the lowest id among equals
    -> next_state [B]
"""
import argparse
import pathlib
import shutil
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SOURCE / "tests/goldens"))
import reference  # noqa: E402

OPSET = 18


class Graph:
    """Nodes and weights as they are named; every method that makes a node returns the name of its output."""

    def __init__(self):
        self.nodes, self.weights = [], {}

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [f"{kind}_{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, values, name=None):
        name = name or f"constant_{len(self.weights)}"
        self.weights[name] = numpy_helper.from_array(np.asarray(values, order="C"), name)
        return name

    def integers(self, *values):
        return self.weight(np.array(values, np.int64))

    def number(self, value):
        return self.weight(np.array(value, np.float32))

    def rename(self, name, output):
        self.nodes.append(helper.make_node("Identity", [name], [output]))


class StepGraph(Graph):
    """The step, section by section as docs/gemma4.md has it. Rows have one axis but where heads are told apart."""

    def __init__(self, assistant):
        super().__init__()
        self.assistant, self.config, self.w = assistant, assistant.config, assistant.w

    def linear(self, name, x):
        return self.op("MatMul", self.weight(self.w[name + ".weight"], name + ".weight"), x)

    def norm(self, name, x):
        """3.0, over the last axis"""
        square = self.op("ReduceMean", self.op("Mul", x, x), self.integers(-1), keepdims=1)
        root = self.op("Sqrt", self.op("Add", square, self.number(self.config.eps)))
        return self.op("Mul", self.op("Div", x, root), self.weight(self.w[name + ".weight"], name + ".weight"))

    def rotate(self, x, spec, position):
        """3.6: x [..., D] at `position`"""
        half = spec.head_dim // 2
        frequencies = reference.inverse_frequencies(spec.head_dim, spec.rope)
        angle = self.op("Mul", position, self.weight(frequencies))
        angles = self.op("Concat", angle, angle, axis=-1)
        first, second = self.op("Split", x, self.integers(half, half), outputs=2, axis=-1)
        turned = self.op("Concat", self.op("Neg", second), first, axis=-1)
        return self.op("Add", self.op("Mul", x, self.op("Cos", angles)), self.op("Mul", turned, self.op("Sin", angles)))

    def attention(self, name, x, spec, position):
        """3.4 and 4.4. Query heads of one K/V head are the rows of one product."""
        heads = len(self.w[name + ".q_proj.weight"]) // spec.head_dim
        shape = self.integers(spec.kv_heads, heads // spec.kv_heads, spec.head_dim)
        q = self.norm(name + ".q_norm", self.op("Reshape", self.linear(name + ".q_proj", x), shape))
        q = self.rotate(q, spec, position)
        k, v = f"{spec.kind}.key", f"{spec.kind}.value"
        if spec.kind == reference.SLIDING:
            last = [self.integers(-(self.config.window + 1)), self.integers(np.iinfo(np.int64).max), self.integers(1)]
            k, v = self.op("Slice", k, *last), self.op("Slice", v, *last)
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 1]))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        return self.linear(name + ".o_proj", self.op("Reshape", mixed, self.integers(-1)))

    def mlp(self, name, x):
        gate, up = self.linear(name + ".gate_proj", x), self.linear(name + ".up_proj", x)
        cube = self.op("Mul", self.op("Mul", gate, gate), gate)
        inner = self.op("Add", gate, self.op("Mul", cube, self.number(0.044715)))
        bend = self.op("Tanh", self.op("Mul", inner, self.number((2 / np.pi) ** 0.5)))
        gelu = self.op("Mul", self.op("Mul", gate, self.number(0.5)), self.op("Add", bend, self.number(1)))
        return self.linear(name + ".down_proj", self.op("Mul", gelu, up))

    def layer(self, name, x, spec, position):
        """3.3"""
        a = self.attention(name + ".self_attn", self.norm(name + ".input_layernorm", x), spec, position)
        x = self.op("Add", x, self.norm(name + ".post_attention_layernorm", a))
        f = self.mlp(name + ".mlp", self.norm(name + ".pre_feedforward_layernorm", x))
        x = self.op("Add", x, self.norm(name + ".post_feedforward_layernorm", f))
        return self.op("Mul", x, self.weight(self.w[name + ".layer_scalar"], name + ".layer_scalar"))

    def head(self, n):
        """4.3: ids and their scores"""
        table = self.weight(self.w["model.embed_tokens.weight"], "model.embed_tokens.weight")
        if not self.assistant.ordered:
            vocabulary = len(self.w["model.embed_tokens.weight"])
            whole = [self.weight(np.array(value, np.int64)) for value in (0, vocabulary, 1)]
            return self.op("Range", *whole), self.op("MatMul", table, n)
        groups = self.w["masked_embedding.token_ordering"].reshape(len(self.w["masked_embedding.centroids.weight"]), -1)
        best = self.op("TopK", self.linear("masked_embedding.centroids", n),
                       self.integers(self.assistant.centroid_top_k), outputs=2)[1]
        ids = self.op("Gather", self.weight(groups, "masked_embedding.token_ordering"), best)
        ids = self.op("Reshape", ids, self.integers(-1))
        return ids, self.op("MatMul", self.op("Gather", table, ids), n)

    def step(self):
        """4.2"""
        position = self.op("Cast", "position", to=TensorProto.FLOAT)
        x = self.linear("pre_projection", self.op("Concat", "embedding", "state", axis=0))
        for i, spec in enumerate(self.config.layers):
            x = self.layer(f"model.layers.{i}", x, spec, position)
        n = self.norm("model.norm", x)
        ids, scores = self.head(n)
        for made, name in ((ids, "ids"), (scores, "scores"), (self.linear("post_projection", n), "next_state")):
            self.rename(made, name)


def model_of(assistant):
    """@return the onnx model of a reference.Assistant's step"""
    graph = StepGraph(assistant)
    graph.step()
    width = len(assistant.w["post_projection.weight"])
    row = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [width])
    inputs = [row("embedding"), row("state"), helper.make_tensor_value_info("position", TensorProto.INT64, [])]
    for spec in {spec.kind: spec for spec in assistant.config.layers}.values():
        inputs += [helper.make_tensor_value_info(f"{spec.kind}.{what}", TensorProto.FLOAT,
                                                 [spec.kv_heads, f"{spec.kind}.length", spec.head_dim])
                   for what in ("key", "value")]
    outputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["scored"]),
               helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["scored"]), row("next_state")]
    made = helper.make_graph(graph.nodes, "gemma4_assistant_step", inputs, outputs, list(graph.weights.values()))
    # The oldest version that has this opset: runtimes lag behind the package.
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8,
                             producer_name="outrider")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("assistant", type=pathlib.Path)
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True, help="folder to make")
    flags = parser.parse_args()
    try:
        model = model_of(reference.Assistant(flags.assistant))
        flags.out.mkdir(parents=True)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"export_onnx: {error}")
    # Beside the graph: a protobuf holds 2 GiB, and the assistant of 31B has 1.9.
    onnx.save_model(model, flags.out / "step.onnx", save_as_external_data=True, location="weights.bin")
    shutil.copymode(flags.out / "step.onnx", flags.out / "weights.bin")  # onnx makes it for its owner alone
    onnx.checker.check_model(flags.out / "step.onnx", full_check=True)


if __name__ == "__main__":
    main()
