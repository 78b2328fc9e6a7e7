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
    import ray
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
    """Each test has a head node, where the aggregator runs, and two nodes for two workers each."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(dir="/tmp", prefix="allot-ray-")  # Ray's sockets have paths of 107 bytes
        os.environ["PYTHONPATH"] = str(PACKAGE)
        os.environ["ALLOT_SIMULATED_HOLD"] = str(Path(cls.temporary.name) / "hold")
        cls.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False,
                "temp_dir": cls.temporary.name,
            },
        )

    @classmethod
    def tearDownClass(cls):
        cls.cluster.shutdown()
        cls.temporary.cleanup()

    def setUp(self):
        folder = Path(self.temporary.name) / self.id().rpartition(".")[2][-30:]
        folder.mkdir()
        self.run_ = ClusterRun(options.allot, options.source, folder)
        self.run_.hold = Path(self.temporary.name) / "hold"
        self.run_.hold.touch()
        self.addCleanup(self.run_.end_processes)
        self.output = folder / "result.json"
        self.log = folder / "launch.log"
        self.nodes = []

    def tearDown(self):
        for node in self.nodes:
            self.cluster.remove_node(node)

    def add_node(self):
        self.nodes.append(self.cluster.add_node(
            num_cpus=2, object_store_memory=OBJECT_STORE, resources={"worker_node": 2}))
        return self.nodes[-1]

    def start(self, workers, *more):
        command = [
            sys.executable, "-m", "allot_ray", "--address", self.cluster.address, "--allot", options.allot,
            "--run", self.run_.directory, "--config", self.run_.config, "--workers", str(workers), "--gpus-per-worker", "0",
            *more,
        ]
        with self.output.open("w") as output, self.log.open("w") as log:
            launch = subprocess.Popen(command, stdout=output, stderr=log)
        self.addCleanup(launch.wait)
        self.addCleanup(launch.kill)
        return launch

    def workers_of(self, node):
        """Allot's worker processes on a node: children of the Ray workers that its raylet started."""
        raylets = {process.process.pid for process in node.all_processes["raylet"]}

        def parent(pid):
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

        return [pid for pid in self.run_.workers() if parent(parent(pid)) in raylets]

    def finish(self, launch):
        self.assertEqual(launch.wait(60), 0, self.log.read_text())
        self.run_.assert_complete(self)
        self.assertEqual(self.run_.workers(), {})
        self.assertEqual(self.run_.aggregators(), {})
        return json.loads(self.output.read_text())

    def test_run_outlives_the_loss_of_a_node_and_counts_every_episode_once(self):
        self.add_node()
        doomed = self.add_node()
        launch = self.start(4)
        self.run_.wait_for_leases(4)
        lost = self.workers_of(doomed)
        self.assertEqual(len(lost), 2)
        # A machine that is gone says no goodbye: its workers stop first, so that they cannot drain when Ray ends them.
        for pid in lost:
            os.kill(pid, signal.SIGSTOP)
        held = self.run_.held_leases()
        self.assertEqual(len(held), 4)
        self.nodes.remove(doomed)
        self.cluster.remove_node(doomed, allow_graceful=False)

        self.add_node()  # what an autoscaler does for the two tasks without a place
        wait_until("two workers take the places of the lost ones", lambda: len(set(self.run_.workers()) - set(lost)) == 4)
        wait_until("the leases of the lost workers end", lambda: len(set(held) & set(self.run_.held_leases())) == 2)
        self.run_.wait_for_leases(4)
        self.run_.let_go()

        result = self.finish(launch)
        self.assertEqual(result["status"]["stage"], "finished")
        self.assertEqual(result["schedule"], json.loads(Path(result["schedule_path"]).read_text()))
        self.assertEqual(result["workers_started"], 4, "the repeats of lost tasks are Ray's own")

    def test_workers_that_crash_or_drain_are_replaced_and_a_killed_aggregator_starts_again_where_it_was(self):
        self.add_node()
        launch = self.start(2)
        before = self.run_.wait_for_leases(2)
        first = set(self.run_.workers())
        endpoint = (self.run_.directory / "endpoint").read_text()
        (aggregator,) = self.run_.aggregators()
        os.kill(aggregator, signal.SIGKILL)
        wait_until("the aggregator listens again", lambda: (self.run_.status() or before)["epoch"] == 2)
        self.assertEqual((self.run_.directory / "endpoint").read_text(), endpoint)
        self.assertEqual(set(self.run_.workers()), first, "workers outlive the aggregator")

        crashed, drained = first
        os.kill(crashed, signal.SIGKILL)
        os.kill(drained, signal.SIGTERM)
        wait_until("both are replaced", lambda: len(self.run_.workers()) == 2 and not first & set(self.run_.workers()))
        self.run_.wait_for_leases(2)
        self.run_.let_go()

        self.assertEqual(self.finish(launch)["workers_started"], 4)
        self.assertRegex(self.log.read_text(), r"worker ray-[12] failed: status -9 on node")
        self.assertIn(("released", 1), self.run_.rows("SELECT ending, count(*) FROM lease_ends GROUP BY ending"))

    def test_stopped_launch_drains_and_a_later_one_continues_the_run(self):
        self.add_node()
        launch = self.start(2)
        self.run_.wait_for_leases(2)
        launch.send_signal(signal.SIGTERM)
        self.assertEqual(launch.wait(60), 130, self.log.read_text())
        self.assertEqual(self.run_.workers(), {})
        self.assertEqual(self.run_.aggregators(), {})
        self.assertEqual(self.run_.held_leases(), [])
        self.run_.let_go()

        self.finish(self.start(2))
        self.assertEqual(self.run_.status()["epoch"], 2)

    def test_worker_with_wrong_options_is_not_tried_again(self):
        self.add_node()
        launch = self.start(2, "--worker-option=--no-such-option")
        self.assertEqual(launch.wait(60), 1)
        self.assertIn("every worker was given up: worker ray-1 ended with status 2", self.log.read_text())
        self.assertEqual(self.run_.aggregators(), {})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *unittest_options])
