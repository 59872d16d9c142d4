#!/usr/bin/env bash
# usage: under_qemu.sh CPU PROGRAM ARGUMENT...
# Runs a program of the preset aarch64 on an emulated CPU (qemu-aarch64-static -cpu help). Exits 77, which ctest counts
# as skipped, where ./setup --preset aarch64 has not run or the program is not built.
set -euo pipefail
cpu=$1 program=$2
sysroot=${OUTRIDER_CACHE:-${HOME:-/root}/.cache/outrider}/aarch64-sysroot
for needed in "$(command -v qemu-aarch64-static || echo qemu-aarch64-static)" "$sysroot" "$program"; do
  [[ -e $needed ]] || { echo "skipped: there is no $needed (./setup --preset aarch64)" >&2; exit 77; }
done
exec qemu-aarch64-static -cpu "$cpu" -L "$sysroot" "$program" "${@:3}"
