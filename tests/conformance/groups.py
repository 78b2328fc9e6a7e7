"""The cases, and for each group of them how to start an aggregator of allot whose run they need."""

import contextlib
import dataclasses
import fnmatch
import importlib
import json
import math
import os
import pathlib
import struct
import subprocess
import tempfile
import time
import unittest

import zmq
import zmq.utils.z85

import identity
from case import Target
from peer import Keys

START_SECONDS = 60
# Long leases, so that a busy machine loses none; updates that come after few episodes, so that results can be too old.
SETTINGS = {"total": 64, "policy": "pairs", "pairs-per-update": 4, "max-policy-lag": 16, "preflight": 0, "reward": "answers", "questions": 4,
            "episodes": 100_000, "heldout-questions": 8, "max-attempts": 3, "lease-seconds": 60, "http": "off", "log-level": "warn"}
# 24 questions thirty times: more than the cases answer.
EVALUATION = {"schedule": "uniform:8", "repeats": 30, "bind": "tcp://127.0.0.1:*", "max-attempts": 3, "lease-seconds": 60, "log-level": "warn"}
ROLES = {"worker": "ann worker", "second worker": "bob worker", "operator": "eve operator", "viewer": "wall viewer"}


@dataclasses.dataclass
class Group:
    cases: list  # MODULE.CLASS
    settings: dict = dataclasses.field(default_factory=dict)  # what differs from SETTINGS
    keys: bool = False
    adapter: bool = False
    evaluates: bool = False  # the run of `allot eval --bind`, with EVALUATION in place of SETTINGS


GROUPS = {
    "frames": Group(["frame_cases.Frames"]),
    "rate": Group(["frame_cases.Rate"], {"max-rate": 20}),
    "handshake": Group(["handshake_cases.Handshake", "handshake_cases.Identities"], adapter=True),
    "leases": Group(["lease_cases.Leases", "lease_cases.Drain"]),
    "deadlines": Group(["lease_cases.Deadlines"], {"lease-seconds": 2}),
    "results": Group(["result_cases.Verdicts", "result_cases.OldResults"]),
    "control": Group(["control_cases.Status", "control_cases.Control", "control_cases.TheEnd"]),
    "checks": Group(["control_cases.CrossCheck"], {"cross-check": 1}),
    "evaluation": Group(["evaluation_cases.Evaluation"], evaluates=True),
    "keys": Group(["key_cases.Roles", "key_cases.Strangers", "handshake_cases.Handshake", "lease_cases.Leases", "lease_cases.Drain",
                   "result_cases.Verdicts"], keys=True),
}
# In an order in which nothing disturbs what comes after: the flood and the end of the run are last.
ALL_CASES = ["frame_cases.Frames", "handshake_cases.Handshake", "handshake_cases.Identities", "lease_cases.Leases", "lease_cases.Drain",
             "result_cases.Verdicts", "lease_cases.Deadlines", "control_cases.Status", "control_cases.Control", "control_cases.CrossCheck", "key_cases.Roles",
             "key_cases.Strangers", "frame_cases.Rate", "result_cases.OldResults", "control_cases.TheEnd"]


def suite_of(target, names, patterns=None):
    loader = unittest.TestLoader()
    loader.testNamePatterns = [pattern if "*" in pattern else f"*{pattern}*" for pattern in patterns] if patterns else None
    suite = unittest.TestSuite()
    for name in names:
        module, _, case = name.partition(".")
        suite.addTests(loader.loadTestsFromTestCase(getattr(importlib.import_module(module), case)))
    for case in suite:
        case.target = target
    return suite


def cases_of(target, names, pattern="*"):
    """Each case that matches, with its name CLASS.METHOD."""
    for case in suite_of(target, names):
        name = case.id().partition(".")[2]
        if fnmatch.fnmatch(name, pattern):
            yield name, case


def write_questions(path, first, count):
    path.write_text("".join(json.dumps({"question": f"What is {n} plus one?", "answer": f"It is more.\n#### {n + 1}"}) + "\n"
                            for n in range(first, first + count)))


def write_adapter(directory, model):
    """A LoRA adapter of two modules; one factor is longer than what a fingerprint samples."""
    rank, tensors = 32, {}
    shapes = {name: shape for name, _, shape, _ in identity.tensors_of(pathlib.Path(model) / "model.safetensors")}
    for module in ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"):
        rows, columns = shapes[module + ".weight"]
        tensors[f"base_model.model.{module}.lora_B.weight"] = [rows, rank]
        tensors[f"base_model.model.{module}.lora_A.weight"] = [rank, columns]
    header, data = {}, b""
    for name, (rows, columns) in tensors.items():
        values = b"".join(struct.pack("<f", math.sin(place + rows)) for place in range(rows * columns))
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    directory.mkdir()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 12.3, "use_rslora": True}))
    return directory


def write_key(path):
    """Makes a key pair; returns its public and secret key as hexadecimal digits."""
    public, secret = (zmq.utils.z85.decode(key).hex() for key in zmq.curve_keypair())
    path.touch(mode=0o600)
    path.write_text(f"public {public}\nsecret {secret}\n")
    return public


@contextlib.contextmanager
def started(allot, model, name, more=None):
    """A Target: an aggregator with a run for that group, in a temporary directory. `more` are settings of its own."""
    group = GROUPS[name]
    with tempfile.TemporaryDirectory(prefix="conformance-") as temporary:
        folder = pathlib.Path(temporary)
        write_questions(folder / "train.jsonl", 0, 24)
        write_questions(folder / "heldout.jsonl", 100, 16)
        settings = {**(EVALUATION if group.evaluates else SETTINGS), **group.settings, **(more or {}), "run": folder / "run", "model": model,
                    "data": folder / "train.jsonl"}
        if not group.evaluates:
            settings["heldout"] = folder / "heldout.jsonl"
        roles = {}
        if group.adapter:
            settings["adapter"] = write_adapter(folder / "adapter", model)
        if group.keys:
            server = write_key(folder / "server.key")
            allowed = []
            for role, entry in ROLES.items():
                allowed.append(f"{write_key(folder / role)} {entry}\n")
                roles[role] = Keys.read(server, folder / role)
            (folder / "allowed").write_text("".join(allowed))
            settings |= {"key": folder / "server.key", "allow": folder / "allowed"}
        words = [str(word) for option, value in settings.items() for word in (f"--{option}", value)]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen([allot, "eval" if group.evaluates else "aggregator", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            place = folder / "run/endpoint"
            deadline = time.monotonic() + START_SECONDS
            while not place.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{allot} aggregator did not come up: {(folder / 'log').read_text()[-2000:]}")
                time.sleep(0.02)
            yield Target(place.read_text().strip(), roles, model, folder / "train.jsonl", folder / "heldout.jsonl",
                         settings.get("max-rate", 1000), adapter=settings.get("adapter"))
            if process.poll() is not None:
                raise RuntimeError(f"the aggregator ended with status {process.poll()}: {(folder / 'log').read_text()[-2000:]}")
        finally:
            if os.environ.get("CONFORMANCE_LOG"):
                print((folder / "log").read_text()[-20_000:])
            process.kill()
            process.wait()
