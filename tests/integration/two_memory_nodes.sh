#!/usr/bin/env bash
# usage: two_memory_nodes.sh OUTRIDER DIR [MODEL]
# Starts `outrider verifier --shards auto` on an emulated machine with two memory nodes and asks its kernel where each
# shard's memory and threads are. Page cache has filled node 0 by then, so that memory which merely lies where it is
# touched first goes to node 1. Fails if a shard has memory or a computing thread off its node, if the answer has other
# bytes than one process gives, or if a verifier that may use the cores of one node alone starts a second shard.
# By hand, not by ctest, on an x86-64 Debian with `apt install qemu-system-x86 busybox-static numactl`: some five
# minutes, since qemu translates every instruction (TCG). The machine's times mean nothing. MODEL is models/nano by
# default. DIR gets Debian's kernel, which apt fetches, the machine's disk, and what it prints (console).
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$(realpath "$1") model=$(realpath "${3:-$repository/models/nano}")
mkdir -p "$2"
cd "$2"

# This kernel has the drivers of the disk (NVMe, ext4) and of the console built in, so that it needs no initramfs.
if ! compgen -G "kernel/boot/vmlinuz-*" >/dev/null; then
  apt-get download "$(apt-cache depends linux-image-cloud-amd64 | awk '$2 ~ /^linux-image/ { print $2 }')"
  dpkg-deb -x linux-image-*.deb kernel
fi
for needed in NUMA ACPI_NUMA BLK_DEV_NVME EXT4_FS SERIAL_8250_CONSOLE PROC_CHILDREN; do
  grep -q "^CONFIG_$needed=y" kernel/boot/config-* || { echo "two_memory_nodes: the kernel has no $needed"; exit 1; }
done

rm -rf root disk console
mkdir -p root/{bin,dev,proc,sys,tmp}
cp /bin/busybox "$(command -v numactl)" root/bin/
cp "$program" root/bin/outrider
cp -rL "$model" root/model
for file in root/bin/{numactl,outrider}; do
  ldd "$file" | grep -oE '/[^ ]+' | xargs -I {} cp -L --parents {} root/
done
cat >root/init <<'GUEST'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
ip link set lo up
export HOME=/tmp
faults=0
fault() { echo "FAULT: $*"; faults=$((faults + 1)); }
ask() { outrider run "Write a short story about a fox." --quiet --max-tokens 16 --draft-length 0 --model /model "$@"; }

# start COMMAND...: a verifier, with its number in $verifier and those of all its processes in $processes.
start() {
  rm -f /tmp/ready
  OUTRIDER_LOG=info "$@" verifier --join tcp://127.0.0.1:7070 --model /model --shards auto --ready-file /tmp/ready \
    2>/tmp/log &
  verifier=$! seconds=0
  until [ -e /tmp/ready ] || [ $((seconds += 1)) = 300 ]; do sleep 1; done
  grep event= /tmp/log
  [ -e /tmp/ready ] || fault "the verifier does not begin: $(tail -n 1 /tmp/log)"
  processes="$verifier $(cat "/proc/$verifier/task/$verifier/children")"
}

# pages KIND PID: those on node 0 and on node 1, of the model's files or without a file.
pages() {
  awk -v kind="$1" '(/ file=\/model/ ? "model" : / file=/ ? "other" : "anonymous") == kind {
      for (i = 3; i <= NF; ++i) if ($i ~ /^N[01]=/) sum[substr($i, 2, 1)] += substr($i, 4)
    } END { print sum[0] + 0, sum[1] + 0 }' "/proc/$2/numa_maps"
}

# examine NODE PID: a process that belongs to the node.
examine() {
  node=$1 pid=$2 cores=$(cat "/sys/devices/system/node/node$1/cpulist")
  anonymous=$(pages anonymous "$pid")
  echo "shard of node $node: process $pid, pages on node 0 and 1: anonymous $anonymous," \
    "of the model's files $(pages model "$pid")"
  # A thread that is never bound has a few pages of its own.
  echo "$anonymous" | awk -v node="$node" '{ exit !($(1 + node) > 1000 && $(2 - node) < 32) }' ||
    fault "process $pid has memory on the other node"
  for thread in "/proc/$pid/task"/*; do
    own=$(awk '/^Cpus_allowed_list/ { print $2 }' "$thread/status")
    policy=$(awk '{ print $2; exit }' "$thread/numa_maps")
    ticks=$(sed 's/.*) //' "$thread/stat" | awk '{ print $12 + $13 }')
    echo "  thread ${thread##*/} ($(cat "$thread/comm")): cores $own, memory $policy, $ticks ticks of CPU time"
    # A thread that waits for signals is older than the binding, and never runs.
    [ "$own $policy" = "$cores bind:$node" ] || [ "$ticks" -lt 5 ] || fault "thread ${thread##*/} is not bound"
  done
}

numactl --hardware
ask >/tmp/alone
outrider coordinator --listen tcp://127.0.0.1:7070 >/dev/null 2>&1 &
numactl --membind=0 cat /dev/nvme0n1 >/dev/null
numactl --hardware | grep free
start numactl --preferred=1 outrider  # so what it touches before it is bound lies on node 1
ask --connect tcp://127.0.0.1:7070 >/tmp/sharded
cat /tmp/alone /tmp/sharded
cmp /tmp/alone /tmp/sharded || fault "the answers differ"
[ -s /tmp/alone ] || fault "no answer"
[ "$(echo "$processes" | wc -w)" = 2 ] || fault "not two shards: $processes"
node=0
for pid in $processes; do
  examine "$node" "$pid"
  node=$((node + 1))
done
kill "$verifier"
wait "$verifier"
start taskset c outrider  # the cores 2 and 3
[ "$processes" = "$verifier " ] || fault "more than one shard on the cores of one node: $processes"
[ $faults = 0 ] && echo "two_memory_nodes: passed"
poweroff -f
GUEST
chmod +x root/init
mkfs.ext4 -q -d root disk 1500M

nodes=()
for node in 0 1; do
  nodes+=(-object "memory-backend-ram,id=m$node,size=1G")
  nodes+=(-numa "node,nodeid=$node,cpus=$((2 * node))-$((2 * node + 1)),memdev=m$node")
done
timeout 1800 qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 4 -m 2G "${nodes[@]}" \
  -kernel kernel/boot/vmlinuz-* -append "console=ttyS0 quiet panic=-1 root=/dev/nvme0n1 rw init=/init" \
  -drive if=none,id=disk,file=disk,format=raw -device nvme,drive=disk,serial=1 \
  -nodefaults -no-reboot -display none -serial stdio </dev/null | tr -d '\r' | tee console
grep -q "^two_memory_nodes: passed" console
