"""What the Python clients' scripts share: where the server is, and how calls are told."""
import asyncio
import inspect
import os
import pathlib
import re
import sys
import traceback

URL = os.environ["OUTRIDER_URL"]
BASE = URL + "/v1"
CLIENT = os.path.basename(sys.argv[0]).removesuffix("_client.py")
CALLS = []


def call(function):
    """Marks one call of the client; what it asserts is what must hold of the reply."""
    CALLS.append(function)
    return function


def unlisted(create):
    """The fields of this call of a client that docs/http.md does not name: nobody has decided what becomes of them."""
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/http.md").read_text()
    listed = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]*`", page))))
    of_client = {"extra_headers", "extra_query", "extra_body", "timeout", "betas"}  # the last is a header
    return set(inspect.signature(create).parameters) - of_client - listed


def run():
    failures = 0
    loop = asyncio.new_event_loop()  # one for all calls: clients keep connections
    for function in CALLS:
        try:
            result = function()
            if inspect.isawaitable(result):
                loop.run_until_complete(result)
            print(f"  {CLIENT}: {function.__name__}: works", flush=True)
        except Exception as error:  # whatever a client throws
            failures += 1
            traceback.print_exc(limit=-3)
            print(f"  {CLIENT}: {function.__name__}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    sys.exit(1 if failures else 0)
