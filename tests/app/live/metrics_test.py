"""What Prometheus and Grafana are given, checked with promtool against a running aggregator: the metrics themselves, the
alert rules with their unit tests, and that rules, dashboard and docs/monitoring.md name only metrics that exist.

    metrics_test.py FOLDER_WITH_ALLOT_AND_SIMULATED_WORKER REPOSITORY"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from live_run import Run  # noqa: E402

TOOL = sys.argv[1]
REPOSITORY = pathlib.Path(sys.argv[2])
MONITORING = REPOSITORY / "k8s/monitoring"
DOCS = (REPOSITORY / "docs/monitoring.md").read_text()
NAME = re.compile(r"\b(?:allot|process)_[a-z_]+\b")
SUFFIXES = re.compile(r"_(bucket|sum|count)$")
NOT_FROM_US = {"up"}


def promtool(*words, text=None):
    return subprocess.run(["promtool", *map(str, words)], input=text, capture_output=True, text=True, timeout=60)


def families(text):
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="allot-metrics-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.run_ = cls.enterClassContext(Run(TOOL, cls.folder, episodes=40))
        cls.run_.serve()
        # Held in the middle: the time left is known then, and all metrics are there.
        cls.run_.hold.touch()
        for number in range(2):
            cls.run_.work(f"pod-{number}")
        cls.figures = cls.run_.wait_until(lambda now: now["eta_s"] is not None and now["episodes_done"] == 20 and now["worker_counts"]["busy"] == 2)
        cls.status, cls.headers, cls.text = cls.run_.get("/metrics")

    def test_are_well_formed(self):
        self.assertEqual(self.status, 200)
        self.assertEqual(self.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        checked = promtool("check", "metrics", text=self.text)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

    def test_say_what_api_run_says(self):
        samples = dict(line.rsplit(" ", 1) for line in self.text.splitlines() if not line.startswith("#"))
        self.assertEqual(float(samples["allot_learning_episodes_total"]), 20)
        self.assertEqual(float(samples["allot_learning_episodes_wanted"]), 40)
        self.assertEqual(float(samples['allot_workers{state="busy"}']), 2)
        self.assertEqual(float(samples["allot_leases_live"]), 2)
        self.assertEqual(float(samples['allot_leases_total{outcome="accepted"}']), 20)
        self.assertEqual(float(samples["allot_episode_duration_seconds_count"]), 20)
        self.assertEqual([float(samples[f'allot_schedule_samples{{layer="{i}"}}']) for i in range(8)], self.figures["recommended"])
        self.assertGreater(float(samples["process_resident_memory_bytes"]), 1 << 20)
        self.assertLess(float(samples["process_resident_memory_bytes"]), 256 << 20)
        self.assertGreater(float(samples["allot_history_bytes"]), 4096)
        self.assertGreater(float(samples["allot_run_disk_size_bytes"]), float(samples["allot_run_disk_available_bytes"]))
        self.assertGreaterEqual(float(samples["allot_history_commit_duration_seconds_count"]), 1)

    def test_names_in_rules_and_dashboard_exist(self):
        known = families(self.text)
        rules = (MONITORING / "alerts.yaml").read_text()
        expressions = "\n".join(line for line in rules.splitlines() if not re.match(r"\s*(#|summary|description|runbook)", line))
        dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
        targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
        variables = [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
        for place, text in (("alerts.yaml", expressions), ("dashboard", "\n".join(targets + variables))):
            used = {SUFFIXES.sub("", name) if SUFFIXES.sub("", name) in known else name for name in NAME.findall(text)}
            self.assertTrue(used)
            self.assertEqual(used - known - NOT_FROM_US, set(), f"{place} uses metrics that /metrics does not have")
            if place == "dashboard":
                self.assertEqual(known - used, set(), "metrics without a panel")

    def test_documentation_lists_them_all_and_no_others(self):
        listed = set(re.findall(r"^\| `((?:allot|process)_[a-z_]+)", DOCS, re.MULTILINE))
        self.assertEqual(listed, families(self.text))

    def test_alert_rules_hold_their_own_tests_and_have_a_runbook(self):
        checked = promtool("check", "rules", MONITORING / "alerts.yaml")
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        tested = promtool("test", "rules", MONITORING / "alerts_test.yaml")
        self.assertEqual(tested.returncode, 0, tested.stdout + tested.stderr)
        rules, tests = (MONITORING / "alerts.yaml").read_text(), (MONITORING / "alerts_test.yaml").read_text()
        alerts = re.findall(r"- alert: (\w+)", rules)
        self.assertEqual(re.findall(r"runbook: docs/monitoring\.md#(\w+)", rules), [alert.lower() for alert in alerts])
        for alert in alerts:
            self.assertIn(f"### {alert}\n", DOCS)
            self.assertIn(f"{alert} fires\n", tests)
            self.assertIn(f"{alert} stays silent\n", tests)

    def test_dashboard_is_laid_out(self):
        dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]))
        taken = {}
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    self.assertNotIn((x, y), taken, f"{panel['title']} lies over {taken.get((x, y))}")
                    taken[x, y] = panel["title"]
            if panel["type"] != "row":
                self.assertEqual(panel["datasource"]["uid"], "${datasource}", panel["title"])


class Http(unittest.TestCase):
    """What the server answers to requests that are not the page's."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="allot-http-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.run_ = cls.enterClassContext(Run(TOOL, cls.folder))
        cls.run_.serve("--metrics", "127.0.0.1:*")

    def test_metrics_and_probes_have_an_address_of_their_own_without_the_page(self):
        alone = (self.run_.directory / "metrics").read_text().strip()
        self.assertNotEqual(alone, self.run_.url)
        self.assertEqual(self.run_.get("/healthz", url=alone)[::2], (200, "alive\n"))
        self.assertEqual(self.run_.get("/readyz", url=alone)[::2], (200, "ready\n"))
        names = [re.findall(r"^# TYPE (\w+)", self.run_.get("/metrics", url=url)[2], re.MULTILINE) for url in (alone, self.run_.url)]
        self.assertEqual(names[0], names[1])
        for path in ("/", "/api/run"):
            self.assertEqual(self.run_.get(path)[0], 200)
            self.assertEqual(self.run_.get(path, url=alone)[0], 404)

    def test_probes_and_head(self):
        self.assertEqual(self.run_.get("/healthz")[::2], (200, "alive\n"))
        self.assertEqual(self.run_.get("/readyz")[::2], (200, "ready\n"))
        status, headers, text = self.run_.get("/", method="HEAD")
        self.assertEqual((status, text), (200, ""))
        self.assertGreater(int(headers["Content-Length"]), 10_000)

    def test_status_command_gives_the_object_of_api_run(self):
        served = self.run_.figures()
        asked = json.loads(subprocess.run([self.run_.allot, "status", "--run", self.run_.directory, "--json"], capture_output=True, text=True, check=True).stdout)
        for moving in ("at_ms", "elapsed_s"):
            self.assertGreater(asked.pop(moving), 0)
            served.pop(moving)
        self.assertEqual(asked, served)
        self.assertEqual((served["schema"], served["running"], served["ready"], served["stage"]), (2, True, True, "learn"))
        # docs/monitoring.md lists every field of the object.
        self.assertEqual(set(re.findall(r"^\| `\"(\w+)\"`", DOCS, re.MULTILINE)), set(served) | {"at_ms", "elapsed_s"})


if __name__ == "__main__":
    if shutil.which("promtool") is None:
        print("skipped: no promtool is installed (Debian package prometheus; ./setup --check installs it)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
