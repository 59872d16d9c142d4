#!/usr/bin/env python3
"""launch/kubernetes and `outrider launch --backend kubernetes` on a real cluster: README's own commands, pods killed in
mid-answer, rollouts, drains, shards, and batches.

usage: launch_kubernetes_test.py OUTRIDER
OUTRIDER_TEST_KUBECONFIG: of a cluster that has nothing of ours but the image of this program, by the name in
overlays/one-pool; for batches an unclaimed volume of any class that many nodes may mount. What needs the controllers of
LeaderWorkerSet or Kueue is skipped without them. Status 77: there is no cluster, and nothing was tested.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

from batch_support import nano_lines, read_lines, write_lines
from kubernetes_support import (IMAGE, PATIENCE, README, ROLES, ROOT, delete_namespace, get, kubectl, nodes_for_any, ready,
                                ready_pods, wait_for_all)
from launch_support import eventually, free_ports


def note(text):
    print(f"  {text}", flush=True)


@contextlib.contextmanager
def forwarded():
    """The front end's address, by the API server."""
    port = free_ports(1)[0]
    forward = subprocess.Popen(["kubectl", "-n", "outrider", "port-forward", "service/outrider", f"{port}:80"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def listens():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True

    try:
        assert eventually(listens), "kubectl port-forward does not listen"
        yield f"http://127.0.0.1:{port}"
    finally:
        forward.kill()
        forward.wait()


def ask(base, number=0, tokens=16):
    """The answer, and the seconds to its first token."""
    body = {"model": "nano", "messages": [{"role": "user", "content": f"Write a long story about fox {number}."}], "max_tokens": tokens,
            "seed": 5, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Authorization": "Bearer SECRET", "Content-Type": "application/json"})
    began, first, text = time.monotonic(), None, ""
    with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                part = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                first = first or (part and time.monotonic() - began) or None
                text += part
    return text, first


def ask_several(base, count=4, tokens=120):
    """Answers of requests that are under way at once."""
    texts = [None] * count

    def one(number):
        texts[number] = ask(base, number, tokens)[0]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return texts, threads


def has(resource):
    """Whether the cluster has a resource that a controller has brought."""
    return kubectl("get", "crd", resource, check=False).returncode == 0


class Cluster(unittest.TestCase):
    """A walk: each test goes on where the one before has left the cluster."""
    texts = []

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-kubernetes-"))
        (cls.folder / "launch").symlink_to(ROOT / "launch")
        (cls.folder / "bin").mkdir()
        (cls.folder / "bin/outrider").symlink_to(pathlib.Path(OUTRIDER).resolve())
        cls.environment = os.environ | {"PATH": f"{cls.folder}/bin:{os.environ['PATH']}"}

    @classmethod
    def tearDownClass(cls):
        delete_namespace()
        shutil.rmtree(cls.folder)

    def bash(self, script):
        done = subprocess.run(["bash", "-euc", script], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout}{done.stderr}")
        return done.stdout

    def undisturbed(self):
        """What all answers must be, however the cluster is disturbed."""
        if not Cluster.texts:
            with forwarded() as base:
                Cluster.texts, threads = ask_several(base)
                for thread in threads:
                    thread.join()
            self.assertNotIn(None, Cluster.texts)
        return Cluster.texts

    def during(self, disturb):
        wanted = self.undisturbed()
        with forwarded() as base:
            texts, threads = ask_several(base)
            time.sleep(1)
            under_way = sum(thread.is_alive() for thread in threads)
            disturb()
            for thread in threads:
                thread.join()
        note(f"{under_way} of {len(texts)} answers were under way")
        self.assertEqual(texts, wanted)


class OnePool(Cluster):
    def test_1_what_the_readme_says_ends_with_an_answer(self):
        keys = re.search(r"```\n(kubectl apply -f launch/kubernetes/overlays/one-pool/namespace.yaml\n.*?)```", README, re.S)[1]
        self.bash(keys)
        began = time.monotonic()
        self.bash("kubectl apply -k launch/kubernetes/overlays/one-pool")
        wait_for_all()
        note(f"all ready after {time.monotonic() - began:.1f} s")
        with forwarded() as base:
            text, first = ask(base)
        note(f"first token {time.monotonic() - began:.1f} s after `kubectl apply`, {first:.2f} s after the request")
        self.assertGreater(len(text), 10)
        restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in get("pods", name="outrider")}
        self.assertEqual(set(restarts.values()), {0}, restarts)

    def test_2_a_bare_pod_is_refused_in_the_namespace(self):
        refused = kubectl("run", "bare", f"--image={IMAGE}", "--restart=Never", check=False)
        self.assertIn("violates PodSecurity", refused.stderr)

    def test_3_a_verifier_deleted_in_mid_answer_changes_no_text(self):
        kubectl("scale", "statefulset/outrider-verifier", "--replicas=2")
        wait_for_all()
        for pod in ("outrider-verifier-0", "outrider-verifier-1"):
            self.during(lambda: kubectl("delete", "pod", pod, "--wait=false"))
            wait_for_all()
        self.during(lambda: kubectl("delete", "pod", "outrider-verifier-0", "--grace-period=0", "--force"))
        wait_for_all()

    def test_4_a_rollout_takes_one_verifier_at_a_time_and_changes_no_text(self):
        fewest = []

        def roll():
            kubectl("rollout", "restart", "statefulset/outrider-verifier")
            rollout = subprocess.Popen(["kubectl", "-n", "outrider", "rollout", "status", "statefulset/outrider-verifier"], stdout=subprocess.DEVNULL)
            while rollout.poll() is None:
                fewest.append(len(ready_pods("verifier")))
            self.assertEqual(rollout.returncode, 0)

        self.during(roll)
        note(f"verifiers ready during the rollout: at least {min(fewest)} in {len(fewest)} looks")
        self.assertGreaterEqual(min(fewest), 1)
        for role in ("drafter", "coordinator", "serve"):
            self.during(lambda: kubectl("rollout", "restart", f"deployment/outrider-{role}"))
            wait_for_all()

    def test_5_drafters_from_none_to_three_change_no_text(self):
        for count in (0, 3, 1):
            self.during(lambda: kubectl("scale", "deployment/outrider-drafter", f"--replicas={count}"))
            self.assertTrue(eventually(lambda: len(ready_pods("drafter")) == count), ready_pods("drafter"))

    def test_6_the_disruption_budget_keeps_one_verifier(self):
        def evict(pod):
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "outrider"}}
            return kubectl("create", "--raw", f"/api/v1/namespaces/outrider/pods/{pod}/eviction", "-f", "-", text=json.dumps(eviction), check=False)

        def drain():
            self.assertEqual(evict("outrider-verifier-1").returncode, 0)
            self.assertIn("disruption budget", evict("outrider-verifier-0").stderr)
            self.assertTrue(eventually(lambda: evict("outrider-verifier-0").returncode == 0, PATIENCE))

        self.during(drain)
        wait_for_all()

    def test_7_a_node_is_drained_and_no_text_changes(self):
        def nodes(component):
            return {pod["spec"]["nodeName"] for pod in get("pods", component=component)}

        if len(nodes_for_any()) < 2:
            self.skipTest("NO NODE WAS DRAINED: wanted two that take any pod")
        drained = min(nodes("verifier"))
        self.addCleanup(kubectl, "uncordon", drained)
        self.during(lambda: kubectl("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={PATIENCE}s"))
        wait_for_all()
        self.assertNotIn(drained, nodes("verifier"))
        self.during(lambda: None)

    def test_8_the_network_policy_lets_in_whom_it_names(self):
        def reaches(namespace, host, port):
            name = f"probe-{port}"
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [
                    {"name": "probe", "image": IMAGE, "command": ["bash", "-c", f"sleep 5; timeout 5 bash -c ': </dev/tcp/{host}.outrider.svc.cluster.local/{port}'"]}]}}
            kubectl("apply", "-f", "-", text=json.dumps(pod), namespace=namespace)
            def phase():
                found = json.loads(kubectl("get", "pod", name, "-o", "json", namespace=namespace).stdout)["status"]["phase"]
                return found if found in ("Succeeded", "Failed") else None
            return eventually(phase) == "Succeeded"

        for namespace, label in (("outrider-test-friend", "outrider/uses=http"), ("outrider-test-stranger", "outrider/uses=nothing")):
            kubectl("create", "namespace", namespace)
            self.addCleanup(kubectl, "delete", "namespace", namespace)
            kubectl("label", "namespace", namespace, label)
        self.assertTrue(reaches("outrider-test-friend", "outrider", 80))
        if reaches("outrider-test-stranger", "outrider", 80):
            self.skipTest("THE NETWORK POLICIES WERE NOT TESTED: this cluster does not enforce any")
        self.assertFalse(reaches("outrider-test-friend", "outrider-coordinator", 7070))


