"""Clusters that soak_test.py asks and disturbs: processes of this machine, pods of a Kubernetes, steps and jobs of a Slurm.

Each has two verifiers and, but while a fault lasts, two drafters. `faults` is a deck of names and functions: a fault comes
as often as it is in the deck, and returns when nothing more is done to the cluster. `cuts` counts how often front ends
were killed by force, one half while one is being: a client whose connection breaks meanwhile has met the end of its own.
"""
import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from cluster_support import HANG, ROLES, SERVE, Cluster, if_complete, if_whole, resident_mib, status_of
from kubernetes_support import (PATIENCE, README, ROOT, delete_namespace, get, kubectl, nodes_for_any, ready, ready_pods,
                                wait_for_all)
from launch_support import Run, eventually, free_ports
from slurm_support import Slurm, unpacked

SILENT_S = 10  # how long a node or a process is cut off: more than the 3 s after which a peer is given up
API_KEY = "SECRET"  # as in launch/kubernetes/README.md


class Fleet:
    host, port, key = "127.0.0.1", None, None
    sample_s = 5  # seconds between two looks at the memory
    cuts = 0

    def status(self):
        return status_of(self.port, self.host, self.key)

    def complete(self):
        return if_complete(self.status())

    def whole(self):
        return if_whole(self.status())

    def handles(self):
        return []

    def surprises(self):
        """What has ended though no fault ended it."""
        return []

    def may_excuse(self, answer, cuts_before):
        """A client may have failed thus: its own server died."""
        return answer.broken and (self.cuts != cuts_before or cuts_before != int(cuts_before))


class Processes(Fleet):
    """Six processes of this machine, started again at once."""
    sample_s = 0.5

    def __init__(self, options, folder):
        model = ["--model", options.model] if options.model else []
        dtype = ["--dtype", options.dtype] if options.dtype else []
        self.cluster = Cluster(options.outrider, folder, {"verifier": [*model, *dtype, "--memory", "16"], "drafter": [*model, *dtype], "serve": model})
        self.port, self.stop, self.logs, self.handles = self.cluster.ports["serve"], self.cluster.stop, self.cluster.logs, self.cluster.handles
        self.batch_options = ["--connect", f"tcp://127.0.0.1:{self.cluster.ports['coordinator']}", "--failover-wait", str(HANG), *model]
        # Workers mostly, the others now and then.
        self.faults = [(f"{role} killed", lambda i=i: self.cluster.kill(i)) for i, role in enumerate(ROLES)
                       for _ in range({"verifier": 4, "drafter": 4, "coordinator": 2, "serve": 2}[role])]

    @property
    def cuts(self):
        return self.cluster.kills[SERVE]

    def may_excuse(self, answer, cuts_before):
        # There is no other server while this one starts.
        return super().may_excuse(answer, cuts_before) or (answer.broken and "refused" in answer.error) or (
            not answer.text and answer.error.startswith("503") and "has not answered for 3 s" in answer.error)

    def complete(self):
        return True  # the next fault does not wait

    def recover(self):
        """After a broken connection a client waits for the server."""
        eventually(self.cluster.served, HANG)

    def memory(self):
        found = {}
        for process, role in zip(self.cluster.processes, ROLES):
            with contextlib.suppress(OSError):  # it is being killed
                found[process.pid] = (role, resident_mib(process.pid))
        return found

    def surprises(self):
        dead = [(i, process) for i, process in enumerate(self.cluster.processes) if process.poll() is not None]
        return [f"a {ROLES[i]} ended by itself" for i, process in dead
                if self.cluster.kills[i] == int(self.cluster.kills[i]) and process is self.cluster.processes[i]]


