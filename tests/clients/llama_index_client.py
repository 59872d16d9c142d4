from calls import BASE, call, run
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(model="nano", api_base=BASE, api_key="none", is_chat_model=True, is_function_calling_model=True,
                 max_tokens=20, context_window=8192)
ASK = [ChatMessage(role="user", content="Write a story.")]


def weather(city: str) -> str:
    """The weather of a city."""
    return "sunny"


@call
def chat():
    assert llm.chat(ASK).message.content


@call
def stream():
    assert [chunk.delta for chunk in llm.stream_chat(ASK)]


@call
def complete():
    assert llm.complete("Once upon a").text


@call
def chat_with_tools():
    assert llm.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="Write a story.") is not None


run()
