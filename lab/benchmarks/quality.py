#!/usr/bin/env python3
"""The table of docs/numerics.md, "What does rounding cost?": every weight type on nano, and on GGUF files made of nano, in
the words of llama.cpp's `llama-perplexity --kl-divergence`, on held-out text. Wants the targets outrider and write_gguf.

usage: quality.py [--build DIR] [--qat DIR] [TEXT ...]
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = {"nano": ("bf16", "int8", "int4"), "Q8_0": ("bf16", "int8"), "Q4_0": ("f32", "bf16", "q4", "int8", "int4")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="default: tests/goldens/heldout/library.txt")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="has outrider and write_gguf")
    parser.add_argument("--qat", type=Path, help="measure only this: nano trained for q4's grid (docs/numerics.md)")
    options = parser.parse_args()
    texts = options.texts or [ROOT / "tests/goldens/heldout/library.txt"]
    nano = ROOT / "models/nano/backbone"
    print("| file | type | bits | mean KLD | 99.9 % | RMS delta p | same top | perplexity | MB a token |\n" + "|---" * 9 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for name, dtypes in ({"nano-qat": ("q4", "bf16", "int8")} if options.qat else FILES).items():
            model = options.qat or nano
            if name in ("Q8_0", "Q4_0"):
                model = Path(folder) / f"{name}.gguf"
                subprocess.run([options.build / "lab/benchmarks/write_gguf", nano, name, model], check=True)
            for dtype in dtypes:
                program = [options.build / "outrider", "perplexity", *texts, "--model", model, "--dtype", dtype, "--base", nano, "--json"]
                report = json.loads(subprocess.run(program, check=True, stdout=subprocess.PIPE).stdout)
                row = report["texts"][-1]
                print(f"| {name} | {dtype} | {report['bits_per_weight']:.2f} | {row['mean_kld']:.6f} | {row['kld_99_9']:.4f} | "
                      f"{row['rms_delta_p_percent']:.3f} % | {row['same_top_percent']:.2f} % | {row['perplexity']:.4f} | "
                      f"{report['weight_bytes_per_token'] / 1e6:.1f} |", flush=True)


if __name__ == "__main__":
    main()
