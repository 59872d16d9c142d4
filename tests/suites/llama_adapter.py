"""Lets llama.cpp's tests ask the servers that run.py started: what they say with options of a server of their own is
said in each request."""
import os
import sys
import types

sys.modules["wget"] = types.ModuleType("wget")  # it would download models
import utils  # noqa: E402  (theirs)
from report_plugin import pytest_runtest_logreport  # noqa: E402, F401

TEXT_PATHS = ("/completion", "/completions", "/responses", "/messages", "/input_tokens", "/count_tokens")


def start(self, timeout_seconds=0):
    self.server_port = int(os.environ["OUTRIDER_GUARDED_PORT" if self.api_key else "OUTRIDER_PORT"])
    self.server_host = "127.0.0.1"


def with_defaults(server, path, data):
    """What llama-server takes from its command line, and the name of the model that there is."""
    if not isinstance(data, dict) or not path.endswith(TEXT_PATHS):
        return data
    data = dict(data)
    if data.get("model") is not None:
        data["model"] = "nano"
    if "messages" in path or "responses" in path or "tokens" in path:
        return data
    data.setdefault("temperature", server.temperature)
    data.setdefault("seed", server.seed)
    if server.debug:
        data.setdefault("verbose", True)
    if "n_predict" not in data and "max_tokens" not in data and server.n_predict and server.n_predict > 0:
        data["n_predict"] = server.n_predict
    return data


def patch(name):
    original = getattr(utils.ServerProcess, name)

    def request(self, method, path, data=None, *arguments, **named):
        return original(self, method, path, with_defaults(self, path, data), *arguments, **named)
    setattr(utils.ServerProcess, name, request)


utils.ServerProcess.start = start
utils.ServerProcess.stop = lambda self: None
patch("make_request")
patch("make_stream_request")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: with real models")
    config.addinivalue_line("markers", "serial: alone")
