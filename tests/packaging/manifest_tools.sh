# Sourced. kubectl, and what a test of manifests needs from PyPI.
# usage: need WHAT VENV PACKAGE...     VENV is made if need be. Exit 77, saying that WHAT was not tested: one cannot be had.
need() {
  local what=$1 venv=$2
  shift 2
  skip() {
    printf 'SKIPPED: %s NOT tested: %s\n' "$what" "$1"
    exit 77
  }
  kubectl version --client 2>/dev/null | grep -q 'Kustomize Version: v[5-9]' || skip "no kubectl with Kustomize 5"
  [[ ! -e $venv/ready ]] || return 0
  rm -rf "$venv"
  python3 -m venv "$venv" >"$venv.log" 2>&1 || skip "python3 -m venv: $(tail -n 1 "$venv.log")"
  timeout 240 "$venv/bin/pip" install --quiet "$@" >"$venv.log" 2>&1 || skip "pip install $1: $(tail -n 1 "$venv.log")"
  touch "$venv/ready"
}
