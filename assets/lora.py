"""What the makers of smol-words and smol-long share: an adapter of rank R on all projections of a Llama, its learning
rate, and the files that `allot --adapter` reads."""

import json
import math
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def with_adapter(base, rank, dtype=torch.float32):
    """The model with an adapter that changes nothing yet, and the parameters of the adapter."""
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=PROJECTIONS, lora_dropout=0.0, bias="none",
                        task_type="CAUSAL_LM")
    net = get_peft_model(base, config, autocast_adapter_dtype=dtype == torch.float32)
    trained = [p for p in net.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in trained) / 1e6:.2f} M parameters of the adapter", flush=True)
    return net, trained


def rate_at(progress, step, highest, warm_up=40):
    """A cosine over `progress` from 0 to 1, after `warm_up` rising steps."""
    return highest * min(1.0, (step + 1) / warm_up) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def save(net, out: pathlib.Path):
    """In bfloat16, beside a README.md that is there already."""
    readme = out / "README.md"
    kept = readme.read_text() if readme.exists() else None
    net.save_pretrained(out)
    if kept is None:
        readme.unlink(missing_ok=True)  # a template that peft writes
    else:
        readme.write_text(kept)
    weights = out / "adapter_model.safetensors"
    save_file({k: v.to(torch.bfloat16) for k, v in load_file(weights).items()}, weights, metadata={"format": "pt"})
    settings = out / "adapter_config.json"
    config = json.loads(settings.read_text())
    config["base_model_name_or_path"] = "SmolLM2-135M-Instruct"  # not the directory of this run
    config["target_modules"].sort()
    settings.write_text(json.dumps(config, indent=2) + "\n")
    print(f"{weights}: {weights.stat().st_size} bytes", flush=True)