class Kubernetes(Fleet):
    """launch/kubernetes, overlay one-pool, with two verifiers, front ends and drafters. OUTRIDER_TEST_KUBECONFIG names the
    cluster, which has the image and two nodes without a taint; the program that asks runs where Services are reached, on a
    node that no fault meets. What kubectl cannot do `--machines COMMAND` does: `COMMAND cut NODE` and `heal NODE`, its
    network; `COMMAND kill UID`, SIGKILL to a pod's program. Without it these faults are left out."""
    sample_s = 30
    port, key = 80, API_KEY

    def __init__(self, options, folder):
        os.environ["KUBECONFIG"] = os.environ["OUTRIDER_TEST_KUBECONFIG"]
        self.machines, self.killed, self.restarts = options.machines, {}, {}
        keys = re.search(r"```\n(kubectl apply -f launch/kubernetes/overlays/one-pool/namespace.yaml\n.*?)```", README, re.S)[1]
        (folder / "launch").symlink_to(ROOT / "launch")
        (folder / "bin").mkdir()
        (folder / "bin/outrider").symlink_to(options.outrider)
        script = keys + "kubectl apply -k launch/kubernetes/overlays/one-pool"
        subprocess.run(["bash", "-euc", script], cwd=folder, env=os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}"}, check=True, stdout=sys.stderr)
        # The drafters' number is the soak's, the prefix cache is small, and clients are anywhere.
        kubectl("delete", "horizontalpodautoscaler", "--all")
        more_arguments = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--memory=32"}]
        kubectl("patch", "statefulset/outrider-verifier", "--type=json", "-p", json.dumps(more_arguments))
        policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "soak"}, "spec": {
            "podSelector": {"matchExpressions": [{"key": "app.kubernetes.io/component", "operator": "In", "values": ["coordinator", "serve"]}]},
            "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 7070}, {"port": 8000}]}]}}
        kubectl("apply", "-f", "-", text=json.dumps(policy))
        for scaled in ("statefulset/outrider-verifier", "deployment/outrider-drafter", "deployment/outrider-serve"):
            kubectl("scale", scaled, "--replicas=2")
        wait_for_all()
        self.host = self.address("outrider")
        self.batch_options = ["--connect", f"tcp://{self.address('outrider-coordinator')}:7070", "--key", str(folder / "client"),
                              "--coordinator-key", str(folder / "coordinator.pub"), "--failover-wait", str(HANG)]
        self.faults = [
            ("verifier deleted", lambda: kubectl("delete", "pod", self.pod("verifier"), "--wait=false")),
            ("verifier deleted by force", lambda: self.delete_by_force("verifier")),
            ("drafter deleted", lambda: kubectl("delete", "pod", self.pod("drafter"), "--wait=false")),
            ("drafter deleted by force", lambda: self.delete_by_force("drafter")),
            ("node drained", self.drain),
            ("coordinator rolled", lambda: self.roll("deployment/outrider-coordinator")),
            ("front ends rolled", lambda: self.roll("deployment/outrider-serve")),
            ("verifiers rolled", lambda: self.roll("statefulset/outrider-verifier")),
            ("drafters 0, 3, 2", self.scale),
        ]
        if self.machines:
            self.faults += [("node cut off for 10 s", self.cut_off)] + [
                (f"{role} killed", lambda role=role: self.kill(role)) for role in ("verifier", "drafter", "coordinator", "serve")]
        else:
            print("LEFT OUT, for want of --machines: nodes cut off, processes killed", file=sys.stderr)
        self.turn = 0

    def stop(self):
        delete_namespace()

    def complete(self):
        # A pod that is ending may still be in the coordinator's books.
        pods = [pod for pod in self.pods() if pod["metadata"]["labels"]["app.kubernetes.io/component"] != "serve"]
        return pods and all(ready(pod) for pod in pods) and super().complete()

    def recover(self):
        time.sleep(1)

    def logs(self):
        return "".join(f"\n--- {pod['metadata']['name']}\n" + kubectl("logs", pod["metadata"]["name"], "--tail=30", check=False).stdout
                       for pod in get("pods", name="outrider"))

    @staticmethod
    def pods():
        """Empty while the API server is too busy to say."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            return get("pods", name="outrider")
        return []

    @staticmethod
    def address(service):
        return kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIP}").stdout

    def pod(self, component):
        """One after the other."""
        self.turn += 1
        pods = sorted(ready_pods(component))
        return pods[self.turn % len(pods)]

    def delete_by_force(self, component):
        kubectl("delete", "pod", self.pod(component), "--grace-period=0", "--force")

    def roll(self, workload):
        kubectl("rollout", "restart", workload)
        kubectl("rollout", "status", workload, f"--timeout={PATIENCE}s")

    def scale(self):
        for count in (0, 3, 2):
            kubectl("scale", "deployment/outrider-drafter", f"--replicas={count}")
            eventually(lambda: len(ready_pods("drafter")) == count, PATIENCE)
            time.sleep(SILENT_S)

    def node(self):
        self.turn += 1
        return nodes_for_any()[self.turn % 2]

    def drain(self):
        node = self.node()
        kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={PATIENCE}s")
        wait_for_all()
        kubectl("uncordon", node)

    def cut_off(self):
        node = self.node()
        subprocess.run([self.machines, "cut", node], check=True)
        time.sleep(SILENT_S)
        subprocess.run([self.machines, "heal", node], check=True)

    def kill(self, component):
        name = self.pod(component)
        [pod] = [pod for pod in get("pods", component=component) if pod["metadata"]["name"] == name]
        uid, cut = pod["metadata"]["uid"], component == "serve"
        self.cuts += cut / 2
        self.killed[uid] = self.killed.get(uid, 0) + 1
        subprocess.run([self.machines, "kill", uid], check=True)
        def began_again():
            return any(pod["metadata"]["uid"] == uid and ready(pod) and pod["status"]["containerStatuses"][0]["restartCount"] >= self.killed[uid]
                       for pod in get("pods", component=component))

        eventually(began_again, PATIENCE)
        self.cuts += cut / 2

    def memory(self):
        found = {}
        for pod in self.pods():
            name, [status] = pod["metadata"]["name"], pod["status"].get("containerStatuses") or [None]
            if ready(pod) and status:
                statm = kubectl("exec", name, "--", "cat", "/proc/1/statm", check=False).stdout.split()
                if statm:
                    found[pod["metadata"]["uid"], status["restartCount"]] = (
                        pod["metadata"]["labels"]["app.kubernetes.io/component"], int(statm[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
        return found

    def surprises(self):
        found = []
        for pod in self.pods():
            uid, [status] = pod["metadata"]["uid"], pod["status"].get("containerStatuses") or [{"restartCount": 0}]
            unknown = status["restartCount"] - self.killed.get(uid, 0) - self.restarts.get(uid, 0)
            if unknown > 0:
                self.restarts[uid] = self.restarts.get(uid, 0) + unknown
                found.append(f"{pod['metadata']['name']} was restarted: {status.get('lastState')}")
        return found


class OnSlurm(Fleet):
    """A plan of shape `elastic` on a Slurm of four nodes: coordinator and verifiers are one job on two of them, each drafter
    a job on the others. The front end is a process outside of Slurm, so that a job which starts again cuts no client.
    The coordinator's job starts no verifier again by itself: the fault that kills one requeues the job afterwards."""

    def __init__(self, options, folder):
        if not options.slurm_packages:
            sys.exit("--fleet slurm wants --slurm-packages FOLDER")
        self.outrider = options.outrider
        self.slurm = Slurm(unpacked(pathlib.Path(options.slurm_packages).resolve()))
        if not eventually(self.slurm.up, 60):
            sys.exit("Slurm does not start: " + (self.slurm.folder / "slurmctld.log").read_text()[-300:])
        coordinator, self.port = free_ports(2)
        drafter = {"threads": 1, "slurm_header": {"--exclude": "n[1-2]"}}
        plan = {"program": self.outrider, "hosts": [{"name": "n[1-4]"}],
                "coordinator": {"hosts": "n1", "listen": f"tcp://0.0.0.0:{coordinator}", "failover_wait": HANG},
                "verifiers": [{"hosts": host, "threads": 1, "memory": 32} for host in ("n1", "n2")],
                "drafters": [drafter | {"hosts": host} for host in ("n3", "n4")],
                "slurm": {"shape": "elastic", "header": {"--nodelist": "n[1-2]", "--time": "UNLIMITED"}}}
        self.run = Run(self.outrider, plan, "--backend", "slurm", "--submit", expect_end=True)
        if self.run.status != 0:
            sys.exit(self.run.explain())
        self.jobs = {entry["name"]: entry["job"] for entry in self.run.ledger()}
        keys = self.run.dir / "keys"
        connect = ["--connect", f"tcp://127.0.0.1:{coordinator}", "--key", str(keys / "client"), "--coordinator-key", str(keys / "coordinator.pub"),
                   "--failover-wait", str(HANG)]
        eventually(lambda: (self.run.dir / "coordinator.address").exists(), HANG)  # one that has never answered gets 3 s
        with (folder / "serve.log").open("w") as log:
            self.serve = subprocess.Popen([self.outrider, "serve", "--port", str(self.port), *connect, "--no-governor"],
                                          stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.serve_log, self.batch_options, self.turn = folder / "serve.log", connect, 0
        self.faults = [
            ("drafter's job requeued", lambda: self.requeue(self.drafter())),
            ("drafter's job killed, submitted again", self.kill_drafter),
            ("drafters 0, 2", self.scale),
            ("drafter's node drained, job requeued", self.drain),
            ("drafter's node down", lambda: self.down("n3")),
            ("slurmd killed, 10 s away", self.kill_slurmd),
            ("verifier stopped for 10 s", lambda: self.freeze("verifier")),
            ("coordinator stopped for 10 s", lambda: self.freeze("coordinator")),
            ("coordinator's job requeued", lambda: self.requeue("job.sbatch")),
            ("verifier killed, job requeued after 30 s", self.kill_verifier),
            ("verifier's node down", lambda: self.down("n2")),
        ]

    def stop(self):
        self.serve.terminate()
        self.serve.wait()
        subprocess.run(["scancel", "--user=root"], timeout=HANG)
        eventually(lambda: not self.slurm.jobs())
        self.run.remove()

    def complete(self):
        # One that is ending may still be in the coordinator's books.
        roles = collections.Counter(role for role, _ in self.processes().values())
        return roles == collections.Counter({"coordinator": 1, "verifier": 2, "drafter": 2, "serve": 1}) and super().complete()

    def recover(self):
        time.sleep(1)

    def logs(self):
        return self.run.explain() + self.serve_log.read_text()[-3000:] + "\n".join(self.slurm.jobs())

    def scontrol(self, *words):
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=HANG)
        if done.returncode != 0:
            print(f"scontrol {' '.join(words)}: {done.stderr.strip()}", file=sys.stderr, flush=True)
        return done.stdout

    def task(self, name):
        """What Slurm calls the script's job."""
        if name == "job.sbatch":
            return self.jobs[name]
        array = re.search(r"--array=(\d+)", (self.run.dir / name).read_text())[1]
        return f"{self.jobs[name]}_{array}"

    def drafter(self):
        self.turn += 1
        return ("drafters.sbatch", "drafters.1.sbatch")[self.turn % 2]

    def runs_again(self, name):
        """Slurm would wait for two minutes before it starts a requeued job."""
        def running():
            if "JobState=RUNNING" in self.scontrol("show", "job", self.task(name)):
                return True
            subprocess.run(["scontrol", "update", f"JobId={self.task(name)}", "StartTime=now"], capture_output=True, timeout=HANG)
            time.sleep(1)
        eventually(running, HANG)

    def requeue(self, name):
        self.scontrol("requeue", self.task(name))
        time.sleep(2)
        self.runs_again(name)

    def submit(self, name):
        said = subprocess.run(["sbatch", self.run.dir / name], capture_output=True, text=True, check=True, timeout=HANG).stdout
        self.jobs[name] = said.split()[-1]

    def kill_drafter(self):
        name = self.drafter()
        subprocess.run(["scancel", "--full", "--signal=KILL", self.task(name)], check=True, timeout=HANG)
        time.sleep(SILENT_S)
        self.submit(name)

    def scale(self):
        for name in ("drafters.sbatch", "drafters.1.sbatch"):
            subprocess.run(["scancel", self.task(name)], check=True, timeout=HANG)
        time.sleep(2 * SILENT_S)
        for name in ("drafters.sbatch", "drafters.1.sbatch"):
            self.submit(name)

    def drain(self):
        name = self.drafter()
        node = re.search(r" BatchHost=(\S+)", self.scontrol("show", "job", self.task(name)).replace("\n", " "))
        self.scontrol("update", f"NodeName={node[1]}", "State=DRAIN", "Reason=soak")
        self.requeue(name)  # on the other node
        self.scontrol("update", f"NodeName={node[1]}", "State=RESUME")

    def down(self, node):
        self.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=soak")
        time.sleep(SILENT_S)  # its slurmd reports meanwhile, and so it is up again
        for name in self.jobs:
            if name.endswith(".sbatch"):
                self.runs_again(name)

    def kill_slurmd(self):
        self.turn += 1
        self.slurm.restart_node(1 + self.turn % 4, SILENT_S)

    def step(self, role):
        self.turn += 1
        steps = [pid for pid, (found, _) in self.processes().items() if found == role]
        return steps[self.turn % len(steps)]

    def freeze(self, role):
        pid = self.step(role)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(SILENT_S)
        os.kill(pid, signal.SIGCONT)

    def kill_verifier(self):
        os.kill(self.step("verifier"), signal.SIGKILL)
        time.sleep(3 * SILENT_S)
        self.requeue("job.sbatch")

    def processes(self):
        found = {}
        for pid in [*self.run.alive(), self.serve.pid]:
            with contextlib.suppress(OSError):  # it has just ended
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if words[0] == self.outrider and words[1] in ROLES:
                    found[pid] = (words[1], resident_mib(pid))
        return found

    memory = processes

    def surprises(self):
        return [] if self.serve.poll() is None else ["the front end ended by itself"]


FLEETS = {"processes": Processes, "kubernetes": Kubernetes, "slurm": OnSlurm}
