#!/usr/bin/env python3
"""lm-evaluation-harness asks `allot serve`, and `allot eval` scores the same questions of the embedded model.

    lm_eval_test.py SOURCE --allot ALLOT

Skipped where this Python cannot import lm_eval. Nothing is downloaded: configs/lm-eval/tiny-gsm.yaml reads a file of the sources.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
QUESTIONS = 64

parser = argparse.ArgumentParser()
parser.add_argument("source", type=pathlib.Path, help="root of the sources")
parser.add_argument("--allot", type=pathlib.Path, required=True, help="the allot executable")
options = parser.parse_args()
MODEL = options.source / "assets/tiny-gsm"

try:
    import lm_eval  # noqa: F401
    import requests  # noqa: F401, what the harness asks servers with
    import tenacity  # noqa: F401
except (ImportError, OSError) as error:
    print(f"skipped: {sys.executable} cannot import lm_eval with its extra 'api' ({error}); pip install 'lm_eval[api]==0.4.13' "
          "and configure with -DALLOT_PYTHON=<that Python>")
    sys.exit(SKIPPED)


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Server:
    """`allot serve` of the embedded model under a schedule."""

    def __init__(self, schedule):
        self.schedule = schedule

    def __enter__(self):
        self.process = subprocess.Popen(
            [options.allot, "serve", "--model", MODEL, "--schedule", self.schedule, "--address", "127.0.0.1:*", "--threads", "1"],
            stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        if not self.url.startswith("http://127.0.0.1:"):
            raise AssertionError(f"allot serve prints '{self.url}' instead of its URL and exits with {self.process.wait(60)}")
        return self

    def __exit__(self, *raised):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()


class Harness(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def copy_of_the_task(self):
        """A folder for the harness to run in, without questions."""
        root = self.folder / "root"
        shutil.copytree(options.source / "configs/lm-eval", root / "configs/lm-eval")
        return root

    def harness(self, server, *more, root=options.source, model="local-completions", path="v1/completions", **arguments):
        """What the command of docs/serving.md says of the first questions, by question; `arguments` go to the client of the API."""
        out = self.folder / "harness"
        shutil.rmtree(out, ignore_errors=True)
        given = {"base_url": server.url + path, "model": "tiny-gsm", "tokenizer_backend": "None", **arguments}
        ran = subprocess.run(
            [sys.executable, "-m", "lm_eval", "--model", model, "--model_args", ",".join(f"{key}={value}" for key, value in given.items()),
             "--tasks", "configs/lm-eval/tiny-gsm.yaml", "--limit", str(QUESTIONS), "--output_path", out, "--log_samples", *more],
            cwd=root, capture_output=True, text=True, check=False,
            env={**os.environ, "HF_HOME": str(self.folder / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        samples = rows(next(out.rglob("samples_*.jsonl")))
        return sorted(samples, key=lambda sample: sample["doc_id"])

    def eval(self, schedule, data=MODEL / "heldout.jsonl", count=QUESTIONS):
        details = self.folder / "details.jsonl"
        subprocess.run([options.allot, "eval", "--model", MODEL, "--data", data, "--limit", str(count), "--schedule", schedule,
                        "--threads", "1", "--details", details], check=True, capture_output=True)
        return rows(details)

    def assert_same(self, samples, details, count=QUESTIONS):
        self.assertEqual([len(samples), len(details)], [count, count])
        for sample, own in zip(samples, details):
            with self.subTest(question=own["question"]):
                # eval ends a reply after the line with its answer; the server, which knows no task, at the model's end.
                self.assertEqual(sample["resps"][0][0][: len(own["reply"])], own["reply"])
                self.assertEqual(bool(sample["exact_match"]), own["correct"])

    def test_every_reply_and_verdict_is_that_of_eval_when_nothing_is_drawn(self):
        details = self.eval("dense")
        with Server("dense") as server:
            with self.subTest("eight requests at a time"):
                self.assert_same(self.harness(server, num_concurrent=8), details)
            with self.subTest("sixteen prompts a request"):
                self.assert_same(self.harness(server, "--batch_size", "16"), details)

    def test_the_number_of_a_prompt_in_its_batch_is_the_number_of_the_question_in_eval(self):
        # The harness sends long questions first, so they are ordered alike in a file of their own.
        chosen = sorted(rows(MODEL / "heldout.jsonl")[:200], key=lambda row: -len(row["question"]))
        chosen = list({len(row["question"]): row for row in chosen}.values())[:16]
        root = self.copy_of_the_task()
        data = root / "assets/tiny-gsm/heldout.jsonl"
        data.parent.mkdir(parents=True)
        data.write_text("".join(json.dumps(row) + "\n" for row in chosen))
        details = self.eval("uniform:5", data, count=16)
        self.assertTrue(0 < sum(row["correct"] for row in details) < 16, "all replies alike would show nothing")
        with Server("uniform:5") as server:
            self.assert_same(self.harness(server, "--batch_size", "16", root=root, seed=0), details, count=16)

    def test_accuracy_under_a_schedule_is_that_of_eval_within_the_interval_of_the_pairs(self):
        own = [row["correct"] for row in self.eval("uniform:5")]
        self.assertTrue(8 <= sum(own) <= QUESTIONS - 8, f"{sum(own)} of {QUESTIONS} are right, which shows little")
        with Server("uniform:5") as server:
            served = [sample["exact_match"] for sample in self.harness(server, num_concurrent=8)]
        differences = [theirs - ours for theirs, ours in zip(served, own)]
        half = 1.96 * statistics.stdev(differences) / math.sqrt(QUESTIONS)
        print(f"lm_eval {sum(served):.0f}, eval {sum(own)} of {QUESTIONS}: {statistics.mean(differences):+.3f} +- {half:.3f}")
        self.assertLessEqual(abs(statistics.mean(differences)), half)

    def test_a_conversation_gets_the_replies_of_eval(self):
        details = self.eval("dense")
        # Without a template a conversation is one message of a user and a line end, which the task's prompt must not have, too.
        root = self.copy_of_the_task()
        task = root / "configs/lm-eval/tiny-gsm.yaml"
        task.write_text(task.read_text().replace('"{{question}}\\n"', '"{{question}}"'))
        (root / "assets").symlink_to(options.source / "assets")
        with Server("dense") as server:
            samples = self.harness(server, "--apply_chat_template", root=root, model="local-chat-completions",
                                   path="v1/chat/completions", num_concurrent=8)
        self.assert_same(samples, details)


if __name__ == "__main__":
    sys.exit(not unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result.wasSuccessful())
