#!/usr/bin/env python3
"""Makes tests/data/adapter: LoRA adapters of checkpoints of tests/data/parity, and what PEFT makes of them.

Needs torch 2.11.0, transformers 5.17.0, peft 0.21.2 and safetensors. Run from anywhere:

    python tests/data/make_adapter_golden.py [ADAPTER...]

Each folder is an adapter directory as PEFT's save_pretrained writes it, without its README.md and with a base model named by
its place in the repository, plus golden.safetensors, all of the model that merge_and_unload gives in float32:

    ids             I32 [n]            a text of random tokens
    logits          F32 [n, vocab]     its teacher-forced logits
    logits_bfloat16 BF16 [n, vocab]    the same, weights rounded to bfloat16 after the merge
    a weight's name F32 [out, in]      the merged weight, of every module that the adapter has
"""

import json
import pathlib
import shutil
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "adapter"
VOCAB = 96

# name: (base, LoraConfig arguments, stored dtype, seed)
CASES = {
    # As most adapters are: attention alone, alpha / r.
    "plain": ("llama_head64", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]), torch.float32, 1),
    # Every linear module; ranks and alphas of their own by the end of a name, a whole name and an expression.
    "patterns": ("qwen3_rope_bias",
                 dict(r=5, lora_alpha=6, target_modules="all-linear", use_rslora=True,
                      rank_pattern={"down_proj": 3, "^model.layers.0.self_attn.q_proj": 9},
                      alpha_pattern={r"model\.layers\.\d+\.self_attn\.(k|v)_proj": 10, "mlp.up_proj": 2}),
                 torch.float32, 2),
    # One layer of a sharded base, stored in half the bytes.
    "bfloat16": ("mistral_window_sharded",
                 dict(r=8, lora_alpha=16, target_modules=["o_proj", "gate_proj", "down_proj"], layers_to_transform=[1]),
                 torch.bfloat16, 3),
}


def base_model(base):
    return AutoModelForCausalLM.from_pretrained(HERE / "parity" / base, dtype=torch.float32, attn_implementation="eager")


def make_case(name, base, arguments, dtype, seed):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    model = get_peft_model(base_model(base), LoraConfig(task_type="CAUSAL_LM", **arguments))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_" in parameter_name:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(0.5 * noise / parameter.shape[1] ** 0.5)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"tests/data/parity/{base}"
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({key: tensor.to(dtype).contiguous() for key, tensor in tensors.items()}, folder / "adapter_model.safetensors",
              metadata={"format": "pt"})

    # From the files, as a user of PEFT loads them.
    merged = PeftModel.from_pretrained(base_model(base), folder).merge_and_unload().eval()
    text = torch.randint(2, VOCAB, (60,), generator=generator)
    golden = {"ids": text.to(torch.int32)}
    adapted = {key.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] + ".weight" for key in tensors}
    for key, parameter in merged.named_parameters():
        if key in adapted:
            golden[key] = parameter.detach().clone().contiguous()
    assert len(golden) == len(adapted) + 1 == len(tensors) // 2 + 1
    with torch.no_grad():
        golden["logits"] = merged(text[None]).logits[0].contiguous()
        plain = base_model(base).eval()(text[None]).logits[0]
        golden["logits_bfloat16"] = merged.to(torch.bfloat16)(text[None]).logits[0].contiguous()
    save_file(golden, folder / "golden.safetensors")
    print(name, "of", base, "moves logits by up to", (golden["logits"] - plain).abs().max().item())


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        make_case(name, *CASES[name])


if __name__ == "__main__":
    main()
