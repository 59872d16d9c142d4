"""What the tests with clients from PyPI share: a server, and what its /metrics say."""
import json
import subprocess
import time
import urllib.error
import urllib.request


class Server:
    """outrider serve with nano, ready, at `url`, where no clock changes a draft length that is a number. What it prints
    but for the address is dropped."""

    def __init__(self, program, *options, key=None):
        self.key = key
        keys = ["--api-key", key] if key else []
        self.process = subprocess.Popen([program, "serve", "--port", "0", "--no-governor", *keys, *options], stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[-1]
        while not self.ready():
            time.sleep(0.05)

    def get(self, path):
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers))

    def ready(self):
        try:
            return self.get("/ready").status == 200
        except urllib.error.HTTPError:
            return False

    def status(self):
        return json.load(self.get("/v1/outrider/status"))

    def metrics(self):
        """Values by name with labels; a histogram's by those of its parts."""
        lines = self.get("/metrics").read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def moved(self, before):
        """How a series of vLLM's names has moved since metrics() were `before`."""
        after = self.metrics()
        return lambda name: after[f'vllm:{name}{{model_name="nano"}}'] - before[f'vllm:{name}{{model_name="nano"}}']

    def stop(self):
        self.process.terminate()
        status = self.process.wait(60)
        self.process.stdout.close()
        return status
