
exec 9>&-  # everything drains
while [ -n "$(jobs -rp)" ]; do wait; done
rm -f "$hold"
if [ "$status" = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; exit 75; fi  # 75: again, please
[ "$stopping" = TERM ] || touch "$run/ended"
exit "$status"
