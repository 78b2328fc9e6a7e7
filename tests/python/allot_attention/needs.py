"""What the tests of allot_attention import, and small models with a schedule."""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

SKIPPED = 77

parser = argparse.ArgumentParser()
parser.add_argument("source", type=lambda path: Path(path).resolve(), help="root of the sources")
parser.add_argument("--library", default="", help="liballot_torch.so; without it the tests of the operators fail")
parser.add_argument("--allot", default="", help="the allot executable")
options, unittest_options = parser.parse_known_args()

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(options.source / "python" / "allot_attention"))
try:
    import torch
    import transformers
except (ImportError, OSError) as error:
    print(
        f"skipped: {sys.executable} cannot import torch and transformers ({error}); pip install torch==2.11.0 transformers==5.17.0 "
        "and configure with -DALLOT_PYTHON=<that Python>"
    )
    sys.exit(SKIPPED)

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
if options.library:
    os.environ["ALLOT_TORCH_LIBRARY"] = options.library

TINY_GSM = options.source / "assets" / "tiny-gsm"
HASH = "0" * 64


def attention_conditions(estimator="joint", unit="samples", prefill="sampled", **changed):
    conditions = {
        "estimator": estimator,
        "prefill": prefill,
        "tile": 256,
        "score_stage": "exact",
        "score_budget": 0,
        "mean_group_query": False,
        **changed,
    }
    return {**conditions, "unit": unit} if unit != "samples" else conditions


# joint as `allot tune` learns with it where nothing else is asked.
VALUE_NORMS = {"parameters": {"value-norms": 1}}


def conditions_of(directory, shape, attention, seed=1, adapter=None):
    """conditions of docs/schedule-format.md for the model in a directory; `shape` is layers, query heads, KV heads,
    head_dim."""
    from allot_attention.identity import weights_fingerprint

    model = {
        "id": "model",
        "config_sha256": HASH,
        "tokenizer_sha256": HASH,
        "weights_fingerprint": weights_fingerprint(directory),
        **dict(zip(("layers", "num_q_heads", "num_kv_heads", "head_dim"), shape)),
    }
    return {
        "model": {**model, "adapter": adapter} if adapter else model,
        "task": {"name": "gsm8k", "version": 1, "prompt_style": "plain"},
        "attention": attention,
        "generation": {
            "dtype": "float32",
            "temperature": 0.0,
            "top_p": 1.0,
            "repetition_penalty": 1.0,
            "max_new_tokens": 96,
            "stop": "answer",
        },
        "seed": seed,
    }


def small_model(directory, kind="llama", **config):
    """Saves a random model of 3 layers, 4 query and 2 KV heads of 16; returns its directory."""
    torch.manual_seed(7)
    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    }
    config_class, model_class = classes[kind]
    settings = {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **config,
    }
    model_class(config_class(**settings)).save_pretrained(directory)
    return directory


def add_schedule(directory, samples=(5, "exact", 3), attention=None, **changed):
    """Writes the key `allot` into a directory's config.json as `allot export --format hf-config` does."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["allot"] = {
        "schema_version": 3 if "exact" in samples else 2,
        "samples": list(samples),
        "conditions": conditions_of(directory, (3, 4, 2, 16), attention or attention_conditions(), **changed),
        "run_id": "test",
        "tool_version": "0.1.0",
    }
    path.write_text(json.dumps(config))
    return directory


def tiny_gsm_schedule(path, samples, attention=None):
    """Writes a schedule.json for the embedded model; returns its path."""

    def sha256(name):
        return hashlib.sha256((TINY_GSM / name).read_bytes()).hexdigest()

    conditions = conditions_of(TINY_GSM, (8, 8, 4, 32), attention or attention_conditions("sys"))
    conditions["model"].update(config_sha256=sha256("config.json"), tokenizer_sha256=sha256("tokenizer.json"))
    written = {
        "schema_version": 2,
        "conditions": conditions,
        "samples": samples,
        "total": sum(samples),
        "floor": 1,
        "evaluation": {},
        "run_id": "test",
        "policy_version": 1,
        "tool_version": "0.1.0",
    }
    path.write_text(json.dumps(written))
    return path


def load(directory, attn_implementation="allot"):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation=attn_implementation, dtype=torch.float32
    )
    return model.eval()
