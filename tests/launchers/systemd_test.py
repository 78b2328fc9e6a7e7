"""The units in systemd/: systemd-analyze finds no fault in them and a low exposure, and allot knows the options that they
start it with and needs no system call that they forbid.

    systemd_test.py ALLOT SOURCE [unittest options]

ALLOT is the executable beside a simulated allot-model, SOURCE the root of the sources. Exits 77 (skipped) when
systemd-analyze is missing.
"""

import argparse
import os
import pwd
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


def seconds(text):
    """A time span of systemd.time(7) as the units write it: seconds, or a number with s, min or h."""
    number, unit = re.fullmatch(r"(\d+) ?(s|min|h)?", text).groups()
    return int(number) * {None: 1, "s": 1, "min": 60, "h": 3600}[unit]


def gives_up_after(unit_settings):
    """Seconds until systemd tries no more to start a unit that fails at once every time; infinity when it goes on."""
    (pause,) = map(seconds, unit_settings.get("RestartSec", ["0"]))
    (interval,) = map(seconds, unit_settings.get("StartLimitIntervalSec", ["10"]))  # defaults of systemd-system.conf(5)
    (burst,) = map(int, unit_settings.get("StartLimitBurst", ["5"]))
    return pause * burst if pause * burst < interval else float("inf")


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

    def test_units_with_keys_are_without_fault_and_no_more_exposed(self):
        for unit, keys in {"allot-aggregator": "aggregator-keys.conf", "allot-worker@": "worker-keys.conf"}.items():
            drop_in = self.installed / f"{unit}.service.d" / "keys.conf"
            drop_in.parent.mkdir()
            shutil.copy(UNITS / keys, drop_in)
        self.assertEqual(analyze("verify", f"--root={self.root}", *EXPOSURE), (0, ""))
        self.check_exposure()

    def test_a_fault_in_a_unit_would_be_found(self):
        with (self.installed / "allot-aggregator.service").open("a") as unit:
            unit.write("\n[Service]\nRestrt=always\n")
        _, said = analyze("verify", f"--root={self.root}", "allot-aggregator.service")
        self.assertIn("Unknown key 'Restrt'", said)

    def test_exposure_is_not_above_what_it_was(self):
        self.check_exposure()

    def check_exposure(self):
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

    def test_a_fault_that_lasts_for_hours_leaves_no_unit_down(self):
        for unit in ["allot-aggregator.service", "allot-worker@.service"]:
            with self.subTest(unit):
                found = settings(unit)
                self.assertEqual(gives_up_after(found), float("inf"))
                self.assertGreaterEqual(seconds(found["RestartSec"][0]), 5, "a unit that fails at once must not be busy failing")

    def test_a_limit_that_a_full_disk_outlasts_would_be_found(self):
        self.assertEqual(gives_up_after({"RestartSec": ["2"], "StartLimitIntervalSec": ["600"], "StartLimitBurst": ["5"]}), 10)
        self.assertEqual(gives_up_after({"RestartSec": ["1"]}), 5)
        self.assertEqual(gives_up_after({"RestartSec": ["10"]}), float("inf"))

    def test_allot_knows_the_options_of_the_units(self):
        config = self.root / "aggregator.conf"
        config.write_text("total = 64\n")
        for unit, environment in {"allot-aggregator.service": "aggregator.env", "allot-worker@.service": "worker.env"}.items():
            with self.subTest(unit):
                variables = dict(re.findall(r"^(\w+)=(.*)$", (UNITS / environment).read_text(), re.MULTILINE))
                (line,) = settings(unit)["ExecStart"]
                for name, value in variables.items():
                    line = line.replace(f"${name}", value)
                line = line.replace("$ALLOT_KEYS ", "")  # empty without the drop-in
                line = line.replace("%i", "0").replace("%H", "host").replace("/etc/allot/aggregator.conf", str(config))
                self.assertNotRegex(line, r"[$%]")
                words = shlex.split(line)
                self.assertEqual(words[0], "/usr/bin/allot")
                ran = subprocess.run([options.allot, *words[1:], "--dry-run"], capture_output=True, text=True, check=False)
                self.assertEqual(ran.returncode, 0, ran.stderr)


def system_calls(group):
    """Names in a group of systemd's, and in the groups that it holds."""
    _, listed = analyze("syscall-filter", group)
    names = {line.strip() for line in listed.splitlines()[1:] if line.strip() and not line.strip().startswith("#")}
    return {call for name in names for call in (system_calls(name) if name.startswith("@") else {name})}


def allowed_calls(unit):
    """What is left when a unit's SystemCallFilter= lines are applied in their order."""
    allowed = set()
    for line in settings(unit)["SystemCallFilter"]:
        calls = {call for group in line.removeprefix("~").split() for call in system_calls(group)}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


class SystemCallTest(unittest.TestCase):
    """A run from start to end under strace, as a user without privileges like that of the units."""

    def setUp(self):
        if shutil.which("strace") is None:
            self.skipTest("strace is missing; ./setup --check installs Debian's strace")
        temporary = tempfile.TemporaryDirectory(prefix="allot-calls-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.user = []
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self.user = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        # Where that user may read it, wherever the sources and the build are.
        for name in ["allot", "allot-model"]:
            shutil.copy(Path(options.allot).parent / name, self.folder)
        shutil.copytree(Path(options.source) / "assets" / "tiny-gsm", self.folder / "model")
        traced = subprocess.run([*self.user, "strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
        if traced.returncode != 0:
            self.skipTest(f"strace may not trace here: {traced.stderr.strip()}")

    def start(self, trace, *words):
        command = [*self.user, "strace", "-f", "-qq", "-o", self.folder / trace, self.folder / "allot", *words]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def calls_in(self, trace):
        return set(re.findall(r"^\d+ +(\w+)\(", (self.folder / trace).read_text(), re.MULTILINE))

    def test_filters_allow_what_the_processes_call(self):
        run, model = self.folder / "run", self.folder / "model"
        aggregator = self.start(
            "aggregator.calls", "aggregator", "--run", run, "--model", model, "--data", model / "train.jsonl",
            "--heldout", model / "heldout.jsonl", "--total", "64", "--episodes", "20", "--questions", "4",
            "--heldout-questions", "8", "--exit-when-finished",
        )  # fmt: skip
        worker = self.start("worker.calls", "worker", "--run", run, "--exit-when-finished")
        self.assertEqual((worker.wait(60), aggregator.wait(60)), (0, 0))
        for unit, trace in {"allot-aggregator.service": "aggregator.calls", "allot-worker@.service": "worker.calls"}.items():
            with self.subTest(unit):
                calls = self.calls_in(trace)
                self.assertIn("sendto" if "sendto" in calls else "sendmsg", calls, "the trace is that of a process that talks")
                self.assertEqual(calls - allowed_calls(unit), set())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *unittest_options])
