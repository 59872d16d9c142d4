from calls import BASE, call, run
from smolagents import OpenAIModel

model = OpenAIModel(model_id="nano", api_base=BASE, api_key="none", max_tokens=20)
ASK = [{"role": "user", "content": [{"type": "text", "text": "Write a story."}]}]


@call
def generate():
    assert model.generate(ASK).content


@call
def stream():
    assert [delta for delta in model.generate_stream(ASK)]


run()
