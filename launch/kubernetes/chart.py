#!/usr/bin/env python3
"""Makes the Helm chart DIR/outrider of the base, which stays the one source. Needs kubectl and python3-yaml.

usage: chart.py DIR VERSION
"""
import json
import pathlib
import re
import subprocess
import sys

import yaml

ROLES = {"coordinator": "Deployment", "verifier": "StatefulSet", "drafter": "Deployment", "serve": "Deployment"}
# What a release may set, and where the base has the default: value, kind, object, path.
VALUES = [(f"model.{key}", "ConfigMap", "outrider-model", ["data", key]) for key in ("verifier", "drafter", "client", "name")]
for role, kind in ROLES.items():
    container = ["spec", "template", "spec", "containers", 0]
    VALUES.append(("image", kind, f"outrider-{role}", [*container, "image"]))
    for amount in ("cpu", "memory"):
        VALUES += [(f"{role}.{amount}", kind, f"outrider-{role}", [*container, "resources", side, amount]) for side in ("requests", "limits")]
VALUES += [(f"{role}.replicas", ROLES[role], f"outrider-{role}", ["spec", "replicas"]) for role in ("verifier", "serve")]
VALUES += [(f"drafter.{bound}", "HorizontalPodAutoscaler", "outrider-drafter", ["spec", bound]) for bound in ("minReplicas", "maxReplicas")]
VALUES.append(("verifier.storage", "StatefulSet", "outrider-verifier", ["spec", "volumeClaimTemplates", 0, "spec", "resources", "requests", "storage"]))
# Kustomize's suffix of the ConfigMap's name: pods start again when the models change.
SUFFIX = re.compile(r"(?<=outrider-model-)[a-z0-9]{10}\b")


def rendered_base():
    base = pathlib.Path(__file__).parent / "base"
    return subprocess.run(["kubectl", "kustomize", base], check=True, capture_output=True, text=True).stdout


def take(objects, kind, name, path, value):
    """Puts the value there. Returns what was there."""
    at, = (item for item in objects if item["kind"] == kind and SUFFIX.sub("", item["metadata"]["name"]).rstrip("-") == name)
    for key in path[:-1]:
        at = at[key]
    before, at[path[-1]] = at[path[-1]], value
    return before


def write_chart(folder, version):
    objects, values = list(yaml.safe_load_all(rendered_base())), {}
    for name, *where in VALUES:
        default = take(objects, *where, f"{{{{ .Values.{name} }}}}")
        *groups, key = name.split(".")
        of_group = values
        for group in groups:
            of_group = of_group.setdefault(group, {})
        assert of_group.setdefault(key, default) == default, f"{name} has two defaults: {of_group[key]} and {default}"
    text = "---\n".join(yaml.safe_dump(item, width=10**6) for item in objects)
    text = SUFFIX.sub("{{ toJson .Values.model | sha256sum | trunc 10 }}", text)
    for name in ("verifier.replicas", "serve.replicas", "drafter.minReplicas", "drafter.maxReplicas"):
        text = text.replace(f"'{{{{ .Values.{name} }}}}'", f"{{{{ .Values.{name} }}}}")  # a number has no quotes
    chart = {"apiVersion": "v2", "name": "outrider", "version": version, "appVersion": version, "kubeVersion": ">=1.25.0-0",
             "description": "Two-tier speculative decoding for Gemma 4. The Secrets of the keys must be there: launch/kubernetes/README.md"}
    folder = pathlib.Path(folder) / "outrider"
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    (folder / "Chart.yaml").write_text(yaml.safe_dump(chart))
    (folder / "values.yaml").write_text("# As in launch/kubernetes/base, of which chart.py made this. image: name and tag of yours.\n" + yaml.safe_dump(values))
    (folder / "values.schema.json").write_text(json.dumps(schema_of(values), indent=2) + "\n")
    (folder / "templates" / "outrider.yaml").write_text(text)


def schema_of(value):
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema_of(item) for key, item in value.items()} | {"global": {}}, "additionalProperties": False}
    return {"type": "integer"} if isinstance(value, int) else {"type": ["string", "number"]}


if __name__ == "__main__":
    write_chart(*sys.argv[1:])
