import instructor
from calls import BASE, call, run
from openai import OpenAI
from pydantic import BaseModel


class Pet(BaseModel):
    kind: bool
    legs: int


def ask(mode):
    client = instructor.from_openai(OpenAI(base_url=BASE, api_key="none"), mode=mode)
    pet = client.chat.completions.create(model="nano", response_model=Pet, max_retries=0, temperature=0, max_tokens=300,
                                         messages=[{"role": "user", "content": "A dog with four legs."}])
    assert isinstance(pet, Pet)


@call
def tools():
    ask(instructor.Mode.TOOLS)


@call
def json_schema():
    ask(instructor.Mode.JSON_SCHEMA)


run()
