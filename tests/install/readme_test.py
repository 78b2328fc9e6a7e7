#!/usr/bin/env python3
"""The path of a stranger: the commands under "Install" of README.md, word for word, in a fresh clone.

    readme_test.py SOURCE BUILD [EPISODES]

With EPISODES the clone's configuration learns for as many, and verifies on 16 questions: minutes less, the same commands. The clone holds what git tracks, as it stands in SOURCE, and takes what ./setup fetched and what was built from SOURCE; pip asks nobody, so
packages come from this interpreter's environment, which has torch and transformers.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import environment

SOURCE, BUILD = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
EPISODES = sys.argv[3] if len(sys.argv) > 3 else None


def commands():
    """The first block of code under the heading, without the comments behind commands."""
    text = (SOURCE / "README.md").read_text().partition("\n## Install\n")[2]
    block = re.search(r"(?:^    .*\n)+", text, re.MULTILINE)
    return [re.sub(r"\s+# .*", "", line.strip()) for line in block[0].splitlines()] if block else []


def clone(target):
    """The files that a clone would have, as they stand here; all but what builds and runs left, where git does not say which."""
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode != 0 or not listed.stdout:
        left_out = shutil.ignore_patterns("build*", ".deps", ".git", ".venv", "runs")
        shutil.copytree(SOURCE, target, symlinks=True, ignore=left_out)
        return
    for name in filter(None, listed.stdout.split("\0")):
        if not os.path.lexists(SOURCE / name):
            continue  # removed here, and not committed yet
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(SOURCE / name, target / name, follow_symlinks=False)


def shorten(config):
    text = config.read_text()
    for name, value in (("episodes", EPISODES), ("heldout-questions", "16")):
        text, found = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert found == 1, f"{config} has {found} lines with {name}"
    config.write_text(text)


def packages():
    """Where this interpreter finds torch, transformers and what they need."""
    standard = pathlib.Path(os.__file__).parent
    return [path for path in map(pathlib.Path, sys.path) if path.is_dir() and path != standard and path.parent != standard
            and path != pathlib.Path(__file__).parent]


class Stranger(unittest.TestCase):
    def test_three_commands_lead_from_the_sources_to_an_answer_of_transformers_under_the_schedule(self):
        self.assertEqual(len(commands()), 3, commands())
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            copy = root / "allot"
            clone(copy)
            if EPISODES:
                shorten(copy / "configs/quickstart.conf")
            (copy / ".deps").symlink_to(SOURCE / ".deps")
            for name in ("build", "build-gpu"):
                (copy / name).symlink_to(BUILD)
            programs = environment.make_environment(root / "environment", sees=[environment.tools_of(SOURCE), *packages()])
            # The build's own settings, since the build is looked at for what changed.
            variables = {**os.environ, **environment.clean_variables(programs, root), "PATH": f"{programs}:{os.environ['PATH']}"}
            for command in commands():
                ran = subprocess.run(["bash", "-c", command], cwd=copy, env=variables, capture_output=True, text=True, check=False)
                self.assertEqual(ran.returncode, 0, f"{command}\n{ran.stdout}{ran.stderr}")
            installed = environment.output(programs / "python", "-c", "import allot_attention as a; print(a.__file__)", env=variables, cwd=folder)
            self.assertTrue(installed.startswith(str(programs.parent)), installed)
            self.assertRegex(ran.stdout, r"#### \d+\s*$")
            executed = re.search(r"samples a layer: ([0-9,]+) \(computed by (\w+)\)", ran.stderr)
            self.assertIsNotNone(executed, ran.stderr)
            learned = json.loads((copy / "runs/quickstart/schedule.json").read_text())["samples"]
            self.assertEqual([int(count) for count in executed[1].split(",")], learned)


if __name__ == "__main__":
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except (ImportError, OSError) as error:
        environment.skip(f"{sys.executable} cannot import torch and transformers ({error}); pip install torch==2.11.0 transformers==5.17.0 "
                         "and configure with -DALLOT_PYTHON=<that Python>")
    environment.tools_of(SOURCE)
    sys.exit(not unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result.wasSuccessful())
