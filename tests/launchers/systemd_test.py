"""The units in systemd/: systemd-analyze finds no fault in them and a low exposure, and allot knows the options that they
start it with.

    systemd_test.py ALLOT SOURCE [unittest options]

ALLOT is the executable beside a simulated allot-model, SOURCE the root of the sources. Exits 77 (skipped) when
systemd-analyze is missing.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SKIPPED = 77

if shutil.which("systemd-analyze") is None:
    print("skipped: systemd-analyze is missing; ./setup --check installs Debian's systemd")
    sys.exit(SKIPPED)

parser = argparse.ArgumentParser()
parser.add_argument("allot")
parser.add_argument("source")
options, unittest_options = parser.parse_known_args()
UNITS = Path(options.source) / "systemd"
# Tenths of what `systemd-analyze security` of systemd 252 says now, 1.4 and 1.8; a unit may become tighter, not looser.
EXPOSURE = {"allot-aggregator.service": 14, "allot-worker@0.service": 18}
# What the units refer to, as far as verify looks it up.
TARGETS = ["basic", "multi-user", "network-online", "shutdown", "sysinit"]


def analyze(*words):
    command = ["systemd-analyze", "--no-pager", *words]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout + answer.stderr


def settings(unit):
    """Values of a unit's settings by name, in the order of the file."""
    found = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", (UNITS / unit).read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


class SystemdTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        # A machine on which allot is installed.
        self.root = Path(temporary.name)
        self.installed = self.root / "etc" / "systemd" / "system"
        self.installed.mkdir(parents=True)
        for target in TARGETS:
            (self.installed / f"{target}.target").write_text(f"[Unit]\nDescription={target}\n")
        shutil.copy(UNITS / "allot-aggregator.service", self.installed)
        shutil.copy(UNITS / "allot-worker@.service", self.installed)
        (self.installed / "allot-worker@0.service").symlink_to("allot-worker@.service")
        program = self.root / "usr" / "bin" / "allot"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)

    def test_units_are_without_fault(self):
        self.assertEqual(analyze("verify", f"--root={self.root}", *EXPOSURE), (0, ""))

    def test_a_fault_in_a_unit_would_be_found(self):
        with (self.installed / "allot-aggregator.service").open("a") as unit:
            unit.write("\n[Service]\nRestrt=always\n")
        _, said = analyze("verify", f"--root={self.root}", "allot-aggregator.service")
        self.assertIn("Unknown key 'Restrt'", said)

    def test_exposure_is_not_above_what_it_was(self):
        for unit, threshold in EXPOSURE.items():
            with self.subTest(unit):
                security = ["security", "--offline=yes", f"--root={self.root}", unit]
                code, said = analyze(*security, f"--threshold={threshold}")
                self.assertEqual(code, 0, said)

    def test_failures_are_retried_and_wrong_usage_and_mismatch_are_not(self):
        for unit in ["allot-aggregator.service", "allot-worker@.service"]:
            with self.subTest(unit):
                self.assertEqual(settings(unit)["Restart"], ["on-failure"])
                self.assertEqual(settings(unit)["RestartPreventExitStatus"], ["2 3"])

    def test_allot_knows_the_options_of_the_units(self):
        config = self.root / "aggregator.conf"
        config.write_text("total = 64\n")
        for unit, environment in {"allot-aggregator.service": "aggregator.env", "allot-worker@.service": "worker.env"}.items():
            with self.subTest(unit):
                variables = dict(re.findall(r"^(\w+)=(.*)$", (UNITS / environment).read_text(), re.MULTILINE))
                (line,) = settings(unit)["ExecStart"]
                for name, value in variables.items():
                    line = line.replace(f"${name}", value)
                line = line.replace("%i", "0").replace("%H", "host").replace("/etc/allot/aggregator.conf", str(config))
                self.assertNotRegex(line, r"[$%]")
                words = shlex.split(line)
                self.assertEqual(words[0], "/usr/bin/allot")
                ran = subprocess.run([options.allot, *words[1:], "--dry-run"], capture_output=True, text=True, check=False)
                self.assertEqual(ran.returncode, 0, ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *unittest_options])
