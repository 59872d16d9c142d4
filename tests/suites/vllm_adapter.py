"""Lets vLLM's tests ask the servers that run.py started: what they say with options of a server of their own is said
in each request. Of `vllm` itself there is nothing: its modules, and those of others that only its own classes need, are
stand-ins; cases that ask no server are not run."""
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import pathlib
import sys
import types
from unittest.mock import MagicMock

import anthropic
import httpx2
import openai
import pytest
import requests
from report_plugin import pytest_runtest_logreport  # noqa: F401

STAND_INS = ("vllm", "torch", "fastapi", "transformers", "openai_harmony", "huggingface_hub", "pybase64", "starlette")
MODEL = pathlib.Path(os.environ["OUTRIDER_MODEL"])
MOST = 512


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
        if tools:  # which only the server knows to declare
            reply = requests.post(f"http://127.0.0.1:{os.environ['OUTRIDER_PORT']}/apply-template", json={
                "messages": conversation, "tools": tools, "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message})
            text = reply.json()["prompt"]
        else:
            roles = {"assistant": "model"}
            text = "<bos>" + "".join(f"<|turn>{roles.get(one['role'], one['role'])}\n{one['content']}<turn|>\n"
                                     for one in conversation)
            if continue_final_message:
                text = text.removesuffix("<turn|>\n")
            if add_generation_prompt:
                text += "<|turn>model\n"
        return self.encode(text, add_special_tokens=False) if tokenize else text


class Transport(httpx2.AsyncHTTPTransport):
    def __init__(self, options):
        super().__init__()
        self.options = options

    async def handle_async_request(self, request):
        try:
            body = json.loads(request.content)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return await super().handle_async_request(request)
        self.complete(request.url.path, body)
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        return await super().handle_async_request(httpx2.Request(
            request.method, request.url, headers=headers, content=json.dumps(body).encode(),
            extensions=request.extensions))

    def complete(self, path, body):
        """What their servers are told on the command line. Nano may find no end: then MOST tokens are enough."""
        body.setdefault("seed", 4)  # the same outcome in each run
        if "--return-tokens-as-token-ids" in self.options:
            body.setdefault("return_tokens_as_token_ids", True)
        if "--enable-force-include-usage" in self.options and body.get("stream"):
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        if path.endswith("/responses"):
            body.setdefault("max_output_tokens", MOST)
        elif path.endswith("/chat/completions") and "max_completion_tokens" not in body:
            body.setdefault("max_tokens", MOST)


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model="nano", options=(), env_dict=None, **others):
        guarded = "VLLM_API_KEY" in (env_dict or {})
        self.port, self.host = int(os.environ["OUTRIDER_GUARDED_PORT" if guarded else "OUTRIDER_PORT"]), "127.0.0.1"
        self.options = options

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return "/".join([self.url_root, *parts])

    def get_async_client(self, **named):
        named.setdefault("timeout", 100)
        http = openai.DefaultAsyncHttpxClient(transport=Transport(self.options))
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0,
                                  http_client=http, **named)

    def get_async_client_anthropic(self, **named):
        http = anthropic.DefaultAsyncHttpxClient(transport=Transport(self.options))
        return anthropic.AsyncAnthropic(base_url=self.url_root, api_key=self.DUMMY_API_KEY, max_retries=0,
                                        http_client=http, **named)


sys.meta_path.insert(0, Importer())
import tests  # noqa: E402  (theirs)
import vllm.tokenizers  # noqa: E402
import vllm.version  # noqa: E402
import torch  # noqa: E402
import vllm.config  # noqa: E402
import vllm.envs  # noqa: E402
import vllm.model_executor.model_loader.weight_utils as weight_utils  # noqa: E402

vllm.tokenizers.get_tokenizer = lambda *given, **named: NanoTokenizer()
vllm.config.ModelConfig = lambda **named: types.SimpleNamespace(get_vocab_size=lambda: len(NanoTokenizer()))
weight_utils.download_weights_from_hf = lambda *given, **named: "nano"
torch.iinfo = lambda dtype: types.SimpleNamespace(min=-2**63, max=2**63 - 1)
vllm.envs.VLLM_USE_RUST_FRONTEND = False
tests.utils = sys.modules["tests.utils"] = types.ModuleType("tests.utils")
tests.utils.RemoteOpenAIServer = tests.utils.RemoteVLLMServer = RemoteOpenAIServer
tests.utils.ROCM_EXTRA_ARGS = []


def server_version():
    import urllib.request
    with urllib.request.urlopen(f"http://127.0.0.1:{os.environ['OUTRIDER_PORT']}/version") as reply:
        return json.load(reply)["version"]


vllm.version.__version__ = server_version()


def asks_a_server(item):
    return (any("server" in name or "client" in name for name in item.fixturenames)
            or "RemoteOpenAIServer(" in inspect.getsource(item.function))


def pytest_collection_modifyitems(config, items):
    asking = [item for item in items if asks_a_server(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in asking])
    items[:] = asking
