#!/usr/bin/env bash
# usage: kubernetes_test.sh VENV OUTRIDER
# Renders launch/kubernetes with kubectl and checks it with kubernetes-validate (PyPI) in VENV, which is made if need be, and
# with kubernetes_test.py. Exit 77: one of the two cannot be had.
set -uo pipefail
venv=$1 outrider=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/manifest_tools.sh"
need "the Kubernetes manifests were" "$venv" kubernetes-validate==1.37.0
status=0
# That of a plan.
plan=$(mktemp -d)
trap 'rm -rf "$plan"' EXIT
"$outrider" launch "$here/../goldens/launch/pods.json" --backend kubernetes --run-dir "$plan/run" >"$plan/typed" || exit 1
if grep -rqi private "$plan/run/kubernetes" || [[ $(grep -c ^kubectl "$plan/typed") != 7 ]]; then
  printf 'the overlay of a plan has a key in it, or other commands are printed than expected\n'
  exit 1
fi
# Its Secrets, without a cluster: applied again, they are the same.
secrets() { grep -E '^test|create secret' "$plan/typed" | sed 's/| kubectl apply -f -$//' | bash -eu; }
if ! secrets >"$plan/first" || ! secrets >"$plan/second" || ! cmp "$plan/first" "$plan/second"; then
  printf 'the Secrets of a plan are others when they are applied again\n'
  exit 1
fi
"$outrider" launch "$here/../goldens/launch/shard_pods.json" --backend kubernetes --run-dir "$plan/shard_pods" >/dev/null || exit 1
examples=$here/../../launch/kubernetes/examples
mkdir "$plan/pool"
{ printf 'resources: [kubernetes, pool.yaml]\n'; sed -n 's/^#   //p' "$examples/inference-pool.yaml"; } >"$plan/pool/kustomization.yaml"
cp "$examples/inference-pool.yaml" "$plan/pool/pool.yaml"
cp -r "$plan/run/kubernetes" "$plan/pool"
for overlay in "$here"/../../launch/kubernetes/overlays/{one-pool,tiers,missed-drafts} "$plan"/{run,shard_pods}/kubernetes; do
  rendered=$venv/$(basename "${overlay%/kubernetes}").yaml
  kubectl kustomize "$overlay" >"$rendered" || exit 1
  for version in 1.25 1.37; do  # the oldest and the newest that it knows
    "$venv/bin/kubernetes-validate" --strict --quiet -k "$version" "$rendered" || status=1
  done
  claims=()
  [[ $overlay != "$plan"* ]] || claims=(outrider-bundles)
  "$venv/bin/python" "$here/kubernetes_test.py" "$rendered" "$outrider" "${claims[@]}" || status=1
done
# Both overlays as a DisaggregatedSet.
for overlay in one-pool tiers; do
  "$venv/bin/python" "$here/../../launch/kubernetes/disaggregated_set.py" <"$venv/$overlay.yaml" >"$venv/set.yaml" || exit 1
  "$venv/bin/python" "$here/kubernetes_test.py" "$venv/set.yaml" "$outrider" || status=1
done
# The examples, each beside the cluster that it is for. No schema of theirs is here.
{ cat "$venv/tiers.yaml"; echo ---; cat "$examples/sharded-verifier.yaml"; } >"$venv/sharded.yaml"
kubectl kustomize "$plan/pool" >"$venv/pool.yaml" || status=1
{ cat "$venv/missed-drafts.yaml"; echo ---; cat "$examples/prometheus-adapter.yaml"; } >"$venv/adapter.yaml"
for example in sharded pool adapter; do
  "$venv/bin/python" "$here/kubernetes_test.py" "$venv/$example.yaml" "$outrider" outrider-bundles || status=1
done
# A batch that pods share: plain manifests, applied by themselves and without keys.
"$outrider" launch "$here/../goldens/launch/shards.json" --backend kubernetes --run-dir "$plan/shards" >"$plan/typed" || exit 1
if [[ -e $plan/shards/keys || $(grep -c kubectl "$plan/typed") != 5 ]]; then
  printf 'a batch that pods share has keys, or other commands are printed than expected\n'
  exit 1
fi
for version in 1.25 1.37; do
  "$venv/bin/kubernetes-validate" --strict --quiet -k "$version" "$plan"/shards/kubernetes/*.yaml || status=1
done
exit "$status"
