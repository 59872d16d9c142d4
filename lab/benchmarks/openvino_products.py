#!/usr/bin/env python3
"""A dense model's matrix products alone in OpenVINO, for beside_llama.py: no attention, no norms, no per-layer inputs.

    outrider inspect MODEL --json | openvino_products.py {int4,int8} THREADS

An engine on OpenVINO needs at least the time of these products: those of q, k, v, o, gate, up and down in each layer,
and of the head. Prints the milliseconds of 1 and of 5 rows (the best of five passes), and the tokens per second of a
prompt of 512 rows (the best of two), of which at most 5 rows go through the head. Weights are random, with a scale for
each group of 128. The number of rows is left open, as OpenVINO GenAI leaves it.
"""
import json
import sys
import time

import numpy as np
import openvino as ov
from openvino import opset13 as ops

GROUP = 128
TYPES = {"int4": ov.Type.i4, "int8": ov.Type.i8}
RANDOM = np.random.default_rng(1)  # no two matrices are alike, which the plugin could share


def product(x, inputs, outputs, dtype):
    """Of x and a matrix of weights, in the form that the CPU plugin keeps packed."""
    weights = ov.Tensor(dtype, [outputs, inputs // GROUP, GROUP])
    weights.data[:] = RANDOM.integers(0, 256, weights.data.shape, np.uint8).view(weights.data.dtype)
    scale = (12 / inputs) ** 0.5 / 2**dtype.bitwidth  # keeps the size of x
    scales = ops.constant(np.full([outputs, inputs // GROUP, 1], scale, np.float16))
    grouped = ops.multiply(ops.convert(ops.constant(weights), "f16"), scales)
    matrix = ops.convert(ops.reshape(grouped, [outputs, inputs], special_zero=False), "f32")
    return ops.matmul(x, matrix, transpose_a=False, transpose_b=True)


def products(model, dtype):
    config = model["config"]
    hidden = config["hidden_size"]
    rows = x = ops.parameter([-1, hidden], np.float32)
    outputs = []
    for layer in model["layers"]:
        heads, kv = (layer["head_dim"] * n for n in (config["num_attention_heads"], layer["num_key_value_heads"]))
        if layer["kv"] == "own":
            outputs += [product(x, hidden, kv, dtype) for _ in range(1 if layer["k_eq_v"] else 2)]
        x = product(product(x, hidden, heads, dtype), heads, hidden, dtype)
        gate, up = (product(x, hidden, layer["mlp"], dtype) for _ in range(2))
        x = product(ops.add(gate, up), layer["mlp"], hidden, dtype)
    last = ops.slice(x, [-5], [2**31], [1], [0])
    return ov.Model([*outputs, product(last, hidden, config["vocab_size"], dtype)], [rows])


def main():
    dtype, threads = sys.argv[1:]
    model = json.load(sys.stdin)
    request = ov.Core().compile_model(products(model, TYPES[dtype]), "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": int(threads),
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP}).create_infer_request()  # faster than the default of 32

    def best_s(rows, passes):
        x = RANDOM.standard_normal([rows, model["config"]["hidden_size"]], np.float32)
        seconds = []
        for _ in range(1 + passes):  # the first makes kernels
            began = time.perf_counter()
            request.infer([x])
            seconds.append(time.perf_counter() - began)
        return min(seconds[1:])
    print(json.dumps({"ms, 1 row": 1e3 * best_s(1, 5), "ms, 5 rows": 1e3 * best_s(5, 5),
                      "prompt tok/s": 512 / best_s(512, 2)}))


if __name__ == "__main__":
    main()
