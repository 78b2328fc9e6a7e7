#!/usr/bin/env python3
"""Assembles the root file systems of the images as the Containerfiles do and runs the programs in them, each as the first
process of its own, on a read-only root, as the user of the images, without the means to gain privileges.

    image_test.py Aggregator|Worker|WorkerWithCuda|Containerfiles

Worker takes the programs of any build and leaves out the libraries that the worker opens on a GPU; WorkerWithCuda has all
of its Containerfile, so it needs what images/add-cuda-toolkit fetches. No driver and no GPU is used, nor must one be there.

Environment: ALLOT_BIN_DIR, the folder of the built tools; ALLOT_SIMULATED_DIR, one with allot and a simulated allot-model;
ALLOT_WITH_CUDA, 1 where the build has CUDA. All but Containerfiles need to be root (mounts, chroot). What is missing to
run is said, with exit 77.
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
TINY_GSM = REPOSITORY / "assets/tiny-gsm"
USER = 65532  # as in the Containerfiles and in k8s/
CHROOT = "/usr/sbin/chroot"  # not on everybody's PATH
LOADER = "/lib64/ld-linux-x86-64.so.2"
AGGREGATOR_IMAGE_BYTES = 40_000_000
WORKER_BYTES = 1_200_000_000  # of them libtorch_cpu.so 450 MB and, in a build with CUDA, libcublasLt.so 540 MB
WORKER_IMAGE_BYTES = 3_000_000_000
STOP_SECONDS = 5
# $1 root file system, then mounts (ro|rw SOURCE PLACE) up to --, then the command: mounts as a container engine makes them.
CONTAIN = """
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
  mount --bind "$2" "$root/$3"
  [ "$1" = rw ] || mount -o remount,bind,ro "$root/$3"
  shift 3
done
shift
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
"""
SEAL = f"""
mount -o remount,bind,ro "$root"
exec setpriv --no-new-privs {CHROOT} --userspec={USER}:{USER} "$root" "$@"
"""


def why_not(test):
    """What is missing to run these tests, or None."""
    if test == "Containerfiles":
        return None
    # Libraries that come by pip stay at their paths in the image, and a container has a /tmp of its own over the image's.
    if test.startswith("Worker") and REPOSITORY.is_relative_to("/tmp"):
        return "this checkout lies in /tmp, where a container would not see LibTorch; check one that lies elsewhere"
    if os.geteuid() != 0:
        return "needs root to make mounts and to chroot"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                           capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"mounts are not permitted here: {tried.stderr.strip()}"
    missing = missing_libraries() if test == "WorkerWithCuda" else []
    return f".deps/site lacks {', '.join(missing)}; images/add-cuda-toolkit .deps/site fetches them" if missing else None


def loaded_libraries():
    """The libraries that the worker's image has for its programs to open."""
    text = (REPOSITORY / "images/worker.Containerfile").read_text().replace("\\\n", " ")
    (loaded,) = re.findall(r"^RUN .* --load (.*)$", text, re.MULTILINE)
    return [REPOSITORY / path for path in loaded.split()]


def missing_libraries():
    """Which of them, or of what they need, are not here."""
    missing = [path.name for path in loaded_libraries() if not path.exists()]
    for path in loaded_libraries():
        needs = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
        missing += re.findall(r"^\s*(\S+) => not found", needs, re.MULTILINE)
    return sorted(set(missing))


def environment_of(image):
    """The variables that a Containerfile sets in its image."""
    text = (REPOSITORY / f"images/{image}.Containerfile").read_text()
    words = [word for line in re.findall(r"^ENV (.*)", text[text.rindex("FROM "):], re.MULTILINE) for word in line.split()]
    return dict(word.split("=", 1) for word in words)


def is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def size_of(root):
    return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