class Batches(Cluster):
    """`launch --backend kubernetes`, from nothing to a finished batch to nothing left."""

    def setUp(self):
        kubectl("create", "namespace", "outrider")
        self.addCleanup(delete_namespace)
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "files"},
                 "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}}
        kubectl("apply", "-f", "-", text=json.dumps(claim))
        filler = (ROOT / "launch/kubernetes/fill.yaml").read_text().replace("CLAIM", "files")
        kubectl("apply", "-f", "-", text=filler)
        if kubectl("wait", "--for=condition=Ready", "pod/fill-files", "--timeout=60s", check=False).returncode != 0:
            self.skipTest("BATCHES WERE NOT TESTED: no volume that many nodes may mount, or no image for fill.yaml")
        write_lines(self.folder / "in.jsonl", nano_lines(self.LINES))
        kubectl("cp", str(self.folder / "in.jsonl"), "fill-files:/packs/in.jsonl")

    LINES = 240

    def launch(self, name, command, **kubernetes):
        plan = {"verifiers": [{}], "run": [{"command": command}],
                "kubernetes": {"image": IMAGE, "claim": "files"} | kubernetes}
        if not kubernetes:
            plan["drafters"] = [{"count": 2}]
        (self.folder / "plan.json").write_text(json.dumps(plan))
        return self.bash(f"outrider launch plan.json --backend kubernetes --run-dir {name}")

    def job(self):
        return json.loads(kubectl("get", "job", "outrider-run", "-o", "json").stdout)

    def suspended(self):
        return kubectl("get", "job", "outrider-run", "-o", "jsonpath={.spec.suspend}", check=False).stdout == "true"

    def make_queue(self):
        """A queue of Kueue with room for the three pods."""
        api = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
        quota = [{"name": "cpu", "nominalQuota": 3}, {"name": "memory", "nominalQuota": "12Gi"}]
        for item in (api | {"kind": "ResourceFlavor", "metadata": {"name": "outrider-test"}},
                     api | {"kind": "ClusterQueue", "metadata": {"name": "outrider-test"}, "spec": {"namespaceSelector": {}, "resourceGroups": [
                         {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "outrider-test", "resources": quota}]}]}},
                     api | {"kind": "LocalQueue", "metadata": {"name": "ours"}, "spec": {"clusterQueue": "outrider-test"}}):
            kubectl("apply", "-f", "-", text=json.dumps(item))
            if item["kind"] != "LocalQueue":
                self.addCleanup(kubectl, "delete", item["kind"], "outrider-test", "--wait=false")

    def hold_queue(self):
        """Kueue takes the batch's pods away, and lets it go on."""
        def policy(name):
            kubectl("patch", "clusterqueue", "outrider-test", "--type=merge", "-p", json.dumps({"spec": {"stopPolicy": name}}))

        policy("HoldAndDrain")
        self.assertTrue(eventually(lambda: self.suspended() and not self.job()["status"].get("active"), PATIENCE), self.job()["status"])
        policy("None")
        self.assertTrue(eventually(lambda: not self.suspended(), PATIENCE))

    def output(self, name):
        kubectl("cp", f"fill-files:/packs/{name}", str(self.folder / name))
        return (self.folder / name).read_bytes()

    def test_a_batch_of_many_pods_has_the_bytes_of_a_cluster_though_they_are_killed(self):
        began = time.monotonic()
        typed = self.launch("fleet", ["outrider", "batch", "/packs/in.jsonl", "--output", "/packs/fleet.jsonl", "--connect", "{coordinator}"])
        self.bash(typed)
        kubectl("wait", "--for=condition=complete", "job/outrider-run", f"--timeout={PATIENCE}s")
        note(f"a cluster and its batch of {self.LINES} lines: {time.monotonic() - began:.1f} s after `launch`")
        wanted = self.output("fleet.jsonl")
        self.assertEqual(len(read_lines(self.folder / "fleet.jsonl")), self.LINES)

        typed = self.launch("shards", ["outrider", "batch", "/packs/in.jsonl", "--output", "/packs/out.jsonl"], shards=3, queue="ours")
        queued = has("localqueues.kueue.x-k8s.io")
        run = subprocess.Popen(["bash", "-euc", typed], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)
        self.addCleanup(run.kill)
        # All three at once, in the middle: a Job waits twice as long after each of its pods that was killed.
        if queued:
            self.assertTrue(eventually(self.suspended), "Kueue did not hold the job back")
            self.make_queue()
        begun = ["exec", "fill-files", "--", "sh", "-c", "cat /packs/out.0.journal | wc -l"]
        self.assertTrue(eventually(lambda: run.poll() is not None or int(kubectl(*begun, check=False).stdout or 0) > 4))
        pods = [pod["metadata"]["name"] for pod in get("pods", component="run") if ready(pod) and pod["metadata"]["name"].startswith("outrider-run-")]
        self.assertTrue(pods, "the batch was over before a pod was killed")
        kubectl("delete", "pod", "--grace-period=1", "--wait=false", *pods)
        if queued:
            self.hold_queue()
        said = run.communicate(timeout=PATIENCE)[0]
        self.assertEqual(run.returncode, 0)
        note(f"{len(pods)} of three pods were killed; the merge said: {said.splitlines()[-1]}")
        self.assertEqual(self.output("out.jsonl"), wanted)
        self.assertEqual(self.job()["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "ours")


class Groups(Cluster):
    """examples/sharded-verifier.yaml: two verifiers of two pods each, of nano."""
    NAME = "outrider-sharded-verifier"

    def setUp(self):
        if not has("leaderworkersets.leaderworkerset.x-k8s.io"):
            self.skipTest("LEADERWORKERSETS WERE NOT TESTED: the cluster has none")
        self.addCleanup(kubectl, "delete", "leaderworkerset", "--all")

    def leaders(self):
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in get("pods", component="verifier")
                if ready(pod) and pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"}

    def settled(self, gone=()):
        """Waits until both leaders are ready, and none of them is one of those that must have gone."""
        self.assertTrue(eventually(lambda: len(self.leaders()) == 2 and not set(gone) & set(self.leaders().values()), PATIENCE),
                        kubectl("get", "pods").stdout)
        wait_for_all(ROLES[:1] + ROLES[2:])

    def overlay(self):
        example = (ROOT / "launch/kubernetes/examples/sharded-verifier.yaml").read_text()
        image, tag = IMAGE.split(":")
        size = {"cpu": "1", "memory": "2Gi"}
        group = "/spec/leaderWorkerTemplate"
        operations = [{"op": "replace", "path": "/spec/replicas", "value": 2}, {"op": "remove", "path": f"{group}/volumeClaimTemplates"}]
        for pod in (f"{group}/leaderTemplate/spec", f"{group}/workerTemplate/spec"):
            operations += [
                {"op": "remove", "path": f"{pod}/affinity"}, {"op": "add", "path": f"{pod}/volumes/-", "value": {"name": "packs", "emptyDir": {}}},
                {"op": "replace", "path": f"{pod}/containers/0/resources", "value": {"requests": size, "limits": size}},
                {"op": "test", "path": f"{pod}/containers/0/args/2", "value": "--model=/packs/pair"},
                {"op": "replace", "path": f"{pod}/containers/0/args/2", "value": "--model=/usr/share/outrider/models/nano"}]
        said = "".join(line[4:] for line in example.splitlines(keepends=True) if line.startswith("#   "))
        said = said.replace("resources:\n", "resources:\n  - ../launch/kubernetes/overlays/one-pool\n")
        folder = self.folder / "groups"
        folder.mkdir()
        (folder / "sharded-verifier.yaml").write_text(example)
        (folder / "kustomization.yaml").write_text(
            said + f"  - target: {{kind: LeaderWorkerSet}}\n    patch: '{json.dumps(operations)}'\n"
            f"namespace: outrider\nimages:\n  - {{name: outrider, newName: {image}, newTag: {tag}}}\n")

    def test_groups_form_anew_one_at_a_time_and_change_no_text(self):
        self.bash(re.search(r"```\n(kubectl apply -f launch/kubernetes/overlays/one-pool/namespace.yaml\n.*?)```", README, re.S)[1])
        self.bash(re.search("kubectl .* outrider-shard-keys .*", README)[0])
        self.overlay()
        self.bash("kubectl apply -k groups")
        self.settled()
        self.undisturbed()
        for pod in (f"{self.NAME}-0-1", f"{self.NAME}-1", f"{self.NAME}-1-1"):
            old = self.leaders()["-".join(pod.split("-")[:4])]
            began = time.monotonic()
            self.during(lambda: kubectl("delete", "pod", pod, "--wait=false"))
            self.settled(gone=[old])
            note(f"{pod} deleted: the group is Ready anew {time.monotonic() - began:.1f} s later at most")
        old, fewest = self.leaders(), []

        def roll():
            change = {"spec": {"leaderWorkerTemplate": {"leaderTemplate": {"metadata": {"annotations": {"rolled": "1"}}}}}}
            kubectl("patch", "leaderworkerset", self.NAME, "--type=merge", "-p", json.dumps(change))
            eventually(lambda: fewest.append(len(self.leaders())) or fewest[-1] == 2 and not set(old.values()) & set(self.leaders().values()), PATIENCE)

        self.during(roll)
        note(f"verifiers ready during the rollout: at least {min(fewest)} in {len(fewest)} looks")
        self.assertEqual(min(fewest), 1)
        self.settled(gone=old.values())


class Plan(Cluster):
    def test_commands_typed_twice_and_shards_change_no_text_though_a_shard_is_killed(self):
        nodes = ",".join(nodes_for_any())
        for name, shards in (("plain", {}), ("sharded", {"shards": 2, "shard_hosts": nodes})):
            plan = {"hosts": [{"name": nodes, "cpus": 1}], "verifiers": [{"hosts": nodes, "count": 2} | shards],
                    "drafters": [{}], "kubernetes": {"image": IMAGE}}
            (self.folder / "plan.json").write_text(json.dumps(plan))
            typed = self.bash(f"outrider launch plan.json --backend kubernetes --run-dir {name}")
            (self.folder / name / "keys/api-key").write_text("SECRET")
            self.bash(typed + typed)
            if shards:  # the keys are others
                self.bash(re.search("# *(kubectl .* rollout restart .*)", typed)[1])
            wait_for_all()
            self.during(lambda: None)
        began = []

        def kill():
            kubectl("delete", "pod", "outrider-shard-0-0", "--grace-period=0", "--force")
            began.append(time.monotonic())

        def formed_anew():
            [verifier] = [pod for pod in get("pods", component="verifier") if pod["metadata"]["name"] == "outrider-verifier-0"]
            return ready(verifier) and verifier["status"]["containerStatuses"][0]["restartCount"] > 0

        self.during(kill)
        self.assertTrue(eventually(formed_anew))
        note(f"the group is Ready anew {time.monotonic() - began[0]:.1f} s at most after a shard's pod was killed")


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    config = os.environ.get("OUTRIDER_TEST_KUBECONFIG", "")
    if not config or shutil.which("kubectl") is None:
        print("SKIPPED: Kubernetes was NOT tested: " + ("no kubectl" if config else "OUTRIDER_TEST_KUBECONFIG names no cluster"))
        sys.exit(77)
    os.environ["KUBECONFIG"] = config
    unittest.main(verbosity=2)
