#!/usr/bin/env python3
"""The Python package against `outrider run`, the goldens, a cluster, and what docs/python.md shows.

usage: python_package_test.py OUTRIDER
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUTRIDER = pathlib.Path(sys.argv.pop(1)).resolve()
os.environ["OUTRIDER_LIBRARY"] = str(OUTRIDER.parent / "liboutrider.so")
os.environ["PYTHONPATH"] = str(ROOT / "python")
os.environ["OUTRIDER_LOG"] = "warn"
sys.path.insert(0, str(ROOT / "python"))

import outrider  # noqa: E402

STORY = "Write a short story about a fox."
GOLDENS = json.loads((ROOT / "tests/goldens/nano/generate_golden.json").read_text())[::6]


def run(*options):
    """The JSON of `outrider run`."""
    return json.loads(subprocess.run([OUTRIDER, "run", STORY, "--json", "--max-tokens", "40", *options],
                                     check=True, capture_output=True, text=True).stdout)


class Cluster:
    """Coordinator, verifier and drafter as processes, at `address`."""

    def __init__(self):
        self.roles = [subprocess.Popen([OUTRIDER, "coordinator", "--listen", "tcp://127.0.0.1:*"], stdout=subprocess.PIPE, text=True)]
        self.address = self.roles[0].stdout.readline().strip()
        for role in ("verifier", "drafter"):
            self.roles.append(subprocess.Popen([OUTRIDER, role, "--join", self.address, "--dtype", "f32"]))
        subprocess.run([OUTRIDER, "run", STORY, "--connect", self.address, "--max-tokens", "1"], check=True, capture_output=True)

    def stop(self):
        for role in reversed(self.roles):
            role.terminate()
            role.wait(60)
        self.roles[0].stdout.close()


class OnOnePair(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pair = outrider.Pair(dtype="f32")

    @classmethod
    def tearDownClass(cls):
        cls.pair.close()

    def test_answers_are_the_golden_ones_whatever_is_drafted(self):
        for golden in GOLDENS:
            for draft_length in (0, 4, "auto", "tree:8"):
                answer = self.pair.generate(golden["prompt"], max_tokens=96, draft_length=draft_length)
                self.assertEqual(answer.prompt, golden["prompt_ids"])
                self.assertEqual(answer.tokens, golden["greedy"])
                self.assertEqual(answer.text, golden["text"])
                self.assertEqual(answer.finish_reason, "stop" if len(golden["greedy"]) < 96 else "length")

    def test_tokens_are_those_of_run(self):
        for options, flags in [({}, []), ({"temperature": 0.8, "top_k": 0, "top_p": 1, "seed": 5}, ["--temperature", "0.8", "--seed", "5"])]:
            answer = self.pair.generate(STORY, max_tokens=40, draft_length=4, **options)
            self.assertEqual(answer.tokens, run("--dtype", "f32", *flags)["token_ids"])

    def test_rounds_are_the_answer_and_its_statistics(self):
        answer = self.pair.generate(STORY, max_tokens=40, draft_length=4)
        self.assertEqual([token for made in answer.rounds for token in made.tokens], answer.tokens)
        self.assertEqual(sum(made.accepted for made in answer.rounds), answer.statistics.accepted)
        self.assertEqual(sum(len(made.drafts) for made in answer.rounds), answer.statistics.drafted)
        self.assertEqual(len(answer.rounds) - 1, answer.statistics.rounds)
        self.assertGreater(answer.statistics.acceptance, 0.2)
        self.assertGreater(answer.statistics.tokens_per_second, 0)
        self.assertRegex(repr(answer), r"^Answer\('.*', finish_reason='\w+', \d+ tokens, [\d.]+ tokens/s, \d+ of \d+ drafts kept\)$")
        for made in answer.rounds:
            self.assertEqual(made.drafts[: made.accepted], made.tokens[: made.accepted])

    def test_a_stream_is_the_answer_in_pieces(self):
        whole = self.pair.generate(STORY, max_tokens=40)
        stream = self.pair.stream(STORY, max_tokens=40)
        with self.assertRaises(outrider.InvalidArgument):
            stream.answer
        pieces = list(stream)
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(pieces), whole.text)
        self.assertEqual(stream.answer.tokens, whole.tokens)

    def test_a_stream_that_is_left_ends(self):
        with self.pair.stream(STORY, max_tokens=4000, ignore_eos=True) as stream:
            next(stream)
        self.assertLess(len(stream.tokens), 4000)
        self.assertEqual(list(stream), [])
        forgotten = self.pair.stream(STORY, max_tokens=4000, ignore_eos=True)
        thread = forgotten._reply.thread
        del forgotten
        thread.join(60)
        self.assertFalse(thread.is_alive())

    def test_log_probabilities_in_both_kinds_of_request(self):
        chat = self.pair.generate(STORY, max_tokens=8, logprobs=3)
        ids = self.pair.generate(chat.prompt, max_tokens=8, logprobs=3)
        self.assertEqual(chat.tokens, ids.tokens)
        self.assertEqual(chat.logprobs, ids.logprobs)
        for token, score in zip(chat.tokens, chat.logprobs, strict=True):
            self.assertEqual(score.token, token)
            self.assertEqual(len(score.top), 3)
            self.assertEqual(next(iter(score.top)), token)  # greedy
            self.assertEqual(score.top[token], score.logprob)
        self.assertIsNone(self.pair.generate(STORY, max_tokens=1).logprobs)

    def test_a_conversation_goes_on(self):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell a story."}]
        first = self.pair.chat(messages, max_tokens=8)
        self.assertEqual(first.prompt, self.pair.encode(messages))
        messages += [first.message, {"role": "user", "content": "And then?"}]
        self.assertIn(first.text.strip(), self.pair.decode(self.pair.chat(messages, max_tokens=1).prompt))

    def test_forms_and_stops(self):
        self.assertIn(self.pair.generate(STORY, choice=["yes", "no"]).text, ("yes", "no"))
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
        self.assertIn(json.loads(self.pair.generate(STORY, json_schema=schema).text)["n"], (1, 2))
        self.assertRegex(self.pair.generate(STORY, regex="[a-c]{3}").text, "^[a-c]{3}$")
        whole = self.pair.generate(STORY, max_tokens=40).text
        word = whole.split()[5]
        self.assertEqual(self.pair.generate(STORY, max_tokens=40, stop=word).text, whole[: whole.index(word)])

    def test_text_and_ids(self):
        ids = self.pair.encode("Once upon a time", raw=True)
        self.assertEqual(self.pair.decode(ids), "Once upon a time")
        self.assertTrue(self.pair.decode(ids, special=True).startswith("<bos>"))
        self.assertEqual(self.pair.generate("Once upon a time", raw=True, max_tokens=4).prompt, ids)
        self.assertEqual(self.pair.decode([]), "")

    def test_a_text_by_hand_is_that_of_plain_decoding(self):
        rng = random.Random(1)
        for golden in GOLDENS[:3]:
            with self.pair.session() as session:
                session.prefill(golden["prompt"])
                accepted = 0
                while len(session.tokens) < len(golden["greedy"]):
                    kind = rng.randrange(3)
                    if kind == 0:
                        session.decode()
                    elif kind == 1:
                        accepted += session.round(4).accepted
                    else:
                        session.verify([rng.randrange(6000) for _ in range(rng.randrange(5))])
                self.assertEqual(session.tokens[: len(golden["greedy"])], golden["greedy"])
                self.assertGreater(accepted, 0)

    def test_a_step_by_hand_shows_its_verdict(self):
        with self.pair.session() as session:
            first = session.prefill(GOLDENS[0]["prompt_ids"])
            greedy = GOLDENS[0]["greedy"]
            self.assertEqual(first, greedy[0])
            verdict = session.verify([greedy[1], greedy[2], 77 if greedy[3] != 77 else 78])
            self.assertEqual((verdict.accepted, verdict.next_token, verdict.tokens), (2, greedy[3], greedy[1:4]))
            with self.assertRaises(outrider.InvalidArgument):
                session.verify([10**6])
            self.assertEqual(session.decode(), greedy[4])  # all is as before

    def test_threads_share_a_pair(self):
        texts = {}
        threads = [threading.Thread(target=lambda i=i: texts.update({i: self.pair.generate(GOLDENS[i]["prompt"], max_tokens=96).tokens}))
                   for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(texts, {i: GOLDENS[i]["greedy"] for i in range(4)})

    def test_a_picture_is_a_part_of_a_message(self):
        part = outrider.picture(b"\x89PNG", detail="low")
        url = {"url": "data:image/*;base64,iVBORw==", "detail": "low"}
        self.assertEqual(part, {"type": "image_url", "image_url": url})
        with self.assertRaisesRegex(outrider.InvalidArgument, "content.0.: "):
            self.pair.chat([{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}])
        folder = ROOT / "tests/goldens/nano-pictures"
        golden = json.loads((folder / "answers.json").read_text())[0]
        asked: list[dict[str, object]] = [{"role": "user", "content": [
            outrider.picture(folder / golden["picture"]), {"type": "text", "text": golden["question"]}]}]
        self.assertEqual(self.pair.chat(asked, max_tokens=24).tokens, golden["tokens"])
        with self.pair.session() as session:
            self.assertEqual(session.prefill(asked), golden["tokens"][0])

    def test_a_video_is_a_part_of_a_message(self):
        self.assertEqual(outrider.video(b"film"), {"type": "video_url", "video_url": {"url": "data:video/*;base64,ZmlsbQ=="}})
        part = outrider.video([b"one", b"two"])
        self.assertEqual(part, {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,b25l,dHdv"}})
        with self.assertRaisesRegex(outrider.InvalidArgument, "content.0.: not a picture that can be read"):
            self.pair.chat([{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}])
        picture = ROOT / "tests/goldens/nano-pictures/red_circle.png"
        one, two = (self.pair.encode([{"role": "user", "content": [outrider.video([picture] * n)]}]) for n in (1, 2))
        self.assertGreater(len(two), len(one) + 40)

    def test_a_sound_is_a_part_of_a_message(self):
        part = outrider.sound(b"RIFF")
        self.assertEqual(part, {"type": "input_audio", "input_audio": {"data": "UklGRg=="}})
        with self.assertRaisesRegex(outrider.InvalidArgument, "content.0.: "):
            self.pair.chat([{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}])
        folder = ROOT / "tests/goldens/nano-sounds"
        golden = json.loads((folder / "answers.json").read_text())[0]
        asked: list[dict[str, object]] = [{"role": "user", "content": [
            outrider.sound(folder / golden["sound"]), {"type": "text", "text": golden["question"]}]}]
        self.assertEqual(self.pair.chat(asked, max_tokens=24).tokens, golden["tokens"])

    def test_errors_are_of_their_kind(self):
        with self.assertRaisesRegex(outrider.InvalidArgument, "top_p is 7"):
            self.pair.generate(STORY, top_p=7)
        with self.assertRaises(ValueError):
            self.pair.chat([{"role": "no body", "content": "x"}])
        with self.assertRaisesRegex(TypeError, "no option temprature; the nearest is temperature"):
            self.pair.generate(STORY, temprature=1)
        with self.assertRaisesRegex(TypeError, "thinking"):
            self.pair.generate(STORY, raw=True, thinking=True)
        with self.assertRaises(outrider.OutOfRange):
            self.pair.generate([5] * 9000)
        with self.assertRaisesRegex(outrider.NotFound, "/nowhere"):
            outrider.Pair("/nowhere")
        with self.assertRaises(outrider.InvalidArgument):
            outrider.Pair(dtype="f17")
        with self.assertRaises(outrider.PeerGone):
            outrider.Pair.connect("tcp://127.0.0.1:9")


class Lifetimes(unittest.TestCase):
    def test_a_closed_pair_lives_as_long_as_its_sessions(self):
        pair = outrider.Pair()
        session = pair.session()
        session.prefill(pair.encode(STORY))
        pair.close()
        pair.close()
        session.round(4)
        session.close()
        for closed in (lambda: pair.generate(STORY), pair.session, session.decode):
            with self.assertRaisesRegex(outrider.OutriderError, "is closed"):
                closed()

    def test_a_coordinator_elsewhere_gives_the_same_tokens(self):
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        with outrider.Pair.connect(cluster.address) as pair:
            for golden in GOLDENS[:3]:
                self.assertEqual(pair.generate(golden["prompt"], max_tokens=96, draft_length=4).tokens, golden["greedy"])
            with pair.session() as session:
                session.prefill(GOLDENS[0]["prompt"])
                self.assertGreater(session.round(4).accepted, 0)

    def test_a_draft_model_drafts_instead_of_an_assistant(self):
        for draft_model in ("models/pico/backbone", "models/pico"):
            with outrider.Pair(ROOT / "models/nano/backbone", draft_model=ROOT / draft_model, dtype="f32") as pair:
                for golden in GOLDENS[:2]:
                    answer = pair.generate(golden["prompt"], max_tokens=96, draft_length=4)
                    self.assertEqual(answer.tokens, golden["greedy"])
                    self.assertGreater(answer.statistics.accepted, 0)  # the target has no assistant beside it
        with self.assertRaisesRegex(TypeError, "draft_model"):
            outrider.Pair(backbone=ROOT / "models/nano/backbone", draft_model=ROOT / "models/pico")
        with self.assertRaisesRegex(outrider.NotFound, "/nowhere"):
            outrider.Pair(draft_model="/nowhere")

    def test_without_a_type_a_pack_has_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            pack = os.path.join(folder, "pack")
            nano = ROOT / "models/nano"
            subprocess.run([OUTRIDER, "pack", "--pair", nano / "backbone", nano / "assistant", "--dtype", "int8", "-o", pack],
                           check=True, capture_output=True)
            with outrider.Pair(pack) as pair:
                self.assertEqual(pair.generate(STORY, max_tokens=40).tokens, run("--model", pack)["token_ids"])

    def test_a_program_that_closes_nothing_ends_in_silence(self):
        program = "import outrider; p = outrider.Pair(); s = p.session(); s.prefill('Hi'); print(p.generate('Hi', max_tokens=4).text)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_program_that_leaves_a_stream_ends(self):
        program = ("import outrider; s = outrider.Pair().stream('Tell me a story.', max_tokens=4000, ignore_eos=True); "
                   "print(len(next(s)) > 0)")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True\n", ""))

    def test_a_stream_may_be_collected_while_cffi_works(self):
        program = textwrap.dedent("""
            import gc, outrider
            from outrider._library import ffi
            stream = outrider.Pair().stream("Tell me a story.", max_tokens=4000, ignore_eos=True)
            stream.itself = stream
            del stream
            with ffi._lock:  # as in ffi.new() of a type that is new
                gc.collect()
            """)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_stream_ends_before_its_first_piece(self):
        coordinator = subprocess.Popen([OUTRIDER, "coordinator", "--listen", "tcp://127.0.0.1:*"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(coordinator.stdout.close)
        self.addCleanup(coordinator.wait)
        self.addCleanup(coordinator.terminate)
        with outrider.Pair.connect(coordinator.stdout.readline().strip()) as pair:
            stream = pair.stream(STORY)  # it waits for a verifier, of which there is none
            stream.close()
            self.assertIsNone(stream._reply.events.get(), "an answer that came to its end would say that no verifier joined")

    def test_a_forked_process_may_end_and_may_not_use_what_it_inherits(self):
        program = textwrap.dedent("""
            import os, sys, outrider
            pair = outrider.Pair()
            session = pair.session()
            child = os.fork()
            if child:
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            for use in (lambda: pair.generate("Hi"), lambda: session.prefill("Hi")):
                try:
                    use()
                except outrider.OutriderError as error:
                    print(error)
            del session
            pair.close()
            """)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        said = "".join(f"the {what} is of the process that forked this one\n" for what in ("pair", "session"))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, said, ""))


class Pages(unittest.TestCase):
    def test_the_experiment_of_the_page_runs(self):
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.DOTALL | re.MULTILINE)
        done = subprocess.run([sys.executable, "-c", blocks[-1]], check=True, capture_output=True, text=True, timeout=300)
        self.assertEqual(len(re.findall(r"^draft \d: [1-9]\d* of \d+ kept, 0\.\d\d$", done.stdout, re.MULTILINE)), 6, done.stdout)

    def test_types_are_right(self):
        done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", os.devnull,
                               ROOT / "python/outrider"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
