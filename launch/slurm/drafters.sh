
stopping=
trap 'stopping=1; [ -z "${drafter:-}" ] || kill -TERM "$drafter" 2>/dev/null' TERM USR1 USR2
status=75
while [ -z "$stopping" ] && [ ! -e "$run/ended" ] && [ "$status" = 75 ]; do  # 75: no coordinator for a minute
  if [ ! -s "$run/coordinator.address" ]; then sleep 1; continue; fi
  DRAFTER --join "$(paste -sd, "$run/coordinator.address")" <"$hold" 9>&- &
  drafter=$!
  await "$drafter"
  drafter=
done
rm -f "$hold"
if [ -e "$run/ended" ] || [ -n "$stopping" ]; then exit 0; fi
exit "$status"
