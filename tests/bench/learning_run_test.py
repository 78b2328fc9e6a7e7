"""bench/learning/run.py on the embedded model: what it starts, how it goes on, and what comes out of it.

    learning_run_test.py DRIVER ALLOT SOURCE
"""

import importlib.util
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE, ALLOT, DRIVER = sys.argv.pop(), sys.argv.pop(), sys.argv.pop()
MODEL = f"{SOURCE}/assets/tiny-gsm"
TUNE = ["--", "--model", MODEL, "--data", f"{MODEL}/train.jsonl", "--heldout", f"{MODEL}/heldout.jsonl", "--heldout-questions", "8",
        "--preflight", "0", "--until", "episodes", "--episodes", "40", "--questions", "1", "--reward", "answers", "--temperature", "0"]
NAMES = [f"{method}-sys-64-seed{seed}" for method in ("pairs", "reinforce-paper") for seed in (1, 2)]


def words(out, *more, methods="pairs,reinforce-paper"):
    return [sys.executable, DRIVER, "--allot", ALLOT, "--out", str(out), "--methods", methods, "--estimators", "sys", "--totals", "64",
            "--seeds", "1,2", "--at", "10,20", "--questions", "8", "--at-a-time", "2", *more, *TUNE]


def start(*given, **options):
    return subprocess.run(words(*given, **options), capture_output=True, text=True, timeout=500)


class Matrix(unittest.TestCase):
    """What needs no run."""

    @classmethod
    def setUpClass(cls):
        spec = importlib.util.spec_from_file_location("learning_run", DRIVER)
        cls.driver = importlib.util.module_from_spec(spec)
        sys.modules["learning_run"] = cls.driver
        spec.loader.exec_module(cls.driver)

    def runs(self, matrix, *more):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "matrix.json"
            file.write_text(json.dumps(matrix))
            arguments = self.driver.arguments_of(["--out", folder, "--matrix", str(file), *more])
            return self.driver.runs_of(self.driver.read_matrix(arguments))

    def test_a_matrix_is_every_method_at_every_total_of_its_estimator(self):
        runs = self.runs({"tune": {"model": "m", "data": "d", "heldout": "h", "ignore-preflight": True},
                          "methods": {"auto": {}, "paper": {"policy": "reinforce-paper", "episodes": 7}},
                          "estimators": ["sys", "joint"], "totals": {"sys": [48, 64], "joint": [24]}, "seeds": [1, 2]})
        self.assertEqual(len(runs), 12)
        self.assertEqual(runs[0].name, "auto-sys-48-seed1")
        self.assertEqual(runs[-1].name, "paper-joint-24-seed2")
        self.assertEqual(self.driver.words_of(runs[-1].options),
                         ["--model", "m", "--data", "d", "--heldout", "h", "--ignore-preflight", "--policy", "reinforce-paper",
                          "--episodes", "7", "--estimator", "joint", "--total", "24", "--seed", "2"])

    def test_options_win_over_the_matrix(self):
        runs = self.runs({"tune": {"model": "m", "data": "d", "heldout": "h"}, "methods": ["auto"], "estimators": ["sys"],
                          "totals": [64], "seeds": [1, 2, 3]}, "--seeds", "5", "--", "--model", "other", "--temperature=0")
        self.assertEqual([run.name for run in runs], ["auto-sys-64-seed5"])
        self.assertEqual((runs[0].options["model"], runs[0].options["temperature"]), ("other", "0"))

    def test_what_is_wrong_is_named(self):
        whole = {"tune": {"model": "m", "data": "d", "heldout": "h"}, "methods": ["auto"], "estimators": ["sys"], "totals": [64],
                 "seeds": [1]}
        for change, said in (({"learners": []}, "learners"), ({"seeds": ["x"]}, "--seeds x"), ({"methods": []}, "methods"),
                             ({"totals": {"joint": [64]}}, "sys"), ({"tune": {"model": "m", "data": "d"}}, "--heldout")):
            with self.assertRaises(SystemExit) as raised:
                self.runs({**whole, **change})
            self.assertIn(said, str(raised.exception))


class Runs(unittest.TestCase):
    def test_it_is_stopped_goes_on_and_compares(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            # Stopped after the first run.
            process = subprocess.Popen(words(out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            first = process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, 1, rest)
            self.assertIn("the same command goes on", rest)
            name = first.split()[1].rstrip(":")
            self.assertIn(name, NAMES, first)
            scored = (out / name / "learning.json").stat().st_mtime_ns

            done = start(out)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{name}: was finished, was scored", done.stderr)
            self.assertEqual((out / name / "learning.json").stat().st_mtime_ns, scored)
            self.assertIn("reinforce-paper", done.stdout)
            self.assertIn("gain, points", done.stdout)
            for plot in ("curve-episodes-sys-64.svg", "curve-seconds-sys-64.svg", "gain-sys.svg"):
                self.assertIn("<svg", (out / "plots" / plot).read_text())

            # One row a learner, all of it scored on the same questions with the same draws.
            analyzed = subprocess.run([ALLOT, "analyze", "learning", "--runs", folder, "--at", "10,20", "--json"], capture_output=True,
                                      text=True, check=True)
            rows = [json.loads(line) for line in analyzed.stdout.splitlines()]
            self.assertEqual([row["learner"].split(",")[0] for row in rows], ["pairs", "reinforce-paper"])
            for row in rows:
                self.assertEqual([point["episodes"] for point in row["curve"]], [0, 10, 20, 40])
                self.assertEqual([run["seed"] for run in row["runs"]], [1, 2])
                seconds = [point["worker_seconds"] for point in row["curve"]]
                self.assertEqual(seconds, sorted(seconds))
                # Every run begins with the even schedule, and its accuracy is one number for all.
                begins = {json.dumps(run["points"][0]["accuracy"]) for run in row["runs"]}
                self.assertEqual(len(begins), 1)
                self.assertEqual(json.loads(begins.pop())["n"], 8)

            # A file that is lost is made again, the same; the others are left as they are.
            before = json.loads((out / name / "learning.json").read_text())
            (out / name / "learning.json").unlink()
            again = start(out)
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertEqual(again.stderr.count("was scored"), 3, again.stderr)
            self.assertEqual(json.loads((out / name / "learning.json").read_text())["schedules"], before["schedules"])

            # What fails is said and does not hold up the others.
            failed = start(out, methods="pairs,nonsense")
            self.assertEqual(failed.returncode, 1)
            self.assertEqual(failed.stderr.count("FAILED: allot tune ended with status 2"), 2, failed.stderr)
            self.assertIn("nonsense", (out / "nonsense-sys-64-seed1.log").read_text())
            self.assertIn("gain, points", failed.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
