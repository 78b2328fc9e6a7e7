#!/usr/bin/env python3
"""Learning curves of several learners: runs `allot tune` for every method, estimator, total and seed of a matrix, scores the
schedules that each run recommended on its way, and compares all of them with `allot analyze learning`.

    bench/learning/run.py --out DIR --matrix FILE
    bench/learning/run.py --out DIR --methods auto,pairs --estimators sys --totals 64 --seeds 1,2 -- --model DIR --data FILE …

The options of `allot tune` that all runs share stand behind `--`, or in the matrix. The matrix is a JSON object; each of its
fields may be left out where the option of its name says it:

    {"tune": {"model": "assets/tiny-gsm", "data": "assets/tiny-gsm/train.jsonl", "heldout": "assets/tiny-gsm/heldout.jsonl"},
     "methods": {"auto": {}, "paper": {"policy": "reinforce-paper", "until": "episodes", "episodes": 2000}},
     "estimators": ["sys", "joint"],
     "totals": {"sys": [48, 64], "joint": [24]},
     "seeds": [1, 2, 3]}

A method is a learner, with options of `allot tune` of its own where it has some; "methods" and "totals" may be plain lists.
Every run has a directory of its own in --out, METHOD-ESTIMATOR-TOTAL-seedN, with what it said in a .log beside it. Started again,
this goes on where it was: a finished run is not run again, an unfinished one is resumed, a schedule that was scored is not
scored again. Exit 1 when some run failed; the others are run and compared all the same.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import queue
import shlex
import signal
import subprocess
import sys
import threading

# Options of tune that eval has as well, by their names there; schedule.json says the others.
OF_EVAL = {"model": "model", "adapter": "adapter", "heldout": "data", "task": "task", "grader": "grader",
           "question-field": "question-field", "answer-field": "answer-field", "threads": "threads",
           "max-sequences": "max-sequences", "device": "device"}
SCORED = "learning.json"  # of a run directory, as `allot analyze learning` reads it


class Failed(Exception):
    """What a command that was started did not do."""


@dataclasses.dataclass(frozen=True)
class Run:
    name: str
    options: dict  # of allot tune, without --run


class Processes:
    """The commands that run now, so that all of them can be told to end."""

    def __init__(self):
        self._lock = threading.Lock()
        self._running = set()
        self.stopping = False

    def stop(self, *_):
        with self._lock:
            self.stopping = True
            for process in self._running:
                process.terminate()

    def run(self, words, log):
        """Runs to its end; returns exit status and standard output. Standard error goes to the file `log`."""
        with open(log, "a") as errors:
            errors.write(f"$ {shlex.join(words)}\n")
            errors.flush()
            with self._lock:
                if self.stopping:
                    raise Failed("stopped")
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
                self._running.add(process)
            out, _ = process.communicate()
            with self._lock:
                self._running.discard(process)
        if self.stopping:
            raise Failed("stopped")
        return process.returncode, out


def words_of(options):
    """--name value …; a value of true is a flag."""
    words = []
    for name, value in options.items():
        if value is False or value is None:
            continue
        words.append(f"--{name}")
        if value is not True:
            words.append(str(value))
    return words


def options_of(words):
    """The inverse, of the words behind `--`."""
    options = {}
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        if not name.startswith("--"):
            sys.exit(f"run.py: '{words[at]}' is no option of allot tune; write --name value, or --name alone for a flag")
        at += 1
        if not equals:
            flag = at == len(words) or words[at].startswith("--")
            value = True if flag else words[at]
            at += 0 if flag else 1
        options[name[2:]] = value
    return options


def entries(text):
    return [entry for entry in text.split(",") if entry]


def numbers(option, texts):
    try:
        return [int(text) for text in texts]
    except ValueError:
        sys.exit(f"run.py: --{option} {','.join(map(str, texts))}: whole numbers are expected, as in 1,2,3")


def read_matrix(arguments):
    matrix = {}
    if arguments.matrix:
        try:
            matrix = json.loads(pathlib.Path(arguments.matrix).read_text())
        except (OSError, ValueError) as error:
            sys.exit(f"run.py: --matrix {arguments.matrix}: {error}")
        unknown = set(matrix) - {"tune", "methods", "estimators", "totals", "seeds"}
        if unknown:
            sys.exit(f"run.py: --matrix {arguments.matrix} has the fields {', '.join(sorted(unknown))}; "
                     "tune, methods, estimators, totals and seeds are expected")
    matrix["tune"] = {**matrix.get("tune", {}), **options_of(arguments.tune)}
    for field in ("methods", "estimators", "totals", "seeds"):
        if getattr(arguments, field):
            matrix[field] = entries(getattr(arguments, field))
        if not matrix.get(field):
            sys.exit(f"run.py: give --{field}, or the field \"{field}\" of the matrix")
    if isinstance(matrix["methods"], list):
        matrix["methods"] = {name: {} for name in matrix["methods"]}
    if isinstance(matrix["totals"], list):
        matrix["totals"] = {estimator: matrix["totals"] for estimator in matrix["estimators"]}
    for estimator in matrix["estimators"]:
        if estimator not in matrix["totals"]:
            sys.exit(f"run.py: \"totals\" has none of {estimator}, only of {', '.join(matrix['totals'])}")
    for needed in ("model", "data", "heldout"):
        if needed not in matrix["tune"]:
            sys.exit(f"run.py: --{needed} of allot tune is missing: give it behind --, or in \"tune\" of the matrix")
    return matrix


def runs_of(matrix):
    runs = []
    for estimator in matrix["estimators"]:
        for total in numbers("totals", matrix["totals"][estimator]):
            for method, own in matrix["methods"].items():
                for seed in numbers("seeds", matrix["seeds"]):
                    options = {**matrix["tune"], "policy": method, **own, "estimator": estimator, "total": total, "seed": seed}
                    runs.append(Run(f"{method}-{estimator}-{total}-seed{seed}", options))
    return runs


class Experiment:
    def __init__(self, arguments):
        self.arguments = arguments
        self.out = pathlib.Path(arguments.out)
        self.processes = Processes()
        self.devices = queue.Queue()
        for slot in range(arguments.at_a_time):
            self.devices.put(entries(arguments.devices)[slot % len(entries(arguments.devices))] if arguments.devices else None)

    def call(self, words, log, wanted=(0,)):
        code, out = self.processes.run([self.arguments.allot, *words], log)
        if code not in wanted:
            raise Failed(f"allot {words[0]} ended with status {code}; {log} has what it said")
        return code, out

    def finished(self, directory, log):
        if not (directory / "spec.json").exists():
            return False
        code, out = self.processes.run([self.arguments.allot, "status", "--run", str(directory), "--json"], log)
        return code == 0 and json.loads(out)["stage"] == "finished"

    def carry_out(self, run):
        """One run with its evaluation; returns what became of it."""
        directory, log = self.out / run.name, self.out / f"{run.name}.log"
        device = self.devices.get()
        try:
            placed = {"device": device} if device else {}
            done = "was finished"
            if not self.finished(directory, log):
                # A run that its preflight ended exits with 1, too, and is finished.
                self.call(["tune", *words_of({**run.options, **placed}), "--run", str(directory)], log, wanted=(0, 1))
                if not self.finished(directory, log):
                    raise Failed(f"allot tune did not finish; {log} has what it said")
                done = "finished"
            if not (directory / "schedule.json").exists():
                return f"{done}: nothing to learn, says its preflight ({log})"
            return f"{done}, {self.score(run, directory, log, placed)}"
        finally:
            self.devices.put(device)

    def points(self, directory, log):
        words = ["analyze", "learning", "--runs", str(directory), "--json"]
        if self.arguments.at:
            words += ["--at", self.arguments.at]
        _, out = self.call(words, log)
        return json.loads(out)["runs"][0]["points"]

    def score(self, run, directory, log, placed):
        """Scores the schedules that the run recommended on its way and at its end, each once."""
        path = directory / SCORED
        if path.exists() and all(point["accuracy"] for point in self.points(directory, log)):
            return "was scored"
        path.unlink(missing_ok=True)  # all of its schedules are to be scored on the same questions
        *way, last = [",".join(map(str, point["samples"])) for point in self.points(directory, log)]
        options = {there: run.options[here] for here, there in OF_EVAL.items() if here in run.options}
        options.update(placed, limit=self.arguments.questions or None, seed=self.arguments.draws)
        # The file says the conditions of the run, and has its last schedule.
        schedules = ["dense", str(directory / "schedule.json"), *dict.fromkeys(text for text in way if text != last)]
        words = ["eval", *words_of(options), "--json"]
        for schedule in schedules:
            words += ["--schedule", schedule]
        _, out = self.call(words, log)
        whole = path.with_suffix(".new")
        whole.write_text(out)
        whole.replace(path)
        return f"{len(schedules) - 1} schedules scored"

    def compare(self):
        words = ["analyze", "learning", "--runs", str(self.out), "--out", str(self.out / "plots")]
        if self.arguments.at:
            words += ["--at", self.arguments.at]
        _, out = self.call(words, self.out / "analyze.log")
        print(out, end="")


def arguments_of(words):
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the runs, their logs and the plots")
    parser.add_argument("--matrix", metavar="FILE", help="JSON object as above")
    parser.add_argument("--methods", metavar="NAME,…", help="learners")
    parser.add_argument("--estimators", metavar="NAME,…")
    parser.add_argument("--totals", metavar="N,…")
    parser.add_argument("--seeds", metavar="N,…")
    parser.add_argument("--at", metavar="N,…", help="learning episodes after which schedules are scored; as allot analyze learning")
    parser.add_argument("--questions", type=int, metavar="N", help="held-out questions that score them; all without it")
    parser.add_argument("--draws", type=int, default=0, metavar="SEED", help="seed of the draws that score them; default 0")
    parser.add_argument("--at-a-time", type=int, default=1, metavar="N", help="runs at a time; default 1")
    parser.add_argument("--devices", metavar="NAME,…", help="devices that the runs at a time are spread over, as cuda:0,cuda:1")
    parser.add_argument("--allot", default="allot", metavar="FILE", help="the allot to start; default that of the PATH")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of the runs and do nothing")
    parser.add_argument("tune", nargs="*", metavar="-- OPTION", help="options of allot tune for every run")
    arguments = parser.parse_args(words)
    if arguments.at_a_time < 1:
        parser.error(f"--at-a-time {arguments.at_a_time}; at least 1 is expected")
    return arguments


def main(words):
    arguments = arguments_of(words)
    runs = runs_of(read_matrix(arguments))
    if arguments.dry_run:
        for run in runs:
            print(shlex.join([arguments.allot, "tune", *words_of(run.options), "--run", str(pathlib.Path(arguments.out) / run.name)]))
        return 0
    experiment = Experiment(arguments)
    experiment.out.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, experiment.processes.stop)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.at_a_time) as pool:
        waiting = {pool.submit(experiment.carry_out, run): run for run in runs}
        for number, future in enumerate(concurrent.futures.as_completed(waiting), 1):
            try:
                said = future.result()
            except Failed as failure:
                said, failed = f"FAILED: {failure}", failed + 1
            print(f"{number}/{len(runs)} {waiting[future].name}: {said}", file=sys.stderr, flush=True)
    if experiment.processes.stopping:
        print("run.py: stopped; the same command goes on with it", file=sys.stderr)
        return 1
    if failed < len(runs):
        experiment.compare()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
