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
for overlay in "$here"/../../launch/kubernetes/overlays/{one-pool,tiers,missed-drafts} "$plan/run/kubernetes"; do
  rendered=$venv/$(basename "$overlay").yaml
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
# The example of a verifier on two hosts, beside the cluster that it joins.
{ cat "$venv/tiers.yaml"; echo ---; cat "$here/../../launch/kubernetes/examples/sharded-verifier.yaml"; } >"$venv/sharded.yaml"
"$venv/bin/python" "$here/kubernetes_test.py" "$venv/sharded.yaml" "$outrider" || status=1
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
