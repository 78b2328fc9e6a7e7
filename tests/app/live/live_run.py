"""A run of the built tools for tests that look at it from outside: one aggregator and any number of workers that answer
by chance, all on loopback."""

import json
import os
import pathlib
import signal
import struct
import subprocess
import time
import urllib.error
import urllib.request

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 4, "hidden_size": 8,
          "intermediate_size": 16, "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
          "torch_dtype": "float32", "eos_token_id": 0}
TOKENIZER = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
             "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
             "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "one": 1, "two": 2, "three": 3}, "unk_token": "<unk>"}}


def write_questions(path, first, count):
    path.write_text("".join(json.dumps({"question": f"What is {n} plus one?", "answer": f"It is more.\n#### {n}"}) + "\n"
                            for n in range(first, first + count)))


def write_model(folder):
    """A model directory that says enough for a run whose workers never load it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    header = b'{"model.embed_tokens.weight":{"dtype":"F32","shape":[4,8],"data_offsets":[0,128]}}'
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\1" * 128)


class Run:
    """tool: a folder with allot and the simulated allot-model."""

    def __init__(self, tool, folder, episodes=200, questions=8, options=()):
        self.allot = str(pathlib.Path(tool) / "allot")
        self.folder = pathlib.Path(folder)
        self.directory = self.folder / "run"
        self.hold = self.folder / "hold"
        write_model(self.folder / "small-model")
        write_questions(self.folder / "train.jsonl", 0, 24)
        write_questions(self.folder / "heldout.jsonl", 100, 64)
        self.options = ["--model", self.folder / "small-model", "--data", self.folder / "train.jsonl", "--heldout",
                        self.folder / "heldout.jsonl", "--total", "64", "--policy", "pairs", "--episodes", str(episodes), "--questions",
                        str(questions), "--preflight", "0", *options]
        self.processes = []
        self.environment = dict(os.environ, ALLOT_SIMULATED_HOLD=str(self.hold))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, name, *words):
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen([self.allot, *map(str, words)], env=self.environment, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def serve(self, *more):
        """Starts the aggregator; returns its process once its live page is announced."""
        process = self.start("aggregator", "aggregator", "--run", self.directory, *self.options, *more)
        deadline = time.monotonic() + 60
        while not (self.directory / "http").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the aggregator did not come up: " + (self.folder / "aggregator.log").read_text()[-2000:])
            time.sleep(0.02)
        return process

    def work(self, name):
        return self.start(name, "worker", "--run", self.directory, "--name", name)

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=30)

    @property
    def url(self):
        return (self.directory / "http").read_text().strip()

    def get(self, path, method="GET", headers=None, url=None):
        """Status, headers and text of an answer, of the live page's address where no `url` is given."""
        request = urllib.request.Request((url or self.url).rstrip("/") + path, method=method, headers=headers or {})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=20) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    def figures(self):
        return json.loads(self.get("/api/run")[2])

    def wait_until(self, holds, seconds=60):
        """Waits until `holds` is true of /api/run and returns it."""
        deadline = time.monotonic() + seconds
        while True:
            figures = self.figures()
            if holds(figures):
                return figures
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run never came there; it stands at {json.dumps(figures)[:1000]}")
            time.sleep(0.1)
