#!/usr/bin/env bash
# usage: installed_test.sh CMAKE BUILD_DIR [CPACK]
# Installs into a new folder, moves that folder, tells a story from there, and uninstalls; with CPACK the folder is what a
# .deb of that build holds. Exit 77 (skipped) without dpkg-shlibdeps and file, which find a .deb's dependencies.
set -euo pipefail
cmake=$1 build=$2 cpack=${3:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
die() { printf 'installed_test: %s\n' "$*" >&2; exit 1; }

if [[ -n $cpack ]]; then
  for tool in dpkg-shlibdeps file; do
    command -v "$tool" >/dev/null || { echo "no $tool here (Debian: dpkg-dev, file)"; exit 77; }
  done
  "$cpack" --config "$build/CPackConfig.cmake" -B "$scratch/pack" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
  deb=$(find "$scratch/pack" -maxdepth 1 -name '*.deb')
  depends=$(dpkg-deb --field "$deb" Depends)
  for library in libc6 libzmq5 libdnnl libgomp1; do
    [[ $depends == *"$library"* ]] || die "the .deb does not depend on $library: $depends"
  done
  dpkg-deb --extract "$deb" "$scratch/tree"
  tree=$scratch/tree/usr
  [[ ! -e $tree/share/outrider/uninstall.cmake ]] || die "the .deb has what would remove its files behind dpkg's back"
else
  "$cmake" --install "$build" --prefix "$scratch/first" >/dev/null
  mv "$scratch/first" "$scratch/tree"  # nothing may know where it was
  tree=$scratch/tree
fi

for file in bin/outrider include/outrider.h share/man/man1/outrider.1 share/bash-completion/completions/outrider \
  share/zsh/site-functions/_outrider share/fish/vendor_completions.d/outrider.fish share/doc/outrider/LICENSE \
  share/outrider/models/nano/backbone/{config.json,vision.safetensors} lib/systemd/system/outrider-{coordinator,verifier,shard,drafter,encoder,serve}.service; do
  [[ -e $tree/$file ]] || die "$file is not installed"
done

cd "$scratch"
story=$("$tree/bin/outrider" run --max-tokens 8 "Write a short story about a fox." 2>/dev/null)
[[ -n $story ]] || die "no story"
# It starts without /proc too, which a bare chroot has not. Only where this user may make a mount namespace.
if unshare --mount --map-root-user mount -t tmpfs none /proc 2>/dev/null; then
  unshare --mount --map-root-user sh -c 'mount -t tmpfs none /proc && exec "$@"' \
    sh "$tree/bin/outrider" run --help >/dev/null || die "it does not start without /proc"
fi
# It was the installed pair that told it: without its tokenizer there is none.
rm "$tree/share/outrider/models/nano/backbone/tokenizer.json"
if "$tree/bin/outrider" run --max-tokens 8 "Write a short story about a fox." >"$scratch/log" 2>&1; then
  die "the installed program takes the pair from elsewhere"
fi

if command -v groff >/dev/null; then
  warnings=$(groff -man -Tutf8 -ww "$tree/share/man/man1/outrider.1" 2>&1 >/dev/null)
  [[ -z $warnings ]] || die "the manual page: $warnings"
fi
if command -v systemd-analyze >/dev/null; then
  mkdir units
  for unit in "$tree"/lib/systemd/system/*.service; do
    # systemd looks in /usr/local/bin and /usr/bin only.
    sed "s|^ExecStart=outrider|ExecStart=$tree/bin/outrider|" "$unit" >"units/${unit##*/}"
    complaints=$(systemd-analyze verify --man=no "units/${unit##*/}" 2>&1 | grep -F "${unit##*/}" || true)
    [[ -z $complaints ]] || die "$complaints"
  done
else
  echo "no systemd-analyze here: the units were not verified"
fi

# What was installed is removed, wherever it is now and whatever was packaged or installed elsewhere since; nothing else.
if [[ -z $cpack ]]; then
  touch "$tree/bin/another" "$tree/share/doc/outrider/notes"
  DESTDIR=$scratch/staged "$cmake" --install "$build" --prefix /usr >/dev/null
  "$cmake" --install "$build" --prefix "$scratch/elsewhere" >/dev/null
  "$cmake" -P "$tree/share/outrider/uninstall.cmake"
  left=$(cd "$tree" && find . ! -type d | sort | tr '\n' ' ')
  [[ $left == "./bin/another ./share/doc/outrider/notes " ]] || die "after uninstalling there is $left"
  [[ ! -e $tree/share/outrider && -e $scratch/elsewhere/bin/outrider && -e $scratch/staged/usr/bin/outrider ]] ||
    die "uninstalling removed too little or too much"
fi
