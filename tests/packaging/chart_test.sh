#!/usr/bin/env bash
# usage: chart_test.sh VENV
# chart_test.py with Helm's library from PyPI in VENV, which is made if need be. Exit 77: it or kubectl cannot be had.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/manifest_tools.sh"
need "the Helm chart was" "$1" helm-python-sdk==0.2.2 PyYAML==6.0.4
exec "$1/bin/python" "$here/chart_test.py"
