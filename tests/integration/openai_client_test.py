#!/usr/bin/env python3
"""Outrider's server as the official OpenAI client sees it: chat, streams, tools, speech, models and error classes.

usage: openai_client_test.py OUTRIDER
"""
import base64
import concurrent.futures
import sys
import time
import unittest
from pathlib import Path
from typing import Literal

import openai
import pydantic

from serve_support import Server

QUESTION = [{"role": "user", "content": "Write a short story about a fox."}]
WEATHER = [{"type": "function", "function": {
    "name": "weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def client_of(server, key="key"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(OUTRIDER, "--draft-length", "4@0", key="key")  # rounds that no clock chooses
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def chat(self, **fields):
        return self.client.chat.completions.create(**{"model": "nano", "messages": QUESTION, "temperature": 0, "max_tokens": 30} | fields)

    def test_chat_is_the_same_streamed_and_not(self):
        whole = self.chat()
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assertEqual(whole.usage.completion_tokens, 30)
        self.assertTrue(whole.choices[0].message.content)
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-1].usage, whole.usage)
        self.assertEqual(chunks[-1].speculative["rounds"], whole.speculative["rounds"])

    def test_speculation_can_be_switched_off(self):
        plain = self.chat(extra_body={"speculative": {"enabled": False}})
        self.assertEqual(plain.speculative["drafted_tokens"], 0)
        self.assertEqual(plain.choices[0].message.content, self.chat().choices[0].message.content)

    def test_content_parts_choices_and_stops(self):
        parts = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, *QUESTION]
        answer = self.chat(messages=parts, n=2, stop=["."], temperature=1, seed=3)
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        for choice in answer.choices:
            self.assertNotIn(".", choice.message.content)

    def test_streamed_choices_are_those_of_the_whole_answer(self):
        fields = {"n": 3, "temperature": 1, "seed": 3}
        texts = ["", "", ""]
        for chunk in self.chat(stream=True, **fields):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [choice.message.content for choice in self.chat(**fields).choices])
        self.assertEqual(texts, [self.chat(**fields | {"n": 1, "seed": 3 + i}).choices[0].message.content for i in range(3)])

    def test_a_transcription_is_the_chat_of_the_model_cards_prompt(self):
        sound = (Path(__file__).parent.parent / "goldens/nano-sounds/dialled_472.wav").read_bytes()
        fields = {"model": "nano", "file": ("call.wav", sound), "language": "en", "extra_body": {"max_tokens": 12}}
        audio = self.client.audio
        whole = audio.transcriptions.create(**fields)
        chat = self.chat(messages=[{"role": "user", "content": [
            {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}},
            {"type": "text", "text": "Transcribe the following speech segment in English into English text.\n\n"
             "Follow these specific instructions for formatting the answer:\n"
             "* Only output the transcription, with no newlines.\n"
             "* When transcribing numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 instead of three."}]}],
                         max_tokens=12)
        self.assertTrue(whole.text)
        self.assertEqual(whole.text, chat.choices[0].message.content)
        self.assertEqual((whole.usage.input_tokens, whole.usage.output_tokens), (chat.usage.prompt_tokens, chat.usage.completion_tokens))
        self.assertEqual(audio.transcriptions.create(**fields, response_format="text"), whole.text + "\n")
        events = list(audio.transcriptions.create(**fields, stream=True))
        self.assertEqual({event.type for event in events[:-1]}, {"transcript.text.delta"})
        self.assertEqual("".join(event.delta for event in events[:-1]), whole.text)
        self.assertEqual((events[-1].type, events[-1].text), ("transcript.text.done", whole.text))
        self.assertEqual(events[-1].usage.total_tokens, whole.usage.total_tokens)
        self.assertTrue(audio.translations.create(model="nano", file=("call.wav", sound), extra_body={"max_tokens": 12}).text)
        cut = audio.transcriptions.create(**fields | {"extra_body": {"max_tokens": 1}})
        self.assertEqual(cut.warnings, ["the text ends at max_tokens"])
        for wrong, name in (({"response_format": "srt"}, "response_format"), ({"temperature": 9}, "temperature"),
                            ({"file": ("call.wav", b"no sound")}, "file")):
            with self.assertRaises(openai.BadRequestError) as refused:
                audio.transcriptions.create(**fields | wrong)
            self.assertEqual(refused.exception.param, name)

    def test_tools_are_taken_with_their_history(self):
        history = [*QUESTION,
                   {"role": "assistant", "content": None, "tool_calls": [
                       {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
                   {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
        answer = self.chat(messages=history, tools=WEATHER, tool_choice="auto")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length", "tool_calls"))

    def test_structured_outputs(self):
        class Person(pydantic.BaseModel):
            name: Literal["Ada", "Alan"]
            age: int = pydantic.Field(ge=0, le=99)

        answer = self.client.chat.completions.parse(
            model="nano", messages=QUESTION, response_format=Person, max_tokens=60, temperature=0)
        self.assertIsInstance(answer.choices[0].message.parsed, Person)
        answer = self.chat(tools=WEATHER, tool_choice="required", parallel_tool_calls=False, max_tokens=200, logit_bias={})
        if answer.choices[0].finish_reason == "tool_calls":
            call, = answer.choices[0].message.tool_calls
            self.assertIsInstance(json.loads(call.function.arguments)["city"], str)
        else:
            self.assertEqual(answer.choices[0].finish_reason, "length")  # a city of 200 tokens, cut off
        # vLLM's fields, and a schema whose keyword cannot be followed.
        answer = self.chat(extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
        self.assertIn(answer.choices[0].message.content, ("yes", "no"))
        with self.assertRaises(openai.BadRequestError) as raised:
            self.chat(extra_body={"structured_outputs": {"json": {"not": {}}}})
        self.assertEqual(raised.exception.param, "structured_outputs.json")

    def test_completions(self):
        answer = self.client.completions.create(model="nano", prompt=["Once upon a", "The fox"], max_tokens=4, temperature=0)
        self.assertEqual(len(answer.choices), 2)
        streamed = self.client.completions.create(model="nano", prompt="Once upon a", max_tokens=4, temperature=0, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in streamed), answer.choices[0].text)

    def test_responses_go_on_where_one_ended(self):
        question = "Write a short story about a fox."
        whole = self.client.responses.create(model="nano", input=question, temperature=0, max_output_tokens=30)
        self.assertEqual(whole.output_text, self.chat().choices[0].message.content)
        self.assertEqual((whole.status, whole.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        with self.client.responses.stream(model="nano", input=question, temperature=0, max_output_tokens=30) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            self.assertEqual("".join(deltas), whole.output_text)
        second = self.client.responses.create(model="nano", input="Go on.", previous_response_id=whole.id, temperature=0, max_output_tokens=5)
        history = [*QUESTION, {"role": "assistant", "content": whole.output_text}, {"role": "user", "content": "Go on."}]
        self.assertEqual(second.output_text, self.chat(messages=history, max_tokens=5).choices[0].message.content)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(model="nano", input="Go on.", previous_response_id="resp_none")

    def test_tools_may_be_in_namespaces_or_take_text(self):
        search = {"type": "function", "name": "search", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
        tools = [{"type": "namespace", "name": "docs", "description": "Pages", "tools": [search]}]
        fields = {"model": "nano", "input": "Hi", "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200}
        answer = self.client.responses.create(**fields, tools=[{"type": "web_search"}, *tools])
        call, = answer.output
        self.assertEqual((call.type, call.namespace, call.name, call.arguments), ("function_call", "docs", "search", "{}"))
        self.assertIn("web_search", answer.warnings[0])
        with self.client.responses.stream(**fields, tools=[{"type": "custom", "name": "patch"}]) as stream:
            events = list(stream)
        item = next(event.item for event in events if event.type == "response.output_item.done")
        if item.type == "custom_tool_call":
            self.assertEqual(item.name, "patch")
            self.assertIn("response.custom_tool_call_input.done", [event.type for event in events])
        else:  # a text of 200 tokens, cut off
            self.assertEqual(events[-1].type, "response.incomplete")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "none"}
        for said in (call.to_dict(), {"type": "item_reference", "id": call.id}):
            self.client.responses.create(model="nano", input=[{"role": "user", "content": "Hi"}, said, result], tools=tools, max_output_tokens=2)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["nano"])
        self.assertEqual(self.client.models.retrieve("nano").id, "nano")

    def test_errors_are_the_clients_own_classes(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.chat(temperature=9)
        self.assertEqual(raised.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError):
            self.chat(tools=WEATHER, tool_choice={"type": "function", "function": {"name": "none of them"}})
        with self.assertRaises(openai.NotFoundError) as raised:
            self.chat(model="gpt-5")
        self.assertEqual(raised.exception.code, "model_not_found")
        with self.assertRaises(openai.AuthenticationError):
            client_of(self.server, "wrong").models.list()

    def test_a_client_that_stops_reading_makes_room(self):
        server = Server(OUTRIDER, "--max-requests", "1", key="key")
        client = client_of(server)
        story = {"model": "nano", "prompt": "Once upon a time", "max_tokens": 7000, "temperature": 0, "extra_body": {"ignore_eos": True}}
        with client.completions.create(**story, stream=True) as stream:
            next(iter(stream))
            with concurrent.futures.ThreadPoolExecutor() as pool:
                second = pool.submit(client.completions.create, model="nano", prompt="Once", max_tokens=2, temperature=0)
                while server.status()["waiting"] == 0:
                    time.sleep(0.05)
                stream.close()
                self.assertEqual(second.result(60).usage.completion_tokens, 2)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
