#!/usr/bin/env python3
"""Installs a build under a prefix, moves it, and runs what was installed without the source tree's libraries.

    install_test.py BUILD SOURCE [--model]      --model: the build has allot-model
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

options = None
CLEAN = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}


def output(*words, **more):
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **more)
    if ran.returncode != 0:
        raise AssertionError(f"{words} exits with {ran.returncode}: {ran.stdout}{ran.stderr}")
    return ran.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.scratch.name)
        output("cmake", "--install", options.build, "--prefix", root / "first")
        cls.prefix = root / "moved"
        os.rename(root / "first", cls.prefix)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_the_light_tool_runs_and_finds_the_other_beside_it(self):
        self.assertIn("tune", output(self.prefix / "bin/allot", "--help", env=CLEAN))
        if options.model:
            self.assertIn("cpu", output(self.prefix / "bin/allot", "devices", env=CLEAN))

    def test_no_library_is_missing_or_comes_from_the_source_tree(self):
        for program in (self.prefix / "bin").iterdir():
            with self.subTest(program.name):
                listed = output("ldd", program, env=CLEAN)
                self.assertNotIn("not found", listed)
                self.assertNotIn(str(options.source), listed)
                if program.name == "allot-model":
                    self.assertRegex(listed, rf"libtorch_cpu.so => {self.prefix}/")

    def test_the_run_path_is_relative(self):
        for program in (self.prefix / "bin").iterdir():
            entries = [line for line in output("readelf", "-d", program).splitlines() if "RUNPATH" in line or "RPATH" in line]
            with self.subTest(program.name):
                self.assertFalse([line for line in entries if str(options.source) in line], entries)

    def test_the_units_are_there(self):
        units = {path.name for path in (self.prefix / "lib/systemd/system").iterdir()}
        self.assertEqual(units, {"allot-aggregator.service", "allot-worker@.service"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--model", action="store_true")
    options = parser.parse_args()
    sys.exit(not unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result.wasSuccessful())
