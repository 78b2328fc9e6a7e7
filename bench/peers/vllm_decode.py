#!/usr/bin/env python3
"""vLLM on the work of `allot bench decode`, which runs this with --peer-vllm: a batch of equal prompts and replies.

    python bench/peers/vllm_decode.py configs/shapes/llama-3.1-8b --random-weights 1 --prompts 6 --prompt-tokens 30000 \
        --new-tokens 258
    python bench/peers/vllm_decode.py configs/shapes/qwen2-7b --random-weights 1 --prompts 1536 --prompt-tokens 160 \
        --new-tokens 1024 --temperature 0.6 --top-p 0.95 --repetition-penalty 1.1 --attention joint --samples 8

With `--attention own` it is vLLM as it comes, without plugins; `exact` and `joint` run allot's attention in it
(python/allot_vllm, installed beside vLLM), with exact layers or --samples in every layer. One JSON object a repetition, and
that of the median one once more at the end. prefill_seconds are those until every reply has its first token, as the engine
hands tokens out in that very repetition; what is left of its seconds, over the tokens that are left, is a decode step.
Everything before the first repetition, graphs and compilation among it, is not timed. Decode steps of all prompts are a
CUDA graph on either side: without it a large batch waits for Python.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

WARM_UP_TOKENS = 8  # as in bench/generate.h
BATCHED_TOKENS = 16384

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=Path, help="a checkpoint; with --random-weights a folder with config.json is enough")
parser.add_argument("--random-weights", type=int, metavar="SEED",
                    help="norms of 1, a standard deviation of 0.02 elsewhere; the numbers are torch's")
parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
parser.add_argument("--threads", type=int, help="not looked at: vLLM takes what it takes")
parser.add_argument("--attention", choices=("own", "exact", "joint"), default="own")
parser.add_argument("--samples", type=int, default=8, help="samples of a query head in every layer")
parser.add_argument("--value-norms", type=int, choices=(0, 1), default=1)
parser.add_argument("--prompts", type=int, required=True)
parser.add_argument("--prompt-tokens", type=int, required=True)
parser.add_argument("--new-tokens", type=int, required=True)
parser.add_argument("--max-sequences", type=int, help="replies decoded together (all of them)")
parser.add_argument("--temperature", type=float, default=0)
parser.add_argument("--top-p", type=float, default=1)
parser.add_argument("--repetition-penalty", type=float, default=1)
parser.add_argument("--repetitions", type=int, default=2)
parser.add_argument("--graphs-to", type=int, help="requests of the largest decode step that is a CUDA graph (as many as are "
                    "decoded together); vLLM's own default is 512")
parser.add_argument("--memory", type=float, default=0.93, help="share of the GPU's memory that vLLM may take")
args = parser.parse_args()
if args.new_tokens < 2:
    parser.error(f"--new-tokens is {args.new_tokens}; expected at least 2, so that there is a decode step")
if not args.device.startswith("cuda"):
    parser.error(f"--device is {args.device}; expected cuda or cuda:N")

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # weights are set, and tokens seen, from here
if args.attention == "own":
    os.environ["VLLM_PLUGINS"] = ""
if args.device.startswith("cuda:"):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = int(args.device.removeprefix("cuda:"))
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number] if visible else str(number)

import torch  # noqa: E402
import vllm  # noqa: E402


def schedule():
    """The object `allot` that allot_vllm reads in a model's configuration."""
    config = json.loads((args.model / "config.json").read_text())
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
    torch.manual_seed(args.random_weights)
    for name, weights in model.named_parameters():
        weights.data.fill_(1) if "norm" in name else weights.data.normal_(0, 0.02)


class FirstTokens:
    """Stands before the engine's core until each of `count` requests has a token; notes when that was."""

    def __init__(self, core, count):
        self.core, self.count, self.get_output = core, count, core.get_output
        self.have, self.time = set(), None
        core.get_output = self

    def __call__(self):
        outputs = self.get_output()
        self.have.update(output.request_id for output in outputs.outputs if output.new_token_ids)
        if len(self.have) == self.count:
            self.time = time.perf_counter()
            self.core.get_output = self.get_output
        return outputs


own = args.attention == "own"
together = min(args.prompts, args.max_sequences or args.prompts)
largest = args.graphs_to or together
sizes = sorted({1 << power for power in range(largest.bit_length())} | set(range(256, largest, 256)) | {largest})
llm = vllm.LLM(
    str(args.model), dtype=args.dtype, load_format="auto" if args.random_weights is None else "dummy", skip_tokenizer_init=True,
    generation_config="vllm", enable_prefix_caching=False, max_model_len=args.prompt_tokens + args.new_tokens + 16,
    max_num_seqs=together, max_num_batched_tokens=BATCHED_TOKENS, gpu_memory_utilization=args.memory,
    compilation_config={"cudagraph_capture_sizes": sizes},
    **({} if own else dict(attention_config={"backend": "CUSTOM"}, hf_overrides={"allot": schedule()})))
if args.random_weights is not None:
    llm.apply_model(set_weights)
vocabulary = llm.llm_engine.model_config.get_vocab_size()
ids = min(30000, vocabulary - 10)
prompts = [{"prompt_token_ids": [(7919 * i + 31 * j) % ids + 10 for j in range(args.prompt_tokens)]}
           for i in range(args.prompts)]


def run(new_tokens):
    """Seconds in all, and of them those until every reply had its first token."""
    sampling = [vllm.SamplingParams(
        max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, detokenize=False, temperature=args.temperature,
        top_p=args.top_p, repetition_penalty=args.repetition_penalty,
        extra_args=None if own else {"allot_question": i}) for i in range(args.prompts)]
    torch.cuda.synchronize()
    first = FirstTokens(llm.llm_engine.engine_core, args.prompts)
    start = time.perf_counter()
    replies = llm.generate(prompts, sampling, use_tqdm=False)
    took = time.perf_counter() - start
    made = sum(len(reply.outputs[0].token_ids) for reply in replies)
    if made != args.prompts * new_tokens or first.time is None:
        raise RuntimeError(f"vLLM made {made} tokens, {len(first.have)} first ones; expected {args.prompts} replies of {new_tokens}")
    return took, first.time - start


conditions = dict(vllm=vllm.__version__, torch=torch.__version__, device=torch.cuda.get_device_name(), graphs_to=largest,
                  max_num_seqs=together, max_num_batched_tokens=BATCHED_TOKENS, prefix_caching=False,
                  memory=args.memory)
runs = []


def report(number):
    whole, prefill = runs[number]
    print(json.dumps(dict(
        what="vllm_decode", model=args.model.name, dtype=args.dtype, attention=args.attention,
        samples=args.samples if args.attention == "joint" else None,
        value_norms=args.value_norms if args.attention == "joint" else None, prompts=args.prompts,
        prompt_tokens=args.prompt_tokens, new_tokens=args.new_tokens, temperature=args.temperature, repetition=number,
        seconds=whole, prefill_seconds=prefill, fastest_seconds=min(runs)[0], slowest_seconds=max(runs)[0],
        tokens_per_second=args.prompts * args.new_tokens / whole,
        step_milliseconds=(whole - prefill) / (args.new_tokens - 1) * 1e3, conditions=conditions)), flush=True)


run(min(WARM_UP_TOKENS, args.new_tokens))
for repetition in range(args.repetitions):
    runs.append(run(args.new_tokens))
    report(repetition)
report(runs.index(statistics.median_low(runs)))
