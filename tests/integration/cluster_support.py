"""A whole cluster on this machine, each role a process, and what clients get from its server: what the tests share that
kill one another's processes."""
import collections
import http.client
import json
import os
import pathlib
import resource
import socket
import subprocess
import time

from launch_support import free_ports

HANG = 300  # seconds; ends a test that would hang, never a measure of speed
ROLES = ["coordinator", "verifier", "verifier", "drafter", "drafter", "serve"]
SERVE = ROLES.index("serve")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"},
                                           "likes": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 3, "maxItems": 6}},
          "required": ["name", "age", "likes"], "additionalProperties": False}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": SCHEMA}}


class Cluster:
    """Six processes, which go on whoever of them dies. Each has the options of its role, and all log into the folder.
    `kills` of one counts how often it was killed, one half while it is being: a request during which it changed, or was
    not whole, may have met the end of it."""

    def __init__(self, outrider, folder, options=None, verifier_threads=1):
        self.outrider, self.folder, self.options = outrider, pathlib.Path(folder), options or {}
        self.verifier_threads = verifier_threads
        self.ports = dict(zip(["coordinator", "serve"], free_ports(2)))
        self.processes, self.kills = [None] * len(ROLES), [0] * len(ROLES)
        for i in range(len(ROLES)):
            self.start(i)

    def coordinator_port(self, i):
        """Where process i finds it."""
        return self.ports["coordinator"]

    def command(self, i):
        role, coordinator = ROLES[i], f"tcp://127.0.0.1:{self.coordinator_port(i)}"
        return {"coordinator": ["--listen", f"tcp://127.0.0.1:{self.ports['coordinator']}", "--failover-limit", "1000",
                                "--failover-wait", str(HANG)],
                "serve": ["--port", str(self.ports["serve"]), "--connect", coordinator, "--failover-wait", str(HANG), "--no-governor"],
                "verifier": ["--join", coordinator, "--threads", str(self.verifier_threads)],
                "drafter": ["--join", coordinator]}[role] + self.options.get(role, [])

    def start(self, i, before_it=None):
        with (self.folder / f"{i}-{ROLES[i]}.log").open("a") as log:
            self.processes[i] = subprocess.Popen([self.outrider, ROLES[i], *self.command(i)], stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=log, preexec_fn=before_it, restore_signals=before_it is None)

    def kill(self, i):
        self.kills[i] += 0.5
        self.processes[i].kill()
        self.processes[i].wait()
        self.start(i)
        self.kills[i] += 0.5

    def may_have_died(self, i, kills_before):
        return self.kills[i] != kills_before or kills_before != int(kills_before)

    def served(self):
        """The server is there."""
        try:
            socket.create_connection(("127.0.0.1", self.ports["serve"]), timeout=1).close()
            return True
        except OSError:
            return False

    def status(self):
        return status_of(self.ports["serve"])

    def whole(self):
        """The status, once every worker is there and no text is at work."""
        return if_whole(self.status())

    def handles(self):
        return [len(os.listdir(f"/proc/{process.pid}/fd")) for process in self.processes]

    def logs(self):
        return "".join(f"\n--- {log.name}\n{log.read_text()[-1500:]}" for log in sorted(self.folder.glob("*.log")))

    def stop(self):
        for process in filter(None, self.processes):
            process.kill()
            process.wait()


def request_headers(key):
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


def status_of(port, host="127.0.0.1", key=None):
    connection = http.client.HTTPConnection(host, port, timeout=HANG)
    try:
        connection.request("GET", "/v1/outrider/status", headers=request_headers(key))
        return json.load(connection.getresponse())
    except (OSError, ValueError, http.client.HTTPException):
        return None  # it is being started
    finally:
        connection.close()


def if_complete(status):
    """The status, if every worker is there."""
    roles = collections.Counter(worker["role"] for worker in status.get("workers", [])) if status else None
    return status if roles == {"verifier": 2, "drafter": 2} else None


def if_whole(status):
    """The status, if every worker is there and no text is at work."""
    status = if_complete(status)
    return status if status and status["sessions"] == status["waiting"] == 0 else None


def resident_mib(pid):
    statm = pathlib.Path(f"/proc/{pid}/statm").read_text()
    return int(statm.split()[1]) * resource.getpagesize() / 2**20


class Answer:
    """What a request gets: the text of each choice so far, `error` where it ended otherwise than whole, `broken` where the
    connection did. `silence`: when the longest pause of a stream began and ended, by the monotonic clock; the first one
    begins with the request. `read_max` events of a stream are read, then the client leaves."""

    def __init__(self, port, body, path="/v1/completions", read_max=None, host="127.0.0.1", key=None):
        self.texts, self.error, self.broken = collections.defaultdict(str), None, False
        self.heard = time.monotonic()
        self.silence = (self.heard, self.heard)
        connection = http.client.HTTPConnection(host, port, timeout=HANG)
        try:
            connection.request("POST", path, json.dumps(body), request_headers(key))
            reply = connection.getresponse()
            if reply.status != 200:
                self.error = f"{reply.status} {reply.read(300)!r}"
            elif body.get("stream"):
                self.read(reply, read_max)
            else:
                self.add(json.load(reply))
        except (OSError, http.client.HTTPException) as broken:
            self.broken, self.error = True, repr(broken)
        finally:
            connection.close()

    @property
    def text(self):
        return self.texts[0]

    def add(self, event):
        for choice in event["choices"]:
            said = choice.get("delta") or choice.get("message") or {}
            self.texts[choice["index"]] += choice.get("text") or said.get("content") or ""

    def read(self, reply, read_max):
        events = 0
        for line in reply:
            now = time.monotonic()
            self.silence = max(self.silence, (self.heard, now), key=lambda pause: pause[1] - pause[0])
            self.heard = now
            if line.strip() == b"data: [DONE]" or events == read_max:
                return
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    self.error = str(event["error"])
                    return
                self.add(event)
                events += 1
        self.broken, self.error = True, "the stream ended without [DONE]"
