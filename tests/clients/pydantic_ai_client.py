from calls import BASE, call, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("nano", provider=OpenAIProvider(base_url=BASE, api_key="none"))


class Pet(BaseModel):
    kind: bool
    legs: int


@call
def text():
    assert Agent(model).run_sync("Write a story.", model_settings={"max_tokens": 20}).output


@call
def tool_output():
    settings = {"max_tokens": 300, "temperature": 0}
    assert isinstance(Agent(model, output_type=Pet).run_sync("A dog", model_settings=settings).output, Pet)


@call
def native_output():
    settings = {"max_tokens": 300, "temperature": 0}
    answer = Agent(model, output_type=NativeOutput(Pet)).run_sync("A dog", model_settings=settings)
    assert isinstance(answer.output, Pet)


@call
async def stream():
    async with Agent(model).run_stream("Write a story.", model_settings={"max_tokens": 20}) as result:
        assert "".join([piece async for piece in result.stream_text(delta=True)])


run()
