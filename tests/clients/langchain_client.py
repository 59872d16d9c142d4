from calls import BASE, call, run
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

chat = ChatOpenAI(model="nano", base_url=BASE, api_key="none", max_tokens=200, temperature=0)
short = ChatOpenAI(model="nano", base_url=BASE, api_key="none", max_tokens=10)


class Pet(BaseModel):
    """A pet."""
    kind: bool
    legs: int


def weather(city: str) -> str:
    """The weather of a city."""
    return "sunny"


@call
def invoke():
    assert short.invoke("Write a story.").content


@call
def stream():
    assert "".join(chunk.content for chunk in short.stream("Write a story."))


@call
def batch():
    assert len(short.batch(["Write a story.", "Count."])) == 2


@call
async def asynchronous():
    assert (await short.ainvoke("Write a story.")).content


@call
def bind_tools():
    assert short.bind_tools([weather]).invoke("Write a story.") is not None


@call
def forced_tool():
    assert chat.bind_tools([Pet], tool_choice="any").invoke("A dog").tool_calls[0]["name"] == "Pet"


@call
def structured_output():
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Pet, method=method).invoke("A dog"), Pet), method


@call
def completion():
    assert OpenAI(model="nano", base_url=BASE, api_key="none", max_tokens=5).invoke("Once upon a")


@call
def responses():
    model = ChatOpenAI(model="nano", base_url=BASE, api_key="none", max_tokens=20, use_responses_api=True)
    assert model.invoke("Hi").content


run()
