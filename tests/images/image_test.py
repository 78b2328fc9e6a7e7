#!/usr/bin/env python3
"""Assembles the root file systems of the images as the Containerfiles do and runs the programs in them, each as the first
process of its own, on a read-only root, as the user of the images.

    image_test.py Aggregator|Worker|Containerfiles

Environment: ALLOT_BIN_DIR, the folder of the built tools; ALLOT_SIMULATED_DIR, one with allot and a simulated allot-model.
Aggregator and Worker need to be root (mounts, chroot); they say so and exit 77 otherwise.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
USER = 65532  # as in the Containerfiles and in k8s/
AGGREGATOR_IMAGE_BYTES = 40_000_000
STOP_SECONDS = 5
# $1 root file system, $2 inputs, $3 run directory, then the command: mounts as a container engine makes them.
CONTAIN = """
root=$1 inputs=$2 runs=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$inputs" "$root/inputs"
mount -o remount,bind,ro "$root/inputs"
mount --bind "$runs" "$root/var/lib/allot"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
"""


def why_not():
    """What is missing to run these tests, or None."""
    if os.geteuid() != 0:
        return "needs root to make mounts and to chroot"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                           capture_output=True, text=True, check=False)
    return f"mounts are not permitted here: {tried.stderr.strip()}" if tried.returncode else None


def size_of(root):
    return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


class Image(unittest.TestCase):
    """A root file system assembled from `programs`, in a folder that goes with the test."""

    programs = ()

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(prefix="allot-image-"))
        cls.directory.chmod(0o755)
        cls.root = cls.directory / "root"
        programs = [str(pathlib.Path(os.environ["ALLOT_BIN_DIR"]) / name) for name in cls.programs]
        assembled = subprocess.run([str(REPOSITORY / "images/assemble"), str(cls.root), *programs], capture_output=True,
                                   text=True, check=False)
        if assembled.returncode != 0:
            raise AssertionError(assembled.stderr)
        print(assembled.stdout.strip())
        cls.bytes = size_of(cls.root)
        for place in ("inputs", "var/lib/allot"):  # an engine makes the places of mounts
            (cls.root / place).mkdir(parents=True)
        cls.runs = cls.directory / "runs"
        cls.runs.mkdir()
        os.chown(cls.runs, USER, USER)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.directory)

    def start(self, *words):
        """The command in the image, as process 1."""
        script = CONTAIN + f'exec chroot --userspec={USER}:{USER} "$root" /usr/bin/allot "$@"'
        return subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script, "sh", str(self.root),
             str(REPOSITORY / "assets"), str(self.runs), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={})

    def run_in_image(self, *words):
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


class Aggregator(Image):
    programs = ("allot",)

    def test_holds_no_shell_no_torch_and_less_than_40_mb(self):
        self.assertLess(self.bytes, AGGREGATOR_IMAGE_BYTES)
        names = {path.name for path in self.root.rglob("*")}
        self.assertFalse([name for name in names if re.match(r"libtorch|libc10|libcud|sh$|bash$|busybox$", name)])
        self.assertIn("copyright", names)

    def test_same_sources_give_the_same_files(self):
        again = self.directory / "again"
        program = pathlib.Path(os.environ["ALLOT_BIN_DIR"]) / "allot"
        subprocess.run([str(REPOSITORY / "images/assemble"), str(again), str(program)], check=True, capture_output=True)
        packed = [subprocess.run(["tar", "--sort=name", "--create", "--exclude=./inputs", "--exclude=./var/lib/allot",
                                  "--mtime=@0", "--directory", str(root), "."], check=True, capture_output=True).stdout
                  for root in (self.root, again)]
        self.assertEqual(packed[0], packed[1])

    def test_tells_its_version(self):
        version = re.search(r"project\(allot VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
        self.assertEqual(self.run_in_image("--version"), (0, f"allot {version}\n", ""))

    def test_says_what_the_image_does_not_hold(self):
        code, _, err = self.run_in_image("worker", "--connect=tcp://127.0.0.1:1")
        self.assertEqual(code, 1)
        self.assertIn("/usr/bin/allot-model was not built", err)

    def test_root_is_read_only(self):
        code, _, err = self.run_in_image("aggregator", "--run=/run-here", "--model=/inputs/tiny-gsm",
                                         "--data=/inputs/tiny-gsm/train.jsonl", "--total=64", "--heldout-questions=0")
        self.assertEqual(code, 1, err)
        self.assertIn("Read-only file system", err)

    def test_serves_a_worker_outside_to_the_end_and_stops_on_sigterm(self):
        inside, outside = "/inputs/tiny-gsm", str(REPOSITORY / "assets/tiny-gsm")
        process = self.start("aggregator", "--run=/var/lib/allot/run", f"--model={inside}", f"--data={inside}/train.jsonl",
                             f"--heldout={inside}/heldout.jsonl", "--total=64", "--episodes=8", "--questions=4",
                             "--heldout-questions=16")
        try:
            endpoint = self.wait_for(self.runs / "run/endpoint", process).strip()
            simulated = pathlib.Path(os.environ["ALLOT_SIMULATED_DIR"]) / "allot"
            worked = subprocess.run(
                [str(simulated), "worker", f"--connect={endpoint}", f"--model={outside}", f"--train={outside}/train.jsonl",
                 f"--heldout={outside}/heldout.jsonl", "--exit-when-finished"],
                capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(worked.returncode, 0, worked.stderr)
            schedule = json.loads(self.wait_for(self.runs / "run/schedule.json", process))
            self.assertEqual(sum(schedule["samples"]), 64)
            (child,) = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            status = pathlib.Path(f"/proc/{child}/status").read_text()
            self.assertRegex(status, rf"NSpid:\t{child}\t1\n")  # process 1 of its name space: no default signal handlers
            self.assertRegex(status, rf"Uid:\t{USER}\t")
            peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])
            print(f"aggregator: {peak / 1024:.0f} MiB resident at most")
            self.assertLess(peak, 256 * 1024)
            before = time.monotonic()
            os.kill(int(child), signal.SIGTERM)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
            self.assertLess(time.monotonic() - before, STOP_SECONDS)
        finally:
            process.kill()
            process.communicate()

    def wait_for(self, file, process):
        """The content of a file that the process will write."""
        deadline = time.monotonic() + 60
        while not file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                self.fail(f"{file} was not written; the process ended with {process.poll()}: {process.stderr.read()}")
            time.sleep(0.02)
        return file.read_text()


class Worker(Image):
    programs = ("allot", "allot-model")

    def test_loads_the_model_runtime(self):
        code, out, err = self.run_in_image("devices", "--check=cpu")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^cpu, \d+ cores?: works\n$")


class Containerfiles(unittest.TestCase):
    """What the image builds have to have in common with what is tested above and with k8s/."""

    def test_ship_what_images_assemble_makes_as_the_user_of_the_manifests(self):
        manifests = "".join(path.read_text() for path in (REPOSITORY / "k8s").rglob("*.yaml"))
        self.assertEqual(set(re.findall(r"runAs(?:User|Group): (\d+)", manifests)), {str(USER)})
        for name, programs in (("aggregator", {"allot"}), ("worker", {"allot", "allot-model"})):
            text = (REPOSITORY / f"images/{name}.Containerfile").read_text().replace("\\\n", " ")
            bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
            self.assertRegex(bases[0], r":\d+\.\d+(\.\d+)?(-slim)?$")
            self.assertEqual(bases[1:], ["scratch"])
            last_stage = text[text.rindex("FROM "):]
            self.assertEqual(re.findall(r"^COPY (.*)", last_stage, re.MULTILINE), ["--from=build /image/ /"])
            self.assertEqual(re.findall(r"^USER (.*)", last_stage, re.MULTILINE), [f"{USER}:{USER}"])
            self.assertEqual(re.findall(r"^ENTRYPOINT (.*)", last_stage, re.MULTILINE), ['["/usr/bin/allot"]'])
            (assembled,) = re.findall(r"images/assemble /image (.*?)(?: --load .*)?$", text, re.MULTILINE)
            self.assertEqual({word.rpartition("/")[2] for word in assembled.split()}, programs)


def main():
    missing = None if sys.argv[1:] == ["Containerfiles"] else why_not()
    if missing:
        print(f"skipped: {missing}")
        return 77
    result = unittest.main(exit=False, verbosity=2).result
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
