"""A run that the tests of the launchers start on their clusters, with workers that answer by chance
(tests/app/simulated_worker.cc), and what must hold of its history afterwards."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path


def wait_until(what, holds, seconds=60):
    """The first true value of `holds`. Raises AssertionError that names `what` when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.1)
    return value


def processes_of(executable, command):
    """Process ids by command line of `executable command ...`, in this process's PID namespace."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        # `allot worker` becomes `allot-model worker` (app/cli/command_line.cc).
        if len(words) > 1 and words[0].startswith(str(executable)) and words[1] == command:
            found[int(entry.name)] = words
    return found


class ClusterRun:
    """One run directory under `folder`. Workers hold their leases from episode 20 on until `let_go`, so that a test
    meets them in the middle of their work however slow the machine is."""

    EPISODES = 120

    def __init__(self, allot, source, folder, hold):
        """`hold` is the file that the workers' ALLOT_SIMULATED_HOLD names; it is made here."""
        self.allot = Path(allot)
        self.directory = Path(folder) / "run"
        self.hold = Path(hold)
        self.hold.touch()
        model = Path(source) / "assets" / "tiny-gsm"
        self.config = Path(folder) / "run.conf"
        self.config.write_text(
            f"model = {model}\n"
            f"data = {model}/train.jsonl\n"
            f"heldout = {model}/heldout.jsonl\n"
            "total = 64\n"
            f"episodes = {self.EPISODES}\n"
            "questions = 4\n"
            "heldout-questions = 8\n"
            "lease-seconds = 20\n"
            "preflight = 0\n"  # the tests count episodes
        )

    def let_go(self):
        self.hold.unlink()

    def status(self):
        """What `allot status` says, nothing while there is no run."""
        command = [self.allot, "status", "--run", self.directory, "--json"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    def workers(self):
        return processes_of(self.allot, "worker")

    def aggregators(self):
        return processes_of(self.allot, "aggregator")

    def wait_for_leases(self, workers, seconds=60):
        """Waits until `workers` live workers hold a lease each; returns the status."""

        def all_hold():
            status = self.status()
            if not status or not status["running"]:
                return None
            holding = [worker for worker in status["workers"] if worker["leases"]]
            return status if len(holding) == workers else None

        return wait_until(f"{workers} workers hold leases", all_hold, seconds)

    def rows(self, query):
        connection = sqlite3.connect(f"file:{self.directory}/history.sqlite?mode=ro", uri=True)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def held_leases(self):
        """Leases that are neither answered nor ended, as (lease, worker)."""
        return self.rows(
            "SELECT lease, worker FROM leases WHERE lease NOT IN (SELECT lease FROM lease_ends)"
            " AND lease NOT IN (SELECT lease FROM outcomes) ORDER BY lease"
        )

    def leases_given_back(self):
        """How many leases workers gave back because they were asked to stop."""
        ((count,),) = self.rows("SELECT count(*) FROM lease_ends WHERE ending IN ('released', 'preempted')")
        return count

    def assert_complete(self, test):
        """The run is finished and every episode was counted exactly once."""
        status = self.status()
        test.assertEqual(status["stage"], "finished")
        test.assertTrue((self.directory / "schedule.json").exists())
        test.assertEqual(self.rows("SELECT count(*) FROM set_asides"), [(0,)])
        learned = "SELECT count(*), count(DISTINCT episode) FROM outcomes JOIN episodes USING(episode) WHERE stage = 'learn'"
        test.assertEqual(self.rows(learned), [(self.EPISODES, self.EPISODES)])
        test.assertEqual(self.rows("SELECT episode FROM episodes EXCEPT SELECT episode FROM outcomes"), [])
        test.assertEqual(self.rows("SELECT DISTINCT verdict FROM outcomes WHERE verdict NOT IN ('accepted', 'late')"), [])

    def end_processes(self):
        """For the end of a test that failed: the next one finds no process of this run."""
        for pid in [*self.workers(), *self.aggregators()]:
            os.kill(pid, signal.SIGKILL)
