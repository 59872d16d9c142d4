"""Lets vLLM's tests ask the server that run.py started. Of `vllm` itself there is nothing: its modules, and those of
others that only its own classes need, are stand-ins; cases that ask no server are not run."""
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import sys
import types
from unittest.mock import MagicMock

import anthropic
import openai
import pytest
from report_plugin import pytest_runtest_logreport  # noqa: F401

STAND_INS = ("vllm", "torch", "fastapi", "transformers", "openai_harmony", "huggingface_hub", "pybase64", "starlette")
MODEL = pathlib.Path(os.environ["OUTRIDER_MODEL"])


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Exception,), {}) if name.endswith("Error") else MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


class NanoTokenizer:
    """As much of a Hugging Face tokenizer as the tests use."""

    def __init__(self):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        self.vocab_size = self.tokenizer.get_vocab_size()
        self.bos = self.tokenizer.token_to_id("<bos>")

    def __len__(self):
        return self.vocab_size

    def encode(self, text, add_special_tokens=True):
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [self.bos] + ids if add_special_tokens and ids[:1] != [self.bos] else ids

    def __call__(self, text, add_special_tokens=True):
        return types.SimpleNamespace(input_ids=self.encode(text, add_special_tokens))

    def decode(self, ids, skip_special_tokens=False):
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, ids):
        return [self.tokenizer.id_to_token(token) for token in ids]

    def get_vocab(self):
        return self.tokenizer.get_vocab()

    def apply_chat_template(self, conversation, tools=None, add_generation_prompt=True, continue_final_message=False,
                            tokenize=True, **others):
        import jinja2
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        template = environment.from_string((MODEL / "chat_template.jinja").read_text())
        text = template.render(messages=conversation, tools=tools, bos_token="<bos>",
                               add_generation_prompt=add_generation_prompt, **others)
        if continue_final_message:
            last = conversation[-1]["content"]
            text = text[:text.rindex(last) + len(last)]
        return self.encode(text, add_special_tokens=False) if tokenize else text


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model="nano", arguments=(), **others):
        self.port, self.host = int(os.environ["OUTRIDER_PORT"]), "127.0.0.1"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return "/".join([self.url_root, *parts])

    def get_client(self, **named):
        named.setdefault("timeout", 100)
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **named)

    def get_async_client(self, **named):
        named.setdefault("timeout", 100)
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **named)

    def get_client_anthropic(self, **named):
        return anthropic.Anthropic(base_url=self.url_root, api_key=self.DUMMY_API_KEY, max_retries=0, **named)

    def get_async_client_anthropic(self, **named):
        return anthropic.AsyncAnthropic(base_url=self.url_root, api_key=self.DUMMY_API_KEY, max_retries=0, **named)


sys.meta_path.insert(0, Importer())
import tests  # noqa: E402  (theirs)
import vllm.tokenizers  # noqa: E402
import vllm.version  # noqa: E402
import vllm.envs  # noqa: E402

vllm.tokenizers.get_tokenizer = lambda *given, **named: NanoTokenizer()
vllm.envs.VLLM_USE_RUST_FRONTEND = False
tests.utils = sys.modules["tests.utils"] = types.ModuleType("tests.utils")
tests.utils.RemoteOpenAIServer = tests.utils.RemoteVLLMServer = RemoteOpenAIServer
tests.utils.ROCM_EXTRA_ARGS = []


def server_version():
    import urllib.request
    with urllib.request.urlopen(f"http://127.0.0.1:{os.environ['OUTRIDER_PORT']}/version") as reply:
        return json.load(reply)["version"]


vllm.version.__version__ = server_version()


def pytest_collection_modifyitems(config, items):
    asks = [item for item in items if {"server", "client"} & set(item.fixturenames)]
    others = [item for item in items if item not in asks]
    config.hook.pytest_deselected(items=others)
    items[:] = asks
