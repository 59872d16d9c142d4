#!/usr/bin/env python3
"""Makes verifiers and drafters of an overlay one DisaggregatedSet (kubernetes-sigs/lws, v0.10 or later), which rolls both out
together. Reads the overlay as Kustomize renders it; needs python3-yaml.

usage: kubectl kustomize OVERLAY | disaggregated_set.py | kubectl apply -f -
"""
import sys

import yaml

ROLES = {"verifier": "StatefulSet", "drafter": "Deployment"}
SET = "outrider"


def role_of(name, workload, claims):
    """A role of the set: a LeaderWorkerSet of groups of one pod."""
    spec = workload["spec"]
    template = spec["template"]
    if spec.get("volumeClaimTemplates"):
        # Each rollout makes a LeaderWorkerSet of another name, whose own claims would be empty.
        if not claims:
            sys.exit(f"the {name}s have volumes of their own, and the overlay has no claim that pods share")
        template["spec"]["volumes"].append({"name": "packs", "persistentVolumeClaim": {"claimName": claims[0]}})
    role = {"name": name, "metadata": {"labels": workload["metadata"]["labels"]},
            # By default a pod whose container has restarted is made anew at once, again and again, while a pack is missing.
            "spec": {"leaderWorkerTemplate": {"size": 1, "restartPolicy": "None", "workerTemplate": template}}}
    if "replicas" in spec:
        role["spec"]["replicas"] = spec["replicas"]
    else:
        role["scaling"] = {"mode": "External"}  # by the autoscaler of the base
    return role


def converted(objects):
    workloads = {name: next(item for item in objects if item["kind"] == kind and item["metadata"]["name"] == f"outrider-{name}")
                 for name, kind in ROLES.items()}
    claims = [item["metadata"]["name"] for item in objects if item["kind"] == "PersistentVolumeClaim"]
    metadata = {key: value for key, value in workloads["verifier"]["metadata"].items() if key == "namespace"}
    for item in objects:
        if item["kind"] == "HorizontalPodAutoscaler":
            item["spec"]["scaleTargetRef"] = {"apiVersion": "disaggregatedset.x-k8s.io/v1", "kind": "DisaggregatedSetRoleScaler",
                                              "name": f"{SET}-drafter"}
    return [item for item in objects if all(item is not workload for workload in workloads.values())] + [
        {"apiVersion": "disaggregatedset.x-k8s.io/v1", "kind": "DisaggregatedSet", "metadata": metadata | {"name": SET},
         "spec": {"roles": [role_of(name, workload, claims) for name, workload in workloads.items()]}}]


if __name__ == "__main__":
    yaml.safe_dump_all(converted([item for item in yaml.safe_load_all(sys.stdin) if item]), sys.stdout, width=10**6)
