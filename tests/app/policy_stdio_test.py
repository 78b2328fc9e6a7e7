"""Drives `allot policy --stdio` as a program of somebody else would: only the lines of docs/policy.md, nothing of allot.

    policy_stdio_test.py ALLOT
"""

import json
import random
import subprocess
import sys
import unittest

ALLOT = sys.argv.pop()
LAYERS, SAMPLES, BATCH, POOL = 8, 64, 16, 500


class Learner:
    """One child process; each request is a line and gets one."""

    def __init__(self, method, **init):
        self.process = subprocess.Popen([ALLOT, "policy", "--stdio", "--method", method], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        fields = {"layers": LAYERS, "samples": SAMPLES, "batch": BATCH, "pool": POOL, "budget": 400, "seed": 0,
                  "checkpoints": [100, 400]}
        self.hello = self.request("init", **{**fields, **init})

    def request(self, op, **fields):
        self.process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(timeout=30)


def chance(schedule):
    """Of a right answer: layer 2 needs nearly all samples."""
    return 0.9 * (1 - 0.9 ** schedule[2]) * (0.98 ** sum(1 for samples in schedule if samples == 0))


def run(method, episodes):
    """The learner's asks and its recommendation after `episodes`, each told with its answers."""
    draws = random.Random(1)
    learner = Learner(method)
    asked = []
    while len(asked) < episodes:
        answer = learner.request("ask", max=episodes - len(asked))["episodes"]
        assert 1 <= len(answer) <= episodes - len(asked), answer
        results = []
        for episode in answer:
            schedule = episode["schedule"]
            assert len(schedule) == LAYERS and sum(schedule) == SAMPLES and min(schedule) >= 0, schedule
            questions = episode["questions"]
            assert len(set(questions)) == BATCH and 0 <= min(questions) and max(questions) < POOL, questions
            correct = [int(draws.random() < chance(schedule)) for _ in questions]
            result = {"schedule": schedule, "questions": questions, "correct": correct, "reward": sum(correct) / BATCH}
            if "id" in episode:
                result["id"] = episode["id"]
            results.append(result)
            asked.append(schedule)
        draws.shuffle(results)
        assert learner.request("tell", results=results) == {"ok": True}
    recommended = learner.request("recommend")["schedule"]
    assert learner.request("stop") == {"ok": True}
    assert learner.end() == 0
    return asked, recommended


class Stdio(unittest.TestCase):
    def test_every_method_answers_and_the_same_seed_asks_the_same(self):
        for method in ("pairs", "reinforce", "reinforce-paper", "auto"):
            with self.subTest(method=method):
                self.assertEqual(run(method, 40), run(method, 40))

    def test_learners_find_the_layer_that_matters(self):
        for method in ("pairs", "auto"):
            with self.subTest(method=method):
                _, recommended = run(method, 240)
                self.assertEqual(max(recommended), recommended[2], recommended)
                self.assertGreater(chance(recommended), chance([8] * 8) + 0.15)

    def test_init_names_the_method(self):
        learner = Learner("auto")
        self.assertEqual(learner.hello, {"ok": True, "name": "auto"})
        self.assertEqual(learner.request("recommend"), {"schedule": [8] * 8})
        self.assertEqual(learner.end(), 0, "the end of its input ends it")

    def test_a_bad_request_is_refused_and_the_learner_goes_on(self):
        learner = Learner("pairs", layers=0)
        self.assertFalse(learner.hello["ok"])
        self.assertIn("layers", learner.hello["error"])
        self.assertIn("init", learner.request("ask", max=1)["error"])
        self.assertTrue(learner.request("init", layers=4, samples=16)["ok"])
        self.assertIn("dance", learner.request("dance")["error"])
        self.assertIn("never asked", learner.request("tell", results=[{"schedule": [9, 9, 9, 9], "reward": 1}])["error"])
        self.assertEqual(len(learner.request("ask", max=1)["episodes"]), 1)
        self.assertEqual(learner.end(), 0)

    def test_lost_late_and_repeated_results_do_no_harm(self):
        learner = Learner("auto")
        late = learner.request("ask", max=8)["episodes"]
        for _ in range(10):
            told = learner.request("ask", max=8)["episodes"][1:]
            results = [{"id": episode["id"], "reward": 0.5} for episode in told]
            self.assertEqual(learner.request("tell", results=results + results[:2]), {"ok": True})
        self.assertEqual(learner.request("tell", results=[{"id": late[0]["id"], "correct": [1] * BATCH}]), {"ok": True})
        self.assertEqual(sum(learner.request("recommend")["schedule"]), SAMPLES)
        self.assertEqual(learner.end(), 0)

    def test_schedules_told_back_may_hold_zeros(self):
        learner = Learner("reinforce-paper", layers=6, samples=7)
        zeros = 0
        for _ in range(20):
            episodes = learner.request("ask", max=10)["episodes"]
            zeros += sum(episode["schedule"].count(0) for episode in episodes)
            results = [{"schedule": episode["schedule"], "reward": 0.25} for episode in episodes]
            self.assertEqual(learner.request("tell", results=results), {"ok": True})
        self.assertGreater(zeros, 0)
        self.assertEqual(learner.end(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
