#!/usr/bin/env bash
# usage: python_wheel_test.sh SCRATCH SOURCE
# Builds the wheel, installs it into a new venv in SCRATCH, and has both the command and the package tell a story from
# another folder, with nothing of SOURCE.
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
rm -rf "$scratch/dist"
"$pip" wheel --quiet --no-deps --wheel-dir "$scratch/dist" "$source" -C cmake.define.OUTRIDER_WERROR="${OUTRIDER_WERROR:-OFF}"
wheel=$(echo "$scratch"/dist/outrider-*.whl)
echo "python_wheel_test: ${wheel##*/}, $(stat -c %s "$wheel") bytes"
"$pip" install --quiet "$wheel"
cd "$scratch"
unset PYTHONPATH OUTRIDER_LIBRARY
die() { echo "python_wheel_test: $*" >&2; exit 1; }
where=$("$scratch/venv/bin/python" -c 'import outrider; print(outrider.nano(), outrider._library.beside("liboutrider.so", ""))')
[[ $where == "$scratch/venv/"*" $scratch/venv/"* ]] || die "the package takes its files from elsewhere: $where"
question="Write a short story about a fox."
by_package=$("$scratch/venv/bin/python" -c "import outrider; print(outrider.Pair().generate('$question', max_tokens=8).text)")
by_command=$("$scratch/venv/bin/outrider" run --plain --max-tokens 8 "$question" 2>"$scratch/said") || die "$(cat "$scratch/said")"
[[ -n $by_command && $by_command == "$by_package" ]] || die "the command tells '$by_command', the package '$by_package'"
[[ $("$scratch/venv/bin/outrider" --version) == "$("$pip" show outrider | sed -n 's/^Version: //p')"* ]] ||
  die "the program is of another version than the wheel"
[[ $("$pip" show --files outrider) == *outrider/py.typed* ]] || die "no py.typed in the wheel"
# It was the pair of the wheel that told it.
mv "$scratch"/venv/lib/python*/site-packages/outrider/models/nano/backbone/tokenizer.json "$scratch/taken"
! "$scratch/venv/bin/outrider" run --max-tokens 8 "$question" >"$scratch/said" 2>&1 || die "the command takes the pair from elsewhere"
