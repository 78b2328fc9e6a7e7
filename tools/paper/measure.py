#!/usr/bin/env python3
"""Runs the commands that docs/paper.md rests on and keeps what they say in docs/paper.

    tools/paper/measure.py --allot build/bin/allot [--only tiles-smollm2,eval-tiny-sys] [--again]
        [--smollm2 .deps/models/smollm2-135m-instruct --gsm8k test.jsonl --humaneval HumanEval.jsonl --python .deps/check/bin/python]

A measurement whose result is there is left out; --again makes it once more. Run from the root of the repository, with
the model of ./setup --model smollm2. --gsm8k is GSM8K's test file (docs/tasks.md): states and texts of SmolLM2 are made
of it by record_states.py, which needs a Python with torch and transformers; --humaneval is HumanEval.jsonl. Then
tools/paper/page.py.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measurements import MEASUREMENTS, rounded  # noqa: E402
from record_states import text_of  # noqa: E402
from results import ROOT  # noqa: E402

STATES_FROM = (0, 600)  # first questions of the two texts


def processor(words: list[str]) -> str:
    """Of the processor or GPU that the command runs on."""
    if "cuda" in words:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return "one " + subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {os.cpu_count()} cores"


class Inputs:
    """What stands for the placeholders, made when it is first asked for."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder = options, folder

    def states(self) -> list[str]:
        words = []
        for first in STATES_FROM:
            path = self.folder / f"smollm2-{first}.safetensors"
            if not path.exists():
                command = [self.options.python, "tools/paper/record_states.py", "--model", self.options.smollm2]
                command += ["--data", self.options.gsm8k, "--skip", str(first), "--out", path]
                subprocess.run(command, check=True, cwd=ROOT)
            words += ["--states", str(path)]
        return words

    def text(self) -> str:
        path = self.folder / "gsm8k.txt"
        path.write_text(text_of(Path(self.options.gsm8k), 0))
        return str(path)

    def contexts(self) -> str:
        path = self.folder / "contexts.jsonl"
        if not path.exists():
            command = [self.options.python, "assets/smol-long/contexts.py", "--allot", self.options.allot]
            command += ["--model", self.options.smollm2, "--count", "100", "--seed", "19", "--out", path]
            subprocess.run(command, check=True, cwd=ROOT)
        return str(path)

    def resolve(self, words: list[str]) -> list[str]:
        values = {
            "smollm2": self.options.smollm2,
            "adapter": "assets/smol-words",
            "long": "assets/smol-long",
            "tiny": "assets/tiny-gsm",
            "bitnet": "assets/tiny-gsm-bitnet",
            "heldout": "assets/tiny-gsm/heldout.jsonl",
            "shapes": "configs/shapes",
            "humaneval": self.options.humaneval,
        }
        resolved = []
        for word in words:
            if word == "{states}":
                resolved += self.states()
            elif word == "{text}":
                resolved.append(self.text())
            elif word == "{contexts}":
                resolved.append(self.contexts())
            elif word == "{run}":
                resolved.append(tempfile.mkdtemp(dir=self.folder))
            else:
                resolved.append(word.format(**values))
        return resolved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--allot", required=True)
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "paper")
    parser.add_argument("--only", default="", help="names, with commas between; all without it")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--smollm2", default=".deps/models/smollm2-135m-instruct")
    parser.add_argument("--gsm8k", default="")
    parser.add_argument("--humaneval", default="")
    parser.add_argument("--python", default=sys.executable, help="one with torch and transformers, for states")
    parser.add_argument("--work", type=Path, help="folder that keeps states and runs")
    options = parser.parse_args()

    names = options.only.split(",") if options.only else list(MEASUREMENTS)
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        sys.exit(f"no such measurement: {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    options.results.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        inputs = Inputs(options, folder)
        for name in names:
            path = options.results / f"{name}.json"
            measurement = MEASUREMENTS[name]
            if path.exists() and not options.again:
                continue
            missing = [need for need in measurement.needs if not getattr(options, need)]
            if missing:
                print(f"{name}: left out; --{missing[0]} FILE is needed", file=sys.stderr)
                continue
            start = time.monotonic()
            words = [options.allot, *inputs.resolve(measurement.words)]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
            seconds = time.monotonic() - start
            print(f"{name}: {seconds:.0f} s", file=sys.stderr)
            if done.returncode != 0:
                print(done.stderr, file=sys.stderr)
                failed.append(name)
                continue
            kept = rounded(measurement.keep(done.stdout))
            if "states" in kept and kept["states"]:
                kept["states"] = [f"8,192 tokens of GSM8K's test file from question {first} on" for first in STATES_FROM]
            result = {
                "command": "allot " + " ".join(measurement.words),
                "processor": processor(measurement.words),
                "seconds": round(seconds),
                **kept,
            }
            path.write_text(format_result(result))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def format_result(result: dict) -> str:
    """A line for each row, so that a changed number is a changed line."""
    head = {key: value for key, value in result.items() if key != "rows"}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    if "rows" in result:
        rows = ",\n".join(f"    {json.dumps(row)}" for row in result["rows"])
        lines.append(f'  "rows": [\n{rows}\n  ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
