#!/usr/bin/env python3
"""Exact decode attention over a cache of 8 bits (float8_e4m3fn), beside the same library's over bfloat16, on the same numbers.

    python bench/peers/fp8_attention.py --json fp8.jsonl
    python bench/peers/fp8_attention.py --peers vllm-fa3 --library build-gpu/lib/liballot_torch.so --shapes 16x32k,64x2k

FlashAttention-3 is the one that comes with vLLM (vllm.vllm_flash_attn), called as vLLM calls it: pages of tokens x heads, queries
of 8 bits too where the cache has 8, a scale for each of query, keys and values. It runs once as its heuristic would have it, and
once with the work shared out beforehand and at most 32 splits of a sequence, as in the CUDA graphs of vLLM, where that sharing
out is done once for all layers of a step and is not counted here either. FlashInfer (flashinfer-python, compiled on first use)
reads queries of bfloat16 and pages of heads x tokens; its wrapper is planned as in flashinfer_attention.py.

Keys and queries are divided by their largest number over 448 before they are rounded. Values are rounded as they are, because
FlashInfer multiplies its output by their scale in a kernel of its own. Rounding the query is not timed. Errors are against
attention in float32 over the cache before it is rounded. With --library allot's kernels run over the bfloat16 cache, and their
ratio is against the fastest peer with 8 bits.
"""

import argparse
import importlib.metadata

import measure
import torch
from flashinfer_attention import flashinfer_call

FP8 = torch.float8_e4m3fn
SPLITS_IN_GRAPHS = 32  # vLLM's flash_attn_max_num_splits_for_cuda_graph


def round_to_8_bits(numbers):
    """The numbers divided by a scale, and the scale: the largest becomes the largest of the type."""
    scale = numbers.abs().max().item() / torch.finfo(FP8).max
    return (numbers / scale).to(FP8), scale


class Inputs:
    """Query and pages of a batch as a library gets them, and what they were divided by."""

    def __init__(self, batch, kv_dtype):
        self.query, self.key_pages, self.value_pages = batch.query, batch.key_pages, batch.value_pages
        self.query_scale = self.key_scale = 1.0
        if kv_dtype == FP8:
            self.query, self.query_scale = round_to_8_bits(batch.query)
            self.key_pages, self.key_scale = round_to_8_bits(batch.key_pages)
            self.value_pages = batch.value_pages.to(FP8)


def flash_attention_call(library, batch, inputs, as_in_graphs):
    """A function that queues FlashAttention-3's decode of the batch, and its output."""
    shape, on_gpu = batch.shape, dict(device="cuda", dtype=torch.int32)
    out = torch.full_like(batch.query, float("nan"))
    lengths, starts = torch.tensor(batch.lengths, **on_gpu), torch.arange(shape.batch + 1, **on_gpu)
    named = dict(max_seqlen_q=1, cu_seqlens_q=starts, max_seqlen_k=max(batch.lengths), seqused_k=lengths, causal=True,
                 softmax_scale=batch.scale, block_table=batch.page_table.cuda(), out=out, fa_version=3)
    if inputs.query.dtype == FP8:
        for name, scale in (("q", inputs.query_scale), ("k", inputs.key_scale), ("v", 1.0)):
            named[f"{name}_descale"] = torch.tensor(scale, device="cuda").expand(shape.batch, shape.num_kv_heads)
    if as_in_graphs:
        named["num_splits"] = SPLITS_IN_GRAPHS
        named["scheduler_metadata"] = library.get_scheduler_metadata(
            batch_size=shape.batch, max_seqlen_q=1, max_seqlen_k=max(batch.lengths), num_heads_q=shape.num_q_heads,
            num_heads_kv=shape.num_kv_heads, headdim=shape.head_dim, cache_seqlens=lengths, qkv_dtype=inputs.query.dtype,
            cu_seqlens_q=starts, page_size=batch.page_size, causal=True, num_splits=SPLITS_IN_GRAPHS)
    keys, values = (pages.transpose(1, 2).contiguous() for pages in (inputs.key_pages, inputs.value_pages))
    return lambda: library.flash_attn_varlen_func(inputs.query, keys, values, **named), out


def load_flash_attention():
    """Its calls by variant, and what a report says of it."""
    import vllm.vllm_flash_attn as library

    def call_of(as_in_graphs):
        return lambda batch, inputs: flash_attention_call(library, batch, inputs, as_in_graphs)

    return {"heuristic": call_of(False), "as in graphs": call_of(True)}, dict(vllm=importlib.metadata.version("vllm"))


def load_flashinfer():
    import flashinfer

    def call_of(graph_mode):
        def call(batch, inputs):
            rounded = inputs.key_pages.dtype == FP8
            return flashinfer_call(flashinfer, batch, graph_mode, True, (inputs.key_pages, inputs.value_pages),
                                   inputs.key_scale if rounded else None)
        return call

    return {"tensor cores": call_of(False), "tensor cores, growing": call_of(True)}, dict(flashinfer=flashinfer.__version__)


PEERS = {"vllm-fa3": load_flash_attention, "flashinfer": load_flashinfer}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    measure.add_options(parser, estimators="sys,joint", library_required=False)
    parser.add_argument("--peers", default=",".join(PEERS), help="separated by commas (default %(default)s)")
    options = parser.parse_args()
    names = options.peers.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        parser.error(f"--peers: there is no {', '.join(unknown)}; known are {', '.join(PEERS)}")
    timer = measure.start(options)
    loaded, versions = {}, {}
    for name in names:
        loaded[name], version = PEERS[name]()
        versions |= version
    report = measure.Report(timer, dict(score_deviation=options.score_deviation, **versions),
                            "the fastest median with 8 bits / median")
    for shape in measure.select_shapes(options.shapes):
        batch = measure.Batch(shape, options.page_size, options.score_deviation)
        exact = measure.float32_output(batch)
        with_8_bits = []
        for kv_dtype in (torch.bfloat16, FP8):
            inputs = Inputs(batch, kv_dtype)
            for name, variants in loaded.items():
                cache = f"{str(kv_dtype).removeprefix('torch.')}, pages of {batch.page_size}, shuffled"
                for variant, call_of in variants.items():
                    try:
                        call, out = call_of(batch, inputs)
                        times = timer.time(call)
                        median = report.add(batch, name, variant, cache, times=times, kv_dtype=kv_dtype,
                                            error=measure.rms_error(out, exact))
                        if kv_dtype == FP8:
                            with_8_bits.append((f"{name}, {variant}", median))
                        del call, out
                    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
                        report.add_failure(batch, name, variant, cache, "", error, kv_dtype)
            del inputs
        if options.library:
            measure.time_own(report, timer, batch, options.estimators.split(","), with_8_bits, exact)
        del batch
        torch.cuda.empty_cache()
    report.finish(options.json)


if __name__ == "__main__":
    main()
