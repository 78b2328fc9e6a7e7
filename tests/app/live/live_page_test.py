"""The live page in headless Chromium, against a running aggregator with workers that answer by chance.

    live_page_test.py FOLDER_WITH_ALLOT_AND_SIMULATED_WORKER [--pictures FOLDER]

With --pictures it also keeps a PNG of the page at every stage it comes by, for people to look at."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from decimal import ROUND_HALF_UP, Decimal

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from browser import Browser, chromium  # noqa: E402
from live_run import Run  # noqa: E402

TOOL = sys.argv[1]
PICTURES = pathlib.Path(sys.argv[3]) if sys.argv[2:3] == ["--pictures"] else None
WIDTHS = (375, 1280)
HOSTILE = '<img src=x onerror="document.body.dataset.fooled=1">&amp;'

# Answers /api/run with what the test gives instead; everything else of the page is the real one.
STUB = "window.fetch = async () => new Response(JSON.stringify(%s), {status: 200, headers: {'Content-Type': 'application/json'}});"


def worker(number, silent=False):
    return {"worker": f"pod-{number}", "device": "cuda:0 NVIDIA H200, 139 GiB", "build": "0.1.0", "leases": number % 3,
            "episodes_done": 7 * number, "last_seen_ms": 400_000 if silent else 300 * number, "silent": silent}


def percent(share):
    """As the page writes it: JavaScript rounds halves up, such as those of 5 in 16, where Python takes the even digit."""
    return f"{Decimal(100 * share).quantize(Decimal('0.1'), ROUND_HALF_UP)}%"


class LivePage(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="allot-live-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.run_ = self.enterContext(Run(TOOL, self.folder))
        self.browser = self.enterContext(Browser())

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [], "the page complained")

    def text(self, selector):
        return self.browser.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def texts(self, selector):
        return self.browser.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")

    def picture(self, name):
        if PICTURES:
            PICTURES.mkdir(parents=True, exist_ok=True)
            self.browser.picture(PICTURES / f"{name}.png")

    def expect_fit(self, name):
        """Nothing wider than the window, in both widths; pictures of both."""
        for width in WIDTHS:
            self.browser.size(width)
            self.browser.refreshed()
            # Charts follow a new size with the next frame.
            self.browser.wait_for(f"document.documentElement.scrollWidth === {width}", 5)
            self.picture(f"{name}-{width}")
            # Text of a chart that leaves its picture would be cut off.
            cut = self.browser.value("""[...document.querySelectorAll('svg.chart text')].filter((text) => {
                const box = text.getBoundingClientRect(), all = text.ownerSVGElement.getBoundingClientRect();
                return box.left < all.left - 1 || box.right > all.right + 1 || box.bottom > all.bottom + 1;
              }).map((text) => text.textContent)""")
            self.assertEqual(cut, [], f"{name} at {width} px: labels are cut off")

    def test_shows_a_run_from_its_start_to_its_end(self):
        run, browser = self.run_, self.browser
        run.serve()
        browser.size(1280)
        browser.open(run.url)
        self.assertEqual(self.text("#title"), "A sample schedule for small-model on gsm8k")
        self.assertEqual(self.text("#stage"), "Learning")
        self.assertIn("0 of 200 learning episodes", self.text("#summary"))
        self.assertIn("No worker is connected", self.text("#workers"))
        self.assertIn("begins with the first episode", self.text("#curve"))
        self.expect_fit("start")

        run.hold.touch()  # the workers wait once 20 episodes are through
        for name in ("pod-1", "pod-2", HOSTILE):
            run.work(name)
        figures = run.wait_until(lambda now: now["worker_counts"]["busy"] == 3 and now["episodes_done"] == 20)
        browser.refreshed()
        self.assertIn("20 of 200 learning episodes", self.text("#summary"))
        self.assertEqual(sorted(self.texts("#workers .name")), sorted(["pod-1", "pod-2", HOSTILE]))
        self.assertEqual(self.browser.value("document.querySelectorAll('main img, main script').length"), 0)
        self.assertIsNone(self.browser.value("document.body.dataset.fooled || null"))
        self.assertEqual(self.texts("#workers .leases")[1:], ["1", "1", "1"])
        self.assertEqual(self.browser.value("document.querySelector('#curve .line').getAttribute('d').match(/[ML]/g).length"),
                         len(figures["curve"]["episodes"]))
        self.assertEqual(self.browser.value("document.querySelectorAll('#schedule rect.bar').length"), 8)
        tiles = dict(zip(self.texts("#tiles dt"), self.texts("#tiles dd:not(.note)")))
        self.assertEqual(tiles["Policy"], f"version {figures['policy_version']}")
        self.assertEqual(tiles["Leases"], "3")
        self.assertEqual(tiles["Recent reward"], percent(figures["mean_reward_recent"]))
        self.expect_fit("middle")

        run.hold.unlink()
        run.wait_until(lambda now: now["stage"] == "finished", 120)
        browser.open(run.url)
        self.assertEqual(self.text("#stage"), "Finished")
        final = run.figures()
        right = {score["label"]: f"{score['correct']} of {score['n']}" for score in final["scores"]}
        self.assertEqual(self.texts("#scores tbody td:nth-child(2)"), [right["uniform"], right["learned"], right["dense"]])
        self.assertEqual([title.split(": ")[1] for title in self.texts("#schedule rect title")],
                         [f"{count} samples" if count != 1 else "1 sample" for count in final["recommended"]])
        counters = dict(zip(self.texts("#counters td:first-child"), self.texts("#counters td:nth-child(2)")))
        self.assertEqual(counters["accepted"], str(final["counters"]["accepted"]))
        for width in WIDTHS:
            browser.size(width)
            browser.open(run.url)
            self.picture(f"finished-{width}")
            self.assertEqual(browser.value("document.documentElement.scrollWidth"), width)
        browser.size(1280, dark=True)
        browser.open(run.url)
        self.picture("finished-dark-1280")
        own = {url for url in browser.requests if not url.startswith(("data:", "about:"))}
        self.assertTrue(own and all(url.startswith(run.url) for url in own), f"the page asked for more than its own: {own}")

    def test_is_left_in_the_run_directory_and_shows_the_end_without_a_server(self):
        run = self.run_
        aggregator = run.serve()
        run.work("worker-1")
        run.wait_until(lambda now: now["stage"] == "finished", 120)
        figures = run.figures()
        run.stop(aggregator)
        self.browser.open((run.directory / "page.html").as_uri())
        self.assertEqual(self.text("#stage"), "Finished")
        self.assertIn("report.html", self.text("#updated"))
        self.assertTrue(self.browser.value("document.getElementById('notice').hidden"))
        self.assertTrue(self.browser.value("document.getElementById('links') === null"))
        right = [f"{score['correct']} of {score['n']}" for score in figures["scores"]]
        self.assertEqual(self.texts("#scores tbody td:nth-child(2)"), right)
        self.assertTrue(self.browser.value("document.querySelector('#curve svg') !== null"))

    def test_says_that_the_aggregator_is_gone_and_goes_on_when_it_is_back(self):
        run, browser = self.run_, self.browser
        serving = run.serve()
        browser.size(1280)
        browser.open(run.url)
        port = run.url.rstrip("/").rsplit(":", 1)[1]
        self.assertEqual(run.stop(serving), 0)
        self.assertFalse((run.directory / "http").exists())
        browser.wait_for("document.body.classList.contains('lost')")
        self.assertIn("does not answer", self.text("#notice"))
        self.picture("lost-1280")
        browser.complaints.clear()  # the browser itself logs requests that nobody answers
        run.serve("--http", f"127.0.0.1:{port}")
        browser.wait_for("!document.body.classList.contains('lost')")
        self.assertIn("start 2 of the aggregator", self.text("#updated"))
        browser.complaints.clear()

    def test_shows_a_paused_run_with_its_target_who_controlled_it_and_workers_that_wait(self):
        run, browser = self.run_, self.browser
        run.serve()
        for control in (["pause"], ["stop", "--at-reward", "0.65"], ["episodes", "300"], ["resume"], ["pause"], ["stop", "--at-reward", "0.7"]):
            subprocess.run([run.allot, "control", *control, "--run", run.directory, "--name", "ann"], check=True, capture_output=True)
        figures = run.wait_until(lambda now: now["target_reward"] == 0.7)
        browser.size(1280)
        browser.open(run.url)
        self.assertEqual(self.text("#stage"), "Paused")
        self.assertIn("target reward 70.0%", self.text("#summary"))
        said = [text.split("ann ")[1] for text in self.texts("#control .event")]
        self.assertEqual(said, ["set the target reward to 70.0%.", "paused the run.", "resumed the run.",
                                "set the learning episodes to 300.", "set the target reward to 65.0%.", "paused the run."])
        failing = worker(1) | {"quarantined_ms": 61_000, "last_failure": HOSTILE}
        load = {"seconds": 20, "output_tokens": 100_000, "prompt_tokens": 400_000, "busy_seconds": 18, "slot_seconds": 13.5}
        cordoned = worker(2) | {"cordoned": True, "load": load}
        figures.update(workers=[failing, cordoned], worker_counts={"all": 2, "busy": 0, "idle": 2, "silent": 0},
                       given_up=[{"episode": 7, "poisoned": True, "reason": HOSTILE}])
        script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=STUB % json.dumps(figures))
        browser.open(run.url)
        self.assertEqual(self.texts("#workers .trouble"),
                         [f"gets no leases for 1\u00a0min 01\u00a0s: {HOSTILE}", "is cordoned: gets no leases"])
        self.assertEqual(self.texts("#workers .load"), ["5,000 tokens/s, busy 90%, batch 75% in use"])
        self.assertIn(HOSTILE, self.text("#counters"))
        self.assertFalse(browser.value("document.body.dataset.fooled"))
        self.expect_fit("controlled")
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])

    def test_writes_rewards_as_the_status_says_that_their_kind_reads(self):
        run, browser = self.run_, self.browser
        run.serve()
        figures = run.figures()
        # A kind that no release has: the page must not know kinds by name.
        wait = {"name": "wait", "measure": "delay", "unit": "ms", "per_unit": 1000, "decimals": 2, "low": 0, "high": None, "higher_is_better": False}
        answers = figures["verified"]
        figures.update(stage="verify", episodes_done=40, target_reward=0.012, mean_reward_recent=0.01834,
                       reward_kind="wait", rewards=wait, verified=wait,
                       steering=[{"action": "target", "reward": 0.012, "episodes": 0, "by": "ann", "at_ms": 1}])
        reward = [0.05 - 0.03 * i / 39 for i in range(40)]
        figures["curve"] = {"window": 20, "episodes_per_point": 1, "episodes": list(range(1, 41)), "reward": reward, "mean": reward,
                            "low": [r - 0.004 for r in reward], "high": [r + 0.004 for r in reward]}
        score = {"samples": [], "n": 8, "correct": None, "wanted": 64, "accuracy": None, "interval_95": None}
        figures["scores"] = [score | {"label": "uniform", "mean": 0.0312}, score | {"label": "learned", "mean": 0.0208},
                             score | {"label": "dense", "n": 0, "mean": None}]
        script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=STUB % json.dumps(figures))
        browser.size(1280)
        browser.open(run.url)
        self.assertIn("target reward at most 12.00\u00a0ms", self.text("#summary"))
        self.assertTrue(self.text("#control .event").endswith("ann set the target reward to at most 12.00\u00a0ms."))
        tiles = dict(zip(self.texts("#tiles dt"), self.texts("#tiles dd:not(.note)")))
        self.assertEqual(tiles["Recent reward"], "18.34\u00a0ms")
        self.assertIn("lower is better", self.text("#tiles .note"))
        self.assertEqual([self.text("#measure"), *self.texts("#scores th")], ["delay", "Schedule", "Answered", "Delay", "0 to 31.2\u00a0ms", "95%"])
        self.assertEqual(self.texts("#scores tbody td:nth-child(2)"), ["8", "8", "0"])
        self.assertEqual(self.texts("#scores tbody td:nth-child(3)"), ["31.20\u00a0ms", "20.80\u00a0ms", "\u2013"])
        self.assertEqual(self.texts("#scores tbody tr:first-child td:last-child"), [""], "no interval of a mean alone")
        self.assertEqual(self.texts("#curve text[text-anchor=end]"), ["20", "30", "40", "50"])
        self.assertLessEqual({"ms", "uniform 31.20", "learned 20.80"}, set(self.texts("#curve text")))
        self.assertIn("held-out delay", self.text("#curve-caption"))
        self.expect_fit("other-kind")
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
        # A run that learns from that kind and is verified on answers.
        figures["verified"] = answers
        figures["scores"] = [{"label": "learned", "samples": [], "n": 8, "correct": 6, "wanted": 64, "accuracy": 0.75, "mean": None,
                              "interval_95": [0.4, 0.92]}]
        script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=STUB % json.dumps(figures))
        browser.open(run.url)
        self.assertEqual([self.text("#measure"), *self.texts("#scores th")], ["accuracy", "Schedule", "Right", "Accuracy", "0 to 100%", "95%"])
        self.assertEqual(self.texts("#scores tbody td"), ["learned", "6 of 8", "75.0%", "95% interval 40.0 to 92.0%", "40.0 to 92.0"])
        self.assertNotIn("held-out", self.text("#curve-caption"), "accuracies have no place on an axis of delays")
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])

    def test_shows_the_look_before_learning_and_why_a_run_stopped_there(self):
        run, browser = self.run_, self.browser
        run.serve()
        figures = run.figures()
        schedule = {"label": "dense", "answered": 32, "correct": 0, "mean": 0.0, "cut_off": 8, "no_answer": 24, "prompt_tokens": 6400,
                    "output_tokens": 1600}
        figures.update(stage="preflight", eta_s=None, worker_counts={"all": 2, "busy": 2, "idle": 0, "silent": 0}, preflight={
            "wanted": 32, "schedules": [schedule, schedule | {"label": "uniform", "answered": 16}], "done": True, "worker_seconds": 20.0,
            "run_worker_seconds": 1200.0, "run_episodes": 250, "cost": 1.5, "stop_reason": HOSTILE, "ignored": False, "warnings": ["few keys"]})
        script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=STUB % json.dumps(figures))
        browser.size(1280)
        browser.open(run.url)
        self.assertIn("48 of 64 answers before learning", self.text("#summary"))
        self.assertEqual(self.texts("#preflight tbody tr:first-child td"), ["dense", "0 of 32", "25%", "75%", "50"])
        self.assertIn("250 episodes and the verification take about 10\u00a0min 00\u00a0s of 2 workers and cost 1.50.", self.text("#preflight"))
        self.assertIn("Warning: few keys.", self.text("#preflight"))
        self.assertIn(f"Stopped before learning: {HOSTILE}.", self.text("#preflight"))
        self.assertFalse(browser.value("document.body.dataset.fooled"))
        self.expect_fit("preflight")
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])

    def test_says_what_is_left_to_gain_and_that_the_time_left_is_a_bound(self):
        run, browser = self.run_, self.browser
        run.serve()
        figures = run.figures()
        figures.update(until_settled=True, eta_s=90, outlook={"gain": 0.1, "low": 0.05, "high": 0.15, "left_to_gain": 0.012})
        script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=STUB % json.dumps(figures))
        browser.open(run.url)
        self.assertIn("at most 1\u00a0min 30\u00a0s left", self.text("#summary"))
        tiles = dict(zip(self.texts("#tiles dt"), self.texts("#tiles dd:not(.note)")))
        self.assertEqual(tiles["Left to gain"], "1.2 points")
        self.assertIn("10.0 points over uniform, 95% interval 5.0 to 15.0", " ".join(self.texts("#tiles .note")))
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])

    def test_answers_with_partial_credit_have_no_interval(self):
        run, browser = self.run_, self.browser
        run.serve()
        figures = run.figures()
        figures.update(stage="verify")
        figures["scores"] = [{"label": "learned", "samples": [], "n": 8, "correct": 3, "wanted": 64, "accuracy": 0.4375,
                              "mean": 0.4375, "interval_95": None}]
        script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=STUB % json.dumps(figures))
        browser.open(run.url)
        self.assertEqual(self.text("#measure"), "accuracy")
        self.assertEqual(self.texts("#scores th"), ["Schedule", "Right", "Accuracy", "0 to 100%", "95%"])
        self.assertEqual(self.texts("#scores tbody td")[:3], ["learned", "3 of 8", "43.8%"])
        self.assertEqual(self.texts("#scores tbody td:last-child"), [""])
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])

    def test_fits_from_one_to_sixty_four_layers_and_from_none_to_ten_thousand_workers(self):
        run, browser = self.run_, self.browser
        run.serve()
        figures = run.figures()
        figures.update(model="A-Model-With-A-Rather-Long-Name-70B-Instruct-distilled", paused=True, stage="verify", eta_s=93_000,
                       episodes_done=123_456, episodes_wanted=123_456, elapsed_s=400_000, episodes_per_second=0.011)
        points = list(range(500, 500 * 247, 500))
        reward = [0.2 + 0.6 * i / len(points) for i in range(len(points))]
        figures["curve"] = {"window": 20, "episodes_per_point": 500, "episodes": points, "reward": reward, "mean": reward,
                            "low": [r - 0.03 for r in reward], "high": [r + 0.03 for r in reward]}
        figures["scores"] = [dict(label=label, samples=[], n=1200, correct=correct, wanted=1319, accuracy=correct / 1200,
                                  interval_95=[correct / 1200 - 0.02, correct / 1200 + 0.02])
                             for label, correct in (("uniform", 931), ("learned", 942), ("dense", 951))]
        figures["counters"] = {name: 1_234_567 for name in figures["counters"]} | {"a_counter_of_a_later_release": 3}
        cases = {
            "one-layer": ([64], [], 0),
            "sixty-four-layers": ([1 + (i * 37) % 129 for i in range(64)], [worker(i, i < 3) for i in range(200)], 10_000),
        }
        for name, (samples, workers, total) in cases.items():
            figures.update(recommended=samples, shares=[1 / len(samples)] * len(samples), total_samples=sum(samples), workers=workers,
                           worker_counts={"all": total, "busy": total // 2, "idle": total - total // 2 - 3 * (total > 0), "silent": 3 * (total > 0)})
            script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=STUB % json.dumps(figures))
            browser.open(run.url)
            self.assertEqual(self.text("#stage"), "Paused")
            self.assertEqual(browser.value("document.querySelectorAll('#schedule rect.bar').length"), len(samples))
            if total:
                self.assertIn("200 of 10,000 workers are listed", self.text("#workers"))
                self.assertEqual(self.texts("#workers .name")[:3], ["pod-0", "pod-1", "pod-2"], "silent ones come first")
            self.assertIn("a counter of a later release", self.text("#counters"))
            self.assertIn("given up", self.text("#counters"))
            self.assertNotIn("set aside", self.text("#counters"))
            self.expect_fit(name)
            browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


if __name__ == "__main__":
    if chromium() is None:
        print("skipped: no Chromium is installed (Debian package chromium; ./setup --check installs it)")
        sys.exit(77)
    os.environ.pop("http_proxy", None)
    unittest.main(argv=sys.argv[:1], verbosity=2)
