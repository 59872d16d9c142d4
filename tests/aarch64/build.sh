#!/usr/bin/env bash
# usage: build.sh SOURCE
# Cross-compiles what the tests of aarch64 run. Exits 77, which ctest counts as skipped, where ./setup --preset aarch64
# has not run.
set -euo pipefail
cd "$1"
for needed in "$(command -v aarch64-linux-gnu-g++ || echo aarch64-linux-gnu-g++)" \
  "${OUTRIDER_CACHE:-${HOME:-/root}/.cache/outrider}/aarch64-sysroot"; do
  [[ -e $needed ]] || { echo "skipped: there is no $needed (./setup --preset aarch64)" >&2; exit 77; }
done
cmake --preset aarch64
cmake --build --preset aarch64 --target kernels_test linear_test outrider
