#!/usr/bin/env bash
# usage: image_test.sh CMAKE_BUILD_DIR CPACK SCRATCH
# Builds packaging/Containerfile with buildah from the .deb of that build, and has the image tell a story as its own user, on
# a root that cannot be written. Its base image is not pulled: debootstrap makes one of the release that the Containerfile
# names. Needs root. Exit 77: something of that cannot be had.
set -euo pipefail
build=$1 cpack=$2 scratch=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
skip() { printf 'SKIPPED: the image was NOT built: %s\n' "$1"; exit 77; }
die() { printf 'image_test: %s\n' "$*" >&2; exit 1; }

[[ $(id -u) == 0 ]] || skip "it wants root"
for tool in buildah debootstrap dpkg-shlibdeps file unshare; do
  command -v "$tool" >/dev/null || skip "no $tool here (Debian: buildah, debootstrap, dpkg-dev, file, util-linux)"
done
from=$(sed -n 's/^FROM //p' "$here/../../packaging/Containerfile")
release=${from##*debian:}
release=${release%%[!0-9]*}
[[ $(. /etc/os-release && echo "$ID $VERSION_ID") == "debian $release" ]] ||
  skip "the .deb has to be of Debian $release, which this machine is not"
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")

mkdir -p "$scratch"
root=$scratch/base
if [[ ! -e $root.ready ]]; then
  rm -rf "$root"
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
    grep -oE 'https?://[^[:space:]]+/debian/?([[:space:]]|$)' | head -n 1 | tr -d '[:space:]') || true
  debootstrap --variant=minbase "$suite" "$root" ${mirror:+"$mirror"} >"$scratch/debootstrap.log" 2>&1 ||
    skip "debootstrap: $(tail -n 1 "$scratch/debootstrap.log")"
  cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/"  # this machine's way to a mirror
  touch "$root.ready"
fi
rm -rf "$scratch/packages" "$scratch/storage" "$scratch/run"
"$cpack" --config "$build/CPackConfig.cmake" -B "$scratch/packages" >"$scratch/cpack.log" 2>&1 ||
  { cat "$scratch/cpack.log"; exit 1; }

# With storage of its own, so that nothing of it stays.
image() { buildah --root "$scratch/storage" --runroot "$scratch/run" --storage-driver vfs "$@"; }
container=
leave() {
  [[ -z $container ]] || image umount "$container" >/dev/null 2>&1 || true
  rm -rf "$scratch/storage" "$scratch/run"
}
trap leave EXIT
bare=$(image from scratch)
image add --quiet "$bare" "$root" / >/dev/null
image commit --quiet "$bare" "$from" >/dev/null
image rm "$bare" >/dev/null
image bud --quiet --isolation chroot --pull-never --network host -t outrider:test -f "$here/../../packaging/Containerfile" \
  "$scratch/packages" >"$scratch/bud.log" 2>&1 || { tail -n 20 "$scratch/bud.log"; exit 1; }
[[ $(image inspect --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}}' outrider:test) == "10001:10001 [/usr/bin/outrider]" ]] ||
  die "the image has another user or program"

container=$(image from --pull-never outrider:test)
tree=$(image mount "$container")
story=$(unshare --mount sh -ec '
  mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"
  mount -t tmpfs tmpfs "$1/tmp"; mount -t proc proc "$1/proc"
  ! touch "$1/written" 2>/dev/null
  exec chroot --userspec=10001:10001 "$1" /usr/bin/env -i PATH=/usr/bin:/bin /usr/bin/outrider run --plain --max-tokens 8 "Write a short story about a fox."' \
  sh "$tree" 2>"$scratch/said") || die "$(cat "$scratch/said")"
[[ -n $story ]] || die "no story"
# The same image for hosts without a container daemon, such as a cluster's nodes.
image push --quiet outrider:test "oci-archive:$scratch/outrider.tar" >/dev/null
if command -v apptainer >/dev/null; then
  rm -rf "$scratch/outrider.sif"
  (cd "$scratch" && apptainer build --sandbox outrider.sif "$here/../../packaging/outrider.def") >"$scratch/apptainer.log" 2>&1 ||
    die "apptainer: $(tail -n 3 "$scratch/apptainer.log")"
  told=$(apptainer exec --no-privs --contain --cleanenv "$scratch/outrider.sif" outrider run --plain --max-tokens 8 "Write a short story about a fox." 2>"$scratch/said") ||
    die "apptainer: $(cat "$scratch/said")"
  [[ $told == "$story" ]] || die "under apptainer the story is: $told"
else
  echo "image_test: no apptainer here: the image was NOT tried under it"
fi
echo "image_test: $from with outrider: $(du -sm "$tree" | cut -f 1) MB, tells: $story"
