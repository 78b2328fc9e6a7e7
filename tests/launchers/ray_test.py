"""allot_ray on a real Ray cluster of several nodes on this machine: the run outlives the loss of a node, of the aggregator
and of single workers, and every episode is counted once.

    ray_test.py ALLOT SOURCE [unittest options]

ALLOT is the executable beside a simulated allot-model, SOURCE the root of the sources. Exits 77 (skipped) when this Python
cannot import ray or may not make namespaces.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import own_machine
from cluster_run import ClusterRun, wait_until

own_machine.enter()
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    # Nodes in their own processes, as a lost one leaves no word; the head shall notice in seconds, not in half a minute.
    RAY_health_check_initial_delay_ms="1000",
    RAY_health_check_period_ms="500",
    RAY_health_check_failure_threshold="4",
)
try:
    from ray.cluster_utils import Cluster
except ImportError as error:
    print(f"skipped: {sys.executable} cannot import ray ({error}); ./setup --check installs it into .deps/check")
    sys.exit(own_machine.SKIPPED)

parser = argparse.ArgumentParser()
parser.add_argument("allot")
parser.add_argument("source")
options, unittest_options = parser.parse_known_args()
options.allot = str(Path(options.allot).resolve())

PACKAGE = Path(options.source) / "python"
sys.path.insert(0, str(PACKAGE))
from allot_ray.plan import AggregatorPlan, LaunchPlan, WorkerPlan  # noqa: E402
from allot_ray.process import Ending  # noqa: E402

OBJECT_STORE = 80 * 1024 * 1024  # the least that Ray accepts is 75 MiB


def bound(listener, port):
    """Whether it could be bound."""
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


class PlanTest(unittest.TestCase):
    def test_names_every_fault_at_once(self):
        plan = LaunchPlan(AggregatorPlan(run="runs/here", port=70000), WorkerPlan(count=0, gpus=2))
        with self.assertRaises(ValueError) as caught:
            plan.check()
        for value in ["'runs/here'", "70000", "at least 1, not 0", "0 to 1, not 2"]:
            self.assertIn(value, str(caught.exception))

    def test_worker_without_gpu_runs_on_cpu_and_others_on_the_gpu_that_ray_shows_them(self):
        self.assertEqual(WorkerPlan(gpus=0).device(), "cpu")
        self.assertEqual(WorkerPlan(gpus=0.5).device(), "cuda:0")

    def test_wrong_usage_and_mismatch_are_hopeless_and_signals_are_failures(self):
        self.assertEqual([Ending.of(code) for code in (0, 1, 2, 3, -9)],
                         [Ending.DONE, Ending.FAILED, Ending.HOPELESS, Ending.HOPELESS, Ending.FAILED])


class ClusterTest(unittest.TestCase):
    """The cluster has a head node, where the aggregator runs, and a node for two workers; tests add others."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(dir="/tmp", prefix="allot-ray-")  # Ray's sockets have paths of 107 bytes
        os.environ["PYTHONPATH"] = str(PACKAGE)
        # Ray starts its workers with the environment of their node, not with that of whoever asks for a task.
        cls.hold = Path(cls.temporary.name) / "hold"
        os.environ["ALLOT_SIMULATED_HOLD"] = str(cls.hold)
        head = {
            "num_cpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False, "temp_dir": cls.temporary.name,
        }
        os.makedirs("/tmp/ray", exist_ok=True)  # ray writes the cluster's address there wherever its other files are
        cls.cluster = Cluster(initialize_head=True, head_node_args=head)
        cls.cluster.add_node(num_cpus=2, object_store_memory=OBJECT_STORE)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.shutdown()
        cls.temporary.cleanup()

    def setUp(self):
        folder = Path(self.temporary.name) / self.id().rpartition(".")[2]
        folder.mkdir()
        self.run_ = ClusterRun(options.allot, options.source, folder, self.hold)
        self.addCleanup(self.run_.end_processes)
        self.output = folder / "result.json"
        self.log = folder / "launch.log"

    def add_node(self, resources=None):
        node = self.cluster.add_node(num_cpus=2, object_store_memory=OBJECT_STORE, resources=resources)
        self.addCleanup(lambda: node in self.cluster.list_all_nodes() and self.cluster.remove_node(node))
        return node

    def lose(self, node):
        """Removes a node as if its machine were gone: nothing on it can say goodbye, since allot's processes are stopped
        before Ray ends them. Returns their ids."""
        lost = self.processes_on(node)
        for pid in lost:
            os.kill(pid, signal.SIGSTOP)
        self.cluster.remove_node(node, allow_graceful=False)
        return lost

    def start(self, workers, *more):
        command = [
            sys.executable, "-m", "allot_ray", "--address", self.cluster.address, "--allot", options.allot,
            "--run", self.run_.directory, "--config", self.run_.config, "--workers", str(workers), "--gpus-per-worker", "0",
            "--retry-seconds", "0", *more,
        ]
        with self.output.open("w") as output, self.log.open("w") as log:
            launch = subprocess.Popen(command, stdout=output, stderr=log)
        self.addCleanup(launch.wait)
        self.addCleanup(launch.kill)
        return launch

    def processes_on(self, node):
        """Allot's processes on a node: children of the Ray workers that its raylet started."""
        raylets = {process.process.pid for process in node.all_processes["raylet"]}

        def parent(pid):
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

        return {pid for pid in [*self.run_.workers(), *self.run_.aggregators()] if parent(parent(pid)) in raylets}

    def finish(self, launch):
        self.assertEqual(launch.wait(60), 0, self.log.read_text())
        self.run_.assert_complete(self)
        self.assertEqual(self.run_.workers(), {})
        self.assertEqual(self.run_.aggregators(), {})
        return json.loads(self.output.read_text())

    def test_run_outlives_the_loss_of_a_node_and_counts_every_episode_once(self):
        doomed = self.add_node()
        launch = self.start(4)
        self.run_.wait_for_leases(4)
        held = set(self.run_.held_leases())
        self.assertEqual(len(held), 4)
        lost = self.lose(doomed)
        self.assertEqual(len(lost), 2)

        self.add_node()  # what an autoscaler does for the two tasks without a place
        wait_until("two workers take the places of the lost ones", lambda: len(set(self.run_.workers()) - lost) == 4)
        wait_until("the leases of the lost workers end", lambda: len(held & set(self.run_.held_leases())) == 2)
        self.run_.wait_for_leases(4)
        self.run_.let_go()

        result = self.finish(launch)
        self.assertEqual(result["status"]["stage"], "finished")
        self.assertEqual(result["schedule"], json.loads(Path(result["schedule_path"]).read_text()))
        self.assertEqual(result["workers_started"], 4, "the repeats of lost tasks are Ray's own")

    def test_workers_that_crash_or_drain_are_replaced_and_a_killed_aggregator_starts_again_where_it_was(self):
        launch = self.start(2)
        before = self.run_.wait_for_leases(2)
        first = set(self.run_.workers())
        endpoint = (self.run_.directory / "endpoint").read_text()
        (aggregator,) = self.run_.aggregators()
        os.kill(aggregator, signal.SIGKILL)
        wait_until("the aggregator listens again", lambda: (self.run_.status() or before)["epoch"] == 2)
        self.assertEqual((self.run_.directory / "endpoint").read_text(), endpoint)
        self.run_.wait_for_leases(2)
        self.assertEqual(set(self.run_.workers()), first, "workers outlive the aggregator")

        crashed, drained = first
        os.kill(crashed, signal.SIGKILL)
        os.kill(drained, signal.SIGTERM)
        wait_until("both are replaced", lambda: len(self.run_.workers()) == 2 and not first & set(self.run_.workers()))
        self.run_.wait_for_leases(2)
        self.run_.let_go()

        self.assertEqual(self.finish(launch)["workers_started"], 4)
        self.assertRegex(self.log.read_text(), r"worker ray-[12] failed: status -9 on node")
        self.assertEqual(self.run_.leases_given_back(), 1)

    def test_aggregator_whose_node_is_lost_moves_with_its_run_and_the_workers_follow(self):
        doomed = self.add_node({"stays": 1})
        launch = self.start(2, "--aggregator-resource=stays")
        self.run_.wait_for_leases(2)
        first = set(self.run_.workers())
        endpoint = (self.run_.directory / "endpoint").read_text().strip()
        self.assertEqual(len(self.lose(doomed)), 1)
        # The address of the lost machine is nobody's any more; here, where all nodes have one address, its port is taken.
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            wait_until("the lost aggregator's port is free", lambda: bound(taken, int(endpoint.rpartition(":")[2])))
            taken.listen()
            self.add_node({"stays": 1})
            wait_until("the workers are those of the new address",
                       lambda: len(self.run_.workers()) == 2 and not first & set(self.run_.workers()))
            self.run_.wait_for_leases(2)
            self.assertNotEqual((self.run_.directory / "endpoint").read_text().strip(), endpoint)
            self.run_.let_go()
            self.finish(launch)
        self.assertIn(f"the aggregator moved from {endpoint} to", self.log.read_text())

    def test_stopped_launch_drains_and_a_later_one_continues_the_run(self):
        launch = self.start(2)
        self.run_.wait_for_leases(2)
        launch.send_signal(signal.SIGTERM)
        self.assertEqual(launch.wait(60), 130, self.log.read_text())
        self.assertEqual(self.run_.workers(), {})
        self.assertEqual(self.run_.aggregators(), {})
        self.assertEqual(self.run_.held_leases(), [])
        self.run_.let_go()

        self.finish(self.start(2))
        self.assertEqual(self.run_.rows("SELECT max(epoch) FROM epochs"), [(2,)])

    def test_worker_with_wrong_options_is_not_tried_again(self):
        launch = self.start(2, "--worker-option=--no-such-option")
        self.assertEqual(launch.wait(60), 1)
        self.assertIn("every worker was given up: worker ray-1 ended with status 2", self.log.read_text())
        self.assertEqual(self.run_.aggregators(), {})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *unittest_options])
