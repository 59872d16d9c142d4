"""What the tests on a real Kubernetes share: `kubectl`, and where our pods are."""
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "launch/kubernetes/README.md").read_text()
IMAGE = ":".join(re.search(r"newName: (.*)\n +newTag: (.*)", (ROOT / "launch/kubernetes/overlays/one-pool/kustomization.yaml").read_text()).groups())
ROLES = ("deployment/outrider-coordinator", "statefulset/outrider-verifier", "deployment/outrider-drafter", "deployment/outrider-serve")
PATIENCE = 300  # seconds; ends a test that would hang


def kubectl(*words, check=True, text=None, namespace="outrider"):
    done = subprocess.run(["kubectl", "-n", namespace, *words], input=text, capture_output=True, text=True, timeout=PATIENCE)
    if check and done.returncode != 0:
        raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}")
    return done


def get(kind, namespace="outrider", **labels):
    selector = ",".join(f"app.kubernetes.io/{key}={value}" for key, value in labels.items())
    return json.loads(kubectl("get", kind, "-o", "json", "-l", selector, namespace=namespace).stdout)["items"]


def ready(pod):
    return not pod["metadata"].get("deletionTimestamp") and any(
        one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def ready_pods(component):
    return [pod["metadata"]["name"] for pod in get("pods", component=component) if ready(pod)]


def nodes_for_any():
    return [node["metadata"]["name"] for node in json.loads(kubectl("get", "nodes", "-o", "json").stdout)["items"] if not node["spec"].get("taints")]


def wait_for_all(roles=ROLES):
    for role in roles:
        kubectl("rollout", "status", role, f"--timeout={PATIENCE}s")


def delete_namespace():
    # The pods first: with one in it Kubernetes waits half of the longest grace period.
    kubectl("delete", "deployment,statefulset,job,pod", "--all", f"--timeout={PATIENCE}s")
    kubectl("delete", "namespace", "outrider", "--ignore-not-found", f"--timeout={PATIENCE}s")
