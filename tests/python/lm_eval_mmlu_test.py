#!/usr/bin/env python3
"""Questions in MMLU's form through SmolLM2-135M-Instruct: `allot eval` and lm-evaluation-harness with Transformers, question by question.

    lm_eval_mmlu_test.py SOURCE --allot ALLOT [--questions N] [--keep DIR]

Both compute in float32 on the CPU with exact attention and choose greedily. Skipped where this Python cannot import lm_eval and
transformers, and where the model is not there (./setup --model smollm2). Nothing is downloaded; the questions are made by rule.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import choice_questions

SKIPPED = 77
# Log-likelihoods nearer than this are equal: two programs add floats in different orders.
TIE = 1e-3
CHOICES = "{{question}}\nA. {{A}}\nB. {{B}}\nC. {{C}}\nD. {{D}}\n"

parser = argparse.ArgumentParser()
parser.add_argument("source", type=pathlib.Path, help="root of the sources")
parser.add_argument("--allot", type=pathlib.Path, required=True, help="the allot executable")
parser.add_argument("--questions", type=int, default=200)
parser.add_argument("--batch", type=int, default=20, help="questions that the harness asks at once")
parser.add_argument("--keep", type=pathlib.Path, help="folder for the files of both, which are else deleted")
options = parser.parse_args()
MODEL = options.source / ".deps/models/smollm2-135m-instruct"

try:
    import lm_eval  # noqa: F401
    import transformers  # noqa: F401
except (ImportError, OSError) as error:
    print(f"skipped: {sys.executable} cannot import lm_eval and transformers ({error}); pip install 'lm_eval[hf]==0.4.13'")
    sys.exit(SKIPPED)
if not (MODEL / "config.json").exists():
    print(f"skipped: there is no {MODEL}; ./setup --model smollm2 makes it")
    sys.exit(SKIPPED)


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Mmlu(unittest.TestCase):
    def setUp(self):
        if options.keep:
            self.folder = options.keep / self._testMethodName
            self.folder.mkdir(parents=True, exist_ok=True)
        else:
            scratch = tempfile.TemporaryDirectory()
            self.addCleanup(scratch.cleanup)
            self.folder = pathlib.Path(scratch.name)
        self.data = self.folder / "questions.csv"
        choice_questions.write(self.data, options.questions)

    def harness(self, task, *more):
        """What the harness says of each question, in their order; `task` has what its task file does not share with others."""
        file = {
            "task": "choices", "dataset_path": "csv", "test_split": "test", "num_fewshot": 0, "metadata": {"version": 1},
            "dataset_kwargs": {"data_files": {"test": str(self.data)}, "column_names": ["question", "A", "B", "C", "D", "answer"]},
            **task}
        path = self.folder / "choices.yaml"  # JSON is YAML
        path.write_text(json.dumps(file))
        ran = subprocess.run(
            [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={MODEL},dtype=float32", "--device", "cpu",
             "--batch_size", str(options.batch), "--tasks", path, "--output_path", self.folder / "harness", "--log_samples", *more],
            capture_output=True, text=True, check=False,
            env={**os.environ, "HF_HOME": str(self.folder / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        samples = rows(max((self.folder / "harness").rglob("samples_*.jsonl")))
        return sorted(samples, key=lambda sample: sample["doc_id"])

    def eval(self, task, *more):
        details = self.folder / "details.jsonl"
        subprocess.run([options.allot, "eval", "--model", MODEL, "--data", self.data, "--task", task, "--dtype", "float32",
                        "--schedule", "dense", "--details", details, *more], check=True, capture_output=True)
        return rows(details)

    def own_task(self, **fields):
        path = self.folder / "task.json"
        path.write_text(json.dumps({"allot_task": 1, "name": "choices", "version": 1,
                                    "columns": ["question", "A", "B", "C", "D", "answer"], "grade": {"by": "choice", "choices": "ABCD"},
                                    **fields}))
        return path

    def assert_same_replies(self, samples, details):
        """Texts to the letter, verdicts as well. Says how many and how different they are."""
        self.assertEqual([len(samples), len(details)], [options.questions] * 2)
        texts = set()
        for sample, own in zip(samples, details):
            with self.subTest(question=own["question"]):
                self.assertEqual(sample["resps"][0][0], own["reply"])
                self.assertEqual(bool(sample["exact_match"]), own["correct"])
            texts.add(own["reply"])
        right = sum(own["correct"] for own in details)
        print(f"{self._testMethodName}: {len(details)} questions, {len(texts)} different replies, {right} right by both", flush=True)
        self.assertGreater(len(texts), options.questions // 4, "replies that are all alike show nothing")

    def test_the_likeliest_letter(self):
        samples = self.harness({
            "output_type": "multiple_choice", "doc_to_text": CHOICES + "Answer:", "doc_to_choice": ["A", "B", "C", "D"],
            "doc_to_target": "{{['A','B','C','D'].index(answer)}}", "metric_list": [{"metric": "acc"}]})
        details = self.eval("mmlu-likelihood")
        self.assertEqual([len(samples), len(details)], [options.questions] * 2)
        ties, letters = 0, set()
        for sample, own in zip(samples, details):
            likelihoods = [float(reply[0][0]) for reply in sample["resps"]]
            best = max(likelihoods)
            equal = [letter for letter, likelihood in zip("ABCD", likelihoods) if best - likelihood < TIE]
            ties += len(equal) > 1
            letters.add(own["answer"].strip())
            with self.subTest(question=own["question"]):
                self.assertIn(own["answer"].strip(), equal)
                if len(equal) == 1:
                    self.assertEqual(bool(sample["acc"]), own["correct"])
        print(f"{self._testMethodName}: {len(details)} questions, {ties} ties, answers {sorted(letters)}", flush=True)

    def test_text_behind_a_prompt(self):
        samples = self.harness({
            "output_type": "generate_until", "doc_to_text": CHOICES + "The answer, with the reason for it:", "doc_to_target": "answer",
            "generation_kwargs": {"until": ["<|im_end|>"], "do_sample": False, "temperature": 0, "max_gen_toks": 24},
            "filter_list": [{"name": "letter", "filter": [{"function": "regex", "regex_pattern": r"\b([A-D])\b"}, {"function": "take_first"}]}],
            "metric_list": [{"metric": "exact_match"}]})
        task = self.own_task(prompt=CHOICES.replace("{{", "{").replace("}}", "}") + "The answer, with the reason for it:",
                             extract={"pattern": r"\b([A-D])\b"}, generation={"temperature": 0, "max_new_tokens": 24})
        self.assert_same_replies(samples, self.eval(task))

    def test_replies_of_a_conversation(self):
        # The prompt of mmlu-chat, in the model's own template; its rule for the letter, where there is a box, by the harness's filter.
        samples = self.harness({
            "output_type": "generate_until", "doc_to_target": "answer",
            "doc_to_text": CHOICES + "\nAnswer briefly. Put your final answer as a single letter inside \\boxed{}.",
            "generation_kwargs": {"until": ["<|im_end|>"], "do_sample": False, "temperature": 0, "max_gen_toks": 32},
            "filter_list": [{"name": "box", "filter": [{"function": "regex", "group_select": -1,
                                                        "regex_pattern": r"\\boxed\{(?:\\[a-z]+(?![a-z])|[\s({$*])*([A-Da-d])(?![a-z])"},
                                                       {"function": "take_first"}]}],
            "metric_list": [{"metric": "exact_match"}]}, "--apply_chat_template")
        self.assert_same_replies(samples, self.eval("mmlu-chat", "--max-new-tokens", "32"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
