#!/usr/bin/env python3
"""The cache that Outrider writes is huggingface_hub's own: each reads what the other has downloaded, and they wait for
each other.

usage: hub_cache_test.py OUTRIDER (with huggingface_hub)
"""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import hub_server

HANG_S = 300  # ends a test that would hang; never a measure of speed
HUB = hub_server.Hub()
os.environ["HF_ENDPOINT"] = HUB.url  # read when the library is imported
os.environ["HF_HUB_DISABLE_XET"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
import filelock  # noqa: E402
import huggingface_hub  # noqa: E402

FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "generation_config.json": b"{}", "tokenizer_config.json": b"{}",
         "chat_template.jinja": b"", "model.safetensors": bytes(range(256)) * 1000}


def layout(cache):
    """Links with where they lead, and files with their content, of what both keep."""
    found = {}
    for file in sorted(cache.rglob("*")):
        name = str(file.relative_to(cache))
        if file.is_dir() or ".locks" in name or "/trees/" in name or "CACHEDIR" in name:
            continue
        found[name] = os.readlink(file) if file.is_symlink() else file.read_bytes()
    return found


class HubCacheTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cache = Path(self.folder.name) / "ours"
        HUB.repositories = {"org/small": hub_server.Repository(dict(FILES))}
        HUB.seen.clear()

    def start(self, *words, **variables):
        return subprocess.Popen([OUTRIDER, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**os.environ, "HF_HUB_CACHE": str(self.cache), **variables})

    def outrider(self, *words, **variables):
        program = self.start(*words, **variables)
        out, err = program.communicate(timeout=HANG_S)
        self.assertEqual(program.returncode, 0, err)
        return out

    def test_each_reads_what_the_other_wrote(self):
        snapshot = self.outrider("pull", "org/small", "--no-assistant").strip()
        self.assertEqual(huggingface_hub.snapshot_download("org/small", cache_dir=self.cache, local_files_only=True), snapshot)
        for name in FILES:
            self.assertEqual(huggingface_hub.try_to_load_from_cache("org/small", name, cache_dir=self.cache), f"{snapshot}/{name}")
        self.assertEqual(huggingface_hub.scan_cache_dir(self.cache).warnings, [])
        theirs = Path(self.folder.name) / "theirs"
        huggingface_hub.snapshot_download("org/small", cache_dir=theirs)
        self.assertEqual(layout(self.cache), layout(theirs))
        # Nothing of theirs is fetched again.
        HUB.seen.clear()
        self.outrider("pull", "org/small", "--no-assistant", HF_HUB_CACHE=str(theirs))
        self.assertEqual(HUB.asked("resolve"), [])

    def test_a_file_that_the_other_downloads_is_waited_for(self):
        etag = HUB.repositories["org/small"].etags["model.safetensors"]
        lock = self.cache / ".locks" / "models--org--small" / f"{etag}.lock"
        lock.parent.mkdir(parents=True)
        with filelock.FileLock(lock):
            program = self.start("pull", "org/small", "--no-assistant")
            said = ""
            while "waiting for another program that downloads model.safetensors" not in said:
                line = program.stderr.readline()
                self.assertNotEqual(line, "", said)
                said += line
            self.assertEqual(HUB.asked("signature"), [])
        program.communicate(timeout=HANG_S)
        self.assertEqual(program.returncode, 0)


if __name__ == "__main__":
    OUTRIDER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
