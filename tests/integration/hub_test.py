#!/usr/bin/env python3
"""Models by name: what is downloaded from a hub (hub_server.py), how it lies in the cache, and what is said when it
cannot be had.

usage: hub_test.py OUTRIDER FAULT_IO_LIBRARY
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import hub_server

NANO = Path(__file__).parents[2] / "models" / "nano"
HANG_S = 300  # ends a test that would hang; never a measure of speed
TOKEN = "hf_secret"


def files_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


TARGET, ASSISTANT = files_of(NANO / "backbone"), files_of(NANO / "assistant")
TARGET |= {"README.md": b"for people", "pytorch_model.bin": b"\x80" * 200_000}  # which nobody uses


def small_model(**more):
    """No model, but files that are downloaded as one's."""
    return {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": bytes(range(256)) * 1000, **more}


class HubTest(unittest.TestCase):
    def setUp(self):
        self.hub = hub_server.Hub()
        self.addCleanup(self.hub.stop)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.home = Path(self.folder.name) / "hf"
        self.cache = self.home / "hub"

    def outrider(self, *words, status=0, **variables):
        names = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        done = subprocess.run([OUTRIDER, *words], capture_output=True, text=True, timeout=HANG_S, cwd=self.folder.name,
                              env={**names, "HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.url, **variables})
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def pull(self, name="org/small", **more):
        return self.outrider("pull", name, "--no-assistant", **more)

    def snapshot(self, name, commit=None):
        repository = self.hub.repositories[name]
        return self.cache / f"models--{name.replace('/', '--')}" / "snapshots" / (commit or repository.commit)


class Names(HubTest):
    def test_a_name_gives_text_and_the_second_start_asks_nobody(self):
        self.hub.repositories = {"org/nano": hub_server.Repository(TARGET), "org/nano-assistant": hub_server.Repository(ASSISTANT)}
        question = ("run", "-m", "org/nano", "Tell me a story.", "--max-tokens", "12", "--draft-length", "3", "--no-governor")
        first = self.outrider(*question)
        self.assertIn("downloading org/nano from ", first.stderr)
        self.assertRegex(first.stderr, r": 7 files, 7\d\.\d MB, to ")
        self.assertIn("drafting with org/nano-assistant", first.stderr)
        self.assertEqual(len(first.stdout.strip()) > 0, True)
        self.assertEqual(self.hub.asked("README") + self.hub.asked("pytorch"), [], "files that nobody uses")
        asked = len(self.hub.seen)
        by_path = self.outrider("run", "-m", str(NANO), *question[3:])
        self.assertEqual(first.stdout, by_path.stdout, "the text is that of the same files by their path")
        self.hub.stop()
        self.assertEqual(self.outrider(*question).stdout, first.stdout)
        self.assertEqual(self.outrider(*question, "--offline").stdout, first.stdout)
        self.assertEqual(len(self.hub.seen), asked)
        # Other commands take the name too.
        report = self.outrider("inspect", "org/nano").stdout
        self.assertIn(f"assistant: {self.snapshot('org/nano-assistant')}", report)
        checked = self.outrider("validate", "org/nano", "--max-tokens", "4", "--acceptance-min", "0").stdout
        self.assertIn("acceptance", checked)

    def test_a_client_of_a_coordinator_elsewhere_downloads_no_weights(self):
        self.hub.repositories = {"org/nano": hub_server.Repository(TARGET)}
        self.outrider("run", "-m", "org/nano", "hi", "--connect", "tcp://127.0.0.1:9", status=1)
        self.assertEqual(sorted(file.name for file in self.snapshot("org/nano").iterdir()),
                         ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])

    def test_a_revision_and_the_layout_of_the_cache(self):
        self.hub.repositories["org/small"] = hub_server.Repository(small_model())
        printed = self.pull("org/small@v1").stdout.strip()
        snapshot = self.snapshot("org/small")
        self.assertEqual(printed, str(snapshot))
        repository = self.hub.repositories["org/small"]
        folder = self.cache / "models--org--small"
        self.assertEqual((folder / "refs" / "v1").read_text(), repository.commit)
        self.assertFalse((folder / "refs" / "main").exists())
        for name in repository.files:
            self.assertEqual(os.readlink(snapshot / name), f"../../blobs/{repository.etags[name]}")
            self.assertEqual((snapshot / name).read_bytes(), repository.files[name])
            self.assertTrue((self.cache / ".locks" / "models--org--small" / f"{repository.etags[name]}.lock").exists())
        self.assertEqual(sorted(os.listdir(folder / "blobs")), sorted(set(repository.etags.values())), "nothing is left over")
        # By its commit it is there too.
        self.assertIn("nobody may be asked", self.outrider("inspect", "org/small", status=1, HF_HUB_OFFLINE="1").stderr)
        by_commit = self.outrider("inspect", f"org/small@{repository.commit}", status=1, HF_HUB_OFFLINE="1").stderr
        self.assertNotIn("nobody may be asked", by_commit)

    def test_shards_by_their_index(self):
        files = small_model(**{"model-1.safetensors": b"1" * 200_000, "model-2.safetensors": b"2" * 200_000,
                               "other.safetensors": b"3" * 200_000,
                               "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'})
        del files["model.safetensors"], files["tokenizer.json"]
        self.hub.repositories["org/small"] = hub_server.Repository(files)
        self.pull()
        self.assertEqual({file.name for file in self.snapshot("org/small").iterdir()}, set(files) - {"other.safetensors"})
        self.hub.stop()  # That there is no tokenizer is known.
        self.assertIn("config.json", self.outrider("inspect", "org/small", status=1).stderr)

    def test_texts_that_another_program_left_out_are_asked_for(self):
        repository = self.hub.repositories["org/small"] = hub_server.Repository(
            small_model(**{"generation_config.json": b"{}", "tokenizer_config.json": b"{}"}))
        self.pull()
        lost = self.snapshot("org/small") / "generation_config.json"
        lost.unlink()
        shutil.rmtree(self.cache / "models--org--small" / ".no_exist")
        offline = self.outrider("inspect", "org/small", status=1, HF_HUB_OFFLINE="1").stderr
        self.assertIn("nobody may be asked (--offline, HF_HUB_OFFLINE); using what is there, without generation_config.json, "
                      "chat_template.jinja\n", offline)
        repository.revisions.remove("main")  # which may be another commit by now
        self.outrider("inspect", "org/small", status=1)
        self.assertTrue(lost.exists())
        self.hub.seen.clear()
        self.assertNotIn("without", self.outrider("inspect", "org/small", status=1).stderr)
        self.assertEqual(self.hub.seen, [], "that there is no template is known")

    def test_one_gguf_of_several_by_its_type(self):
        files = {"m-Q4_0.gguf": b"4" * 200_000, "m-Q8_0-00001-of-00002.gguf": b"8" * 200_000, "config.json": b"{}",
                 "m-Q8_0-00002-of-00002.gguf": b"9" * 200_000, "mmproj-F32.gguf": b"32" * 100, "mmproj-BF16.gguf": b"16" * 100}
        self.hub.repositories["org/GGUF"] = hub_server.Repository(files)
        refused = self.pull("org/GGUF", status=1).stderr
        self.assertIn("org/GGUF: holds 2 GGUF models (m-Q4_0, m-Q8_0)", refused)
        self.assertIn("no GGUF model there is called 'Q6_K', wanted one of m-Q4_0, m-Q8_0", self.pull("org/GGUF:Q6_K", status=1).stderr)
        self.assertEqual(self.pull("org/GGUF:q4_0").stdout.strip(), str(self.snapshot("org/GGUF") / "m-Q4_0.gguf"))
        self.assertEqual({file.name for file in self.snapshot("org/GGUF").iterdir()}, {"m-Q4_0.gguf", "mmproj-BF16.gguf"})
        self.assertEqual(Path(self.pull("org/GGUF:Q8_0").stdout.strip()).name, "m-Q8_0-00001-of-00002.gguf")

    def test_what_is_here_wins_over_a_name(self):
        (Path(self.folder.name) / "org").mkdir()
        (Path(self.folder.name) / "org" / "nano").symlink_to(NANO)
        self.outrider("run", "-m", "org/nano", "hi", "--max-tokens", "1")
        self.assertEqual(self.hub.seen, [])


class Assistants(HubTest):
    def test_a_quantised_copy_gets_the_assistant_that_google_published(self):
        self.hub.repositories = {
            "other/gemma-4-E4B-it-AWQ-4bit": hub_server.Repository(TARGET),
            "google/gemma-4-E4B-it-assistant": hub_server.Repository(ASSISTANT),
            "google/gemma-4-E4B-it-qat-w4a16-ct": hub_server.Repository(TARGET),
            "google/gemma-4-E4B-it-qat-q4_0-unquantized-assistant": hub_server.Repository(ASSISTANT)}
        for name, assistant in (("other/gemma-4-E4B-it-AWQ-4bit", "google/gemma-4-E4B-it-assistant"),
                                ("google/gemma-4-E4B-it-qat-w4a16-ct", "google/gemma-4-E4B-it-qat-q4_0-unquantized-assistant")):
            paths = self.outrider("pull", name).stdout.splitlines()
            self.assertEqual(paths, [str(self.snapshot(name)), str(self.snapshot(assistant))])
            self.assertIn(f"assistant: {self.snapshot(assistant)}", self.outrider("inspect", name).stdout)

    def test_without_one_the_text_is_decoded_plainly(self):
        self.hub.repositories = {"org/nano": hub_server.Repository(TARGET)}
        for asked in (True, False):
            self.hub.seen.clear()
            said = self.outrider("run", "-m", "org/nano", "hi", "--max-tokens", "2").stderr
            self.assertIn("org/nano has no assistant beside it: decoding plainly", said)
            self.assertEqual(bool(self.hub.seen), asked, "whether there is one is asked with the download alone")


class Faults(HubTest):
    def setUp(self):
        super().setUp()
        self.repository = hub_server.Repository(small_model())
        self.hub.repositories["org/small"] = self.repository
        self.weights = self.repository.files["model.safetensors"]

    def blob(self, ending=""):
        return self.cache / "models--org--small" / "blobs" / (self.repository.etags["model.safetensors"] + ending)

    def test_a_break_in_the_middle_goes_on_where_it_was(self):
        self.hub.break_after["model.safetensors"] = 100_000
        self.pull()
        self.assertEqual(self.blob().read_bytes(), self.weights)
        ranges = [headers.get("Range") for _, _, _, headers in self.hub.asked("signature")]
        self.assertEqual(ranges, [None, "bytes=100000-"])

    def test_a_killed_download_goes_on_where_it_was(self):
        self.blob().parent.mkdir(parents=True)
        self.blob(".incomplete").write_bytes(self.weights[:200_000])
        self.pull()
        self.assertEqual(self.blob().read_bytes(), self.weights)
        self.assertFalse(self.blob(".incomplete").exists())
        self.assertEqual([headers.get("Range") for _, _, _, headers in self.hub.asked("signature")], ["bytes=200000-"])

    def test_what_an_earlier_download_left_wrong_is_fetched_anew(self):
        self.blob().parent.mkdir(parents=True)
        self.blob(".incomplete").write_bytes(b"x" * 200_000)
        self.pull()
        self.assertEqual(self.blob().read_bytes(), self.weights)

    def test_a_wrong_checksum_is_tried_once_more_and_then_refused(self):
        # No other file has a blob of config.json's bytes, which would be the right ones.
        self.repository = self.hub.repositories["org/small"] = hub_server.Repository(small_model(**{"tokenizer.json": b"[]"}))
        self.hub.spoilt["model.safetensors"] = 1
        self.pull()
        self.assertEqual(self.blob().read_bytes(), self.weights)
        for name in ("model.safetensors", "config.json"):
            self.folder.cleanup()
            Path(self.folder.name).mkdir()
            self.hub.spoilt = {name: 9}
            said = self.pull(status=1).stderr
            self.assertRegex(said, rf"org/small: {name}: (SHA-256|git's SHA-1) is \w+, the hub says {self.repository.etags[name]}")
            self.assertFalse((self.snapshot("org/small") / name).exists())

    def test_a_busy_hub_is_asked_again(self):
        self.hub.busy = 3
        self.pull()
        self.hub.busy = 1000
        self.assertIn("answers with status 429", self.pull("org/small@v1", status=1).stderr)

    def test_the_token_goes_to_the_hub_alone(self):
        self.repository.token = TOKEN
        self.assertIn("not without a token (status 401)", self.pull(status=1).stderr)
        self.assertIn("not for this token (status 401)", self.pull(status=1, HF_TOKEN="hf_other").stderr)
        self.hub.seen.clear()
        self.pull(HF_TOKEN=TOKEN)
        of = {server: {headers.get("Authorization") for kind, _, _, headers in self.hub.seen if kind == server}
              for server in ("Front", "Storage")}
        self.assertEqual(of, {"Front": {f"Bearer {TOKEN}"}, "Storage": {None}})
        said = self.pull(status=1, HF_TOKEN=TOKEN, HF_HUB_DISABLE_IMPLICIT_TOKEN="1").stderr
        self.assertIn("not without a token (status 401)", said)
        self.pull(HF_TOKEN=f" {TOKEN} \n")
        self.folder.cleanup()
        self.home.mkdir(parents=True)
        (self.home / "token").write_text(TOKEN + "\n")  # as `hf auth login` leaves it
        self.pull()

    def test_variables_are_read_as_huggingface_hub_reads_them(self):
        self.assertIn("nobody may be asked", self.pull(status=1, HF_HUB_OFFLINE="", TRANSFORMERS_OFFLINE="1").stderr)
        for home in ("$BASE/hf$NONE/a", "${BASE}/hf${NONE}/a"):
            printed = self.pull(HF_HOME=home, BASE=self.folder.name, HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="1").stdout
            self.assertTrue(printed.startswith(home.replace("$BASE", self.folder.name).replace("${BASE}", self.folder.name)), printed)

    def test_a_model_with_terms_names_their_page(self):
        self.repository.gated = True
        self.assertIn(f"has to accept the terms at {self.hub.url}/org/small", self.pull(status=1).stderr)

    def test_redirections_without_end_or_sense_are_refused(self):
        server = self.hub.url.removeprefix("http://")
        for location, why in ((self.hub.url + "/org/small/resolve/main/model.safetensors", f"{server}: redirects after 5 redirections"),
                              ("ftp://127.0.0.1/file", f"{server}: redirects to what is not a URL"), ("/nowhere", "status 404")):
            self.hub.location = location
            self.assertIn(why, self.pull(status=1).stderr)

    def test_what_is_not_there_is_named(self):
        self.assertIn("org/none: 127.0.0.1", self.pull("org/none", status=1).stderr)
        self.assertIn("there is no revision 'v9' (status 404)", self.pull("org/small@v9", status=1).stderr)
        self.assertIn("wanted ORG/NAME", self.outrider("pull", "small", status=2).stderr)
        self.repository.files.pop("model.safetensors")
        self.assertIn("org/small: holds neither model.safetensors", self.pull(status=1).stderr)

    def test_a_full_disk_is_seen_before(self):
        # Of the second the sum is beyond 64 bits.
        for claimed, wanted in (({"model.safetensors": 10**18}, "1000000000.0"), ({"config.json": 2**63 - 1, "tokenizer.json": 2**63 - 1}, "18446744073.7")):
            self.hub.size_claimed = claimed
            self.assertIn(f"are free, wanted {wanted} GB", self.pull(status=1).stderr)
        self.assertEqual(self.hub.asked("resolve"), [])

    def test_no_file_leaves_the_folder(self):
        self.repository.files["../../../escaped.gguf"] = b"x" * 10
        self.repository.etags["../../../escaped.gguf"] = hub_server.git_sha1(b"x" * 10)
        self.pull()
        self.assertIn("no GGUF model", self.pull("org/small:escaped", status=1).stderr)

    def pull_at_once(self, **variables):
        programs = [subprocess.Popen([OUTRIDER, "pull", "org/small", "--no-assistant"], stderr=subprocess.PIPE, text=True, stdout=subprocess.PIPE,
                                     env={**os.environ, "HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.url, **variables})
                    for _ in range(3)]
        said = [program.communicate(timeout=HANG_S)[1] for program in programs]
        self.assertEqual([program.returncode for program in programs], [0, 0, 0], said)
        self.assertEqual(self.blob().read_bytes(), self.weights)
        return said

    def test_two_downloads_share_one_transfer(self):
        self.pull_at_once()
        self.assertEqual(len(self.hub.asked("signature")), 1)

    def test_without_locks_each_download_is_whole(self):
        without = {"LD_PRELOAD": FAULT_IO, "OUTRIDER_FAULTS_NO_LOCKS": "1"}
        said = self.pull_at_once(**without)
        self.assertTrue(any("has no locks; programs that download the same file do not share it" in text for text in said), said)
        self.assertEqual(sorted(os.listdir(self.blob().parent)), sorted(set(self.repository.etags.values())), "no part is left over")
        os.remove(self.blob())
        self.hub.spoilt["model.safetensors"] = 2
        self.outrider("pull", "org/small", "--no-assistant", status=1, **without)
        self.assertFalse([name for name in os.listdir(self.blob().parent) if "incomplete" in name], "a failed part is removed")


PUBLIC = "93.184.216.34"  # of this test's own network namespace, which leads nowhere
IN_NAMESPACE = "OUTRIDER_PUBLIC_HUB"
NAMESPACE = ["unshare", "--net", "--mount", "--map-root-user", "sh", "-ec",
             f"ip link set lo up; ip address add {PUBLIC}/32 dev lo; "
             f"printf '127.0.0.1 localhost inner.example\\n{PUBLIC} hub.example storage.example\\n' >hosts; "
             'mount --bind hosts /etc/hosts; exec "$@"', "sh"]


class PublicHub(HubTest):
    """A hub that everybody reaches may not lead to what this machine alone reaches."""

    def test_in_a_network_namespace(self):
        if subprocess.run([*NAMESPACE, "true"], capture_output=True, cwd=self.folder.name).returncode != 0:
            self.skipTest("redirections of a public hub were NOT tested: no namespaces here (unshare, ip)")
        done = subprocess.run([*NAMESPACE, sys.executable, os.path.abspath(__file__), OUTRIDER, FAULT_IO, "PublicHub.redirections"],
                              capture_output=True, text=True, timeout=HANG_S, cwd=self.folder.name,
                              env={**os.environ, IN_NAMESPACE: "1"})
        self.assertEqual(done.returncode, 0, done.stderr)

    def redirections(self):
        self.assertIn(IN_NAMESPACE, os.environ, "there is no such address outside")
        self.hub.stop()
        for stored_at in ("127.0.0.1", PUBLIC):
            self.hub = hub_server.Hub((PUBLIC, stored_at))
            self.addCleanup(self.hub.stop)
            self.hub.url = self.hub.url.replace(PUBLIC, "hub.example")
            self.hub.repositories["org/small"] = hub_server.Repository(small_model())
            port = self.hub.storage.rsplit(":", 1)[1]
            etag = self.hub.repositories["org/small"].etags["model.safetensors"]
            inner = ("inner.example", "127.0.0.1", "[::1]", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]")
            for host in inner:
                self.hub.location = f"http://{host}:{port}/{etag}"
                said = self.pull(status=1).stderr
                self.assertIn(f"{host}:{port}: has an address that is not public, and the hub redirects to it", said)
            self.assertEqual([server for server, *_ in self.hub.seen if server == "Storage"], [])
        self.hub.location = f"http://storage.example:{port}/{etag}"  # another public host is what the hub does itself
        self.pull()


if __name__ == "__main__":
    OUTRIDER, FAULT_IO = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    unittest.main()
