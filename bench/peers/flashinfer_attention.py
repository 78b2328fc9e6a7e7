#!/usr/bin/env python3
"""allot's attention kernels beside FlashInfer's batch decode, in one process and on the same pages.

    python bench/peers/flashinfer_attention.py --library build/lib/liballot_torch.so --json flashinfer.jsonl

FlashInfer (PyPI: flashinfer-python, apache-tvm-ffi) compiles its kernel on first use with nvcc and ninja. Its wrapper runs
with tensor cores, planned once: with the grid of the CUDA graph mode, which holds for sequences that grow, and with the
grid of exactly these lengths. The faster one is what allot's rows are divided by. What FlashInfer's plan costs the host is
not counted, nor is anything else that the host does.
"""

import argparse

import measure
import torch

FLOAT_WORKSPACE_BYTES = 512 * 1024 * 1024


def flashinfer_call(flashinfer, batch, graph_mode, tensor_cores, cache=None, key_scale=None):
    """A function that queues FlashInfer's decode of the batch, and its output. `cache` (keys, values) stands for the
    batch's pages where these are held in another type, keys divided by key_scale."""
    shape = batch.shape
    cache = cache or (batch.key_pages, batch.value_pages)
    pages = torch.tensor([0] + [len(own) for own in batch.pages_of], dtype=torch.int32)
    starts, indices = pages.cumsum(0).to(torch.int32), torch.cat(batch.pages_of)
    last_page = torch.tensor([(length - 1) % batch.page_size + 1 for length in batch.lengths], dtype=torch.int32)
    buffers = {}
    if graph_mode:
        buffers = dict(paged_kv_indptr_buffer=torch.empty_like(starts, device="cuda"),
                       paged_kv_indices_buffer=torch.empty_like(indices, device="cuda"),
                       paged_kv_last_page_len_buffer=torch.empty_like(last_page, device="cuda"))
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(FLOAT_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda"), kv_layout="HND", use_cuda_graph=graph_mode,
        use_tensor_cores=tensor_cores, **buffers)
    wrapper.plan(starts, indices, last_page, shape.num_q_heads, shape.num_kv_heads, shape.head_dim, batch.page_size,
                 q_data_type=torch.bfloat16, kv_data_type=cache[0].dtype, sm_scale=batch.scale)
    torch.cuda.synchronize()
    out = torch.full_like(batch.query, float("nan"))
    return lambda: wrapper.run(batch.query, cache, k_scale=key_scale, out=out), out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    measure.add_options(parser, estimators="sys,threshold,prop,flash")
    parser.add_argument("--cuda-cores", action="store_true",
                        help="also FlashInfer without tensor cores (one more kernel to compile)")
    options = parser.parse_args()
    timer = measure.start(options)
    import flashinfer

    report = measure.Report(timer, dict(flashinfer=flashinfer.__version__, score_deviation=options.score_deviation),
                            "FlashInfer's fastest median / median")
    variants = [("tensor cores", True, False), ("tensor cores, growing", True, True)]
    if options.cuda_cores:
        variants.append(("CUDA cores", False, False))
    for shape in measure.select_shapes(options.shapes):
        batch = measure.Batch(shape, options.page_size, options.score_deviation)
        exact = measure.exact_output(batch)
        peers = []
        for name, tensor_cores, graph_mode in variants:
            cache = f"pages of {batch.page_size}, shuffled"
            try:
                call, out = flashinfer_call(flashinfer, batch, graph_mode, tensor_cores)
                times = timer.time(call)
                error = measure.rms_error(out, exact)
                peers.append((name, report.add(batch, "flashinfer", name, cache, times=times, error=error)))
                del call, out
            except (RuntimeError, ValueError) as error:
                report.add_failure(batch, "flashinfer", name, cache, "", error)
        measure.time_own(report, timer, batch, options.estimators.split(","), peers, exact)
        del batch
        torch.cuda.empty_cache()
    report.finish(options.json)


if __name__ == "__main__":
    main()
