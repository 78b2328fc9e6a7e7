#!/usr/bin/env python3
"""States of a model's last token after a long text, for `allot analyze tiles --states FILE`.

    tools/paper/record_states.py --model DIR --data test.jsonl --tokens 8192 --skip 0 --out states.safetensors

The text is questions and solutions of a GSM8K file, one behind the other from question --skip on, cut to --tokens
tokens. Attention is Transformers' own (exact, float32, on the CPU). Needs torch, transformers and safetensors.
"""

import argparse
import json
import os
import sys
from pathlib import Path


def text_of(path, skip):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return "\n\n".join(f"{row['question']}\n{row['answer']}" for row in rows[skip:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "allot_attention"))
    import torch
    import transformers
    from allot_attention.recorder import Recorder
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    recorder = Recorder()

    def recording_attention(module, query, key, value, attention_mask, scaling=None, **more):
        positions = torch.arange(key.shape[2]).unsqueeze(0)
        recorder.add(module.layer_idx, query * scaling, key, value, positions)
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)

    transformers.AttentionInterface.register("recording", recording_attention)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, attn_implementation="recording", dtype=torch.float32
    ).eval()
    ids = transformers.AutoTokenizer.from_pretrained(options.model)(text_of(options.data, options.skip))["input_ids"]
    if len(ids) < options.tokens:
        sys.exit(f"{options.data} has {len(ids)} tokens from question {options.skip} on, fewer than --tokens {options.tokens}")
    with torch.no_grad():
        model(input_ids=torch.tensor([ids[: options.tokens]]), logits_to_keep=1, use_cache=False)
    recorder.save(options.out, model.config.num_hidden_layers)


if __name__ == "__main__":
    main()
