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

# The program and the commands of docs/c-api.md, as they stand there.
block() { awk -v kind="$1" '/^```/ { if (inside) exit; inside = $0 == "```" kind; next } inside' "$source/docs/c-api.md"; }
block c >"$scratch/my.c"
commands=$(block sh | sed "s|--install build|--install $build|; s|/opt/outrider/lib/|${pc%/pkgconfig/*}/|; s|/opt/outrider|$scratch/tree|; s|^cc |$cc $sanitize |")
[[ $commands == *./my ]] || { echo "docs/c-api.md: its commands do not end with ./my: $commands" >&2; exit 1; }
story=$(cd "$scratch" && PATH="${cmake%/*}:$PATH" bash -euo pipefail -c "$commands" | tail -n 1)
[[ $story == *'"object":"chat.completion"'* ]] || { echo "docs/c-api.md: its program printed: $story" >&2; exit 1; }

# find_package() finds the same library.
mkdir "$scratch/consumer"
cat >"$scratch/consumer/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
find_package(outrider 0.1 REQUIRED)
add_executable(my ../my.c)
target_link_libraries(my PRIVATE outrider::outrider)
END
"$cmake" -S "$scratch/consumer" -B "$scratch/consumer/build" -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="$sanitize" \
  -DCMAKE_PREFIX_PATH="$scratch/tree" >/dev/null
"$cmake" --build "$scratch/consumer/build" >/dev/null
"$scratch/consumer/build/my" >/dev/null

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
