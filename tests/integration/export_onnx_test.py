#!/usr/bin/env python3
"""An assistant's draft step as lab/export_onnx.py writes it, run by onnxruntime, is the step that `outrider parity`
holds ours to: six steps of each golden folder that has an assistant, with ordered embeddings and with the whole head.

usage: export_onnx_test.py OUTRIDER
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import onnxruntime

SOURCE = pathlib.Path(__file__).resolve().parents[2]
GOLDENS = SOURCE / "tests/goldens"
sys.path.append(str(GOLDENS))
import reference  # noqa: E402

FOLDERS = ["e4b", "e2b", "dense-31b", "moe-26b-a4b", "odd", "nano"]


def export(assistant, out):
    return subprocess.run([sys.executable, SOURCE / "lab/export_onnx.py", assistant, "-o", out], capture_output=True, text=True)


class ExportedStep(unittest.TestCase):
    def test_six_steps_are_those_of_the_goldens(self):
        for name in FOLDERS:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                golden = reference.load_safetensors(GOLDENS / name / "golden.safetensors")
                notes = json.loads((GOLDENS / name / "golden.json").read_text())
                pair = reference.model_dir(GOLDENS / name)
                backbone = reference.Backbone(pair / "backbone")
                out = pathlib.Path(folder) / "step"
                done = export(pair / "assistant", out)
                self.assertEqual(done.returncode, 0, done.stderr)
                session = onnxruntime.InferenceSession(out / "step.onnx")
                rows = {f"{kind}.{what}": golden[f"shared_kv.{kind}.{what}"]
                        for kind in (reference.SLIDING, reference.FULL) for what in ("key", "value")}
                token, drafts = notes["draft_first_token"], []
                state = golden[f"hidden_states.{backbone.config.layer_count}"][-1]
                for j in range(6):
                    ids, scores, state = session.run(["ids", "scores", "next_state"], rows | {
                        "embedding": backbone.embed(token), "state": state,
                        "position": np.array(notes["draft_position_id"])})
                    logits = np.full(len(golden[f"draft.{j}.logits"]), scores.min() - 1)
                    logits[ids] = scores
                    # What parity allows our float32: both sum the same products in another order.
                    self.assertLess(reference.relative_error(logits, golden[f"draft.{j}.logits"]), 1e-4)
                    self.assertLess(reference.relative_error(state, golden[f"draft.{j}.hidden"]), 1e-4)
                    token = int(np.argmax(logits))
                    drafts.append(token)
                self.assertEqual(drafts, notes["draft_tokens"])

                # A text that is shorter than any window of theirs.
                short = {part: values[:, :3] for part, values in rows.items()}
                by_kind = {kind: (short[f"{kind}.key"], short[f"{kind}.value"]) for kind in (reference.SLIDING, reference.FULL)}
                assistant = reference.Assistant(pair / "assistant")
                logits, after = assistant.step(backbone.embed(token), state, by_kind, 3)
                ids, scores, state = session.run(["ids", "scores", "next_state"], short | {
                    "embedding": backbone.embed(token), "state": state, "position": np.array(3)})
                self.assertLess(reference.relative_error(scores, logits[ids]), 1e-4)
                self.assertLess(reference.relative_error(state, after), 1e-4)

    def test_our_own_steps_are_those_of_the_same_goldens(self):
        for name in FOLDERS:
            with self.subTest(name):
                done = subprocess.run([OUTRIDER, "parity", GOLDENS / name, "--dtype", "f32"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertIn("draft.5.logits", done.stdout)

    def test_what_is_no_assistant_is_refused_in_a_line(self):
        with tempfile.TemporaryDirectory() as folder:
            done = export(SOURCE / "models/nano/backbone", pathlib.Path(folder) / "step")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn("not an assistant", done.stderr)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
