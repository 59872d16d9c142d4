
rm -f "$run"/*.address "$run/ended" "$run"/logs/*.facts.log  # of the run before a requeue
stopping=
# shellcheck disable=SC2317,SC2329  # traps call it
stop() { stopping=$1; [ -z "${command:-}" ] || kill -TERM "$command" 2>/dev/null; }
trap 'stop USR' USR1 USR2  # before the time limit, and from `outrider launch down`
trap 'stop TERM' TERM      # preempted or requeued: it will start again

step() {  # LOG [--het-group=N] NODE COMMAND...: a step of its own, beside others on its node
  local log=$run/logs/$1 group=()
  shift
  case $1 in --het-group=*) group=("$1"); shift ;; esac
  local node=$1
  shift
  srun "${group[@]}" --overlap --nodes=1 --ntasks=1 --nodelist="$node" --kill-on-bad-exit=0 --no-kill \
    --open-mode=append --output="${log//%/%%}" "$@" <"$hold" 9>&- &
}
await_address() {  # FILE: until the last step says in it where it listens
  while [ ! -s "$run/$1" ] && kill -0 "$!" && [ -z "$stopping" ]; do sleep 0.2; done
  address=$(paste -sd, "$run/$1")
}
run_command() {  # COMMAND...: to its end, also past signals
  "$@" <"${input:-/dev/null}" 9>&- &
  command=$!
  await "$command"
  command=
}
