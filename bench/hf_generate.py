#!/usr/bin/env python3
"""The workload of bench/generate.h with Hugging Face generate: by default greedy, 128 prompts of 230 tokens, 52 new each.

    python bench/hf_generate.py MODEL --dtype float32 --threads 2

Prints one line of JSON, of the run with the median time, which `allot bench decode` reads. --make-random writes a random 8-layer model to MODEL first.
--random-weights needs MODEL/config.json alone; its numbers are torch's, not those of model/random_weights.h.
"""

import argparse
import json
import statistics
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, StoppingCriteria


def make_random(path):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=100, hidden_size=256, intermediate_size=1024, num_hidden_layers=8,
                         num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512,
                         bos_token_id=0, eos_token_id=1, initializer_range=0.06)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)


def load(args):
    dtype = getattr(torch, args.dtype)
    if args.random_weights is None:
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    torch.manual_seed(args.random_weights)
    with torch.device(args.device):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=dtype)


class FirstToken(StoppingCriteria):
    """Never stops; notes when the first token of the replies was known."""

    def __init__(self):
        self.time = None

    def __call__(self, ids, scores, **_):
        if self.time is None:
            ids[:, -1].cpu()  # waits for a GPU
            self.time = time.perf_counter()
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=230)
    parser.add_argument("--new-tokens", type=int, default=52)
    parser.add_argument("--max-sequences", type=int, help="not looked at: generate decodes all prompts at once")
    parser.add_argument("--temperature", type=float, default=0, help="0 is greedy")
    parser.add_argument("--top-p", type=float, default=1)
    parser.add_argument("--repetition-penalty", type=float, default=1)
    parser.add_argument("--make-random", action="store_true")
    parser.add_argument("--random-weights", type=int, metavar="SEED")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.make_random:
        make_random(args.model)
    model = load(args).to(args.device).eval()
    model.generation_config.eos_token_id = None
    prompts = torch.randint(0, model.config.vocab_size, (args.prompts, args.prompt_tokens), device=args.device)
    sampling = {"repetition_penalty": args.repetition_penalty, "do_sample": args.temperature > 0}
    if args.temperature > 0:
        sampling |= {"temperature": args.temperature, "top_p": args.top_p, "top_k": 0}

    def run(new_tokens):
        """Seconds in all, and of them those up to the first token."""
        first = FirstToken()
        start = time.perf_counter()
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=new_tokens,
                             min_new_tokens=new_tokens, pad_token_id=0, stopping_criteria=[first], **sampling)
        assert out.cpu().shape[1] == args.prompt_tokens + new_tokens  # cpu() waits for a GPU
        return time.perf_counter() - start, first.time - start

    run(2)
    # One run gives both numbers, so that what remains for decoding is never negative.
    runs = sorted(run(args.new_tokens) for _ in range(args.repetitions))
    total, prefill = statistics.median_low(runs)
    conditions = {"transformers": transformers.__version__, "torch": torch.__version__, "threads": args.threads}
    if args.device != "cpu":
        conditions["device"] = torch.cuda.get_device_name(args.device)
    print(json.dumps({"what": "transformers", "dtype": args.dtype, "device": args.device, "seconds": round(total, 4),
                      "fastest_seconds": round(runs[0][0], 4), "slowest_seconds": round(runs[-1][0], 4),
                      "prefill_seconds": round(prefill, 4), "decode_seconds": round(total - prefill, 4),
                      "new_tokens_per_second": round(args.prompts * args.new_tokens / total), "conditions": conditions}))


if __name__ == "__main__":
    main()
