"""Random dialogues and what the published chat templates make of them: dialogues.json.

usage: make_dialogue_goldens.py STANDARD INTERLEAVED FIRST REFRESHED > dialogues/dialogues.json

Two Jinja files that llama.cpp publishes, google-gemma-4-31B-it.jinja and google-gemma-4-31B-it-interleaved.jinja, the
one that came with the models until April 2026 (31B's), with the line ends of Unix, and the one of July 2026 (E2B's,
whose answers begin with no empty thought, from a public copy). They are run by jinja2 (PyPI) as
transformers' apply_chat_template does, and each <|video|> becomes what transformers' processor writes for it: its
frames behind their times.
"""

import json
import random
import sys

import jinja2.ext
import jinja2.sandbox

COUNT = 200
WORDS = ["a", "Bär", "日本", "🙂", "x=1", "{k:v}", "it's", '"quoted"', "\\n", "<b>", "line\nbreak", "tab\there", "naïve",
         "call:f{}", "100%", "#"]
SPACES = ["", "", " ", "\n", "\t", "\u00a0", "  \n"]
NAMES = ["find", "weather_of", "sum2", "open-door", "Add"]
KEYS = ["city", "Unit", "n", "tags", "when", "zeta", "größe", "_x"]
STANDARD_KEYS = ["description", "type", "properties", "required", "nullable"]


class Dialogues:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def maybe(self, share):
        return self.random.random() < share

    def text(self, most=5):
        spaces = self.random.choices(SPACES, k=2)
        return spaces[0] + " ".join(self.random.choices(WORDS, k=self.random.randint(1, most))) + spaces[1]

    def value(self, depth=2):
        kind = self.random.randrange(8 if depth else 5)
        if kind == 0:
            return self.random.randint(-1000, 1000)
        if kind == 1:
            return self.random.choice([0.5, -2.25, 1e-7, 3.0, 1e22, 0.1])
        if kind == 2:
            return self.maybe(0.5)
        if kind < 5:
            return self.text(2)
        if kind == 5:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return self.mapping(depth - 1)

    def mapping(self, depth=2):
        return {key: self.value(depth) for key in self.random.sample(KEYS, self.random.randrange(4))}

    def schema(self, depth=2):
        kind = self.random.choice(["string", "integer", "number", "boolean"] + ["array", "object"] * (depth > 0))
        schema = {"type": kind}
        if self.maybe(0.6):
            schema["description"] = self.text(3)
        if self.maybe(0.2):
            schema["nullable"] = True
        if kind == "string" and self.maybe(0.4):
            schema["enum"] = self.random.sample(WORDS, 2)
        if kind == "array" and self.maybe(0.8):
            schema["items"] = self.schema(depth - 1)
        if kind == "object":
            schema.update(self.members(depth - 1))
        return schema

    def members(self, depth):
        keys = self.random.sample(KEYS, self.random.randint(1, 3))
        members = {"properties": {key: self.schema(depth) for key in keys}}
        if self.maybe(0.6):
            members["required"] = self.random.sample(keys, self.random.randint(1, len(keys)))
        return members

    def tool(self):
        function = {"name": self.random.choice(NAMES), "description": self.text(4)}
        if self.maybe(0.8):
            function["parameters"] = {"type": "object", **self.members(1)}
        if self.maybe(0.2):
            function["response"] = {"description": self.text(2), "type": "object"}
        return {"type": "function", "function": function}

    def parts(self):
        parts = []
        for _ in range(self.random.randint(1, 5)):
            kind = self.random.choice(["text", "text", "image", "audio", "video"])
            part = {"type": kind}
            if kind == "text":
                part["text"] = self.text()
            if kind == "video":
                first = self.random.randrange(100)
                part["seconds"] = [first + 40 * i for i in range(self.random.randint(1, 4))]
            parts.append(part)
        return parts

    def answer(self):
        """An assistant's message, and the tool messages that answer its calls."""
        message = {"role": "assistant", "content": self.text() if self.maybe(0.8) else ""}
        if self.maybe(0.2):
            message["content"] = "<|channel>thought\nsecret<channel|>" + message["content"]
        if self.maybe(0.4):
            message["reasoning_content"] = self.text()
        if not self.maybe(0.4):
            message["content"] = message["content"] or "yes"
            return [message]
        calls = self.random.randint(1, 3)
        message["tool_calls"] = [{"id": f"call{i}", "type": "function",
                                  "function": {"name": self.random.choice(NAMES), "arguments": self.mapping()}}
                                 for i in range(calls)]
        answers = [{"role": "tool", "tool_call_id": f"call{i}",
                    "content": self.text() if self.maybe(0.5) else self.mapping()}
                   for i in range(calls if self.maybe(0.8) else 0)]
        return [message, *answers]

    def dialogue(self):
        messages = []
        if self.maybe(0.4):
            messages.append({"role": self.random.choice(["system", "developer"]), "content": self.text()})
        for _ in range(self.random.randint(1, 2)):
            messages.append({"role": "user", "content": self.parts() if self.maybe(0.7) else self.text()})
            for _ in range(self.random.randrange(3)):
                messages += self.answer()
        if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
            messages.append({"role": "user", "content": self.parts()})
        tools = [self.tool() for _ in range(self.random.randint(1, 2))] if self.maybe(0.3) else []
        return {"messages": messages, "tools": tools, "enable_thinking": self.maybe(0.4)}


