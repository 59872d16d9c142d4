#!/usr/bin/env python3
"""Writes tests/goldens/quantized: small checkpoints as the packages themselves quantise them, and what they read back.

    pip install torch==2.5.1 transformers==4.51.3 datasets==3.6.0 safetensors frozendict py-cpuinfo accelerate
    pip install --no-deps compressed-tensors==0.11.0 auto-round==0.16.1
    python3 tests/goldens/make_quantized_goldens.py tests/goldens/quantized

Each folder is a format: config.json with its quantization_config, model.safetensors with the tensors that the package
made of one matrix (layers.0.proj), and expected.safetensors with the package's own dequantised matrix. The folders fp8-hf-*
and modelopt-* hold the codes that compressed-tensors made, under the names that transformers and Model Optimizer give them;
their matrix is computed here by the formats' definitions, since neither package runs without a GPU. So is that of mxfp*,
which this version of compressed-tensors does not have; compressed-tensors 0.20.1 reads the same values. The folders
*-experts hold another folder's codes as the stacked matrices of four experts.
"""
import json
import pathlib
import sys

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

MODULE = "layers.0.proj"


def write(out, name, quantization_config, tensors, expected, prefix=f"{MODULE}.", weight="weight"):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization_config}, indent=1) + "\n")
    save_file({prefix + key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    save_file({prefix + weight: expected.contiguous()}, folder / "expected.safetensors")


def ranges(weight, args):
    """Least and greatest weights of everything that shares a scale."""
    rows, columns = weight.shape
    if args.strategy in ("group", "tensor_group"):
        parts = weight.reshape(rows, columns // args.group_size, args.group_size)
        return parts.amin(-1), parts.amax(-1)
    if args.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if args.strategy == "block":
        height, width = args.block_structure
        parts = weight.reshape(rows // height, height, columns // width, width)
        return parts.amin((1, 3)), parts.amax((1, 3))
    return weight.amin().reshape(1), weight.amax().reshape(1)


def compressed(out, name, compression_format, weight, **arguments):
    args = QuantizationArgs(**arguments)
    low, high = ranges(weight, args)
    nvfp4 = compression_format == "nvfp4-pack-quantized"
    global_scale = generate_gparam(weight.amin(), weight.amax()) if nvfp4 else None
    if nvfp4:  # calculate_qparams has no FP8 on CPUs
        amax = torch.maximum(low.abs(), high.abs()).float()
        scale, zero = (global_scale * amax / 6).clamp(2**-6, 448).to(torch.float8_e4m3fn), None
    else:
        scale, zero = calculate_qparams(low, high, args)
    compressor = BaseCompressor.load_from_registry(compression_format)
    extra = {"global_scale": global_scale} if nvfp4 else {}
    tensors = dict(compressor.compress_weight(weight=weight, scale=scale, zero_point=None if args.symmetric else zero,
                                              quantization_args=args, **extra))
    tensors.setdefault("weight_scale", scale)
    if nvfp4:
        tensors.setdefault("weight_global_scale", global_scale.reshape(1))
    if not args.symmetric:
        tensors.setdefault("weight_zero_point", zero)
    config = QuantizationConfig(config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=args)},
                                format=compression_format, quantization_status="compressed", ignore=["lm_head"])
    stated = json.loads(json.dumps(config.model_dump(), default=str))
    if args.symmetric:
        expected = compressor.decompress_weight(dict(tensors), quantization_args=args)
    else:  # of packed zeros the package has no decompressor
        expected = dequantize(quantize(weight, scale, zero, args, dtype=torch.int8), scale, zero, args)
    write(out, name, stated, tensors, expected)


def gptq_like(out, name, weight, backend, bits, group, sym):
    """AutoRound's export of one layer, by the class that it packs with."""
    rows, columns = weight.shape
    parts = weight.float().reshape(rows, columns // group, group)
    top = 2**bits - 1
    if sym:
        scale = (parts.abs().amax(-1) / (top / 2)).half()
        zero = torch.full_like(scale, 2 ** (bits - 1))
    else:
        scale = ((parts.amax(-1) - parts.amin(-1)) / top).half()
        zero = torch.round(-parts.amin(-1) / scale.float()).clamp(0, top).half()
    linear = torch.nn.Linear(columns, rows, bias=False)
    codes = torch.round(parts / scale.float()[..., None] + zero.float()[..., None]).clamp(0, top)
    expected = ((codes - zero.float()[..., None]) * scale.float()[..., None]).reshape(rows, columns)
    linear.weight.data = expected.clone()
    if backend == "awq":
        from auto_round.export.export_to_awq.utils import WQLinear_GEMM
        layer = WQLinear_GEMM.from_linear(linear, bits, group, scales=scale.t().contiguous(),
                                          zeros=zero.t().contiguous())
        config = {"quant_method": "awq", "bits": bits, "group_size": group, "version": "gemm", "zero_point": not sym}
    else:
        if backend == "auto_round:auto_gptq":
            from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
        else:
            from auto_round_extension.torch.qlinear_torch import QuantLinear
        layer = QuantLinear(bits, group, columns, rows, False)
        layer.device = torch.device("cpu")
        layer.pack(linear, scale, zero, None, "cpu")
        config = {"quant_method": "auto-round", "packing_format": backend, "bits": bits, "group_size": group,
                  "sym": sym}
    if not tensors_of(layer):
        raise SystemExit(f"{name}: nothing was packed")
    write(out, name, config, tensors_of(layer), expected)


def sorted_gptq(out, name, weight, bits, group):
    """GPTQ with desc_act: AutoRound's class packs the inputs of each group, which g_idx then scatters."""
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
    rows, columns = weight.shape
    order = torch.randperm(columns)  # of inputs by their importance
    parts = weight.float()[:, order].reshape(rows, columns // group, group)
    top = 2**bits - 1
    scale = ((parts.amax(-1) - parts.amin(-1)) / top).half()
    zero = torch.round(-parts.amin(-1) / scale.float()).clamp(1, top)
    codes = torch.round(parts / scale.float()[..., None] + zero[..., None]).clamp(0, top)
    in_groups = ((codes - zero[..., None]) * scale.float()[..., None]).reshape(rows, columns)
    linear = torch.nn.Linear(columns, rows, bias=False)
    linear.weight.data = in_groups.clone()
    layer = QuantLinear(bits, group, columns, rows, False, g_idx=True)
    layer.pack(linear, scale, zero, None, "cpu")
    back = torch.argsort(order)
    per_word = 32 // bits
    shifts = torch.arange(0, 32, bits)[None, :, None]
    unpacked = (layer.qweight[:, None, :] >> shifts & top).reshape(columns, rows)[back]
    layer.qweight = (unpacked.reshape(-1, per_word, rows) << shifts).sum(1).to(torch.int32)
    layer.g_idx = layer.g_idx[back]
    expected = in_groups[:, back]
    if not torch.equal(layer.forward(torch.eye(columns)).t(), expected.half().float()):  # the package's own, in float16
        raise SystemExit(f"{name}: the package reads other values back")
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": True, "sym": False,
              "checkpoint_format": "gptq", "true_sequential": True}
    write(out, name, config, tensors_of(layer), expected)


def fp8(out, name, config, weight, block, scale_name):
    """Scales of blocks, of which the last of a row or column may be smaller."""
    rows, columns = weight.shape
    height, width = block
    scale = torch.zeros(-(-rows // height), -(-columns // width))
    codes = torch.zeros(rows, columns, dtype=torch.float8_e4m3fn)
    expected = torch.zeros(rows, columns)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
            scale[i, j] = weight[part].float().abs().amax() / 448
            codes[part] = (weight[part].float() / scale[i, j]).to(torch.float8_e4m3fn)
            expected[part] = codes[part].float() * scale[i, j]
    if scale.numel() == 1:
        scale = scale.reshape(())
    write(out, name, config, {"weight": codes, scale_name: scale}, expected)


def modelopt_nvfp4(out, name, weight):
    """The codes of compressed-tensors' NVFP4, under the other names; the global scale is a factor here."""
    from safetensors.torch import load_file
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    coded = load_file(out / "nvfp4/model.safetensors")
    packed, scale, divisor = (coded[f"{MODULE}.{key}"] for key in ("weight_packed", "weight_scale", "weight_global_scale"))
    factor = (1 / divisor).reshape(())
    codes = torch.stack((packed & 15, packed >> 4), -1).reshape(weight.shape)
    expected = values[codes.long()] * (scale.float() * factor).repeat_interleave(16, 1)
    tensors = {"weight": packed, "weight_scale": scale, "weight_scale_2": factor, "input_scale": torch.tensor(0.01)}
    write(out, name, None, tensors, expected)
    (out / name / "config.json").write_text("{}\n")
    (out / name / "hf_quant_config.json").write_text(json.dumps({
        "producer": {"name": "modelopt", "version": "0.33.0"},
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
                         "exclude_modules": ["lm_head"]}}, indent=1) + "\n")


def microscaled(out, name, weight, bits, largest_exponent):
    """OCP's MX formats: groups of 32 with a power of two, whose exponent is stored with a bias of 127."""
    parts = weight.float().reshape(64, 4, 32)
    exponent = torch.floor(torch.log2(parts.abs().amax(-1, keepdim=True))) - largest_exponent
    scaled = parts / 2**exponent
    if bits == 8:
        codes = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors, values = {"weight": codes.reshape(64, 128)}, codes.float()
    else:
        sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        codes = (scaled.abs()[..., None] - sizes).abs().argmin(-1)
        values = sizes[codes] * scaled.sign()
        codes = (codes + 8 * (scaled < 0)).to(torch.uint8).reshape(64, 128)
        tensors = {"weight_packed": codes[:, ::2] | codes[:, 1::2] << 4}
    tensors["weight_scale"] = (exponent + 127).to(torch.uint8).reshape(64, 4)
    weights = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True,
               "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    form = f"mxfp{bits}-" + ("quantized" if bits == 8 else "pack-quantized")
    write(out, name, {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
                      "config_groups": {"group_0": {"format": form, "targets": ["Linear"], "weights": weights}}},
          tensors, (values * 2**exponent).reshape(64, 128))


def stacked(out, name, of, names, config=None):
    """Another folder's codes as four experts' matrices, whose names end without `.weight`. @param names  old to new"""
    from safetensors.torch import load_file
    stack = lambda tensor: tensor.reshape(4, tensor.shape[0] // 4, tensor.shape[1])
    coded, expected = (load_file(out / of / file) for file in ("model.safetensors", "expected.safetensors"))
    config = config or json.loads((out / of / "config.json").read_text())["quantization_config"]
    write(out, name, config, {new: stack(coded[f"{MODULE}.{old}"]) for old, new in names.items()},
          stack(expected[f"{MODULE}.weight"]), MODULE, "")


def tensors_of(layer):
    tensors = {key: getattr(layer, key) for key in ("qweight", "qzeros", "scales", "g_idx") if hasattr(layer, key)}
    return {key: value.cpu() for key, value in tensors.items() if isinstance(value, torch.Tensor)}


def main():
    out = pathlib.Path(sys.argv[1])
    torch.manual_seed(44)
    weight = (torch.randn(64, 128) * 0.05).to(torch.bfloat16)
    compressed(out, "w4a16", "pack-quantized", weight, num_bits=4, type="int", symmetric=True, strategy="group",
               group_size=32)
    compressed(out, "w4a16-asymmetric", "pack-quantized", weight, num_bits=4, type="int", symmetric=False,
               strategy="group", group_size=64)
    compressed(out, "w8a16", "pack-quantized", weight, num_bits=8, type="int", symmetric=True, strategy="channel")
    compressed(out, "w8a8", "int-quantized", weight, num_bits=8, type="int", symmetric=True, strategy="channel")
    compressed(out, "fp8-tensor", "float-quantized", weight, num_bits=8, type="float", symmetric=True,
               strategy="tensor")
    compressed(out, "fp8-channel", "float-quantized", weight, num_bits=8, type="float", symmetric=True,
               strategy="channel")
    compressed(out, "fp8-block", "float-quantized", weight, num_bits=8, type="float", symmetric=True,
               strategy="block", block_structure=[16, 32])
    compressed(out, "nvfp4", "nvfp4-pack-quantized", weight, num_bits=4, type="float", symmetric=True,
               strategy="tensor_group", group_size=16)
    gptq_like(out, "auto-round-4-128", weight, "auto_round:exllamav2", 4, 128, False)
    gptq_like(out, "auto-round-4-32", weight, "auto_round:auto_gptq", 4, 32, True)
    gptq_like(out, "auto-round-8-64", weight, "auto_round:auto_gptq", 8, 64, True)
    gptq_like(out, "awq", weight, "awq", 4, 64, False)
    sorted_gptq(out, "gptq-desc-act", weight, 4, 32)
    blocks = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [24, 48]}
    fp8(out, "fp8-hf-block", blocks, weight, (24, 48), "weight_scale_inv")  # neither divides its extent
    fp8(out, "fp8-hf-tensor", {"quant_method": "fp8", "activation_scheme": "static"}, weight, weight.shape, "weight_scale")
    modelopt = {"quant_method": "modelopt", "quant_algo": "FP8", "producer": {"name": "modelopt", "version": "0.33.0"}}
    fp8(out, "modelopt-fp8", modelopt, weight, weight.shape, "weight_scale")
    modelopt_nvfp4(out, "modelopt-nvfp4", weight)
    # compressed-tensors may have blocks that do not divide the matrix; this version's compressor does not make them.
    stated = json.loads((out / "fp8-block/config.json").read_text())["quantization_config"]
    stated["config_groups"]["group_0"]["weights"]["block_structure"] = [24, 48]
    fp8(out, "fp8-block-odd", stated, weight, (24, 48), "weight_scale")
    spread = weight * 2.0 ** (torch.arange(64)[:, None] - 32)
    microscaled(out, "mxfp4", spread, 4, 2)
    microscaled(out, "mxfp8", spread, 8, 8)
    stacked(out, "w4a16-experts", "w4a16", {"weight_packed": "_packed", "weight_scale": "_scale"})
    stacked(out, "w4a16-asymmetric-experts", "w4a16-asymmetric",
            {"weight_packed": "_packed", "weight_scale": "_scale", "weight_zero_point": "_zero_point"})
    stacked(out, "fp8-hf-experts", "fp8-block", {"weight": "", "weight_scale": "_scale_inv"},
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 32]})


main()
