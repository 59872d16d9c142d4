#!/usr/bin/env python3
"""lab/alter_assistant.py: what it says of its matrices is so, and what it writes drafts.

usage: alter_assistant_test.py OUTRIDER
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(SOURCE / "lab"), str(SOURCE / "tests/goldens")]
import alter_assistant  # noqa: E402
import reference  # noqa: E402

NANO = SOURCE / "models/nano"
QUERY, GATE, UP, DOWN = (f"model.layers.1.{name}.weight" for name in
                         ("self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))


def alter(assistant, out, *flags):
    command = [sys.executable, SOURCE / "lab/alter_assistant.py", assistant, "-o", out, *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True)


class AlteredAssistant(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        self.nano = alter_assistant.Checkpoint(NANO / "assistant")

    def altered(self, *flags):
        out = self.scratch / "-".join(map(str, flags))
        done = alter(NANO / "assistant", out, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def test_a_matrix_by_itself_is_its_best_approximation_of_that_rank(self):
        made = alter_assistant.low_rank(self.nano, 20, "all").changed
        for name in (QUERY, DOWN):
            error = np.linalg.norm(made[name] - self.nano[name])
            singular = np.linalg.svd(self.nano[name], compute_uv=False)
            self.assertAlmostEqual(error / np.linalg.norm(singular[20:]), 1, places=9)  # Eckart and Young
            self.assertEqual(np.linalg.matrix_rank(made[name]), 20)

    def test_what_reads_the_same_row_shares_a_basis(self):
        made = alter_assistant.low_rank(self.nano, 20, "inputs").changed
        self.assertEqual(np.linalg.matrix_rank(np.concatenate([made[GATE], made[UP]])), 20)

    def test_sinks_are_the_columns_of_highest_norm_and_stay(self):
        made = alter_assistant.low_rank(self.nano, 20, "query", sinks=5).changed[QUERY]
        before = self.nano[QUERY]
        kept = np.flatnonzero(np.all(made == before, axis=0))
        self.assertEqual(set(kept), set(np.argsort(-np.linalg.norm(before, axis=0))[:5]))
        self.assertEqual(np.linalg.matrix_rank(np.delete(made, kept, axis=1)), 20)

    def test_the_full_rank_is_the_same_assistant(self):
        out = self.altered("--rank", self.nano.hidden_size, "--matrices", "all")
        ours, theirs = (reference.load_safetensors(folder / "model.safetensors") for folder in (out, NANO / "assistant"))
        self.assertEqual(ours.keys(), theirs.keys())
        for name, tensor in theirs.items():
            np.testing.assert_allclose(ours[name], tensor, rtol=0, atol=1e-6 * np.abs(tensor).max(), err_msg=name)

    def test_a_damped_assistant_is_one_whose_residual_row_is_damped(self):
        strength = 2.5  # at the floors in the last layer
        damped = reference.Assistant(self.altered("--damping", strength))
        golden = reference.load_safetensors(SOURCE / "tests/goldens/nano/golden.safetensors")
        kv = {kind: (golden[f"shared_kv.{kind}.key"], golden[f"shared_kv.{kind}.value"])
              for kind in (reference.SLIDING, reference.FULL)}
        rows = np.random.default_rng(1).standard_normal((2, 384)).astype(np.float32)
        ours = damped.step(*rows, kv, 37)

        # The same by its definition: add, then multiply.
        plain, w = reference.Assistant(NANO / "assistant"), {}
        x = plain.w.linear("pre_projection", np.concatenate(rows))[None]
        for i, spec in enumerate(plain.config.layers):
            w = plain.w.under(f"model.layers.{i}")
            table, visible = reference.rope_tables([37], spec.head_dim, spec.rope), np.ones((1, kv[spec.kind][0].shape[1]), bool)
            a, b = alter_assistant.damping_factors(i, len(plain.config.layers), strength)
            attention = reference.attend(w.norm("input_layernorm", x), w.under("self_attn"), spec, table, *kv[spec.kind], visible)
            x = (x + w.norm("post_attention_layernorm", attention)) * np.float32(a)
            mlp = reference.mlp(w.norm("pre_feedforward_layernorm", x), w.under("mlp"))
            x = (x + w.norm("post_feedforward_layernorm", mlp)) * np.float32(b) * w["layer_scalar"]
        n = plain.w.norm("model.norm", x)[0]
        self.assertLess(reference.relative_error(ours[0], plain.logits(n)), 1e-5)
        self.assertLess(reference.relative_error(ours[1], plain.w.linear("post_projection", n)), 1e-5)
        undamped = plain.step(*rows, kv, 37)
        self.assertGreater(reference.relative_error(ours[1], undamped[1]), 1e-2)

    def test_outrider_drafts_with_it_and_says_what_it_says_without(self):
        out = self.altered("--rank", 96, "--matrices", "all", "--sinks", 4)
        command = [OUTRIDER, "run", "Write a short story about a fox.", "--backbone", NANO / "backbone", "--assistant", out,
                   "--draft-length", "4", "--no-governor", "--max-tokens", "32", "--compare", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)["metrics"]["accepted_tokens"], 0)

    def test_refusals_are_one_line_and_make_nothing(self):
        out = self.scratch / "out"
        for source, flags, word in ((NANO / "backbone", ["--rank", 8], "not an assistant"),
                                    (NANO / "backbone", ["--damping", 0.35], "not an assistant"),
                                    (NANO / "assistant", ["--rank", 0], "--rank 0 is not within 1 .. 192"),
                                    (NANO / "assistant", ["--rank", 8, "--sinks", 192], "--sinks 192 is not within 0 .. 191"),
                                    (self.scratch / "none", ["--rank", 8], "config.json")):
            done = alter(source, out, *flags)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn(word, done.stderr)
            self.assertFalse(out.exists())
        self.assertNotEqual(alter(NANO / "assistant", self.scratch, "--rank", 8).returncode, 0)  # nothing is overwritten


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