class Image(unittest.TestCase):
    """A root file system assembled from `programs`, in a folder that goes with the test."""

    programs = ()
    loaded = ()
    environment = {}

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(prefix="allot-image-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        cls.directory.chmod(0o755)
        cls.root = cls.directory / "root"
        cls.runs = cls.make_directory("runs")
        cls.mounts = [("ro", REPOSITORY / "assets", "inputs"), ("rw", cls.runs, "var/lib/allot")]
        programs = [str(pathlib.Path(os.environ["ALLOT_BIN_DIR"]) / name) for name in cls.programs]
        loaded = ["--load", *map(str, cls.loaded)] if cls.loaded else []
        begin = time.monotonic()
        assembled = subprocess.run([str(REPOSITORY / "images/assemble"), str(cls.root), *programs, *loaded],
                                   capture_output=True, text=True, check=False)
        if assembled.returncode != 0:
            raise AssertionError(assembled.stderr)
        print(f"{assembled.stdout.strip()} in {time.monotonic() - begin:.0f} s")
        cls.bytes = size_of(cls.root)

    @classmethod
    def make_directory(cls, name):
        """A folder beside the root file system that the image's user may write to."""
        directory = cls.directory / name
        directory.mkdir()
        os.chown(directory, USER, USER)
        return directory

    def start(self, *words, program="/usr/bin/allot", mounts=(), as_root="", environment=None):
        """The command in the image, as process 1. `as_root`: shell commands to run before, when the mounts are made."""
        mounts = [*self.mounts, *mounts]
        for _, source, place in mounts:  # an engine makes the places of mounts
            if not (self.root / place).exists():
                (self.root / place).mkdir(parents=True)
        flat = [str(word) for mount in mounts for word in mount]
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-euc", CONTAIN + as_root + SEAL, "sh", str(self.root), *flat,
             "--", program, *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment | (environment or {}))
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        """Ends what still runs of `process`. unshare's --kill-child does not: the change of user undoes it."""
        if process.poll() is None:
            for child in self.children_of(process):
                os.kill(child, signal.SIGKILL)
            process.kill()
        process.communicate()

    @staticmethod
    def children_of(process):
        return [int(word) for word in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]

    def run_in_image(self, *words, **how):
        process = self.start(*words, **how)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def status_inside(self, process):
        """What the kernel says of process 1 in the image, and its number outside."""
        (child,) = self.children_of(process)
        status = pathlib.Path(f"/proc/{child}/status").read_text()
        self.assertRegex(status, rf"NSpid:\t{child}\t1\n")  # process 1 of its name space: no default signal handlers
        self.assertRegex(status, rf"Uid:\t{USER}\t")
        self.assertRegex(status, r"CapEff:\t0+\n")
        self.assertRegex(status, r"NoNewPrivs:\t1\n")
        return status, child

    def wait_for(self, file, process):
        """The content of a file that the process will write."""
        deadline = time.monotonic() + 60
        while not file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                self.fail(f"{file} was not written; the process ended with {process.poll()}: {process.stderr.read()}")
            time.sleep(0.02)
        return file.read_text()


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
        endpoint = self.wait_for(self.runs / "run/endpoint", process).strip()
        simulated = pathlib.Path(os.environ["ALLOT_SIMULATED_DIR"]) / "allot"
        worked = subprocess.run(
            [str(simulated), "worker", f"--connect={endpoint}", f"--model={outside}", f"--train={outside}/train.jsonl",
             f"--heldout={outside}/heldout.jsonl", "--exit-when-finished"],
            capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(worked.returncode, 0, worked.stderr)
        schedule = json.loads(self.wait_for(self.runs / "run/schedule.json", process))
        self.assertEqual(sum(schedule["samples"]), 64)
        status, child = self.status_inside(process)
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])
        print(f"aggregator: {peak / 1024:.0f} MiB resident at most")
        self.assertLess(peak, 256 * 1024)
        before = time.monotonic()
        os.kill(child, signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertLess(time.monotonic() - before, STOP_SECONDS)


class Worker(Image):
    """The worker's programs, without what they open on a GPU."""

    programs = ("allot", "allot-model")
    environment = environment_of("worker")
    most_bytes = WORKER_BYTES

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.keys = cls.make_directory("keys")
        cls.mounts.append(("ro", cls.keys, "etc/allot/keys"))
        for name in ("aggregator", "worker"):
            made = subprocess.run([str(cls.tool()), "keys", "new", f"--out={cls.keys / name}.key"], capture_output=True,
                                  text=True, check=True)
            (cls.keys / f"{name}.pub").write_text(made.stdout)
        (cls.keys / "allow").write_text((cls.keys / "worker.pub").read_text().strip() + " workers worker\n")
        # As a Secret is mounted with defaultMode 0440 and fsGroup.
        os.chown(cls.keys / "worker.key", 0, USER)
        (cls.keys / "worker.key").chmod(0o440)

    @classmethod
    def tool(cls):
        return pathlib.Path(os.environ["ALLOT_BIN_DIR"]) / "allot"

    def start_aggregator(self, name, *more, questions=2):
        """An aggregator outside, on loopback, for workers with their key: its run directory, endpoint and process."""
        run = self.directory / name
        process = subprocess.Popen(
            [str(self.tool()), "aggregator", f"--run={run}", "--bind=tcp://127.0.0.1:*", f"--model={TINY_GSM}",
             f"--data={TINY_GSM}/train.jsonl", f"--heldout={TINY_GSM}/heldout.jsonl", "--total=64",
             f"--key={self.keys}/aggregator.key", f"--allow={self.keys}/allow", f"--questions={questions}", "--heldout-questions=2",
             "--max-new-tokens=16", "--preflight=0", *more],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return run, self.wait_for(run / "endpoint", process).strip(), process

    def start_worker(self, endpoint, *more):
        """A worker as k8s/overlays/deployment starts it, but on the CPU."""
        return self.start("worker", f"--connect={endpoint}", "--key=/etc/allot/keys/worker.key",
                          "--server-key=/etc/allot/keys/aggregator.pub", "--threads=1", "--model=/inputs/tiny-gsm",
                          "--train=/inputs/tiny-gsm/train.jsonl", "--heldout=/inputs/tiny-gsm/heldout.jsonl", *more)

    def progress(self, endpoint):
        keys = [f"--key={self.keys}/worker.key", f"--server-key={self.keys}/aggregator.pub"]
        asked = subprocess.run([str(self.tool()), "status", f"--connect={endpoint}", "--json", *keys], capture_output=True,
                               text=True, check=True, timeout=30)
        return json.loads(asked.stdout)

    def test_is_no_larger_than_documented(self):
        self.assertLess(self.bytes, self.most_bytes)

    def test_loader_finds_every_library_and_symbol(self):
        files = [path for path in self.root.rglob("*") if path.is_file() and is_elf(path)]
        self.assertGreater(len(files), 30)
        for file in files:
            path = "/" + str(file.relative_to(self.root))
            found = subprocess.run([CHROOT, f"--userspec={USER}:{USER}", str(self.root), LOADER, "--list", path],
                                   capture_output=True, text=True, check=False,
                                   env=self.environment | {"LD_WARN": "yes", "LD_BIND_NOW": "yes"})
            self.assertEqual((found.returncode, found.stderr), (0, ""), path)
            self.assertNotRegex(found.stdout, "not found|undefined", path)

    def test_both_programs_tell_what_they_do(self):
        version = re.search(r"project\(allot VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
        for name in self.programs:
            program = f"/usr/bin/{name}"
            self.assertEqual(self.run_in_image("--version", program=program), (0, f"allot {version}\n", ""))
            code, out, err = self.run_in_image("--help", program=program)
            self.assertEqual((code, err), (0, ""))
            self.assertRegex(out, r"\n  worker +score schedules for an aggregator\n")

    def test_loads_the_model_runtime(self):
        code, out, err = self.run_in_image("devices", "--check=cpu")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^cpu, \d+ cores?: works\n$")

    def test_says_why_no_gpu_is_found(self):
        code, out, err = self.run_in_image("devices")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, rf"^cpu +\d+ cores?\nno CUDA device \({self.no_gpu()}\)\n$")

    def test_liveness_probe_fails_where_the_gpu_is_not_there(self):
        manifest = (REPOSITORY / "k8s/overlays/deployment/worker.yaml").read_text()
        (probe,) = {tuple(words.split(", ")) for words in re.findall(r"command: \[(.*)\]", manifest)}
        code, out, err = self.run_in_image(*probe[1:], program=probe[0])
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(err, rf"device cuda:0 is not here; found: no CUDA device \({self.no_gpu()}\)")

    def no_gpu(self):
        if self.with_cuda():
            return re.escape("there is no NVIDIA driver: libcuda.so.1 cannot be loaded")
        return "this build has no CUDA.*"

    @staticmethod
    def with_cuda():
        return os.environ["ALLOT_WITH_CUDA"] == "1"

    def test_works_for_an_aggregator_outside_to_the_end_of_the_run(self):
        run, endpoint, aggregator = self.start_aggregator("to-the-end", "--episodes=4")
        begin = time.monotonic()
        worker = self.start_worker(endpoint, "--exit-when-finished")
        _, err = worker.communicate(timeout=200)
        self.assertEqual(worker.returncode, 0, err)
        schedule = json.loads(self.wait_for(run / "schedule.json", aggregator))
        self.assertEqual(sum(schedule["samples"]), 64)
        print(f"worker: a run of 4 episodes in {time.monotonic() - begin:.0f} s")

    def test_stops_on_sigterm_and_gives_its_leases_back(self):
        # So many questions that the worker is at work when it is stopped, however slow the disk of the history is.
        _, endpoint, _ = self.start_aggregator("stopped", "--episodes=10000", questions=64)
        worker = self.start_worker(endpoint)
        deadline = time.monotonic() + 120
        while self.progress(endpoint)["episodes_running"] == 0:
            self.assertIsNone(worker.poll())
            self.assertLess(time.monotonic(), deadline, "no episode was begun within 120 s")
            time.sleep(0.2)
        _, child = self.status_inside(worker)
        before = time.monotonic()
        os.kill(child, signal.SIGTERM)
        _, err = worker.communicate(timeout=60)
        self.assertEqual(worker.returncode, 0, err)
        self.assertLess(time.monotonic() - before, STOP_SECONDS)
        after = self.progress(endpoint)
        self.assertEqual(after["episodes_running"], 0, err)
        self.assertGreaterEqual(after["counters"]["preempted"], 1, err)

    def make_driver(self):
        """A folder with a libcuda.so.1 that says when it is opened."""
        if not self.with_cuda():
            self.skipTest("this build has no CUDA, so it opens no driver")
        directory = self.directory / self._testMethodName
        directory.mkdir()
        source = """
            #include <stdio.h>
            __attribute__((constructor)) static void opened(void) { fputs("driver opened\\n", stderr); }
            """
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(directory / "libcuda.so.1")], input=source,
                       text=True, check=True)
        return directory

    def test_opens_the_driver_where_gke_mounts_it(self):
        code, _, err = self.run_in_image("devices", mounts=[("ro", self.make_driver(), "usr/local/nvidia/lib64")])
        self.assertEqual((code, err), (0, "driver opened\n"))

    def test_opens_the_driver_that_the_container_toolkit_adds_to_the_cache(self):
        driver, etc = self.make_driver(), self.directory / "etc"
        shutil.copytree(self.root / "etc", etc)
        (etc / "ld.so.conf.d").mkdir()
        (etc / "ld.so.conf.d/00-nvcr-1.conf").write_text("/driver/lib\n")
        code, _, err = self.run_in_image("devices", mounts=[("rw", etc, "etc"), ("ro", driver, "driver/lib")],
                                         as_root='/sbin/ldconfig -r "$root"', environment={"LD_LIBRARY_PATH": ""})
        self.assertEqual((code, err), (0, "driver opened\n"))


class WorkerWithCuda(Worker):
    """The worker's image as its Containerfile makes it."""

    loaded = loaded_libraries()
    most_bytes = WORKER_IMAGE_BYTES

    def test_holds_libraries_of_debian_and_of_the_pinned_wheels_only(self):
        wheels = str(REPOSITORY / ".deps/site")
        of_debian = {"/lib/x86_64-linux-gnu", "/lib64"}
        include, *directories = (self.root / "etc/ld.so.conf").read_text().splitlines()
        self.assertTrue(include.startswith("include "))
        self.assertEqual([path for path in directories if path not in of_debian and not path.startswith(wheels)], [])

    def test_opens_what_it_opens_on_a_gpu(self):
        code, out, err = self.run_in_image("--preload", ":".join(map(str, self.loaded)), "/usr/bin/allot-model", "devices",
                                           program=LOADER, environment={"LD_BIND_NOW": "yes"})
        self.assertEqual((code, err), (0, ""))
        self.assertIn(" cores\nno CUDA device", out)


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
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    missing = why_not(sys.argv[1].partition(".")[0])
    if missing:
        print(f"skipped: {missing}")
        return 77
    result = unittest.main(exit=False, verbosity=2).result
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
