from calls import BASE, call, run, unlisted
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=BASE, api_key="none")
ASK = [{"role": "user", "content": "Write a short story about a fox."}]
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}}}


@call
def models():
    assert client.models.list().data[0].id == "nano"


@call
def chat():
    answer = client.chat.completions.create(model="nano", messages=ASK, max_tokens=20)
    assert answer.choices[0].message.content and answer.usage.completion_tokens == 20


@call
def chat_stream():
    stream = client.chat.completions.create(model="nano", messages=ASK, max_tokens=20, stream=True,
                                            stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens == 20
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@call
def chat_stream_helper():
    with client.chat.completions.stream(model="nano", messages=ASK, max_tokens=20) as stream:
        assert [event for event in stream if event.type == "content.delta"]


@call
def logprobs():
    answer = client.chat.completions.create(model="nano", messages=ASK, max_tokens=3, logprobs=True, top_logprobs=2)
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


@call
def forced_tool():
    answer = client.chat.completions.create(model="nano", messages=ASK, tools=[WEATHER], tool_choice="required",
                                            temperature=0, max_tokens=300)
    assert answer.choices[0].message.tool_calls[0].function.name == "weather"


class Pet(BaseModel):
    kind: bool
    legs: int


@call
def parse():
    # A boolean and a number end soon, whatever a small model thinks of them.
    answer = client.chat.completions.parse(model="nano", messages=ASK, response_format=Pet, temperature=0,
                                           max_tokens=300)
    assert isinstance(answer.choices[0].message.parsed, Pet)


@call
def completions_echo():
    answer = client.completions.create(model="nano", prompt="Once upon a", max_tokens=4, echo=True, logprobs=2)
    assert answer.choices[0].text.startswith("Once upon a") and answer.choices[0].logprobs.token_logprobs[0] is None


@call
def responses():
    answer = client.responses.create(model="nano", input="Write a short story.", max_output_tokens=20)
    assert answer.output_text
    assert client.responses.input_tokens.count(model="nano", input="Write a short story.").input_tokens > 5
    client.responses.delete(answer.id)
    try:
        client.responses.retrieve(answer.id)
    except NotFoundError:
        return
    raise AssertionError("a response that was deleted is still there")


@call
def responses_stream():
    with client.responses.stream(model="nano", input="Write a short story.", max_output_tokens=20) as stream:
        assert [event for event in stream if event.type == "response.output_text.delta"]


@call
def refusal():
    try:
        client.embeddings.create(model="nano", input="x")
    except Exception as error:
        assert getattr(error, "status_code", 0) in (400, 404), error
    try:
        client.chat.completions.create(model="nano", messages=ASK, temperature=9)
    except BadRequestError as error:
        assert "temperature" in str(error)


@call
async def asynchronous():
    answer = await AsyncOpenAI(base_url=BASE, api_key="none").chat.completions.create(model="nano", messages=ASK,
                                                                                       max_tokens=5)
    assert answer.choices[0].message.content


@call
def no_field_is_unknown():
    for create in (client.chat.completions.create, client.completions.create, client.responses.create):
        assert not unlisted(create), unlisted(create)


run()
