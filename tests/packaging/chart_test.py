#!/usr/bin/env python3
"""usage: chart_test.py     in a venv with helm-python-sdk (Helm's own library) and PyYAML

The chart that launch/kubernetes/chart.py makes, rendered by Helm, is the base that Kustomize renders.
"""
import pathlib
import sys
import tempfile

import yaml
from helm_python import Chart, lint

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "launch" / "kubernetes"))
import chart  # noqa: E402


def objects_of(text):
    """By kind and name, without the ConfigMap's suffix."""
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(chart.SUFFIX.sub("X", text)) if item}


def rendered(folder, values=None):
    return "\n---\n".join(Chart.load(folder).render(values=values or {}).values())


with tempfile.TemporaryDirectory() as folder:
    chart.write_chart(folder, "1.2.3")
    made = pathlib.Path(folder) / "outrider"
    plain, base = rendered(made), objects_of(chart.rendered_base())
    assert objects_of(plain) == base, [key for key in base if base[key] != objects_of(plain).get(key)]
    changed = rendered(made, {"image": "registry.example/outrider:test", "model": {"verifier": "/packs/pair"}, "verifier": {"replicas": 3, "cpu": 16}})
    of_verifier = objects_of(changed)["StatefulSet", "outrider-verifier"]["spec"]
    container = of_verifier["template"]["spec"]["containers"][0]
    assert (of_verifier["replicas"], container["image"]) == (3, "registry.example/outrider:test"), container
    assert container["resources"]["requests"]["cpu"] == container["resources"]["limits"]["cpu"] == "16", container
    assert chart.SUFFIX.search(changed)[0] != chart.SUFFIX.search(plain)[0], "pods would not start again with the other model"
    assert len(set(chart.SUFFIX.findall(changed))) == 1, "the ConfigMap's name is not the one that pods read"
    try:
        rendered(made, {"verifier": {"replica": 3}})
    except Exception as refused:
        assert "replica" in str(refused), refused
    else:
        raise AssertionError("a value that the chart does not have was taken")
    print(lint(made))
