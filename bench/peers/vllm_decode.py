#!/usr/bin/env python3
"""vLLM on the work of `allot bench decode`: a batch of equal prompts and replies, random weights at a model's full shape.

    python bench/peers/vllm_decode.py --shape configs/shapes/llama-3.1-8b --prompts 6 --prompt-tokens 30000 --new-tokens 258
    python bench/peers/vllm_decode.py --shape configs/shapes/qwen2-7b --prompts 1536 --prompt-tokens 160 --new-tokens 1024 \
        --temperature 0.6 --top-p 0.95 --repetition-penalty 1.1 --attention joint --samples 8

With `--attention own` it is vLLM as it comes, without plugins; `exact` and `joint` run allot's attention in it
(python/allot_vllm, installed beside vLLM), with exact layers or --samples in every layer. A round generates all replies,
and their first two tokens before that: a step's time is the difference over the tokens in between. One JSON object a round;
everything before the first round, graphs and compilation among it, is not timed. Decode steps of all prompts are a CUDA graph on
either side: without it a large batch waits for Python.
"""

import argparse
import json
import os
import time
from pathlib import Path

FIRST = 2  # new tokens of the short generation

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--shape", type=Path, required=True, help="a folder with the model's config.json")
parser.add_argument("--attention", choices=("own", "exact", "joint"), default="own")
parser.add_argument("--samples", type=int, default=8, help="samples of a query head in every layer")
parser.add_argument("--value-norms", type=int, choices=(0, 1), default=1)
parser.add_argument("--prompts", type=int, required=True)
parser.add_argument("--prompt-tokens", type=int, required=True)
parser.add_argument("--new-tokens", type=int, required=True)
parser.add_argument("--temperature", type=float, default=0)
parser.add_argument("--top-p", type=float, default=1)
parser.add_argument("--repetition-penalty", type=float, default=1)
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--graphs-to", type=int,
                    help="requests of the largest decode step that is a CUDA graph (--prompts); vLLM's own default is 512")
parser.add_argument("--memory", type=float, default=0.93, help="share of the GPU's memory that vLLM may take")
args = parser.parse_args()
if args.new_tokens <= FIRST:
    parser.error(f"--new-tokens is {args.new_tokens}; expected more than {FIRST}")

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the model's weights are set from here
if args.attention == "own":
    os.environ["VLLM_PLUGINS"] = ""

import torch  # noqa: E402
import vllm  # noqa: E402


def schedule():
    """The object `allot` that allot_vllm reads in a model's configuration."""
    config = json.loads((args.shape / "config.json").read_text())
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    attention = dict(estimator="joint", prefill="dense", tile=256, score_stage="exact", score_budget=0, mean_group_query=False,
                     parameters={"value-norms": args.value_norms})
    model = dict(layers=layers, num_q_heads=heads, num_kv_heads=config["num_key_value_heads"],
                 head_dim=config.get("head_dim") or config["hidden_size"] // heads)
    entry = "exact" if args.attention == "exact" else args.samples
    return dict(schema_version=3, run_id="vllm_decode", samples=[entry] * layers,
                conditions=dict(seed=0, attention=attention, model=model))


def set_weights(model):
    """As `allot bench decode --random-weights` has them: norms of 1, a standard deviation of 0.02 elsewhere."""
    torch.manual_seed(1)
    for name, weights in model.named_parameters():
        weights.data.fill_(1) if "norm" in name else weights.data.normal_(0, 0.02)


own = args.attention == "own"
largest = args.graphs_to or args.prompts
sizes = sorted({1 << power for power in range(largest.bit_length())} | set(range(256, largest, 256)) | {largest})
llm = vllm.LLM(
    str(args.shape), load_format="dummy", skip_tokenizer_init=True, generation_config="vllm", enable_prefix_caching=False,
    max_model_len=args.prompt_tokens + args.new_tokens + 16, max_num_seqs=args.prompts, max_num_batched_tokens=16384,
    gpu_memory_utilization=args.memory, compilation_config={"cudagraph_capture_sizes": sizes},
    **({} if own else dict(attention_config={"backend": "CUSTOM"}, hf_overrides={"allot": schedule()})))
llm.apply_model(set_weights)
prompts = [{"prompt_token_ids": [(7919 * i + 31 * j) % 30000 + 10 for j in range(args.prompt_tokens)]}
           for i in range(args.prompts)]


def seconds_for(new_tokens):
    sampling = [vllm.SamplingParams(
        max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, detokenize=False, temperature=args.temperature,
        top_p=args.top_p, repetition_penalty=args.repetition_penalty,
        extra_args=None if own else {"allot_question": i}) for i in range(args.prompts)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    replies = llm.generate(prompts, sampling, use_tqdm=False)
    took = time.perf_counter() - start
    made = sum(len(reply.outputs[0].token_ids) for reply in replies)
    if made != args.prompts * new_tokens:
        raise RuntimeError(f"vLLM made {made} tokens; expected {args.prompts} replies of {new_tokens}")
    return took


seconds_for(FIRST)
for number in range(args.rounds):
    first, whole = seconds_for(FIRST), seconds_for(args.new_tokens)
    print(json.dumps(dict(
        what="vllm_decode", vllm=vllm.__version__, torch=torch.__version__, device=torch.cuda.get_device_name(),
        shape=args.shape.name, attention=args.attention, samples=args.samples if args.attention == "joint" else None,
        value_norms=args.value_norms if args.attention == "joint" else None, prompts=args.prompts,
        prompt_tokens=args.prompt_tokens, new_tokens=args.new_tokens, temperature=args.temperature, graphs_to=largest, round=number,
        seconds=whole, first_tokens_seconds=first, tokens_per_second=args.prompts * args.new_tokens / whole,
        step_milliseconds=(whole - first) / (args.new_tokens - FIRST) * 1e3)), flush=True)
