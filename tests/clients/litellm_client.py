import litellm
from calls import BASE, call, run

ASK = dict(model="openai/nano", api_base=BASE, api_key="none",
           messages=[{"role": "user", "content": "Write a short story about a fox."}])


@call
def completion():
    assert litellm.completion(max_tokens=10, **ASK).choices[0].message.content


@call
def stream():
    assert "".join(c.choices[0].delta.content or "" for c in litellm.completion(max_tokens=10, stream=True, **ASK))


@call
async def asynchronous():
    assert (await litellm.acompletion(max_tokens=10, **ASK)).choices[0].message.content


@call
def json_object():
    litellm.completion(max_tokens=10, response_format={"type": "json_object"}, **ASK)


@call
def text_completion():
    answer = litellm.text_completion(model="text-completion-openai/nano", prompt="Once upon a", api_base=BASE,
                                     api_key="none", max_tokens=5)
    assert answer.choices[0].text


@call
def too_long():
    try:
        litellm.completion(max_tokens=5, **{**ASK, "messages": [{"role": "user", "content": "fox " * 20000}]})
        raise AssertionError("was taken")
    except litellm.ContextWindowExceededError:
        pass


run()
