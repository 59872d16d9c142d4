#!/usr/bin/env bash
# usage: completion_test.sh SHELL PROGRAM
# What a shell offers after `outrider completion SHELL`. The scripts run in the shell itself, but for the drawing of
# zsh's menus. Exit 77 (skipped) where the shell is not installed.
set -euo pipefail
shell=$1 program=$2
command -v "$shell" >/dev/null || { echo "no $shell here"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/empty"
cd "$scratch/empty"  # no file is to be offered
"$program" completion "$shell" >../script

# One offer a line, for the words of a line, of which the last one is being written.
offers() {
  case $shell in
    bash) bash -c 'source ../script
      COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
      _outrider
      printf "%s\n" "${COMPREPLY[@]}"' bash "$@" ;;
    zsh) zsh -f -c 'compdef() { }; _files() { }
      _describe() {
        local entry
        for entry in "${(@P)argv[-1]}"; do [[ $entry != ${words[CURRENT]}* ]] || print -r -- "${entry%%:*}"; done
      }
      source ../script
      words=("$@") CURRENT=$#
      _outrider' zsh "$@" ;;
    fish) fish --no-config -c 'source ../script; complete -C "$argv"' "$@" | cut -f 1 ;;
  esac
}

failed=0
# expect OFFERS WORD...: the offers, sorted, with spaces between.
expect() {
  local wanted=$1 seen
  shift
  seen=$(offers "$@" | sort | paste -sd ' ' || true)
  if [[ $seen != "$wanted" ]]; then
    echo "$shell: '$*' offers '$seen', wanted '$wanted'" >&2
    failed=1
  fi
}

expect 'bench' outrider be
expect 'ask engine pair speculative towers' outrider bench ''
expect '--draft-length' outrider run --draft-l
expect '--top-k --top-p' outrider run 'a prompt' --top
expect '' outrider inspect --top
expect '' outrider run --model ''
expect '--rtt' outrider bench pair --rt
expect 'zsh' outrider completion z

# Every long option that --help has, and no other.
for command in run chat serve batch coordinator verifier drafter pack inspect; do
  # shellcheck disable=SC2046
  expect "$("$program" "$command" --help | grep -E '^ +-' | grep -oE '(^ +|,)(-h,)?--[a-z-]+' | grep -oE -e '--[a-z-]+' |
    sort | paste -sd ' ')" outrider "$command" --
done
exit "$failed"
