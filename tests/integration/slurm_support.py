"""A real Slurm of four nodes on this machine, for tests: Debian's packages, only unpacked."""
import atexit
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from launch_support import HANG, free_ports

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libhwloc15"]
NODES = 4
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def skip(why):
    print(f"SKIPPED: launching with Slurm was NOT tested: {why}")
    sys.exit(77)


def unpacked(cache):
    """The root of the packages' files."""
    root = cache / "root"
    if not (cache / "ready").exists():
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        got = subprocess.run(["apt-get", "download", *PACKAGES], cwd=cache, capture_output=True, text=True, timeout=240)
        if got.returncode != 0:
            skip("apt-get download: " + (got.stderr.strip() or "failed").splitlines()[-1])
        for package in cache.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, root], check=True)
        (cache / "ready").touch()
    return root


class Slurm:
    """One controller and four nodes, as root, without munge, systemd or cgroups v2."""

    def __init__(self, root):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-slurm-"))
        (self.folder / "state").mkdir()
        host = socket.gethostname()
        control, *nodes = free_ports(NODES + 1)
        lines = {"ClusterName": "loop", "SlurmctldHost": f"{host}(127.0.0.1)", "SlurmctldPort": control, "SlurmUser": "root",
                 "SlurmdUser": "root", "AuthType": "auth/none", "CredType": "cred/none",
                 "PluginDir": root / LIBRARIES / "slurm-wlm", "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none",
                 "SwitchType": "switch/none", "MpiDefault": "none", "SchedulerType": "sched/backfill",
                 "SchedulerParameters": "bf_interval=1", "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_Core",
                 "ReturnToService": 2, "StateSaveLocation": self.folder / "state", "SlurmdSpoolDir": self.folder / "spool-%n",
                 "SlurmctldPidFile": self.folder / "slurmctld.pid", "SlurmdPidFile": self.folder / "slurmd-%n.pid",
                 "SlurmctldLogFile": self.folder / "slurmctld.log", "SlurmdLogFile": self.folder / "slurmd-%n.log",
                 "JobAcctGatherType": "jobacct_gather/none", "AccountingStorageType": "accounting_storage/none", "KillWait": 5,
                 "SlurmdParameters": "config_overrides"}
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        for i, port in enumerate(nodes, 1):
            text += f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000\n"
        text += f"PartitionName=main Nodes=n[1-{NODES}] Default=YES MaxTime=INFINITE State=UP\n"
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n")
        libraries = ":".join(str(root / path) for path in (LIBRARIES + "/slurm-wlm", LIBRARIES, "lib/x86_64-linux-gnu"))
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf"), "LD_LIBRARY_PATH": libraries,
                            "PATH": f"{root}/usr/bin:{root}/usr/sbin:{os.environ['PATH']}"}
        os.environ.update(self.environment)
        # The controller, then the nodes.
        self.commands = [["slurmctld-wlm", "-D", "-f", self.folder / "slurm.conf"]] + [
            ["slurmd-wlm", "-D", "-N", f"n{i}", "-d", root / "usr/sbin/slurmstepd-wlm"] for i in range(1, NODES + 1)]
        self.daemons = [self.start(words) for words in self.commands]
        atexit.register(self.stop)

    @staticmethod
    def start(words):
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def restart_node(self, i, seconds):
        """Kills slurmd of the i-th node, which is away for that long; its steps go on."""
        self.daemons[i].kill()
        self.daemons[i].wait()
        time.sleep(seconds)
        self.daemons[i] = self.start(self.commands[i])

    def up(self):
        nodes = subprocess.run(["sinfo", "-h", "-o", "%D %t"], capture_output=True, text=True, timeout=HANG).stdout
        return nodes.strip() == f"{NODES} idle"

    def stop(self):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait()

    def jobs(self):
        return subprocess.run(["squeue", "-h", "-o", "%i %t"], capture_output=True, text=True, timeout=HANG).stdout.split("\n")[:-1]
