#!/usr/bin/env python3
"""/v1/messages as the official Anthropic client sees it: text, streams, tools, counts, errors.

usage: anthropic_client_test.py OUTRIDER
"""
import base64
import sys
import unittest
from pathlib import Path

import anthropic

from serve_support import Server

QUESTION = [{"role": "user", "content": "Write a short story about a fox."}]
GREEDY = {"temperature": 0}  # which newer clients have no parameter for
WEATHER = [{"name": "weather", "description": "The weather of a city",
            "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]


class AnthropicClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(OUTRIDER, key="key")
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="key", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, **fields):
        return self.client.messages.create(**{"model": "nano", "messages": QUESTION, "max_tokens": 30, "extra_body": GREEDY} | fields)

    def test_a_message_is_the_same_streamed_and_not(self):
        whole = self.ask()
        self.assertEqual((whole.role, whole.stop_reason, whole.content[0].type), ("assistant", "max_tokens", "text"))
        self.assertEqual(whole.usage.output_tokens, 30)
        with self.client.messages.stream(model="nano", messages=QUESTION, max_tokens=30, extra_body=GREEDY) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("max_tokens", 30))

    def test_tools_are_taken_with_their_history(self):
        history = [*QUESTION,
                   {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]}]}]
        answer = self.ask(system="Be brief.", messages=history, tools=WEATHER, tool_choice={"type": "auto"})
        self.assertIn(answer.stop_reason, ("end_turn", "max_tokens", "tool_use"))

    def test_a_line_that_differs_each_time_costs_no_prefix(self):
        def cached(hash):
            system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={hash};"},
                      {"type": "text", "text": "You tell long stories about foxes. " * 40}]
            usage = self.ask(system=system, max_tokens=1).usage
            return usage.cache_read_input_tokens / (usage.input_tokens + usage.cache_read_input_tokens)

        cached("a1b2c")
        self.assertGreater(cached("0d9e8"), 0.9)

    def test_a_result_may_be_a_picture(self):
        data = base64.b64encode((Path(__file__).parent.parent / "goldens/pictures/rgb.png").read_bytes()).decode()
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        history = [*QUESTION,
                   {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [image]}]}]
        searching = {"type": "web_search_20250305", "name": "web_search"}
        answer = self.ask(messages=history, tools=[searching, *WEATHER])
        self.assertGreater(answer.usage.input_tokens + answer.usage.cache_read_input_tokens, 200)
        self.assertIn("web_search_20250305", answer.warnings[0])

    def test_tokens_are_counted(self):
        counted = self.client.messages.count_tokens(model="nano", messages=QUESTION).input_tokens
        usage = self.ask(max_tokens=1).usage
        self.assertEqual(counted, usage.input_tokens + usage.cache_read_input_tokens)

    def test_errors_are_the_clients_own_classes(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.ask(model="claude")
        with self.assertRaises(anthropic.BadRequestError):
            self.ask(extra_body={"temperature": 9})
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.server.url, api_key="wrong", max_retries=0).messages.create(
                model="nano", messages=QUESTION, max_tokens=1)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