def responses_inside(messages):
    """The same messages with the tools' answers in the assistant's: where the interleaved template has them, and the
    standard one those that are no text."""
    inside = []
    for message in messages:
        if message["role"] != "tool":
            inside.append(dict(message))
            continue
        call = next(call for call in inside[-1]["tool_calls"] if call["id"] == message["tool_call_id"])
        inside[-1].setdefault("tool_responses", []).append(
            {"name": call["function"]["name"], "response": message["content"]})
    return inside


def completed(inside):
    """As llama.cpp gives them to the interleaved template: a text after answered calls is of the same message."""
    whole = []
    for message in inside:
        before = whole[-1] if whole else {}
        if message["role"] == "assistant" and "tool_calls" not in message and before.get("tool_responses") \
                and not before["content"]:
            before["content"] = message["content"]
        else:
            whole.append(dict(message))
    return whole


def with_frames(text, messages):
    """As transformers' processor writes them (Gemma4Processor.replace_video_token)."""
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else []:
            if part["type"] == "video":
                frames = " ".join(f"{s // 60:02d}:{s % 60:02d} \0" for s in part["seconds"])
                text = text.replace("<|video|>", frames, 1)
    return text.replace("\0", "<|video|>")


def main():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    standard, interleaved, first, refreshed = (environment.from_string(open(path, encoding="utf-8").read())
                                               for path in sys.argv[1:5])
    dialogues = Dialogues(seed=20)
    lines = []
    for _ in range(COUNT):
        dialogue = dialogues.dialogue()
        messages = dialogue["messages"]
        inside = responses_inside(messages)
        texts = all(isinstance(message["content"], str) for message in messages if message["role"] == "tool")
        for name, template, given in (("standard", standard, messages if texts else inside),
                                      ("interleaved", interleaved, completed(inside)),
                                      ("first", first, completed(inside)),
                                      ("refreshed", refreshed, messages if texts else inside)):
            text = template.render(messages=given, tools=dialogue["tools"] or None, bos_token="<bos>",
                                   add_generation_prompt=True, enable_thinking=dialogue["enable_thinking"])
            dialogue[name] = with_frames(text, messages)
        lines.append(json.dumps(dialogue, ensure_ascii=False, separators=(",", ":")))
    print("[" + ",\n".join(lines) + "]")


if __name__ == "__main__":
    main()
