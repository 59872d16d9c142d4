#!/usr/bin/env bash
# usage: pypi_test.sh VENV OUTRIDER [TEST]
# Runs TEST (openai_client_test.py) with the official client in VENV, which is made if need be. Exit 77: there is no client.
set -uo pipefail
venv=$1 outrider=$2 test=${3:-openai_client_test.py}
skip() {
  printf 'SKIPPED: the official OpenAI client was NOT tested: %s\n' "$1"
  exit 77
}
if [[ ! -e $venv/ready ]]; then
  rm -rf "$venv"
  python3 -m venv "$venv" >"$venv.log" 2>&1 || skip "python3 -m venv: $(tail -n 1 "$venv.log")"
  timeout 240 "$venv/bin/pip" install --quiet 'openai>=1.40' >"$venv.log" 2>&1 || skip "pip install openai: $(tail -n 1 "$venv.log")"
  touch "$venv/ready"
fi
exec "$venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/$test" "$outrider"
