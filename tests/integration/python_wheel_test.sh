#!/usr/bin/env bash
# usage: python_wheel_test.sh SCRATCH SOURCE
# `pip install .` into a new venv in SCRATCH, which then tells a story from another folder, with nothing of SOURCE.
# Exit 77: PyPI cannot be had.
set -uo pipefail
scratch=$1 source=$2
rm -rf "$scratch/venv"
mkdir -p "$scratch"
python3 -m venv "$scratch/venv" || { echo "SKIPPED: python3 -m venv"; exit 77; }
pip=$scratch/venv/bin/pip
"$pip" download --quiet --no-deps --dest "$scratch/probe" 'scikit-build-core>=0.11' || { echo "SKIPPED: no PyPI"; exit 77; }

set -e
# With the warnings of the build around it, so that ccache knows the objects.
"$pip" install --quiet "$source" -C cmake.define.OUTRIDER_WERROR="${OUTRIDER_WERROR:-OFF}"
cd "$scratch"
unset PYTHONPATH OUTRIDER_LIBRARY
where=$("$scratch/venv/bin/python" -c 'import outrider; print(outrider.nano(), outrider._library.beside("liboutrider.so", ""))')
[[ $where == "$scratch/venv/"*" $scratch/venv/"* ]] || { echo "the package takes its files from elsewhere: $where" >&2; exit 1; }
story=$("$scratch/venv/bin/python" -c 'import outrider; print(outrider.Pair().generate("Write a short story about a fox.", max_tokens=8).text)')
[[ -n $story ]] || { echo "no story" >&2; exit 1; }
[[ $("$pip" show --files outrider) == *outrider/py.typed* ]] || { echo "no py.typed in the wheel" >&2; exit 1; }
