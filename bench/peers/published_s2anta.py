#!/usr/bin/env python3
"""allot's attention kernels beside the published S2ANTA kernels (github.com/OPUSLab/SANTA), in one process.

    git clone https://github.com/OPUSLab/SANTA && python bench/peers/published_s2anta.py \
        --library build/lib/liballot_torch.so --checkout SANTA --json published.jsonl

Builds the checkout's two extensions as its setup.py files do, for the GPU at hand: the published one for prop refuses to
build for anything but compute capability 8.6 and 8.9, so its sources are compiled here with its own flags and another
architecture. Nothing in the sources is changed. What they support, and so what is timed:

  prop   one sequence, head_dim a multiple of 16, up to 8 query heads a KV head, tiles of 32, 64 or 256 keys by length
  flash  any batch of one common length, head_dim 128, exactly 4 query heads a KV head; the same number of samples in each
         tile of 32, 64 or 256 keys and at least one, so that a row may draw more or fewer than asked for (the table's
         samples column says how many)

Both read a contiguous cache [batch, length, num_kv_heads, head_dim]; allot reads the same numbers from pages in random
order. The extensions allocate and run several kernels a call, which costs nothing in a CUDA graph.
"""

import argparse
import os
import pathlib
import sys

import measure
import torch

FLASH_FOLDER = "flash_style_fused_santa_fixed_tile_budgets"
PROP_FOLDER = "santa_fused_proportional_tile_budgets"


def build(checkout, folder, name, nvcc_flags, verbose):
    from torch.utils import cpp_extension
    sources = [pathlib.Path(checkout) / folder / file for file in ("santa_cuda.cpp", "santa_cuda_kernel.cu")]
    missing = [str(source) for source in sources if not source.exists()]
    if missing:
        sys.exit(f"--checkout: {', '.join(missing)} does not exist; pass a checkout of github.com/OPUSLab/SANTA")
    return cpp_extension.load(name=name, sources=[str(source) for source in sources], extra_cflags=["-O3"],
                              extra_cuda_cflags=nvcc_flags, verbose=verbose)


def build_both(options):
    if torch.cuda.is_available():
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "{}.{}".format(*torch.cuda.get_device_capability()))
    flash_flags = ["-O3", "--use_fast_math", "-lineinfo"]
    flash = build(options.checkout, FLASH_FOLDER, "santa_flash_batch_cuda", flash_flags, options.verbose)
    prop = build(options.checkout, PROP_FOLDER, "santa_prop_batch_cuda", ["-O3", "-lineinfo"], options.verbose)
    return flash, prop


def published_tile(length):
    """Keys a tile by the published heuristic, which both extensions share."""
    return 32 if length <= 1536 else 64 if length <= 3072 else 256


def published_calls(batch, flash, prop):
    """(kernel, samples a row really draws, function that queues it and gives its output or why it cannot run) of each."""
    shape = batch.shape
    group, samples = shape.num_q_heads // shape.num_kv_heads, max(batch.budgets)
    tiles = -(-shape.longest // published_tile(shape.longest))
    if shape.ragged or min(batch.budgets) != samples:
        reason = "published kernels take one length and one budget a launch"
        return [("prop", "", reason), ("flash", "", reason)]
    keys, values = batch.contiguous()
    calls = []
    if shape.batch > 1:
        calls.append(("prop", str(samples), "published prop takes one sequence a launch"))
    elif group > 8:
        calls.append(("prop", str(samples), f"published prop takes up to 8 query heads a KV head, not {group}"))
    else:
        calls.append(("prop", str(samples),
                      lambda: prop.decode_systematic_scalar(batch.query[0], keys[0], values[0], samples)[0][None]))
    if group != 4 or shape.head_dim != 128:
        calls.append(("flash", "", "published flash takes 4 query heads a KV head and head_dim 128, "
                      f"not {group} and {shape.head_dim}"))
    else:
        calls.append(("flash", str(max(samples // tiles, 1) * tiles),
                      lambda: flash.decode_systematic_batched(batch.query, keys, values, samples)[0]))
    return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    measure.add_options(parser, estimators="sys,threshold,prop,flash")
    parser.add_argument("--checkout", required=True, help="folder of a checkout of github.com/OPUSLab/SANTA")
    parser.add_argument("--build-only", action="store_true",
                        help="compile the extensions (TORCH_CUDA_ARCH_LIST says for what) and stop")
    parser.add_argument("--verbose", action="store_true", help="show the compiler's commands")
    options = parser.parse_args()
    if options.build_only:
        build_both(options)
        return
    timer = measure.start(options)
    flash, prop = build_both(options)
    report = measure.Report(timer, dict(score_deviation=options.score_deviation),
                            "median of the fastest published kernel that runs / median")
    for shape in measure.select_shapes(options.shapes):
        batch = measure.Batch(shape, options.page_size, options.score_deviation)
        exact = measure.exact_output(batch)
        peers = []
        for name, samples, call in published_calls(batch, flash, prop):
            cache = "[batch, keys, heads, dim]"
            if isinstance(call, str):
                report.add(batch, "published", name, cache, samples, note=call)
                continue
            try:
                times = timer.time(call)
                error = measure.rms_error(call(), exact)
                peers.append((name, report.add(batch, "published", name, cache, samples, times, error=error)))
            except RuntimeError as error:
                report.add_failure(batch, "published", name, cache, samples, error)
            del call
        measure.time_own(report, timer, batch, options.estimators.split(","), peers, exact)
        del batch
        torch.cuda.empty_cache()
    report.finish(options.json)


if __name__ == "__main__":
    main()
