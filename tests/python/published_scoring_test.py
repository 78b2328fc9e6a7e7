#!/usr/bin/env python3
"""`allot grade` and the scoring that RULER and LongBench v2 publish, on replies made by rule, one by one.

    published_scoring_test.py --allot ALLOT [--ruler DIR] [--longbench DIR] [--replies N]

DIR are checkouts of https://github.com/NVIDIA/RULER and https://github.com/THUDM/LongBench. Of their files only the functions that
score are read, and executed as they stand; nothing of them is kept here. What has no DIR is skipped.
"""

import argparse
import ast
import collections
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77

parser = argparse.ArgumentParser()
parser.add_argument("--allot", type=pathlib.Path, required=True, help="the allot executable")
parser.add_argument("--ruler", type=pathlib.Path, help="checkout of RULER")
parser.add_argument("--longbench", type=pathlib.Path, help="checkout of LongBench")
parser.add_argument("--replies", type=int, default=1000)
options = parser.parse_args()


def published(path, *names):
    """The functions of a file, without the rest of it, which imports what is not here."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name in names]
    found = {"re": re}
    exec(compile(tree, path, "exec"), found)  # noqa: S102
    return [found[name] for name in names]


def graded(task, rows):
    """What `allot grade` says of each {"prediction", "answer"}."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    out = subprocess.run([options.allot, "grade", "--task", task], input=text, capture_output=True, text=True, check=True).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == len(rows), (len(lines), len(rows))
    return lines


def in_some_case(chance, text):
    """ASCII letters in any case; others stay, for their lower case may have another length."""
    return "".join(chance.choice([c.upper(), c.lower()]) if c.isascii() else c for c in text)


@unittest.skipUnless(options.ruler, "no --ruler")
class Ruler(unittest.TestCase):
    WORDS = ["kvmqzu", "alpdre", "woczni", "qefjak", "xiltop", "brunda", "zzamer", "Rodez", "Saint-Malo", "New York", "café", "北京",
             "1845", "7129034", "42", "4130077", "a", "the eve of war", "Ωmega", "O'Neil"]
    JOINTS = [" ", ", ", "\n", "", "; ", "...", " and ", "1. ", "** ", "\t", "é", " 🙂 "]

    def setUp(self):
        path = options.ruler / "scripts/eval/synthetic/constants.py"
        self.all, self.part = published(path, "string_match_all", "string_match_part")

    def rows(self, seed, gold):
        """Replies with some of the gold answers, whole or cut, between other words."""
        chance = random.Random(seed)
        made = []
        while len(made) < options.replies:
            answers = gold(chance)
            parts = [in_some_case(chance, answer) for answer in answers if chance.random() < .6]
            parts += [answer[:-1] for answer in answers if chance.random() < .2]
            parts += chance.choices(self.WORDS, k=chance.randint(0, 5))
            chance.shuffle(parts)
            reply = "".join(part + chance.choice(self.JOINTS) for part in parts)
            made.append({"prediction": reply, "answer": answers})
        return made

    def assert_same(self, task, rows, score):
        kinds = collections.Counter()
        for row, own in zip(rows, graded(task, rows)):
            other = score([row["prediction"]], [row["answer"]])
            with self.subTest(row=row):
                self.assertEqual(other, round(own["score"] * 100, 2))
            kinds[other] += 1
        print(f"{self._testMethodName}: {len(rows)} replies, scores {dict(sorted(kinds.items()))}", flush=True)
        self.assertGreater(len(kinds), 1, "scores that are all alike show nothing")

    def test_frequent_words(self):
        self.assert_same("ruler-fwe", self.rows(1, lambda chance: chance.sample(self.WORDS, 3)), self.all)

    def test_questions(self):
        self.assert_same("ruler-qa", self.rows(2, lambda chance: chance.sample(self.WORDS, chance.randint(1, 4))), self.part)

    def numbers(self):
        return self.rows(3, lambda chance: [str(chance.randint(10**6, 10**7 - 1)) for _ in range(4)])

    def test_needles_by_the_published_rule(self):
        with tempfile.TemporaryDirectory() as folder:
            task = pathlib.Path(folder) / "needles.json"
            task.write_text(json.dumps({"allot_task": 1, "name": "needles", "version": 1, "prompt": "{question}",
                                        "grade": {"by": "contains", "share": True}}))
            self.assert_same(task, self.numbers(), self.all)

    def test_needles_by_the_rule_of_table_25(self):
        """ruler-niah-multivalue scores the first four integers that differ: the same wherever a reply has none but gold ones and
        whole ones, which is what RULER's rule and this one are both meant for."""
        rows = []
        chance = random.Random(4)
        for row in self.numbers():
            said = chance.sample(row["answer"], chance.randint(0, 4))
            rows.append({**row, "prediction": "The numbers are " + chance.choice([", ", " and ", "\n"]).join(said) + "."})
        self.assert_same("ruler-niah-multivalue", rows, self.all)


@unittest.skipUnless(options.longbench, "no --longbench")
class LongBench(unittest.TestCase):
    STARTS = ["The correct answer is (", "The correct answer is ", "The correct answer is **", "**The correct answer is (",
              "the correct answer is (", "The correct answer is: ("]
    PIECES = [*STARTS, "Therefore, ", "\n", "\n\n", *"ABCDE", "a)", "(A)", "(B)", "(C)", "(D)", ")", ").", "*", "**",
              "The correct ans*wer is ", "é", "漢", "🙂", " because ", " option ", "(insert answer here)", "\u00a0", "<text>", '"', "$Q$",
              "T*he correct answer is D"]

    def replies(self):
        chance = random.Random(7)
        made = []
        while len(made) < options.replies:
            some = lambda: "".join(chance.choices(self.PIECES, k=chance.randint(0, 5)))  # noqa: E731
            reply = some()
            if chance.random() < .75:
                reply += chance.choice(self.STARTS) + chance.choice("ABCDABCDABCDEa *(") + chance.choice([")", "", "*)", ")**", "."]) + some()
            # `grade` takes a bare letter as an answer, not as a reply.
            if re.sub(r"[\s()\[\]{}.:*\"'`$]", "", reply).upper() not in list("ABCD"):
                made.append(reply)
        return made

    def test_letters(self):
        extract, = published(options.longbench / "pred.py", "extract_answer")
        replies = self.replies()
        rows = [{"prediction": reply, "answer": letter} for reply in replies for letter in "ABCD"]
        verdicts = iter(graded("longbench-v2", rows))
        letters = collections.Counter()
        for reply in replies:
            other = extract(reply.strip())
            with self.subTest(reply=reply):
                self.assertEqual([letter for letter in "ABCD" if next(verdicts)["correct"]], [other] if other else [])
            letters[other] += 1
        print(f"{self._testMethodName}: {len(replies)} replies, letters {dict(letters.most_common())}", flush=True)
        self.assertEqual(len(letters), 5)


if not (options.ruler or options.longbench):
    print("skipped: neither --ruler nor --longbench names a checkout")
    sys.exit(SKIPPED)
if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
