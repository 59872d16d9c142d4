"""What the tests of `outrider batch` share: jobs, and a server of OpenAI's API that answers at once."""
import hashlib
import http.server
import json
import pathlib
import random
import subprocess
import threading
import time


def chat_line(custom_id, text, system=None, **fields):
    messages = [{"role": "system", "content": system}] if system else []
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions",
            "body": {"messages": [*messages, {"role": "user", "content": text}]} | fields}


def completion_line(custom_id, prompt, **fields):
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt} | fields}


def nano_lines(count):
    """Greedy and sampled, with and without a seed, long and short, of a few beginnings."""
    animals = ["fox", "dog", "bird", "cat", "fish"]
    lines = []
    for i in range(count):
        text = f"Write a short story about a {animals[i % 5]}. Its name is N{i}."
        fields = [{}, {"temperature": 0}, {"seed": i}, {"n": 2, "temperature": 0.7}][i % 4]
        lines.append(chat_line(f"chat-{i}", text, max_tokens=4 + i % 9, **fields) if i % 3 else
                     completion_line(f"completion-{i}", f"Once upon a time a {animals[i % 5]}", max_tokens=4 + i % 9, logprobs=1, **fields))
    return lines


def write_lines(path, lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Job:
    """The command line of a job in a folder."""

    def __init__(self, program, folder, lines, *options, name="out"):
        self.program, self.folder = program, pathlib.Path(folder)
        self.input, self.output = self.folder / "in.jsonl", self.folder / f"{name}.jsonl"
        self.errors, self.journal = self.folder / f"{name}.errors.jsonl", self.folder / f"{name}.journal"
        self.progress = self.folder / f"{name}.progress.json"
        self.options = list(options)
        if lines is not None:
            write_lines(self.input, lines)

    def command(self, *more):
        return [self.program, "batch", str(self.input), "--output", str(self.output), *self.options, *more]

    def start(self, *more, **how):
        return subprocess.Popen(self.command(*more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)

    def run(self, *more, **how):
        return subprocess.run(self.command(*more), capture_output=True, text=True, timeout=600, **how)

    def files(self):
        """Bytes of the output and the errors, as far as they are there."""
        return [path.read_bytes() if path.exists() else None for path in (self.output, self.errors)]


class FastServer:
    """Answers at once, as a function of the request; ids and times are as random as anybody's."""

    def __init__(self, busy=0.0, status_of=lambda body: 200, delay=0.0):
        self.requests, self.running, self.most_running = 0, 0, 0
        chance = random.Random(1)
        lock = threading.Lock()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.requests += 1
                    server.running += 1
                    server.most_running = max(server.most_running, server.running)
                time.sleep(delay)
                status = status_of(body)
                if status == 200 and chance.random() < busy:
                    status = chance.choice([429, 503])
                with lock:
                    server.running -= 1  # before the client can know, and send the next
                try:
                    self.reply(status, server.answer(self.path, body) if status == 200 else
                               {"error": {"message": f"a {status}", "type": "x", "code": None}})
                except BrokenPipeError:
                    pass

            def reply(self, status, body):
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512

            def handle_error(self, *_):
                pass  # a client that was killed

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def answer(path, body):
        said = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        chat = path == "/v1/chat/completions"
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": said * 3}} if chat else {"text": said}
        return {"id": f"x-{random.random()}", "object": "chat.completion", "created": int(time.time()), "model": "m",
                "choices": [choice], "speculative": {"drafted_tokens": 4, "accepted_tokens": random.randrange(4)},
                "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8,
                          "prompt_tokens_details": {"cached_tokens": random.randrange(3)}}}

    def close(self):
        self.server.shutdown()
        self.server.server_close()
