#!/usr/bin/env python3
"""Draws tests/goldens/nano-pictures and writes what Hugging Face transformers, with nano's tower, answers about them.

    make_picture_goldens.py BACKBONE OUT      BACKBONE is models/nano/backbone

Float32, greedy. Needs torch, transformers, tokenizers and Pillow. The pictures are Pillow's, not those that
the tower was trained with.
"""
import json
import math
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, Gemma4ForConditionalGeneration, Gemma4ImageProcessorPil

SHARDS = ["model.safetensors", "vision.safetensors", "audio.safetensors"]
SCENES = {  # width, height, ground, and objects: shape, colour, box
    "red_circle": (256, 256, "white", [("circle", "red", (60, 70, 190, 200))]),
    "three_blue_squares": (320, 240, "white", [("square", "blue", (20, 30, 80, 90)),
                                               ("square", "blue", (130, 140, 190, 200)),
                                               ("square", "blue", (240, 50, 300, 110))]),
    "yellow_star": (200, 300, "black", [("star", "gold", (40, 80, 160, 200))]),
    "two_kinds": (400, 200, "white", [("circle", "green", (20, 60, 100, 140)),
                                      ("triangle", "orange", (150, 50, 240, 140)),
                                      ("triangle", "orange", (280, 70, 370, 160))]),
}
QUESTIONS = {
    "red_circle": ["What is this?", "What colour is the circle?", "What shape is it?"],
    "three_blue_squares": ["What is in the picture?", "How many squares are there?", "What color are they?"],
    "yellow_star": ["What do you see?", "What shape is this?"],
    "two_kinds": ["Describe the picture.", "What colour is the circle?", "How many triangles are there?"],
}


def draw(width, height, ground, objects, over=4):
    picture = Image.new("RGB", (over * width, over * height), ground)
    pen = ImageDraw.Draw(picture)
    for shape, colour, box in objects:
        left, top, right, bottom = (over * edge for edge in box)
        middle, radius = ((left + right) / 2, (top + bottom) / 2), (right - left) / 2
        if shape == "circle":
            pen.ellipse((left, top, right, bottom), fill=colour)
        elif shape == "square":
            pen.rectangle((left, top, right, bottom), fill=colour)
        elif shape == "triangle":
            pen.polygon([(middle[0], top), (right, bottom), (left, bottom)], fill=colour)
        else:
            tips = []
            for i in range(10):
                angle, r = math.pi * i / 5, radius if i % 2 == 0 else 0.42 * radius
                tips.append((middle[0] + r * math.sin(angle), middle[1] - r * math.cos(angle)))
            pen.polygon(tips, fill=colour)
    return picture.resize((width, height), Image.Resampling.BOX)


def load(backbone):
    """Hugging Face reads two files where an index names them."""
    with tempfile.TemporaryDirectory() as directory:
        weight_map = {}
        for shard in SHARDS:
            (Path(directory) / f"of-{shard}").symlink_to((backbone / shard).resolve())
            with safe_open(backbone / shard, "pt") as file:
                weight_map |= {name: f"of-{shard}" for name in file.keys()}
        index = json.dumps({"metadata": {}, "weight_map": weight_map})
        (Path(directory) / "model.safetensors.index.json").write_text(index)
        (Path(directory) / "config.json").write_text((backbone / "config.json").read_text())
        model, report = Gemma4ForConditionalGeneration.from_pretrained(directory, dtype=torch.float32,
                                                                       output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    return model.eval()


def main():
    backbone, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    model, config = load(backbone), AutoConfig.from_pretrained(backbone)
    tokenizer = Tokenizer.from_file(str(backbone / "tokenizer.json"))
    processor = Gemma4ImageProcessorPil()
    answers = []
    for name, scene in SCENES.items():
        draw(*scene).save(out / f"{name}.png", optimize=True)
        seen = processor(images=[Image.open(out / f"{name}.png")], return_tensors="pt")
        count = int(seen["num_soft_tokens_per_image"][0])
        for question in QUESTIONS[name]:
            text = f"<bos><|turn>user\n<|image>{'<|image|>' * count}<image|>{question}<turn|>\n<|turn>model\n"
            ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
            with torch.no_grad():
                tokens = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=24,
                                        do_sample=False, pixel_values=seen["pixel_values"],
                                        image_position_ids=seen["image_position_ids"],
                                        mm_token_type_ids=(ids == config.image_token_id).int(),
                                        eos_token_id=config.eos_token_id)[0, ids.shape[1]:].tolist()
            answers.append({"picture": f"{name}.png", "question": question, "prompt_tokens": ids.shape[1],
                            "tokens": tokens, "text": tokenizer.decode(tokens)})
            print(answers[-1])
    (out / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
