#!/usr/bin/env python3
"""The workload of bench/generate.h with Hugging Face generate: 128 prompts of 230 tokens, 52 new tokens each, greedy.

    python bench/hf_generate.py MODEL --dtype float32 --threads 2

Prints one line of JSON with medians, as generate_bench does. --make-random writes a random 8-layer model to MODEL first.
"""

import argparse
import json
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 128, 230, 52


def make_random(path):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=100, hidden_size=256, intermediate_size=1024, num_hidden_layers=8,
                         num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512,
                         bos_token_id=0, eos_token_id=1, initializer_range=0.06)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--make-random", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.make_random:
        make_random(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    model.generation_config.eos_token_id = None
    prompts = torch.randint(0, model.config.vocab_size, (PROMPTS, PROMPT_TOKENS))

    def seconds(new_tokens):
        start = time.perf_counter()
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=new_tokens,
                             min_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
        assert out.shape[1] == PROMPT_TOKENS + new_tokens
        return time.perf_counter() - start

    seconds(2)
    prefill = statistics.median(seconds(1) for _ in range(args.repetitions))
    total = statistics.median(seconds(NEW_TOKENS) for _ in range(args.repetitions))
    print(json.dumps({"what": "transformers", "dtype": args.dtype, "threads": args.threads,
                      "seconds": round(total, 4), "prefill_seconds": round(prefill, 4),
                      "decode_seconds": round(total - prefill, 4),
                      "new_tokens_per_second": round(PROMPTS * NEW_TOKENS / total)}))


if __name__ == "__main__":
    main()
