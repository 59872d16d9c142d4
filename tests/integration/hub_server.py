"""A server that behaves as the Hugging Face hub does, as far as downloads of models go, and its storage on another
port, to which it redirects for large files. Nothing here has been compared with the hub itself, which tests do not reach:
it follows huggingface_hub's source and what that library accepts."""
import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = 100_000  # bytes; from here on a file is stored in Git LFS


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    """One commit of a model: files by name."""

    def __init__(self, files, commit="c0ffee" + "0" * 34, token=None, gated=False):
        self.files, self.commit, self.token, self.gated = files, commit, token, gated
        self.revisions = {"main", "v1", "refs/pr/1", commit}
        self.etags = {name: (hashlib.sha256(content).hexdigest() if len(content) >= LARGE else git_sha1(content))
                      for name, content in files.items()}


class Hub:
    """@param addresses  of the hub and of its storage"""

    def __init__(self, addresses=("127.0.0.1", "127.0.0.1")):
        self.repositories = {}
        self.seen = []  # (server, method, path, headers)
        self.busy = 0  # so many requests are answered with 429
        self.break_after = {}  # file -> bytes after which its next transfer breaks off
        self.spoilt = {}  # file -> so many transfers have a wrong byte
        self.location = None  # instead of the storage
        self.size_claimed = {}  # file -> bytes, in the list of files
        self.servers = []
        for kind, address in zip((Front, Storage), addresses):
            server = ThreadingHTTPServer((address, 0), kind)
            server.daemon_threads = True
            server.hub = self
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers.append(server)
        self.url, self.storage = ("http://{}:{}".format(*server.server_address) for server in self.servers)

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def asked(self, part):
        return [entry for entry in self.seen if part in entry[2]]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    @property
    def hub(self):
        return self.server.hub

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.hub.seen.append((type(self).__name__, self.command, self.path, dict(self.headers)))
        self.answer(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path))

    def reply(self, status, headers=(), content=b""):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status, code):
        self.reply(status, [("X-Error-Code", code)], b'{"error": "..."}')

    def send_file(self, name, content, headers=()):
        """With ranges, and with the faults that are wanted of it."""
        if self.hub.spoilt.get(name, 0) > 0 and self.command == "GET":
            self.hub.spoilt[name] -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        begin, headers, status = 0, list(headers), 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            begin, status = int(wanted[1]), 206
            headers.append(("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}"))
        part = content[begin:]
        limit = self.hub.break_after.pop(name, None) if self.command == "GET" else None
        if limit is None:
            return self.reply(status, headers, part)
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[:limit])
        self.close_connection = True


class Front(Handler):
    def answer(self, path):
        if self.hub.busy > 0:
            self.hub.busy -= 1
            return self.reply(429, [("Retry-After", "0")])
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?|/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not match:
            return self.refuse(404, "NotFound")
        repository = self.hub.repositories.get(match[1] or match[4])
        if repository is None:  # as for one that is private
            return self.refuse(401, "RepoNotFound")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repository.token and token != repository.token:
            return self.refuse(401, "RepoNotFound")
        revision = match[3] or match[5] or "main"
        if revision not in repository.revisions:
            return self.refuse(404, "RevisionNotFound")
        if match[1]:  # the list of files may be seen by everybody
            listed = self.tree(repository) if match[2] == "tree" else self.info(match[1], repository)
            return self.reply(200, [("Content-Type", "application/json")], json.dumps(listed).encode())
        if repository.gated:
            return self.refuse(403, "GatedRepo")
        name = match[6]
        if name not in repository.files:
            return self.refuse(404, "EntryNotFound")
        return self.resolve(repository, name)

    def resolve(self, repository, name):
        content, etag = repository.files[name], repository.etags[name]
        headers = [("X-Repo-Commit", repository.commit)]
        if len(content) < LARGE:
            return self.send_file(name, content, [*headers, ("ETag", f'"{etag}"')])
        location = self.hub.location or f"{self.hub.storage}/{etag}?name={name}&signature=secret"
        self.reply(302, [*headers, ("X-Linked-Etag", f'"{etag}"'), ("X-Linked-Size", str(len(content))),
                         ("ETag", f'"{git_sha1(etag.encode())}"'), ("Location", location)])

    def info(self, repository_name, repository):
        siblings = []
        for name, content in repository.files.items():
            size = self.hub.size_claimed.get(name, len(content))
            entry = {"rfilename": name, "size": size, "blobId": git_sha1(content)}
            if len(content) >= LARGE:
                entry["lfs"] = {"sha256": repository.etags[name], "size": size, "pointerSize": 134}
            siblings.append(entry)
        return {"id": repository_name, "modelId": repository_name, "sha": repository.commit, "siblings": siblings,
                "private": False, "tags": [], "downloads": 0, "likes": 0}

    def tree(self, repository):
        entries = []
        for name, content in repository.files.items():
            entry = {"type": "file", "path": name, "size": len(content), "oid": git_sha1(content)}
            if len(content) >= LARGE:
                entry["lfs"] = {"oid": repository.etags[name], "size": len(content), "pointerSize": 134}
            entries.append(entry)
        return entries


class Storage(Handler):
    """Another host, which takes the signature in the URL for the right to read, and nothing beside it."""

    def answer(self, path):
        if "Authorization" in self.headers:
            return self.refuse(400, "InvalidArgument")
        for repository in self.hub.repositories.values():
            for name, etag in repository.etags.items():
                if path == f"/{etag}":
                    return self.send_file(name, repository.files[name], [("ETag", '"of-the-storage"')])
        return self.refuse(404, "NoSuchKey")
