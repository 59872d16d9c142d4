#!/bin/sh
# Several clients of a whole draft model, emulated (docs/atlas.md): nano's and pico's real drafts and text, with the
# times of 31B and E2B in int4 added by the number of rows, as results/second-machine/device.txt has them.
#   several_clients.sh OUTRIDER OUT CLIENTS
set -eu
outrider=$1 out=$2 clients=$3
mkdir -p "$out"
run() { # NAME, options of bench pair
  name=$1
  shift
  chrt -f 10 "$outrider" bench pair --repeat 1 --threads 1 --max-tokens 40 --clients "$clients" \
    --out "$out/$name-$clients.json" --added-verify-us 109000,113500,118000,130000,139500,180500,346000 "$@"
}
run assistant --added-draft-us 10500,11500,13000,16000 --draft-lengths 2@0,4@0
run whole --added-draft-us 9500,10700,11700,14300 --draft-lengths 4@0,8@0 --draft-model models/pico/backbone
run cascade --added-draft-us 14200,16900,19400,25300 --draft-lengths 4@0,8@0 --draft-model models/pico
for ms in 5 20 50; do
  run "remote$ms" --added-draft-us 33000,35700,43300,60700 --draft-lengths 4@0,8@0,8@8 --rtt "$ms" --draft-model models/pico
done
