from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from calls import BASE, call, run
from openai import AsyncOpenAI

set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=BASE, api_key="none"))
settings = ModelSettings(temperature=0)  # cut off, a response is an error to this client, so nano is asked what it answers briefly


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return "sunny"


@call
async def responses_model():
    answer = await Runner.run(Agent(name="teller", model="nano", model_settings=settings), "Write a story.")
    assert answer.final_output


@call
async def streamed():
    result = Runner.run_streamed(Agent(name="teller", model="nano", model_settings=settings), "Write a story.")
    assert [event async for event in result.stream_events()]


@call
async def tools():
    agent = Agent(name="teller", model="nano", model_settings=settings, tools=[weather])
    assert (await Runner.run(agent, "Write a short story about a fox.")).final_output is not None


run()
