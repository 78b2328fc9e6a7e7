#!/usr/bin/env python3
"""The pods of k8s/overlays/job in containers, from the manifests as they are rendered: start, probes, SIGTERM, SIGKILL and a
restart on the same volume, of the aggregator and of a worker. The worker answers by chance and no GPU is used.

    pods_test.py [unittest options]

Environment: ALLOT_BIN_DIR, a folder with allot and a simulated allot-model. Needs root, runc, kubectl and the module yaml;
says what is missing and exits 77 without them.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import manifests
import pods
from manifests import K8S, REPOSITORY, component

RUN = "/var/lib/allot/run"
CONFIG = f"""run = {RUN}
model = /inputs/tiny-gsm
data = /inputs/tiny-gsm/train.jsonl
heldout = /inputs/tiny-gsm/heldout.jsonl
total = 64
episodes = 3000
questions = 4
policy = reinforce
preflight = 0
heldout-questions = 16
lease-seconds = 300
"""


def allot(*words):
    tool = pathlib.Path(os.environ["ALLOT_BIN_DIR"]) / "allot"
    return subprocess.run([str(tool), *map(str, words)], capture_output=True, text=True, check=False)


class PodsRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        images = tempfile.TemporaryDirectory(prefix="allot-images-")
        cls.addClassCleanup(images.cleanup)
        folder, programs = pathlib.Path(images.name), pathlib.Path(os.environ["ALLOT_BIN_DIR"])
        folder.chmod(0o755)
        cls.images = {"aggregator": pods.assemble(folder / "aggregator", programs / "allot"),
                      "worker": pods.assemble(folder / "worker", programs / "allot", programs / "allot-model")}

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="allot-pods-")
        self.addCleanup(temporary.cleanup)
        objects = manifests.render(K8S / "overlays/job", yaml)
        ((_, self.aggregator),) = component(objects, "aggregator")
        ((_, self.worker),) = component(objects, "worker")
        (service,) = manifests.of_kind(objects, "Service")
        (config,) = manifests.of_kind(objects, "ConfigMap")
        self.node = pods.Node(temporary.name, self.images, [service["metadata"]["name"]])
        self.addCleanup(self.node.close)
        group = self.aggregator["securityContext"]["fsGroup"]
        self.run_directory = self.node.add_volume("runs", group) / "run"
        self.node.volumes["allot-inputs"] = REPOSITORY / "assets"
        self.node.add_files(config["metadata"]["name"], {"run.conf": CONFIG}, group, 0o644)
        keys = pathlib.Path(temporary.name) / "keys"
        keys.mkdir()
        public = {name: allot("keys", "new", "--out", keys / f"{name}.key").stdout for name in ("aggregator", "worker")}
        secret = {name: (keys / f"{name}.key").read_text() for name in public}
        self.node.add_files("allot-aggregator-keys", {
            "aggregator.key": secret["aggregator"], "allow": f"{public['worker'].strip()} workers worker\n"}, group)
        self.node.add_files("allot-worker-keys", {
            "worker.key": secret["worker"], "aggregator.pub": public["aggregator"]}, group)

    def start(self, pod, host):
        container = self.node.start(pod, host, ["ALLOT_SIMULATED_GPUS=1"])
        self.addCleanup(container.end)
        return container

    def start_aggregator(self):
        """An aggregator whose startup and readiness probes pass."""
        container = self.start(self.aggregator, "allot-aggregator-0")
        (spec,) = self.aggregator["containers"]
        for probe in ("startupProbe", "readinessProbe"):
            path = spec[probe]["httpGet"]["path"]
            container.until(lambda path=path: self.node.get(path)[0] == 200, f"{probe} at {path}")
        return container

    def run_says(self):
        status, body = self.node.get("/api/run")
        return json.loads(body) if status == 200 else {"episodes_done": -1, "epoch": -1}

    def past(self, episodes):
        return lambda: self.run_says()["episodes_done"] > episodes

    def test_survive_what_a_cluster_does_to_them(self):
        aggregator = self.start_aggregator()
        self.assertEqual(self.run_says()["epoch"], 1)
        worker = self.start(self.worker, "allot-worker-0")
        worker.until(self.past(5), "5 episodes")
        (spec,) = self.worker["containers"]
        for probe in ("startupProbe", "livenessProbe"):
            self.assertEqual(worker.execute(spec[probe]["exec"]["command"]), 0, probe)
        for container in (aggregator, worker):
            says = container.kernel_says()
            for line in (r"Uid:\t65532\t", r"CapBnd:\t0+\n", r"NoNewPrivs:\t1\n", r"NSpid:\t\d+\t1\n"):
                self.assertRegex(says, line)
        self.assertLess(int(re.search(r"VmHWM:\s+(\d+) kB", aggregator.kernel_says())[1]), 256 * 1024)

        # Spot reclaim of the worker: drained in its grace period, with the status that the Job does not count.
        self.assertEqual(worker.stop(), 143, worker.log.read_text())
        # Another pod of the same index takes up its name; the aggregator is moved meanwhile.
        worker = self.start(self.worker, "allot-worker-0")
        worker.until(self.past(20), "20 episodes")
        self.assertEqual(aggregator.stop(), 0, aggregator.log.read_text())
        done = self.episodes_in_history()
        self.assertGreater(done, 20)
        aggregator = self.start_aggregator()
        self.assertEqual(self.run_says()["epoch"], 2)
        self.assertGreaterEqual(self.run_says()["episodes_done"], done)

        # Killed, as for memory, while it works; then once more on the same volume, to the end.
        worker.until(self.past(done + 20), "20 episodes more")
        self.assertEqual(aggregator.kill(), 137)
        aggregator = self.start_aggregator()
        self.assertEqual(self.run_says()["epoch"], 3)
        self.assertEqual(worker.process.wait(120), 0, worker.log.read_text())
        aggregator.until(lambda: self.run_says()["stage"] == "finished", "end of the run on its page")
        self.assertEqual(aggregator.stop(), 0, aggregator.log.read_text())
        self.assertEqual(self.episodes_in_history(), 3000)
        checked = allot("history", "check", self.run_directory)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def episodes_in_history(self):
        told = allot("status", "--run", self.run_directory, "--json")
        self.assertEqual(told.returncode, 0, told.stderr)
        return json.loads(told.stdout)["episodes_done"]

    def test_wrong_options_end_the_job_and_not_its_retries(self):
        (spec,) = self.worker["containers"]
        spec["args"].append("--thread=4")
        worker = self.start(self.worker, "allot-worker-0")
        self.assertEqual(worker.process.wait(30), 2, worker.log.read_text())

    def test_nothing_is_written_outside_the_volumes(self):
        (spec,) = self.aggregator["containers"]
        spec["args"].append("--run=/var/elsewhere")
        aggregator = self.start(self.aggregator, "allot-aggregator-0")
        self.assertNotEqual(aggregator.process.wait(30), 0)
        self.assertIn("Read-only file system", aggregator.log.read_text())


if __name__ == "__main__":
    try:
        yaml, _ = manifests.import_yaml_and_schemas()
        manifests.check_kubectl()
        pods.check_runc()
    except manifests.Skipped as why:
        print(f"skipped: {why}")
        sys.exit(77)
    unittest.main(verbosity=2)
