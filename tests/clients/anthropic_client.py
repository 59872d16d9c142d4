from anthropic import Anthropic
from calls import URL, call, run, unlisted

client = Anthropic(base_url=URL, api_key="none")
ASK = [{"role": "user", "content": "Write a short story about a fox."}]


@call
def message():
    answer = client.messages.create(model="nano", messages=ASK, max_tokens=20)
    assert answer.content[0].text and answer.stop_reason == "max_tokens"


@call
def stream():
    with client.messages.stream(model="nano", messages=ASK, max_tokens=20, system="You tell stories.") as stream:
        assert "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens == 20


@call
def forced_tool():
    tool = {"name": "weather", "description": "x", "input_schema": {
        "type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}}
    answer = client.messages.create(model="nano", messages=ASK, max_tokens=200, tools=[tool],
                                    tool_choice={"type": "tool", "name": "weather"})
    assert answer.content[-1].name == "weather" and answer.stop_reason == "tool_use"


@call
def begun_answer():
    greedy = {"model": "nano", "max_tokens": 12, "extra_body": {"temperature": 0}}
    whole = client.messages.create(messages=ASK, **greedy).content[0].text
    begun = whole[:12].rstrip()
    rest = client.messages.create(messages=ASK + [{"role": "assistant", "content": begun}], **greedy).content[0].text
    assert (begun + rest).startswith(whole)


@call
def stop_sequence():
    answer = client.messages.create(model="nano", messages=ASK, max_tokens=60, stop_sequences=[" "],
                                    extra_body={"temperature": 0})
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == " "


@call
def count_tokens():
    assert client.messages.count_tokens(model="nano", messages=ASK).input_tokens > 5


@call
def no_field_is_unknown():
    for create in (client.messages.create, client.beta.messages.create):
        assert not unlisted(create), unlisted(create)


run()
