#!/usr/bin/env python3
"""Makes the sounds of tests/goldens/nano-sounds and writes what Hugging Face transformers, with nano's tower, answers about them.

    make_hearing_goldens.py BACKBONE OUT      BACKBONE is models/nano/backbone

Float32, greedy. Needs torch, transformers, tokenizers, numpy and Pillow. The sounds are numpy's, not those that
the tower was trained with.
"""
import json
import sys
import wave
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, Gemma4AudioFeatureExtractor

from make_picture_goldens import load

RATE = 16000
KEYS = {str(digit): (row, column) for row, line in zip((697, 770, 852, 941), ("123", "456", "789", "*0#"))
        for column, digit in zip((1209, 1336, 1477), line)}


def shaped(seconds, wave):
    """What `wave` says of the time, with soft edges."""
    t = np.arange(int(seconds * RATE)) / RATE
    return wave(t) * np.clip(np.minimum(t, seconds - t) / 0.01, 0, 1)


def tone(seconds, *frequencies):
    return shaped(seconds, lambda t: 0.4 * sum(np.sin(2 * np.pi * f * t) for f in frequencies) / len(frequencies))


def buzz(seconds):
    return shaped(seconds, lambda t: 0.3 * (2 * ((100 * t) % 1) - 1))


def hiss(seconds, chance):
    return shaped(seconds, lambda t: 0.2 * chance.standard_normal(len(t)))


def sounds():
    """Names, and their parts, which follow each other with pauses of 0.15 s."""
    chance = np.random.default_rng(20)
    yield "three_high_beeps", [tone(0.14, 1800)] * 3
    yield "buzz_then_hisses", [buzz(0.15), hiss(0.13, chance), hiss(0.13, chance)]
    yield "dialled_472", [tone(0.14, *KEYS[digit]) for digit in "472"]


QUESTIONS = {
    "three_high_beeps": ["What is this?", "How many beeps are there?", "Is it high or low?"],
    "buzz_then_hisses": ["What do you hear?", "What comes first?", "How many hisses are there?"],
    "dialled_472": ["Describe the sound.", "What number is dialled?"],
}


def write(path, parts):
    pause = np.zeros(int(0.15 * RATE))
    samples = np.concatenate([pause] + [each for part in parts for each in (part, pause)])
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(RATE)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())


def read(path):
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def main():
    backbone, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    model, config = load(backbone), AutoConfig.from_pretrained(backbone)
    tokenizer, extractor = Tokenizer.from_file(str(backbone / "tokenizer.json")), Gemma4AudioFeatureExtractor()
    answers = []
    for name, parts in sounds():
        write(out / f"{name}.wav", parts)
        heard = extractor([read(out / f"{name}.wav")], sampling_rate=RATE, return_tensors="pt")
        frames = int(heard["input_features_mask"].sum())
        count = ((frames + 1) // 2 + 1) // 2
        for question in QUESTIONS[name]:
            text = f"<bos><|turn>user\n<|audio>{'<|audio|>' * count}<audio|>{question}<turn|>\n<|turn>model\n"
            ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
            with torch.no_grad():
                tokens = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=24,
                                        do_sample=False, input_features=heard["input_features"].float(),
                                        input_features_mask=heard["input_features_mask"].bool(),
                                        eos_token_id=config.eos_token_id)[0, ids.shape[1]:].tolist()
            answers.append({"sound": f"{name}.wav", "question": question, "prompt_tokens": ids.shape[1],
                            "tokens": tokens, "text": tokenizer.decode(tokens)})
            print(name, question, answers[-1]["text"], flush=True)
    (out / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
