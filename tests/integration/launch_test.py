#!/usr/bin/env python3
"""`outrider launch` on this machine: ready, run, down, and no process left however it ends.

usage: launch_test.py OUTRIDER [--kills N]     N: how often the launcher is killed at a random moment (default 6)
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from batch_support import Job, nano_lines
from launch_support import eventually, HANG, marked, processes_with, QUESTION, Run, take_number, take_seed

PLAN = {"verifiers": [{"threads": 1}], "drafters": [{"count": 2}]}
ASK = ["outrider", "run", QUESTION, "--max-tokens", "12", "--connect", "{coordinator}"]


def launch(*words):
    return subprocess.run([OUTRIDER, "launch", *words], capture_output=True, text=True, timeout=HANG)


class Launch(unittest.TestCase):
    def start(self, plan, *options, **more):
        run = Run(OUTRIDER, plan, *options, **more)
        self.addCleanup(run.remove)
        return run

    def test_a_plan_runs_its_commands_and_leaves_no_process(self):
        run = self.start(PLAN | {"verifiers": [{"threads": 1, "shards": "auto"}], "run": [{"command": ASK}]}, expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        alone = subprocess.run([OUTRIDER, *ASK[1:-2]], capture_output=True, text=True, timeout=HANG)
        story = alone.stdout.split("\n\n")[0]
        self.assertTrue(story)
        self.assertIn(story, run.out.read_text())
        self.assertEqual(run.alive(), [])
        self.assertEqual([entry["name"] for entry in run.ledger()],
                         ["launcher", "coordinator", "verifier.0", "drafter.0", "drafter.1", "run.0"])
        self.assertEqual(json.loads((run.dir / "status.json").read_text())["state"], "ended")

    def test_processes_of_this_host_too_get_the_keys_of_a_run_that_strangers_reach(self):
        run = self.start(PLAN | {"coordinator": {"listen": "tcp://0.0.0.0:*"}, "run": [{"command": ASK}]}, expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        self.assertEqual(run.alive(), [])

    def test_shards_of_a_verifier_run_on_hosts_of_their_own(self):
        plan = PLAN | {"hosts": [{"name": "a"}, {"name": "b"}], "verifiers": [{"hosts": "a", "threads": 1, "shards": 2, "shard_hosts": "b"}]}
        alone = subprocess.run([OUTRIDER, *ASK[1:-2]], capture_output=True, text=True, timeout=HANG).stdout.split("\n\n")[0]
        for coordinator in ({}, {"listen": "tcp://0.0.0.0:*"}):  # of the second the shards have the run's keys
            run = self.start(plan | {"coordinator": coordinator, "run": [{"command": ASK}]}, expect_end=True)
            self.assertEqual(run.status, 0, run.explain())
            self.assertTrue(alone)
            self.assertIn(alone, run.out.read_text())
            self.assertEqual([entry["name"] for entry in run.ledger()][:4], ["launcher", "coordinator", "verifier.0", "verifier.0.shard.1"])
            self.assertIn("event=joined ", (run.dir / "logs" / "b.verifier.0.shard.1.log").read_text())
            self.assertEqual(run.alive(), [])
        # A verifier ends with its shard, and the run with its last verifier.
        for more, status in (([], 4), ([{"hosts": "a", "threads": 1}], None)):
            run = self.start(plan | {"verifiers": plan["verifiers"] + more})
            self.assertTrue(run.ready(), run.explain())
            self.assertEqual(run.about("wait", "--timeout", "60").returncode, 0)
            os.kill(next(entry["pid"] for entry in run.ledger() if "shard" in entry["name"]), signal.SIGKILL)
            if status is None:
                self.assertTrue(eventually(lambda: "outrider: the run goes on with 1 verifier and 2 drafters\n" in run.err.read_text()), run.explain())
                self.assertIsNone(run.process.poll())
                run.process.terminate()
            self.assertEqual(run.end(), status or 0, run.explain())
            self.assertEqual(run.alive(), [])

    def test_shards_of_one_host_share_its_cores_and_their_memory_is_beside_them(self):
        """By what the kernel reports. A host with one memory node shows the cores alone."""
        if not pathlib.Path("/proc/self/numa_maps").exists():
            self.skipTest("this kernel reports no memory nodes (/proc/PID/numa_maps)")
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("one core cannot be shared out")
        run = self.start(PLAN | {"verifiers": [{"threads": 2, "shards": 2}]})
        self.assertTrue(run.ready(), run.explain())
        verifier = next(entry["pid"] for entry in run.ledger() if entry["name"] == "verifier.0")
        shards = [verifier, *map(int, pathlib.Path(f"/proc/{verifier}/task/{verifier}/children").read_text().split())]
        self.assertEqual(len(shards), 2)
        cores = [os.sched_getaffinity(pid) for pid in shards]
        self.assertEqual(cores[0] & cores[1], set())
        for pid, own in zip(shards, cores):
            near = {int(node.name[4:]) for node in pathlib.Path("/sys/devices/system/node").glob("node[0-9]*")
                    if any((node / f"cpu{core}").exists() for core in own)}
            pages, bound = {}, "bind:" + ",".join(map(str, sorted(near)))
            for mapping in pathlib.Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
                if " anon=" in mapping:
                    self.assertEqual(mapping.split()[1], bound, mapping)
                    for node, count in re.findall(r" N(\d+)=(\d+)", mapping):
                        pages[int(node)] = pages.get(int(node), 0) + int(count)
            print(f"shard {pid}: cores {sorted(own)}, pages by memory node {pages}", file=sys.stderr)
            self.assertGreater(sum(pages.values()), 1000)
            self.assertGreaterEqual(sum(pages.get(node, 0) for node in near), 0.9 * sum(pages.values()))

    def test_what_shards_of_other_hosts_cannot_be_is_refused(self):
        hosts = [{"name": "a"}, {"name": "b", "cpus": 2}]
        for verifier, part in (({"shards": 3, "shard_hosts": "b"}, "verifiers[0].shard_hosts has 1 hosts, wanted 2: 2 for each of 1 with shards 3"),
                               ({"shard_hosts": "b"}, "verifiers[0].shard_hosts has 1 hosts, wanted 0"),
                               ({"shards": 2, "shard_hosts": "c"}, "verifiers[0].shard_hosts: c is none of the plan's hosts"),
                               ({"shards": 2, "shard_hosts": "b", "threads": 4}, "4 threads on b, which has 2 CPUs"),
                               ({"shards": 2, "shard_hosts": "b", "model": "/no/model"}, "verifier.0 on a: ended with status 1: outrider: /no/model")):
            run = self.start({"hosts": hosts, "verifiers": [{"hosts": "a"} | verifier]}, expect_end=True)
            self.assertIn(part, run.err.read_text())
            self.assertEqual((run.status, run.alive()), (4 if "model" in verifier else 1, []), run.explain())

    def test_ready_status_wait_logs_down(self):
        run = self.start(PLAN | {"verifiers": [{"count": 2, "threads": 1}]})
        self.assertTrue(run.ready(), run.explain())
        self.assertEqual(run.about("wait", "--timeout", "60").returncode, 0)
        status = run.about("status")
        self.assertEqual((status.returncode, status.stdout.count("alive")), (0, 6), status.stdout)
        logs = run.about("logs", "verifier").stdout
        self.assertTrue(all(re.match(r"localhost\.verifier\.[01]: ", line) for line in logs.splitlines()), logs)
        self.assertEqual(run.about("down").returncode, 0)
        self.assertEqual(run.end(), 0, run.explain())
        self.assertEqual(run.alive(), [])
        self.assertEqual(run.about("status").returncode, 4)
        self.assertEqual(run.about("wait").returncode, 4)
        (run.dir / "status.json").write_text("{}")
        self.assertRegex(run.about("status").stdout, "^no status yet\nlauncher ")

    def test_a_run_here_of_a_plan_for_several_hosts_can_be_waited_for(self):
        run = self.start(PLAN | {"hosts": [{"name": "a"}, {"name": "b"}], "coordinator": {"listen": "tcp://127.0.0.1:*"}})
        self.assertTrue(run.ready(), run.explain())
        wait = run.about("wait", "--timeout", "60")
        self.assertEqual(wait.returncode, 0, wait.stderr)
        self.assertEqual(run.about("down").returncode, 0)
        self.assertEqual(run.end(), 0, run.explain())

    def test_a_signal_ends_everything(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            run = self.start(PLAN)
            self.assertTrue(run.ready(), run.explain())
            run.process.send_signal(number)
            self.assertEqual(run.end(), 0, run.explain())
            self.assertEqual(run.alive(), [])

    def test_who_ends_in_time_is_not_killed_beside_one_who_does_not(self):
        run = self.start(PLAN, "--grace", "20")
        self.assertTrue(run.ready(), run.explain())
        verifier = next(entry["pid"] for entry in run.ledger() if entry["name"] == "verifier.0")
        os.kill(verifier, signal.SIGSTOP)
        run.process.terminate()
        self.assertEqual(run.end(), 0, run.explain())
        self.assertEqual(re.findall(r"outrider: (.*) on localhost has not ended in 20 s: killed", run.err.read_text()), ["verifier.0"])
        status = json.loads((run.dir / "status.json").read_text())
        self.assertEqual({process["exit_status"] for process in status["processes"] if process["name"] != "verifier.0"}, {0})
        self.assertEqual(run.alive(), [])

    def test_no_orphan_when_the_launcher_is_killed(self):
        choice = random.Random(take_seed())
        for kill in range(KILLS):
            run = self.start(PLAN | {"run": [{"command": ASK}]})
            time.sleep(choice.uniform(0, 4))
            run.kill()
            self.assertTrue(eventually(lambda: not run.alive()), f"kill {kill}: {run.alive()} are left\n{run.explain()}")

    def test_down_goes_by_the_ledger_when_the_launcher_is_gone(self):
        run = self.start(PLAN)
        self.assertTrue(run.ready(), run.explain())
        # A process of ours whose number stands in the ledger with another start is none of the run's.
        bystander = subprocess.Popen(["sleep", "100"])
        self.addCleanup(bystander.wait)
        self.addCleanup(bystander.kill)
        with (run.dir / "ledger.jsonl").open("a") as ledger:
            ledger.write(json.dumps({"name": "drafter.9", "where": "local", "host": "localhost", "pid": bystander.pid, "start": 1}) + "\n")
        run.kill()
        self.assertEqual(run.about("down").returncode, 0)
        self.assertEqual(run.alive(), [])
        self.assertIsNone(bystander.poll())

    def test_down_ends_what_a_command_has_started_whatever_its_name(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-launch-"))
        self.addCleanup(shutil.rmtree, folder)
        self.addCleanup(os.environ.pop, "LC_ALL")
        os.environ["LC_ALL"] = "C.UTF-8"
        for name in ("a sleep 1 2", "sleep" + 4 * "模"):  # the kernel keeps 15 bytes: the last character is cut
            (folder / name).symlink_to(shutil.which("sleep"))
            run = self.start(PLAN | {"run": [{"command": ["sh", "-c", '"$0" 1000 & wait', str(folder / name)]}]})
            self.assertTrue(eventually(lambda: any(entry["name"] == "run.0" for entry in run.ledger())), run.explain())
            [leader] = [entry["pid"] for entry in run.ledger() if entry["name"] == "run.0"]
            self.assertTrue(eventually(lambda: subprocess.run(["pgrep", "-g", str(leader), "sleep"], stdout=subprocess.DEVNULL).returncode == 0))
            run.kill()  # its command ends with it, what that has started does not
            self.assertEqual(run.about("down").returncode, 0)
            self.assertEqual(run.alive(), [])

    def test_a_run_goes_on_at_another_verifier_with_the_same_text(self):
        # Two answers at once, one at each verifier; then one of these is killed.
        words = ["run", QUESTION, "--quiet", "--min-tokens", "200", "--max-tokens", "200", "--draft-length", "0"]
        alone = subprocess.run([OUTRIDER, *words], capture_output=True, text=True, timeout=HANG).stdout
        both = ["sh", "-c", 'run=$1; shift; "$@" >"$run/0.txt" & first=$!; "$@" >"$run/1.txt"; second=$?; wait $first && exit $second',
                "sh", "{run_dir}", OUTRIDER, *words, "--connect", "{coordinator}"]
        slow = {"threads": 1, "added_verify_us": [20_000]}
        run = self.start({"verifiers": [slow, slow], "run": [{"command": both}, {"command": ASK}]})
        texts = lambda: [file.read_text() for file in sorted(run.dir.glob("?.txt"))]
        self.assertTrue(eventually(lambda: run.process.poll() is not None or (len(texts()) == 2 and all(texts()))), run.explain())
        self.assertTrue(all(len(text) < len(alone) for text in texts()), "an answer was over before a verifier was killed")
        os.kill(next(entry["pid"] for entry in run.ledger() if entry["name"] == "verifier.0"), signal.SIGKILL)
        self.assertEqual(run.end(), 0, run.explain())
        self.assertEqual(texts(), [alone] * 2)
        said = run.err.read_text()
        self.assertRegex(said, "verifier.0 on localhost: ended with status 137: .*\noutrider: the run goes on with 1 verifier and 0 drafters\n")
        self.assertEqual(run.alive(), [])

    def test_the_loss_of_the_only_verifier_ends_it_and_of_a_drafter_does_not(self):
        run = self.start(PLAN)
        self.assertTrue(run.ready(), run.explain())
        pid = {entry["name"]: entry["pid"] for entry in run.ledger()}
        subprocess.run(["kill", "-KILL", str(pid["drafter.0"])], check=True)
        self.assertTrue(eventually(lambda: "drafter.0 on localhost: ended with status 137" in run.err.read_text()))
        self.assertIsNone(run.process.poll())
        subprocess.run(["kill", "-KILL", str(pid["verifier.0"])], check=True)
        self.assertEqual(run.end(), 4, run.explain())
        self.assertEqual(run.alive(), [])

    def test_who_leaves_by_its_own_deadline_is_not_lost(self):
        # What is asked to end does what it does a minute before its deadline.
        def leave(run, name):
            os.kill(next(entry["pid"] for entry in run.ledger() if entry["name"] == name), signal.SIGTERM)
            self.assertTrue(eventually(lambda: f"outrider: {name} on localhost: " in run.err.read_text()), run.explain())

        timed = {"deadline": "1h", "threads": 1}
        batch = {"run": [{"command": ["sh", "-c", "trap 'kill $!; exit 75' TERM; echo begun; sleep 1000 & wait"]}]}
        for plan, status in (({"coordinator": {"deadline": "1h"}}, 0), ({}, 4), ({"coordinator": {"deadline": "1h"}} | batch, 75)):
            run = self.start(PLAN | plan)
            self.assertTrue(eventually(lambda: run.ready() and (run.out.read_text() or "run" not in plan)), run.explain())
            leave(run, "coordinator")
            self.assertEqual(run.end(), status, run.explain())
            self.assertEqual(run.alive(), [])
        for second, status in ((timed, 0), ({"threads": 1}, 4)):
            run = self.start(PLAN | {"verifiers": [timed, second], "drafters": []})
            self.assertTrue(run.ready(), run.explain())
            leave(run, "verifier.0")
            self.assertIn("verifier.0 on localhost: left by its deadline: ", run.err.read_text())
            self.assertTrue(eventually(lambda: run.about("wait", "--timeout", "0").returncode == 3), "it goes on without that one")
            leave(run, "verifier.1")
            self.assertEqual(run.end(), status, run.explain())
            self.assertEqual(run.alive(), [])

    def test_an_encoder_sees_for_a_verifier_without_towers(self):
        picture = GOLDENS.parent / "nano-pictures" / "red_circle.png"
        words = ["outrider", "run", "What is this?", "--image", str(picture), "--json", "--connect", "{coordinator}"]
        run = self.start({"verifiers": [{"threads": 1, "no_towers": True}], "encoders": [{"threads": 1}],
                          "run": [{"command": words}]}, expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        answer = json.loads(run.out.read_text())
        self.assertEqual(answer["text"], "A red circle.")
        self.assertGreater(answer["metrics"]["wire_bytes_to_encoder"], 0)

    def test_exit_statuses(self):
        for words, status, said in ((["sh", "-c", "exit 75"], 75, ""),
                                    (["sh", "-c", "exit 9"], 5, "outrider: run.0 ended with status 9: sh -c 'exit 9'\n"),
                                    (["sh", "-c", "exit 4"], 5, "outrider: run.0 ended with status 4: sh -c 'exit 4'\n"),
                                    (["/no/such/program"], 5, "outrider: run.0 ended with status 127: /no/such/program\n"), (["true"], 0, "")):
            run = self.start(PLAN | {"drafters": [], "run": [{"command": words}]}, expect_end=True)
            self.assertEqual(run.status, status, f"{words}: {run.explain()}")
            done = "" if status else f"outrider: done; run folder {run.dir}\n"
            self.assertEqual(run.err.read_text().partition("\n")[2], said + done)

    def test_ends_are_seen_also_where_the_parent_ignores_those_of_its_children(self):
        run = self.start(PLAN | {"drafters": [], "run": [{"command": ["false"]}]}, expect_end=True, before=("env", "--ignore-signal=CHLD"))
        self.assertEqual(run.status, 5, run.explain())

    def test_a_command_that_was_never_begun_is_no_success(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-mute-"))
        self.addCleanup(shutil.rmtree, folder)
        program = folder / "outrider"  # whose coordinator never says where it listens
        program.write_text(f'#!/bin/sh\n[ "$1" = coordinator ] && exec cat\nexec {OUTRIDER} "$@"\n')
        program.chmod(0o755)
        for commands, status in (({}, 0), ({"run": [{"command": ["true"]}]}, 5)):
            run = self.start(PLAN | {"program": str(program)} | commands)
            self.assertTrue(eventually(lambda: any(entry["name"] == "coordinator" for entry in run.ledger())), run.explain())
            run.process.terminate()
            self.assertEqual(run.end(), status, run.explain())
            self.assertEqual(run.err.read_text(), "")
            self.assertEqual(run.alive(), [])

    def test_a_launch_is_stopped_while_a_host_says_nothing(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-mute-"))
        self.addCleanup(shutil.rmtree, folder)
        program = folder / "outrider"
        program.write_text("#!/bin/sh\nexec sleep 1000\n")
        program.chmod(0o755)
        run = self.start(PLAN | {"program": str(program)})
        self.assertTrue(eventually(lambda: len(run.alive()) > 1), run.explain())
        run.process.terminate()
        self.assertEqual((run.end(), run.err.read_text()), (0, ""))
        self.assertEqual(run.alive(), [])

    def test_ready_counts_what_is_there(self):
        run = self.start(PLAN | {"drafters": [{}, {"model": "/no/model"}], "run": [{"command": ["true"]}]}, expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        self.assertIn("drafter.1 on localhost: ended with status 1: outrider: /no/model: no such file or directory, wanted a model\n", run.err.read_text())
        self.assertIn("outrider: ready: 1 verifier and 1 drafter at ", run.err.read_text())

    def test_one_plan_can_be_launched_several_times_in_a_second(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-twice-"))
        self.addCleanup(shutil.rmtree, folder)
        (folder / "plan.json").write_text(json.dumps(PLAN))
        twice = [subprocess.run([OUTRIDER, "launch", "plan.json", "--backend", "slurm"], cwd=folder, capture_output=True, text=True, timeout=HANG) for _ in range(2)]
        self.assertEqual([(one.returncode, one.stderr) for one in twice], [(0, "")] * 2)
        self.assertEqual(len(list(folder.glob("plan.2*/plan.json"))), 2)

    def test_what_cannot_be_started_is_named(self):
        taken = socket.socket()
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        self.addCleanup(taken.close)
        port = taken.getsockname()[1]
        foreign = bytearray(pathlib.Path(OUTRIDER).read_bytes()[:4096])
        foreign[18] = 0xf3  # e_machine: RISC-V
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-foreign-"))
        self.addCleanup(shutil.rmtree, folder)
        (folder / "outrider").write_bytes(foreign)
        (folder / "outrider").chmod(0o755)
        # Of a verifier that ends, 4; of all that is known before anything has started, 1.
        for plan, status, part in ((PLAN | {"coordinator": {"listen": f"tcp://127.0.0.1:{port}"}}, 1, f"coordinator on localhost: ended with status 1: outrider: cannot listen at tcp://127.0.0.1:{port}: Address already in use"),
                                   (PLAN | {"experiment": "e.json"}, 1, "experiment is no known key"),
                                   ({"verifiers": [{"model": "/no/model"}]}, 4, "verifier.0 on localhost: ended with status 1: outrider: /no/model"),
                                   (PLAN | {"program": "/no/outrider"}, 1, "localhost: no program /no/outrider"),
                                   (PLAN | {"program": str(folder / "outrider")}, 1, f"localhost: wrong architecture: the host is {os.uname().machine}, {folder}/outrider is for riscv64"),
                                   (PLAN | {"coordinator": {"listen": "tcp://192.0.2.99:1"}}, 1, "coordinator on localhost: ended with status 1"),
                                   ({"verifers": []}, 1, "verifers is no known key; the nearest is verifiers")):
            run = self.start(plan, expect_end=True)
            self.assertEqual(run.status, status, run.explain())
            self.assertIn(f"outrider: {part}" if "known key" not in part else part, run.err.read_text())
            self.assertEqual(run.alive(), [])

    def test_a_host_that_is_unlike_the_first_is_named_whatever_its_program_says(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-unlike-"))
        self.addCleanup(shutil.rmtree, folder)
        program = folder / "outrider"
        program.write_text("#!/bin/sh\n[ \"$1 $2\" = 'launch facts' ] || exit 1\n"
                           "if mkdir \"$0.first\" 2>/dev/null; then echo '{\"version\": \"1\"}'; else echo '{\"version\": 7}'; fi\n")
        program.chmod(0o755)
        run = self.start({"program": str(program), "hosts": [{"name": "a"}, {"name": "b"}], "coordinator": {"hosts": "a"},
                          "verifiers": [{"hosts": "a"}], "drafters": [{"hosts": "b"}]}, expect_end=True)
        self.assertEqual(run.status, 1, run.explain())
        self.assertRegex(run.err.read_text(), '^outrider: b: version is (7, that of a is "1"|"1", that of a is 7)\n')

    def test_without_slurm_srun_is_what_is_missing(self):
        empty = pathlib.Path(tempfile.mkdtemp(prefix="outrider-empty-"))
        self.addCleanup(shutil.rmtree, empty)
        (empty / "plan.json").write_text(json.dumps(PLAN))
        ended = subprocess.run([OUTRIDER, "launch", empty / "plan.json", "--backend", "srun", "--run-dir", empty / "run"],
                               capture_output=True, text=True, timeout=HANG, env=os.environ | {"PATH": str(empty)})
        self.assertEqual((ended.returncode, ended.stderr.splitlines()[0]), (1, "outrider: localhost: srun: No such file or directory"))

    def test_all_that_a_command_prints_is_shown(self):
        size = 110_000_000  # more than what is read of a small file
        run = self.start(PLAN | {"run": [{"command": ["sh", "-c", f"yes | head -c {size}"]}]}, expect_end=True)
        self.assertEqual((run.status, run.out.stat().st_size), (0, size), run.err.read_text())

    def test_a_command_that_does_not_end_when_asked_is_killed(self):
        run = self.start(PLAN | {"run": [{"command": ["sh", "-c", "trap '' TERM; echo begun; sleep 1000"]}]}, "--grace", "1")
        self.assertTrue(eventually(lambda: "begun" in run.out.read_text()), run.explain())
        run.process.terminate()
        run.end()
        self.assertIn("outrider: run.0 has not ended in 1 s: killed\n", run.err.read_text())
        self.assertEqual(run.alive(), [])

    def test_a_run_folder_that_cannot_be_written_is_one_line(self):
        for folder, part in (("/dev/full/run", "outrider: /dev/full/run"), ("/proc/run", "outrider: /proc/run")):
            ended = subprocess.run([OUTRIDER, "launch", GOLDENS / "three_hosts.json", "--backend", "slurm", "--run-dir", folder], capture_output=True, text=True, timeout=HANG)
            self.assertEqual((ended.returncode, ended.stderr.count("\n")), (1, 1), ended.stderr)
            self.assertIn(part, ended.stderr)

    def test_a_full_disk_is_named_and_leaves_no_process(self):
        def plan_of(drafters):
            return PLAN | {"drafters": [{"count": drafters, "threads": 1}], "run": [{"command": ["true"]}]}

        small = self.start(plan_of(1), expect_end=True).dir
        after_plan, after_lock = ((small / file).stat().st_size + 50 for file in ("plan.json", "lock.json"))
        plan = plan_of(20)  # whose ledger is longer than its lock
        for most, file in ((100, "plan.json"), (after_plan, "lock.json"), (after_lock, "ledger.jsonl")):
            run = self.start(plan, expect_end=True, most_bytes=most)
            self.assertEqual(run.status, 1, run.explain())
            self.assertRegex(run.err.read_text().splitlines()[-1], rf"^outrider: .*/{file}(\.\w+\.tmp)?: cannot write: File too large$")
            self.assertEqual(list(run.dir.glob("*.tmp")), [])
            self.assertEqual(run.alive(), [])

    def test_wait_says_what_is_missing_with_the_end_of_its_log(self):
        run = self.start({"verifiers": [{"environment": {"OUTRIDER_ISA": "none"}}]}, "--ready-timeout", "60")
        run.end()
        self.assertEqual(run.status, 4, run.explain())
        run = self.start(PLAN)
        self.assertTrue(run.ready(), run.explain())
        pid = {entry["name"]: entry["pid"] for entry in run.ledger()}
        subprocess.run(["kill", "-KILL", str(pid["drafter.1"])], check=True)
        def missing():
            wait = run.about("wait", "--timeout", "0")
            return wait if wait.returncode == 3 else None
        wait = eventually(missing)
        self.assertRegex(wait.stderr, r"drafter\.1 on localhost has not joined; the end of its log:\n.*event=loaded")

    def test_a_lock_can_be_launched_again_and_says_what_differs(self):
        first = self.start(PLAN | {"run": [{"command": ["true"]}]}, expect_end=True)
        facts = json.loads((first.dir / "lock.json").read_text())["lock"]["hosts"]["localhost"]
        for key in ("version", "commit", "build_id", "cpu", "isa", "onednn"):
            self.assertTrue(facts[key], key)
        self.assertRegex(facts["models"][""], r"^[0-9a-f]{16} bf16$")
        again = self.start(json.loads((first.dir / "lock.json").read_text()), expect_end=True)
        self.assertEqual(again.status, 0, again.explain())
        self.assertEqual(launch("diff", first.dir, first.dir).returncode, 0)
        lines = launch("diff", first.dir, again.dir).stdout.splitlines()
        self.assertEqual([line for line in lines if "OUTRIDER_TEST_RUN" not in line], [])
        other = json.loads((first.dir / "lock.json").read_text())
        other["lock"]["hosts"]["localhost"]["isa"] = "abacus"
        file = first.folder / "other.json"
        file.write_text(json.dumps(other))
        diff = launch("diff", first.dir, file)
        self.assertEqual((diff.returncode, diff.stdout.count("\n")), (1, 1), diff.stdout)
        self.assertIn('/lock/hosts/localhost/isa: ', diff.stdout)

    def test_the_dry_run_is_the_reviewed_text(self):
        for name, backend in (("three_hosts", "local"), ("three_hosts", "ssh"), ("three_hosts", "slurm"), ("shard_hosts", "ssh"), ("shard_hosts", "slurm"), ("shard_pods", "kubernetes"), ("het", "slurm"), ("elastic", "slurm"), ("pods", "kubernetes"), ("shards", "kubernetes")):
            dry = launch(GOLDENS / f"{name}.json", "--dry-run", "--backend", backend, "--run-dir", "/shared/run")
            self.assertEqual(dry.returncode, 0, dry.stderr)
            golden = GOLDENS / f"{name}.{backend}.txt"
            if WRITE_GOLDENS:
                golden.write_text(dry.stdout)
            self.assertEqual(dry.stdout, golden.read_text())

    def test_hosts_come_from_the_environment_of_who_has_them(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-hosts-"))
        self.addCleanup(shutil.rmtree, folder)
        (folder / "plan.json").write_text(json.dumps({"coordinator": {}, "verifiers": [{"threads": 2}], "drafters": [{}]}))

        def dry_run(**variables):
            others = {name: value for name, value in os.environ.items() if name not in ("SKYPILOT_NODE_IPS", "DSTACK_NODES_IPS", "SLURM_JOB_NODELIST")}
            return subprocess.run([OUTRIDER, "launch", folder / "plan.json", "--hosts", "env", "--backend", "ssh", "--dry-run"],
                                  capture_output=True, text=True, timeout=HANG, env=others | variables)

        for variables, hosts in (({"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3"}, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
                                 ({"DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3"}, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
                                 ({"SLURM_JOB_NODELIST": "n[1-2],big"}, ["n1", "n2", "big"])):
            dry = dry_run(**variables)
            self.assertEqual(dry.returncode, 0, dry.stderr)
            lines = dry.stdout.splitlines()
            self.assertEqual([line.partition(":")[0] for line in lines],
                             [f"{hosts[0]} coordinator", f"{hosts[0]} verifier.0", f"{hosts[1]} drafter.0", f"{hosts[2]} drafter.1"])
            for line, host in zip(lines, (hosts[0], *hosts)):
                self.assertIn(f" {host} 'exec sh -c ", line)
            self.assertIn("--threads 2", lines[1])
        none = dry_run()
        self.assertEqual((none.returncode, none.stdout), (1, ""))
        self.assertIn("--hosts env: none of SKYPILOT_NODE_IPS, DSTACK_NODES_IPS and SLURM_JOB_NODELIST is set, wanted one", none.stderr)

    def test_a_pod_asks_for_what_its_model_needs(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-sizes-"))
        self.addCleanup(shutil.rmtree, folder)
        large = folder / "large"
        large.mkdir()
        (large / "config.json").write_text("{}")
        with (large / "model.safetensors").open("w") as file:
            file.truncate(5 << 30)  # without blocks on the disk
        for plan, size in (({}, ("1", "2Gi")), ({"model": str(large)}, (None, "7Gi")), ({"model": "/packs/of-a-cluster", "kubernetes": {"claim": "packs"}}, (None, None)),
                           ({"model": str(large), "dtype": "bf16"}, (None, None)),
                           ({"model": str(large), "kubernetes": {"verifier_memory": "64Gi"}}, (None, "64Gi"))):
            (folder / "plan.json").write_text(json.dumps({"verifiers": [{}]} | plan))
            dry = launch(folder / "plan.json", "--dry-run", "--backend", "kubernetes")
            self.assertEqual(dry.returncode, 0, dry.stderr)
            found = [re.search(rf'path: /spec/template/spec/containers/0/resources/limits/{what}\n +value: "(.*)"', dry.stdout) for what in ("cpu", "memory")]
            self.assertEqual(tuple(one and one[1] for one in found), size, dry.stdout)

    def test_a_script_of_slurm_waits_as_long_as_it_is_told(self):
        for options, words in (((), '"$run" --exit-with-stdin\n'), (("--ready-timeout", "1800"), '"$run" --timeout 1800 --exit-with-stdin\n')):
            run = self.start(PLAN, "--backend", "slurm", "--dry-run", *options, expect_end=True)
            self.assertIn(f"launch wait {words}", run.out.read_text())

    def test_scripts_that_were_submitted_by_hand_are_not_known(self):
        run = self.start(PLAN, "--backend", "slurm", expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        for command, status in (("status", 4), ("down", 0)):
            done = launch(command, run.dir)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn("no process or job is recorded", done.stderr)

    def test_an_option_that_a_backend_does_not_have_is_refused(self):
        for arguments, message in ((["--submit"], "--submit with --backend local, wanted slurm"),
                                   (["--backend", "slurm", "--strict"], "--strict with --backend slurm, wanted local, ssh or srun"),
                                   (["--backend", "slurm", "--deadline", "2h"], "--deadline with --backend slurm, wanted local, ssh or srun"),
                                   (["--backend", "slurm", "--grace", "5"], "--grace with --backend slurm, wanted local, ssh or srun"),
                                   (["--backend", "kubernetes", "--exit-with-stdin"], "--exit-with-stdin with --backend kubernetes, wanted local, ssh or srun"),
                                   (["--backend", "kubernetes", "--ready-timeout", "7"], "--ready-timeout with --backend kubernetes, wanted local, ssh, srun or slurm")):
            run = self.start(PLAN, *arguments, expect_end=True)
            self.assertEqual(run.status, 2)
            self.assertIn(f"outrider: launch: {message}", run.err.read_text())

    def test_what_slurm_would_refuse_is_refused_first(self):
        plan = json.loads((GOLDENS / "het.json").read_text())
        for change, part in (({"slurm": {"shape": "het", "header": {"--array": "0-3"}}}, "there are no arrays of het jobs"),
                             ({"slurm": {"header": {"--array": "0-3"}}}, "a run has one coordinator"),
                             ({"slurm": {"header": {"--signal": "USR1@60"}}}, "wanted B:"),
                             ({"slurm": {"header": {"--time": "00:02:00"}}}, "--time=00:02:00 is 120 s"),
                             ({"slurm": {"header": {"--time": "soon"}}}, "--time=soon is no time"),
                             ({"slurm": {"shape": "het", "drafter_header": {"--time": "00:03:00"}}}, "--time=00:03:00 is 180 s"),
                             ({"slurm": {"shape": "elastic"}, "drafters": [{"hosts": "small1", "slurm_header": {"-t": "3"}}]}, "-t=3 is 180 s"),
                             ({"slurm": {"header": {"time": "1"}}}, "time is no option of sbatch"),
                             ({"slurm": {"header": {"--time 5": ""}}}, "--time 5 is no option of sbatch"),
                             ({"slurm": {"shape": "het"}, "drafters": [{"hosts": "big"}]}, "het: big has drafters and another role"),
                             ({"slurm": {"shape": "elastic", "drafter_header": {"--array": "0"}}, "drafters": [{"hosts": "small1"}, {"hosts": "small2"}]},
                              "wanted in a group's slurm_header"),
                             ({"slurm": {"shape": "het"}, "drafters": [{"hosts": "small1", "slurm_header": {"--nice": ""}}]}, "is for the shape elastic"),
                             ({"slurm": {"shape": "elastic"}, "drafters": [{"hosts": "big"}]}, "which drafters of other jobs cannot dial")):
            run = self.start(plan | change, "--backend", "slurm", expect_end=True)
            self.assertEqual(run.status, 1)
            self.assertIn("outrider: slurm: ", run.err.read_text())
            self.assertIn(part, run.err.read_text())

    def test_what_the_base_of_kubernetes_cannot_be_is_refused(self):
        plan = json.loads((GOLDENS / "pods.json").read_text())
        for change, part in (({"coordinator": {"listen": "tcp://0.0.0.0:1"}}, "coordinator.listen is tcp://0.0.0.0:1: the Service has port 7070"),
                             ({"verifiers": [{"cpuset": "0-3"}]}, "verifiers[0].cpuset"),
                             ({"drafters": [{}, {}]}, "2 groups of drafters, wanted one"),
                             ({"drafters": [{"deadline": "2h"}]}, "drafters[0].deadline"),
                             ({"kubernetes": {}, "drafters": [{"model": "/packs/drafter"}]}, "drafters[0].model is /packs/drafter, and drafters and front ends have no volume there; wanted kubernetes.claim"),
                             ({"model": "google/gemma-4-E4B-it"}, "a model is google/gemma-4-E4B-it, and pods have no folder for a download; wanted a path"),
                             ({"drafters": [{"model": "google/gemma-4-E2B-it"}]}, "a model is google/gemma-4-E2B-it, and pods"),
                             ({"drafters": [{"assistant": "google/gemma-4-E4B-it-assistant"}]}, "a model is google/gemma-4-E4B-it-assistant, and pods"),
                             ({"drafters": [{"draft_model": "google/gemma-4-E2B-it"}]}, "a model is google/gemma-4-E2B-it, and pods"),
                             ({"kubernetes": {}, "drafters": []}, "kubernetes: model is /packs/e4b, and drafters and front ends have no volume there"),
                             ({"run": [{"command": ["cat", "{run_dir}/x"]}]}, "{run_dir} is on this machine")):
            run = self.start(plan | change, "--backend", "kubernetes", expect_end=True)
            self.assertEqual(run.status, 1)
            self.assertIn("outrider: kubernetes: ", run.err.read_text())
            self.assertIn(part, run.err.read_text())

    def test_a_folder_with_keys_of_a_run_is_refused_before_its_plan_is_replaced(self):
        run = self.start(PLAN, "--backend", "kubernetes", expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        before = (run.dir / "plan.json").read_text()
        (run.folder / "plan.json").write_text(json.dumps(PLAN | {"dtype": "int8"}))
        again = launch(run.folder / "plan.json", "--backend", "kubernetes", "--run-dir", run.dir)
        self.assertEqual((again.returncode, again.stderr), (1, f"outrider: {run.dir}: is a run already, wanted a new folder\n"))
        self.assertEqual((run.dir / "plan.json").read_text(), before)

    def test_what_pods_that_share_a_batch_cannot_be_is_refused(self):
        plan = json.loads((GOLDENS / "shards.json").read_text())
        batch, pods = plan["run"][0]["command"], plan["kubernetes"]
        for change, part in (({"run": []}, "wanted one command under run"),
                             ({"run": [{"command": ["outrider", "run", "Hi."]}]}, "wanted one command under run"),
                             ({"run": [{"command": [*batch, "--connect", "{coordinator}"]}]}, "the batch has {coordinator}"),
                             ({"run": [{"command": [*batch, "--shard=1/2"]}]}, "the batch has --shard"),
                             ({"run": [{"command": ["outrider", "batch", "/packs/in.jsonl"]}]}, "--output is '', wanted /packs/NAME.jsonl"),
                             ({"kubernetes": pods | {"claim": ""}}, "no kubernetes.claim"),
                             ({"drafters": [{}]}, "a pod is a whole process"),
                             ({"verifiers": [{"cpuset": "0-3"}]}, "verifiers[0].cpuset"),
                             ({"verifiers": [{"memory": 5}]}, "wanted threads, model, dtype and environment of verifiers[0] alone")):
            run = self.start(plan | change, "--backend", "kubernetes", expect_end=True)
            self.assertEqual(run.status, 1)
            self.assertIn("outrider: kubernetes: shards: " if "cpuset" not in part else "outrider: kubernetes: ", run.err.read_text())
            self.assertIn(part, run.err.read_text())

    def test_an_experiment_is_a_command_of_a_plan(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-experiment-"))
        self.addCleanup(shutil.rmtree, folder)
        sweep = {"prompts": ["Count from 3 to 9."], "repeats": 3, "seconds": 0, "void": {"spread": 1000, "steal": 1, "others": 1, "bandwidth": 1000},
                 "sweeps": [{"output": [8], "draft_length": [2, "auto"], "clients": [1, 2]}]}
        (folder / "e.json").write_text(json.dumps(sweep))
        command = ["outrider", "experiment", str(folder / "e.json"), "--out", str(folder / "out"), "--connect", "{coordinator}"]
        run = self.start(PLAN | {"run": [{"command": command}]}, expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        cells = [json.loads(line) for line in (folder / "out" / "cells.jsonl").read_text().splitlines()]
        self.assertEqual([(list(cell["arms"]), list(cell["ratios"]), cell["predicted"], cell["texts_equal"]) for cell in cells],
                         [(["plain", "remote"], ["remote/plain"], None, True)] * 4)
        self.assertGreater(sum(cell["arms"]["remote"]["drafted_tokens"] for cell in cells), 0)
        self.assertEqual(json.loads((folder / "out" / "lock.json").read_text())["cluster"], {"verifiers": 1, "drafters": 2})
        self.assertIn("on a cluster that ran already", (folder / "out" / "report.html").read_text())
        (folder / "e.json").write_text(json.dumps(sweep | {"sweeps": [{"rtt_ms": [0, 5]}]}))
        refused = subprocess.run([OUTRIDER, *command[1:-1], "tcp://127.0.0.1:1"], capture_output=True, text=True, timeout=HANG)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("e.json: rtt_ms is 5.0, but --connect cannot change the cluster", refused.stderr)

    def test_an_experiment_warms_up(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-experiment-"))
        self.addCleanup(shutil.rmtree, folder)
        plan = {"prompts": ["Tell me a story about a fox."], "warm_up": 4, "repeats": 3, "seconds": 0,
                "void": {"spread": 1000, "steal": 1, "others": 1, "bandwidth": 1000}, "sweeps": [{"output": [48], "draft_length": ["4@0"], "clients": [1]}]}
        (folder / "e.json").write_text(json.dumps(plan))
        command = ["outrider", "experiment", str(folder / "e.json"), "--out", str(folder / "out"), "--connect", "{coordinator}"]
        run = self.start(PLAN | {"coordinator": {"rejection_log": str(folder / "lost.jsonl")}, "run": [{"command": command}]}, expect_end=True)
        self.assertEqual(run.status, 0, run.explain())
        [cell] = [json.loads(line) for line in (folder / "out" / "cells.jsonl").read_text().splitlines()]
        self.assertIsNone(cell["void"])
        lost = (folder / "lost.jsonl").read_text().splitlines()
        # The same answer 4 and 3 times: each loses as many drafts.
        self.assertGreater(len(lost), 0)
        self.assertEqual(len(lost) % 7, 0, len(lost))

    def test_a_batch_launches_its_plan_and_ends_it(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="outrider-batch-"))
        self.addCleanup(shutil.rmtree, folder)
        mark = f"OUTRIDER_TEST_RUN={folder.name}"
        (folder / "plan.json").write_text(json.dumps(marked(PLAN | {"dtype": "f32"}, mark)))
        alone = Job(OUTRIDER, folder, nano_lines(12), "--dtype", "f32", "--threads", "1", name="alone")
        self.assertEqual(alone.run().returncode, 0)
        planned = Job(OUTRIDER, folder, None, "--plan", str(folder / "plan.json"), name="planned")
        done = planned.run("--run-dir", str(folder / "run"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(planned.files(), alone.files())
        self.assertIn("outrider: ready: 1 verifier and 2 drafters", done.stderr)
        self.assertEqual(processes_with(mark), [])
        again = planned.run("--run-dir", str(folder / "none"))
        self.assertEqual((again.returncode, (folder / "none").exists()), (0, False), "all is done: nothing is launched")

        # What the input or the journal is lacking is said before anything starts.
        wrong = Job(OUTRIDER, folder, None, "--plan", str(folder / "plan.json"), name="wrong")
        wrong.journal.write_text("SQLite format 3")
        refused = wrong.run("--run-dir", str(folder / "none"))
        self.assertEqual((refused.returncode, refused.stderr.count("\n"), (folder / "none").exists()), (1, 1, False), refused.stderr)

        # A signal stops it with 75, a verifier that dies too; the same command goes on to the same bytes.
        job = Job(OUTRIDER, folder, None, "--plan", str(folder / "plan.json"), "--concurrency", "1", name="stopped")
        for i, end in enumerate((lambda process, ledger: process.terminate(),
                                 lambda process, ledger: os.kill(ledger["verifier.0"], signal.SIGKILL))):
            run_dir = folder / f"run{i}"
            process = job.start("--run-dir", str(run_dir))
            before = len(job.journal.read_text().splitlines()) if job.journal.exists() else 1
            self.assertTrue(eventually(lambda: process.poll() is not None or (job.journal.exists() and len(job.journal.read_text().splitlines()) > before)))
            ledger = {entry["name"]: entry["pid"] for entry in map(json.loads, (run_dir / "ledger.jsonl").read_text().splitlines())}
            end(process, ledger)
            _, err = process.communicate(timeout=HANG)
            self.assertIn(process.returncode, (0, 75), err)  # 0: it was as quick
            self.assertTrue(eventually(lambda: not processes_with(mark)), processes_with(mark))
        self.assertEqual(job.run("--run-dir", str(folder / "last")).returncode, 0)
        self.assertEqual(job.files(), alone.files())

        (folder / "plan.json").write_text(json.dumps(marked(PLAN | {"verifiers": [{"model": "/no/model"}]}, mark)))
        failed = Job(OUTRIDER, folder, None, "--plan", str(folder / "plan.json"), name="failed").run("--run-dir", str(folder / "failed"))
        self.assertEqual(failed.returncode, 1, failed.stderr)
        self.assertIn("verifier.0 on localhost: ended with status 1: outrider: /no/model", failed.stderr)
        self.assertEqual(processes_with(mark), [])

    def test_the_published_schema_is_what_the_program_has(self):
        published = pathlib.Path(__file__).parents[2] / "schemas" / "plan.schema.json"
        schema = launch("--schema").stdout
        if WRITE_GOLDENS:
            published.write_text(schema)
        self.assertEqual(published.read_text(), schema)


GOLDENS = pathlib.Path(__file__).parents[1] / "goldens" / "launch"
WRITE_GOLDENS = "--write-goldens" in sys.argv
if WRITE_GOLDENS:
    sys.argv.remove("--write-goldens")
KILLS = take_number("--kills", 6)
OUTRIDER = str(pathlib.Path(sys.argv.pop(1)).resolve())

if __name__ == "__main__":
    unittest.main(verbosity=2)
