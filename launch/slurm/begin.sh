# What this script starts has this pipe as its standard input: when the script ends, however it does, that drains.
hold=$run/hold.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
rm -f "$hold"
mkfifo "$hold"
exec 9<>"$hold"

await() {  # PID: its status, also past signals, which end a wait
  wait "$1"; status=$?
  while [ "$status" -gt 128 ] && kill -0 "$1" 2>/dev/null; do wait "$1"; status=$?; done
  if [ "$status" -gt 128 ]; then wait "$1"; status=$?; fi
}
