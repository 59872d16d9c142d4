"""What tests and measurements of `outrider serve` share: a server, and what its /metrics say."""
import json
import subprocess
import time
import urllib.error
import urllib.request


class Server:
    """outrider serve with nano, ready, at `url`, where no clock changes a draft length that is a number, unless it is
    `governed`. What it prints but for the address is dropped."""

    def __init__(self, program, *options, key=None, governed=False, stderr=None):
        self.key = key
        more = [*(["--api-key", key] if key else []), *([] if governed else ["--no-governor"])]
        self.process = subprocess.Popen([program, "serve", "--port", "0", *more, *options], stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.url = self.process.stdout.readline().split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])
        while not self.ready():
            time.sleep(0.05)

    def get(self, path):
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path, body):
        """The JSON that it answers with."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)

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

    def total(self, name):
        """Sum over the labels."""
        return sum(value for series, value in self.metrics().items() if series.split("{")[0] == name)

    def moved(self, before):
        """How a series of vLLM's names has moved since metrics() were `before`."""
        after = self.metrics()
        return lambda name: after[f'vllm:{name}{{model_name="nano"}}'] - before[f'vllm:{name}{{model_name="nano"}}']

    def stop(self):
        self.process.terminate()
        status = self.process.wait(60)
        self.process.stdout.close()
        return status
