#!/bin/sh
# Rounds of 31B in int4 with random weights and two drafters, its assistant and E2B in int4 on 4 cores (docs/atlas.md).
# A coin accepts drafts at published rates. Writes JSON files to OUT.
#   second_machine.sh BUILD OUT [FOLDER for the weights: 25 GB] [options of make_checkpoint, for a small trial]
set -eu
build=$1 out=$2 folder=${3:-/dev/shm}
shift 2
[ $# = 0 ] || shift
# E2B for 31B: 52 % of eight drafts accepted on average. 31B's assistant: as published for 26B-A4B.
whole=0.853,0.728,0.621,0.529,0.452,0.385,0.329,0.28
assistant=0.844,0.599,0.385,0.271
all=$(nproc)
theirs=$(((all + 3) / 4))
mkdir -p "$out"
cell() { # NAME, options of bench pair
  name=$1
  shift
  "$build/outrider" bench pair --model "$folder/31b" --prompt "Write a story about a fox." \
    --max-tokens "${TOKENS:-32}" --repeat 2 --out "$out/$name.json" "$@" || echo "$name failed"
}
for shape in 31b e2b; do
  [ -e "$folder/$shape" ] || "$build/lab/benchmarks/make_checkpoint" "$shape" "$folder/$shape" --dtype int4 "$@"
done
for clients in 1 4; do
  cell "assistant-$clients" --clients "$clients" --threads $((all - 2)) --drafter-threads 2 \
    --draft-lengths 4@0 --processes --synthetic-acceptance $assistant
  cell "whole-$clients" --clients "$clients" --threads $((all - theirs)) --drafter-threads "$theirs" \
    --draft-lengths 4@0,8@0 --rtt 0,5 --synthetic-acceptance $whole --draft-model "$folder/e2b/target"
done
# The times of passes by number of rows, which the emulation adds to nano's and pico's.
engine() { # SHAPE, threads
  "$build/outrider" bench engine --shape "$1" --dtype int4 --threads "$2" \
    --rows 1,2,4,8,16,32,64 --prefill 128 --repeat 2 ${LAYERS:+--layers $LAYERS} \
    --out "$out/engine-$1-$2.json" || echo "engine $1 failed"
}
engine 31b "$all"
engine 31b $((all - theirs))
engine e2b "$all"
engine e2b "$theirs"
