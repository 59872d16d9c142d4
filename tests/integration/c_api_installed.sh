#!/usr/bin/env bash
# usage: c_api_installed.sh CMAKE BUILD_DIR SOURCE_DIR CC -fsanitize=LIST
# Installs the C interface into a new folder, moves that folder, and builds the example against it.
set -euo pipefail
cmake=$1 build=$2 source=$3 cc=$4 sanitize=$5
[[ $sanitize != -fsanitize= ]] || sanitize=
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$cmake" --install "$build" --component c_api --prefix "$scratch/first" >/dev/null
mv "$scratch/first" "$scratch/tree"  # outrider.pc must not know where it was
pc=$(find "$scratch/tree" -name outrider.pc)
export PKG_CONFIG_PATH=${pc%/*}
cp "$source/tests/integration/c_api_example.c" "$scratch/example.c"
# shellcheck disable=SC2046,SC2086
"$cc" -std=c11 -Wall -Wextra -pedantic -Werror $sanitize "$scratch/example.c" \
  $(pkg-config --cflags --libs outrider) -o "$scratch/example"
library=$(pkg-config --variable=libdir outrider)
LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$scratch/example" local "$source/models/nano/backbone" "$source/models/nano/assistant"

# Nothing but the interface is exported.
others=$(nm -D --defined-only "$library/liboutrider.so" | awk '{print $3}' | grep -vE '^(outrider|pair)_[a-z_]+(@@OUTRIDER_1)?$|^OUTRIDER_1' || true)
if [[ -n $others ]]; then
  echo "liboutrider.so exports more than outrider.h: $others" >&2
  exit 1
fi
declared=$(grep -oE '\b(outrider|pair)_[a-z_]+\(' "$source/embed/outrider.h" | tr -d '(' | sort -u)
exported=$(nm -D --defined-only "$library/liboutrider.so" | awk '$2 == "T" {print $3}' | sed 's/@.*//' | sort -u)
if [[ $declared != "$exported" ]]; then
  diff <(echo "$declared") <(echo "$exported") >&2
  exit 1
fi
