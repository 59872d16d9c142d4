#!/usr/bin/env bash
# usage: fresh_root.sh SUITE DIR [--set-up-only]
# Times the README's two commands as a stranger has them: makes a bare SUITE in DIR (bookworm, trixie; noble, which is
# Ubuntu 24.04), clones this repository's last commit into it and runs the commands there. Needs root, debootstrap and a
# mirror. Wall-clock time counts on an idle machine only, user and system time nearly always. Not a test of ctest's.
set -euo pipefail
suite=$1 root=$2 what=${3:-}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
options=(--variant=minbase "$suite" "$root")
if [[ $suite == noble ]]; then
  # A debootstrap of Debian may have no script for this suite; those of all Ubuntus are the same. "": their own mirror.
  options=(--components=main,universe "${options[@]}" "" /usr/share/debootstrap/scripts/gutsy)
else
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
    grep -oE 'https?://[^[:space:]]+/debian/?([[:space:]]|$)' | head -n 1 | tr -d '[:space:]') || true
  options+=(${mirror:+"$mirror"})
fi

[[ -e $root/etc/debian_version ]] || debootstrap "${options[@]}" >/dev/null
cp /etc/resolv.conf "$root/etc/"
cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/"
# What this machine has to be told to trust its way to PyPI.
mkdir -p "$root/usr/local/share/ca-certificates"
cp /usr/local/share/ca-certificates/* "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
cp /etc/pip.conf "$root/etc/" 2>/dev/null || true
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mountpoint -q "$root/dev/pts" || mount -t devpts devpts "$root/dev/pts"  # chat is tested at a terminal
trap 'umount "$root/dev/pts" "$root/proc"' EXIT
rm -rf "$root/outrider"
git clone --quiet "file://$repository" "$root/outrider"

# The n-th ```sh block of README.md, timed.
run_block() {
  local block
  block=$(awk -v wanted="$1" '/^```/ { if (inside) { inside = 0; next } }
    /^```sh[ \t]*$/ { inside = 1; seen++; next }
    inside && seen == wanted' "$repository/README.md")
  echo "fresh_root: $suite: $block"
  time chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -euo pipefail -c "cd /outrider; $block"
}
run_block 1
[[ $what == --set-up-only ]] || run_block 2
