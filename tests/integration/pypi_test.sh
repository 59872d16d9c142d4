#!/usr/bin/env bash
# usage: pypi_test.sh VENV TEST OUTRIDER PACKAGE...
# Runs TEST, a Python program of this folder, with packages from PyPI in VENV, which is made if need be. Exit 77: they
# cannot be had.
# OUTRIDER_UV=1: installed by uv, wheels only and compiled as they are imported; for what pip would take minutes for.
# OUTRIDER_FREE_GB: what of the disk must be free before.
set -uo pipefail
venv=$1 test=$2 outrider=$3
shift 3
skip() {
  printf 'SKIPPED: %s was NOT run with %s: %s\n' "$test" "$packages" "$1"
  exit 77
}
packages=$*
if [[ ! -e $venv/ready || $(<"$venv/ready") != "$packages" ]]; then
  rm -rf "$venv"
  free=$(($(df --output=avail -k "$(dirname "$venv")" | tail -n 1) >> 20))
  ((free >= ${OUTRIDER_FREE_GB:-0})) || skip "$free GB of the disk are free, wanted $OUTRIDER_FREE_GB"
  python3 -m venv "$venv" >"$venv.log" 2>&1 || skip "python3 -m venv: $(tail -n 1 "$venv.log")"
  install=("$venv/bin/pip" install --quiet)
  if [[ ${OUTRIDER_UV:-} ]]; then
    "${install[@]}" uv >"$venv.log" 2>&1 || skip "pip install: $(tail -n 1 "$venv.log")"
    install=("$venv/bin/uv" pip install --quiet --no-cache --only-binary :all: --python "$venv/bin/python")
  fi
  if ! timeout 240 "${install[@]}" "$@" >"$venv.log" 2>&1; then
    rm -rf "$venv"
    skip "pip install: $(tail -n 1 "$venv.log")"
  fi
  printf %s "$packages" >"$venv/ready"
fi
exec "$venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/$test" "$outrider"
