"""The job scripts in slurm/ on a real Slurm cluster on this machine: slurmctld, two slurmd and munged from Debian's packages.
Jobs are cancelled and requeued in the middle of a run, processes are killed, and every episode is counted once.

    slurm_test.py ALLOT SOURCE [unittest options]

ALLOT is the executable beside a simulated allot-model, SOURCE the root of the sources. Exits 77 (skipped) where a program
or a permission is missing.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import own_machine
from cluster_run import ClusterRun, wait_until

PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
os.environ["PATH"] += ":/usr/sbin:/sbin"
for program, package in PACKAGES.items():
    if shutil.which(program) is None:
        print(f"skipped: {program} is missing; ./setup --check installs Debian's {package}")
        sys.exit(own_machine.SKIPPED)
if os.geteuid() != 0:
    print("skipped: slurmd has to start as root")
    sys.exit(own_machine.SKIPPED)
own_machine.enter()

parser = argparse.ArgumentParser()
parser.add_argument("allot")
parser.add_argument("source")
options, unittest_options = parser.parse_known_args()
options.allot = str(Path(options.allot).resolve())

# Slurm starts a requeued job only when the credential of its last start has expired (cred_expire, by default 120 s).
# Two nodes that are one machine: each slurmd has a port and a spool folder of its own. The GPUs are other
# character devices; Slurm hands them out as it does real ones.
CONFIGURATION = """
ClusterName=allot-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=6817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
KillWait=10
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=left NodeHostname={host} NodeAddr=127.0.0.1 Port=6818 CPUs=4 RealMemory=8000 Gres=gpu:2
NodeName=right NodeHostname={host} NodeAddr=127.0.0.1 Port=6819 CPUs=4 RealMemory=8000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=60
"""


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="allot-slurm-")
        cls.folder = folder = Path(cls.temporary.name)
        folder.chmod(0o755)  # munge's clients must reach its socket
        # Slurm looks names up as if there were no IPv4 when only 127.0.0.1 is there (AI_ADDRCONFIG of glibc).
        subprocess.run(["ip", "address", "add", "192.0.2.1/32", "dev", "lo"], check=True)
        for name in ["state", "spool-left", "spool-right"]:
            (folder / name).mkdir()
        for gpu, device in enumerate(["/dev/null", "/dev/zero"]):
            (folder / f"gpu{gpu}").symlink_to(device)
        (folder / "gres.conf").write_text(f"AutoDetect=off\nNodeName=left,right Name=gpu File={folder}/gpu[0-1]\n")
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=os.uname().nodename))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        cls.daemons = [
            cls.start_daemon(
                "munged", "--foreground", "--num-threads=2", f"--key-file={key}", f"--socket={folder}/munge.socket",
                f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed",
            )  # fmt: skip
        ]
        wait_until("munged listens", (folder / "munge.socket").exists)
        cls.daemons += [
            cls.start_daemon("slurmctld", "-D", "-c"),
            cls.start_daemon("slurmd", "-D", "-N", "left"),
            cls.start_daemon("slurmd", "-D", "-N", "right"),
        ]
        wait_until("both nodes are idle", lambda: cls.idle_nodes() == 2)

    @classmethod
    def start_daemon(cls, *command):
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @classmethod
    def idle_nodes(cls):
        answer = subprocess.run(["sinfo", "-h", "-N", "-t", "idle"], capture_output=True, text=True, check=False)
        return len(answer.stdout.splitlines())

    @classmethod
    def tearDownClass(cls):
        for daemon in reversed(cls.daemons):
            daemon.terminate()
            daemon.wait()
        cls.temporary.cleanup()

    def setUp(self):
        self.place = self.folder / self.id().rpartition(".")[2]
        self.place.mkdir()
        self.run_ = ClusterRun(options.allot, options.source, self.place, self.place / "hold")
        self.addCleanup(self.run_.end_processes)
        self.addCleanup(lambda: subprocess.run(["scancel", "--user=root"], check=True))

    def submit(self, script, *words, sbatch=(), **variables):
        """Number of the job. `words` go to allot, `sbatch` to sbatch."""
        variables = {
            "ALLOT": options.allot,
            "ALLOT_RUN": str(self.run_.directory),
            "ALLOT_SLURM": f"{options.source}/slurm",
            "ALLOT_BIND_ADDRESS": "127.0.0.1",
            "ALLOT_SIMULATED_HOLD": str(self.run_.hold),
            "ALLOT_SIMULATED_GPUS": "1",
            **variables,
        }
        command = ["sbatch", "--parsable", f"--chdir={self.place}", *sbatch, f"{options.source}/slurm/{script}", *words]
        return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True).stdout.strip()

    def submit_workers(self, count, *words, **variables):
        return self.submit("worker.sbatch", *words, sbatch=[f"--array=1-{count}", "--cpus-per-task=1"], **variables)

    def job(self, number, field):
        """A field of `scontrol show job`, empty when the job is forgotten."""
        command = ["scontrol", "show", "job", number]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.search(rf"\b{field}=(\S+)", shown)
        return found[1] if found else ""

    def wait_for_state(self, number, wanted):
        wait_until(f"job {number} is {wanted}", lambda: self.job(number, "JobState") == wanted)

    def worker_of(self, name):
        """Process id of the worker with this name, or nothing."""
        return next((pid for pid, words in self.run_.workers().items() if name in words), None)

    def log_of(self, name):
        return (self.place / f"{name}.log").read_text()

    def test_jobs_cancelled_requeued_and_killed_leave_every_episode_counted_once(self):
        aggregator = self.submit("aggregator.sbatch", f"--config={self.run_.config}")
        workers = self.submit_workers(4)
        status = self.run_.wait_for_leases(4)
        self.assertEqual({worker["device"] for worker in status["workers"]}, {"simulation on cuda:0 Simulated GPU, 80 GiB"})
        endpoint = (self.run_.directory / "endpoint").read_text()
        names = [f"slurm-{workers}-{task}" for task in range(1, 5)]
        first = [self.worker_of(name) for name in names]

        subprocess.run(["scancel", f"{workers}_1"], check=True)
        subprocess.run(["scontrol", "requeue", f"{workers}_2"], check=True)
        os.kill(first[2], signal.SIGKILL)
        # What Slurm does half a minute before the time limit (#SBATCH --signal).
        subprocess.run(["scancel", "--batch", "--signal=USR1", f"{workers}_4"], check=True)
        self.wait_for_state(f"{workers}_1", "CANCELLED")
        for name, pid in zip(names[1:], first[1:]):
            wait_until(f"worker {name} is started again", lambda: self.worker_of(name) not in (None, pid))
        self.run_.wait_for_leases(3)
        self.assertEqual(self.run_.leases_given_back(), 3, "cancelled, requeued and out of time")
        self.assertIn("ended with status 137", self.log_of(f"allot-worker-{workers}_3"))
        self.assertIn("the time limit is near", self.log_of(f"allot-worker-{workers}_4"))

        second = [self.worker_of(name) for name in names[1:]]
        subprocess.run(["scontrol", "requeue", aggregator], check=True)
        wait_until("the aggregator listens again", lambda: (self.run_.status() or status)["epoch"] == 2)
        self.assertEqual((self.run_.directory / "endpoint").read_text(), endpoint)
        self.run_.wait_for_leases(3)
        self.assertEqual([self.worker_of(name) for name in names[1:]], second, "workers outlive the aggregator")
        self.run_.let_go()

        for job in [aggregator, *(f"{workers}_{task}" for task in range(2, 5))]:
            self.wait_for_state(job, "COMPLETED")
        self.run_.assert_complete(self)
        late = self.submit_workers(1)
        self.wait_for_state(f"{late}_1", "COMPLETED")
        self.assertIn("is finished", self.log_of(f"allot-worker-{late}_1"))

    def test_workers_follow_an_aggregator_that_moves(self):
        workers = self.submit_workers(1)  # before there is an aggregator
        moved_from = self.submit("aggregator.sbatch", f"--config={self.run_.config}", ALLOT_PORT="21001")
        self.run_.wait_for_leases(1)
        subprocess.run(["scancel", moved_from], check=True)
        self.wait_for_state(moved_from, "CANCELLED")
        moved_to = self.submit("aggregator.sbatch", ALLOT_PORT="21002")
        self.run_.wait_for_leases(1)
        self.run_.let_go()
        self.wait_for_state(moved_to, "COMPLETED")
        self.wait_for_state(f"{workers}_1", "COMPLETED")
        self.run_.assert_complete(self)
        moved = "was at tcp://127.0.0.1:21001 and is now at tcp://127.0.0.1:21002"
        self.assertIn(moved, self.log_of(f"allot-worker-{workers}_1"))

    def test_usage_errors_and_mismatches_fail_the_job_and_crashes_queue_it_so_often_as_allowed(self):
        self.run_.directory.mkdir()
        (self.run_.directory / "endpoint").write_text("tcp://127.0.0.1:1\n")
        wrong = self.submit_workers(1, "--no-such-option")
        self.wait_for_state(f"{wrong}_1", "FAILED")
        self.assertEqual(self.job(f"{wrong}_1", "ExitCode"), "2:0")
        other_model = self.place / "other-model"
        other_model.write_text("#!/bin/sh\nexit 3\n")
        other_model.chmod(0o755)
        mismatched = self.submit_workers(1, ALLOT=str(other_model))
        self.wait_for_state(f"{mismatched}_1", "FAILED")
        self.assertEqual(self.job(f"{mismatched}_1", "ExitCode"), "3:0")
        crashing = self.submit_workers(1, ALLOT="/bin/false", ALLOT_MAX_RESTARTS="1")
        self.wait_for_state(f"{crashing}_1", "FAILED")
        self.assertEqual(self.job(f"{crashing}_1", "Restarts"), "1")
        self.assertIn("not queued again after 1 restarts", self.log_of(f"allot-worker-{crashing}_1"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *unittest_options])
