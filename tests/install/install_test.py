#!/usr/bin/env python3
"""Installs a build under a prefix, moves it, and runs what was installed without the source tree's libraries.

    install_test.py BUILD SOURCE [--model]      --model: the build has allot-model
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

options = None
MODEL_COMMANDS = {"worker", "devices", "eval", "generate", "serve", "verify", "ablate", "calibrate", "logits"}
FORMS = {"analyze", "bench"}  # their options are those of their forms
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

    def test_the_component_allot_runs_without_what_models_need(self):
        with tempfile.TemporaryDirectory() as place:
            prefix = pathlib.Path(place)
            output("cmake", "--install", options.build, "--prefix", prefix, "--component", "allot")
            self.assertEqual([path.name for path in (prefix / "bin").iterdir()], ["allot"])
            self.assertFalse(list(prefix.rglob("libtorch*")))
            self.assertIn("tune", output(prefix / "bin/allot", "--help", env=CLEAN))
            self.assertTrue((prefix / "share/bash-completion/completions/allot").is_file())

    def test_documentation_and_config_files_are_there(self):
        documents = self.prefix / "share/doc/allot"
        for name in ("LICENSE", "README.md", "docs/README.md", "configs/quickstart.conf"):
            self.assertTrue((documents / name).is_file(), name)

    def commands(self):
        lines = output(self.prefix / "bin/allot", "--help", env=CLEAN).splitlines()
        return [line.split()[0] for line in lines if line.startswith("  ")]

    def with_options(self):
        """The commands whose options this build knows."""
        return [name for name in self.commands() if options.model or name not in MODEL_COMMANDS]

    def offered(self, shell, *words):
        """What the shell offers at the end of these words, without an allot to ask."""
        file = self.prefix / "share" / ("bash-completion/completions/allot" if shell == "bash" else "zsh/site-functions/_allot")
        given = " ".join(f"'{word}'" for word in words)
        if shell == "bash":
            script = f"PATH=; . {file}; COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _allot; echo \"${{COMPREPLY[@]}}\""
            return output("bash", "--norc", "-c", script, cwd=self.scratch.name).split()
        # What is handed to zsh's own functions.
        script = ("PATH=; compdef() {}; _arguments() { print -rl -- \"$@\" }; _describe() { print -rl -- ${(P)@[-1]} }; "
                  f". {file}; words=({given}); CURRENT={len(words)}; _allot")
        return output("zsh", "-f", "-c", script, cwd=self.scratch.name).splitlines()

    def test_bash_completes_every_command_its_options_and_their_values(self):
        self.assertEqual(set(self.offered("bash", "allot", "")), {*self.commands(), "--help", "--version"})
        for command in self.with_options():
            if command in FORMS:
                continue
            with self.subTest(command):
                declared = output(self.prefix / "bin/allot", command, "--help", env=CLEAN)
                names = {line.split()[0] for line in declared.splitlines() if line.startswith("  --")}
                self.assertEqual(set(self.offered("bash", "allot", command, "--")), names)
        self.assertEqual(self.offered("bash", "allot", "export", "--format", "hf"), ["hf", "hf-config", "hf-model"])
        self.assertEqual(self.offered("bash", "allot", "tune", "--device", "c"), ["cpu", "cuda"])
        self.assertIn("tuner", self.offered("bash", "allot", "bench", ""))
        if options.model:
            self.assertIn("decode", self.offered("bash", "allot", "bench", ""))
            self.assertEqual(self.offered("bash", "allot", "eval", "--estimator", "jo"), ["joint"])
            self.assertEqual(self.offered("bash", "allot", "analyze", "fidelity", "--estimator", "joint,to"), ["joint,topk"])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_completes_every_command_its_options_and_their_values(self):
        names = [line.split(":")[0] for line in self.offered("zsh", "allot", "")]
        self.assertEqual(names, self.commands())
        handed = self.offered("zsh", "allot", "export", "")
        self.assertTrue([line for line in handed if line.startswith("--format=[") and "(json csv hf hf-config" in line], handed)

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_every_command_has_a_page_without_fault_that_says_what_help_says(self):
        pages = self.prefix / "share/man/man1"
        self.assertEqual({page.name for page in pages.iterdir()},
                         {"allot.1", *(f"allot-{name}.1" for name in self.with_options())})
        for page in sorted(pages.iterdir()):
            with self.subTest(page.name):
                ran = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-P-c", "-rLL=2000n", "-rHY=0", str(page)], capture_output=True, text=True, check=True)
                self.assertEqual(ran.stderr, "")
                command = page.stem.removeprefix("allot").removeprefix("-")
                if command in {"", *FORMS}:
                    continue
                declared = output(self.prefix / "bin/allot", command, "--help", env=CLEAN)
                # Words only: columns and breaks differ.
                self.assertIn("".join(declared.partition("\n\n")[2].partition("\n\n")[2].split()), "".join(plain(ran.stdout).split()))


def plain(text):
    """Without the marks of bold and underlined letters."""
    return re.sub(r"\x1b\[[0-9;]*m|.\x08", "", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--model", action="store_true")
    options = parser.parse_args()
    sys.exit(not unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result.wasSuccessful())
