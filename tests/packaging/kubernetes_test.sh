#!/usr/bin/env bash
# usage: kubernetes_test.sh VENV OUTRIDER
# Renders launch/kubernetes with kubectl and checks it with kubernetes-validate (PyPI) in VENV, which is made if need be, and
# with kubernetes_test.py. Exit 77: one of the two cannot be had.
set -uo pipefail
venv=$1 outrider=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
skip() {
  printf 'SKIPPED: the Kubernetes manifests were NOT tested: %s\n' "$1"
  exit 77
}
kubectl version --client 2>/dev/null | grep -q 'Kustomize Version: v[5-9]' || skip "no kubectl with Kustomize 5"
if [[ ! -e $venv/ready ]]; then
  rm -rf "$venv"
  python3 -m venv "$venv" >"$venv.log" 2>&1 || skip "python3 -m venv: $(tail -n 1 "$venv.log")"
  timeout 240 "$venv/bin/pip" install --quiet kubernetes-validate==1.37.0 >"$venv.log" 2>&1 ||
    skip "pip install kubernetes-validate: $(tail -n 1 "$venv.log")"
  touch "$venv/ready"
fi
status=0
# That of a plan.
plan=$(mktemp -d)
trap 'rm -rf "$plan"' EXIT
"$outrider" launch "$here/../goldens/launch/pods.json" --backend kubernetes --run-dir "$plan/run" >"$plan/typed" || exit 1
if grep -rqi private "$plan/run/kubernetes" || [[ $(grep -c ^kubectl "$plan/typed") != 6 ]]; then
  printf 'the overlay of a plan has a key in it, or other commands are printed than expected\n'
  exit 1
fi
for overlay in "$here"/../../launch/kubernetes/overlays/{one-pool,tiers} "$plan/run/kubernetes"; do
  rendered=$venv/$(basename "$overlay").yaml
  kubectl kustomize "$overlay" >"$rendered" || exit 1
  for version in 1.25 1.37; do  # the oldest and the newest that it knows
    "$venv/bin/kubernetes-validate" --strict --quiet -k "$version" "$rendered" || status=1
  done
  claims=()
  [[ $overlay != "$plan"* ]] || claims=(outrider-bundles)
  "$venv/bin/python" "$here/kubernetes_test.py" "$rendered" "$outrider" "${claims[@]}" || status=1
done
exit "$status"
