"""The operators of kernels/torch from Python: schemas, fake tensors, torch.compile, values against plain attention, and,
where there is a GPU, the CUDA kernels against the CPU ones, CUDA graphs and faults found on the device.

    ops_test.py LIBRARY [--site FOLDER] [unittest options]

LIBRARY is liballot_torch.so. FOLDER is added to the Python path when torch is not installed. Exits 77 (skipped) when torch
cannot be imported at all.
"""

import argparse
import math
import sys
import unittest

SKIPPED = 77


def import_torch(site):
    try:
        import torch
    except ImportError as first:
        sys.path.append(site)
        try:
            import torch
        except ImportError as second:
            print(f"skipped: {sys.executable} cannot import torch ({first}), nor with {site} ({second}); "
                  "configure with -DALLOT_PYTHON=<a Python that can>")
            sys.exit(SKIPPED)
    return torch


parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("--site", default="")
options, unittest_options = parser.parse_known_args()
torch = import_torch(options.site)
torch.ops.load_library(options.library)
ops = torch.ops.allot


def missing_for_compile():
    """What keeps torch.compile from being imported, as where torch is unpacked without its dependencies; else ''."""
    try:
        import torch._functorch.aot_autograd  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


MISSING_FOR_COMPILE = missing_for_compile()
needs_compile = unittest.skipIf(MISSING_FOR_COMPILE, f"torch.compile cannot be imported: {MISSING_FOR_COMPILE}")
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
SAMPLED = ["iid", "strat", "sys", "prop", "flash", "threshold"]


def make_call(device="cpu", dtype=torch.bfloat16, lengths=(97, 300, 16, 1), queries=None, heads=(14, 2), head_dim=64,
              page_size=16, budget=64, estimator="sys", seed=1):
    """Positional and keyword arguments of attend over a cache whose pages are in random order and whose unused slots
    are NaN."""
    random = torch.Generator().manual_seed(seed)
    q_heads, kv_heads = heads
    queries = [1] * len(lengths) if queries is None else list(queries)
    pages = [-(-length // page_size) for length in lengths]
    order = torch.randperm(sum(pages) + 3, generator=random)
    pool = torch.full((2, len(order), kv_heads, page_size, head_dim), float("nan"))
    table = torch.full((len(lengths), max(pages) + 1), -(2**31), dtype=torch.int32)
    used = 0
    for b, length in enumerate(lengths):
        for i in range(pages[b]):
            page, filled = int(order[used]), min(page_size, length - i * page_size)
            table[b, i] = page
            pool[:, page, :, :filled] = torch.randn(2, kv_heads, filled, head_dim, generator=random)
            used += 1
    starts = torch.tensor([0] + queries).cumsum(0)
    # A fused projection: keys and values follow the query in its row and are never read.
    projected = torch.full((int(starts[-1]), (q_heads + 2 * kv_heads) * head_dim), float("nan"))
    projected[:, :q_heads * head_dim] = torch.randn(len(projected), q_heads * head_dim, generator=random) * 1.5
    projected = projected.to(device, dtype)
    draws = torch.tensor([[seed, 2**32 - 1 - b, 7 * b + 1] for b in range(len(lengths))], dtype=torch.uint32)
    positional = [projected[:, :q_heads * head_dim].unflatten(1, (q_heads, head_dim)),
                  pool[0].to(device, dtype), pool[1].to(device, dtype), table.to(device), starts.to(device),
                  torch.tensor(lengths, dtype=torch.int32, device=device)]
    named = dict(estimator=estimator, layer=3, max_queries=max(queries), max_length=max(lengths))
    if estimator != "exact":
        positional += [torch.full((len(lengths),), budget, dtype=torch.int32, device=device), draws.to(device)]
        named["max_budget"] = budget
    return positional, named


def with_norms(positional, named):
    """The keyword arguments with the norms of the values, stored token by token in a shuffled order; NaN in unused slots."""
    values, table, lengths = positional[2], positional[3].cpu(), positional[5].tolist()
    page_size = values.shape[2]
    used = [int(table[b, t // page_size]) * page_size + t % page_size for b, length in enumerate(lengths) for t in range(length)]
    slots = torch.tensor(used)[torch.randperm(len(used))]
    rows = values[(slots // page_size).to(values.device), :, (slots % page_size).to(values.device)]
    padded = torch.cat([rows, torch.full_like(rows[:2], 9)])  # two tokens that have no slot
    norms = torch.full(values.shape[:3], math.nan, dtype=torch.float32, device=values.device)
    ops.store_value_norms(padded, torch.cat([slots, torch.tensor([-1, -1])]).to(values.device), norms)
    return named | dict(value_norms=norms)


def make_workspace(positional, named):
    bytes_needed = ops.workspace_bytes(*positional, **named)
    workspace = torch.empty(bytes_needed, dtype=torch.uint8, device=positional[0].device)
    ops.reset_workspace(workspace)
    return workspace


def move(positional, device):
    return [tensor.to(device) for tensor in positional]


def plain_attention(positional, scale=None):
    """softmax(q K^T * scale) V in double precision, row by row."""
    query, keys, values, table, starts, lengths = [tensor.cpu() for tensor in positional[:6]]
    group = query.shape[1] // keys.shape[1]
    out = torch.empty(query.shape, dtype=torch.float64)
    for b in range(len(lengths)):
        first, last, length = int(starts[b]), int(starts[b + 1]), int(lengths[b])
        pages = table[b, :-(-length // keys.shape[2])].long()
        k, v = (pool[pages].transpose(0, 1).flatten(1, 2)[:, :length].double().repeat_interleave(group, 0)
                for pool in (keys, values))
        for row in range(first, last):
            visible = length - (last - 1 - row)
            scores = torch.einsum("hd,hnd->hn", query[row].double(), k[:, :visible])
            weights = torch.softmax(scores * (scale or 1 / math.sqrt(query.shape[2])), dim=1)
            out[row] = torch.einsum("hn,hnd->hd", weights, v[:, :visible])
    return out


# Scores differ by rounding between devices, which takes a sample near the boundary of a key to the neighbouring one: about
# 1 in 1,000 of 64 samples over some hundred keys.
MOST_MOVED = 0.01


def moved_samples(out, expected, budget):
    """Share of the samples that chose another key, from how far the rows moved. One sample that takes key j for key i moves
    its row by (v_i - v_j) / budget, of squared length 2 head_dim / budget^2 where values are standard normal numbers;
    several add up. Rounding of the output to bfloat16 counts for less than 1 in 10,000."""
    head_dim = out.shape[-1]
    moved = (out.double() - expected.double()).square().sum(dim=-1) * budget**2 / (2 * head_dim)
    return moved.mean().item() / budget


class Values(unittest.TestCase):
    def test_exact_attention_is_plain_attention(self):
        for device in DEVICES:
            for queries in (None, (3, 40, 16, 1)):
                for head_dim, heads in ((64, (14, 2)), (128, (32, 8))):
                    with self.subTest(device=device, queries=queries, head_dim=head_dim):
                        positional, named = make_call(device, estimator="exact", queries=queries, head_dim=head_dim,
                                                      heads=heads)
                        out = ops.attend(*positional, **named).cpu().double()
                        # bfloat16 keeps 8 bits of outputs below 4; nothing else is rounded that far.
                        self.assertLess((out - plain_attention(positional)).abs().max().item(), 2**-6)

    def test_many_samples_come_close_to_plain_attention(self):
        for device in DEVICES:
            for estimator in ("sys", "strat", "threshold"):
                with self.subTest(device=device, estimator=estimator):
                    positional, named = make_call(device, estimator=estimator, budget=4096)
                    out = ops.attend(*positional, **named).cpu().double()
                    self.assertLess((out - plain_attention(positional)).abs().max().item(), 0.05)

    def test_norms_of_stored_values_are_theirs_and_others_keep_what_was_there(self):
        for device in DEVICES:
            for dtype in (torch.float32, torch.bfloat16):
                for heads, head_dim in ((2, 64), (3, 20), (40, 128)):
                    with self.subTest(device=device, dtype=dtype, heads=heads, head_dim=head_dim):
                        # As they lie in a fused projection, behind a query.
                        projected = torch.randn(5, heads * head_dim + 24, device=device).to(dtype)
                        values = projected[:, 24:].unflatten(1, (heads, head_dim))
                        slots = torch.tensor([17, 0, -1, 31, 16], device=device)
                        norms = torch.full((3, heads, 16), 7.0, device=device)
                        self.assertIsNone(ops.store_value_norms(values, slots, norms))
                        expected = torch.full((48, heads), 7.0, dtype=torch.float64)
                        stored = slots.cpu() >= 0
                        expected[slots.cpu()[stored]] = values.cpu().double().norm(dim=-1)[stored]
                        found = norms.cpu().double().transpose(1, 2).reshape(48, heads)
                        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)

    def test_norms_of_values_choose_other_rows_and_unused_ones_are_not_read(self):
        for device in DEVICES:
            for queries in (None, (3, 40, 16, 1)):
                for budget in (1, 4, 300):
                    with self.subTest(device=device, queries=queries, budget=budget):
                        positional, named = make_call(device, estimator="joint", budget=budget, queries=queries)
                        positional[2] *= torch.rand(positional[2].shape[:3], device=device)[..., None] * 3
                        normed = with_norms(positional, named)
                        out = ops.attend(*positional, **normed)
                        self.assertFalse(out.isnan().any().item())
                        if budget == 300:  # rows of a group of 7, which covers all keys
                            wrong = (out.cpu().double() - plain_attention(positional)).abs().max().item()
                            self.assertLess(wrong, 2**-5)
                        else:
                            self.assertFalse(torch.equal(out, ops.attend(*positional, **named)))

    def test_other_draws_move_more_samples_than_devices_may(self):
        # What Cuda.test_cuda_and_cpu_choose_the_same_keys must be able to see.
        for device in DEVICES:
            for estimator in SAMPLED:
                for queries in (None, (3, 40, 16, 1)):
                    with self.subTest(device=device, estimator=estimator, queries=queries):
                        positional, named = make_call(device, estimator=estimator, queries=queries, head_dim=128)
                        out = ops.attend(*positional, **named).cpu()
                        self.assertEqual(moved_samples(out, out, named["max_budget"]), 0)
                        other_layer = ops.attend(*positional, **(named | dict(layer=4))).cpu()
                        self.assertGreater(moved_samples(other_layer, out, named["max_budget"]), 5 * MOST_MOVED)

    def test_scale_is_an_argument(self):
        for device in DEVICES:
            with self.subTest(device=device):
                positional, named = make_call(device, estimator="exact")
                out = ops.attend(*positional, **named, scale=0.5).cpu().double()
                self.assertLess((out - plain_attention(positional, 0.5)).abs().max().item(), 2**-6)

    def test_zero_budget_is_zero_and_dense_budget_is_exact(self):
        for device in DEVICES:
            with self.subTest(device=device):
                positional, named = make_call(device)
                positional[6][0], positional[6][1] = 0, -1
                out = ops.attend(*positional, **named, any_dense=True).cpu()
                self.assertEqual(out[0].abs().max().item(), 0)
                self.assertLess((out[1].double() - plain_attention(positional)[1]).abs().max().item(), 2**-6)

    def test_out_variant_gives_the_same_bytes(self):
        for device in DEVICES:
            with self.subTest(device=device):
                positional, named = make_call(device)
                workspace = make_workspace(positional, named)
                out = torch.full_like(positional[0], 7).contiguous()
                self.assertIsNone(ops.attend_out(*positional, **named, out=out, workspace=workspace))
                ops.check(workspace)
                self.assertTrue(torch.equal(out, ops.attend(*positional, **named)))


    def test_rows_read_are_counted_by_sequence(self):
        for device in DEVICES:
            for estimator in ("sys", "joint"):
                with self.subTest(device=device, estimator=estimator):
                    positional, named = make_call(device, estimator=estimator, budget=2)
                    rows = torch.tensor([1000, 0, 0, 0], device=device)
                    workspace = make_workspace(positional, named | dict(rows_read=rows))
                    out = torch.empty_like(positional[0]).contiguous()
                    ops.attend_out(*positional, **named, out=out, workspace=workspace, rows_read=rows)
                    ops.check(workspace)
                    self.assertTrue(torch.equal(out, ops.attend(*positional, **named)))
                    counted = (rows.cpu() - torch.tensor([1000, 0, 0, 0])).tolist()
                    # 2 KV heads of 7 query heads with 2 samples each; 97, 300, 16 and 1 keys.
                    if estimator == "joint":
                        self.assertEqual(counted, [28, 28, 28, 2])
                    else:
                        self.assertTrue(all(2 <= few <= 28 for few in counted[:3]), counted)
                        self.assertEqual(counted[3], 2)


class Registration(unittest.TestCase):
    @needs_compile
    def test_opcheck(self):
        for device in DEVICES:
            for estimator in ("exact", "sys", "joint"):
                with self.subTest(device=device, estimator=estimator):
                    positional, named = make_call(device, estimator=estimator)
                    if estimator == "joint":
                        named = with_norms(positional, named)
                        values = torch.randn(2, 2, 64, device=device).bfloat16()
                        stored = (values, torch.tensor([5, -1], device=device), named["value_norms"].clone())
                        torch.library.opcheck(ops.store_value_norms.default, stored)
                    torch.library.opcheck(ops.attend.default, tuple(positional), named)
                    out = torch.empty_like(positional[0]).contiguous()
                    for rows in (None, torch.zeros(4, dtype=torch.int64, device=device)):
                        workspace = make_workspace(positional, named | dict(rows_read=rows))
                        torch.library.opcheck(ops.attend_out.default, tuple(positional),
                                              named | dict(out=out, workspace=workspace, rows_read=rows))

    def test_schemas_name_what_is_written(self):
        def written(op):
            return [a.name for a in op.default._schema.arguments if a.alias_info and a.alias_info.is_write]

        self.assertEqual(written(ops.attend_out), ["out", "workspace", "rows_read"])
        self.assertEqual(written(ops.workspace_bytes), [])
        self.assertEqual(written(ops.reset_workspace), ["workspace"])
        self.assertEqual(written(ops.store_value_norms), ["value_norms"])
        self.assertEqual(written(ops.check), ["workspace"])
        self.assertFalse(ops.attend.default._schema.is_mutable)

    @needs_compile
    def test_compiles_whole_with_sizes_that_change(self):
        @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
        def doubled(positional, named):
            return ops.attend(*positional, **named) * 2

        with torch._dynamo.config.patch(error_on_recompile=True):
            for lengths in ((97, 300, 16, 1), (5, 6), (40, 3, 77)):
                positional, named = make_call(lengths=lengths)
                self.assertTrue(torch.equal(doubled(positional, named), ops.attend(*positional, **named) * 2))

    @needs_compile
    def test_compiled_out_variant_writes_its_output(self):
        @torch.compile(backend="aot_eager", fullgraph=True)
        def write(positional, named, out, workspace):
            ops.attend_out(*positional, **named, out=out, workspace=workspace)
            return out + 1

        positional, named = make_call()
        out = torch.zeros_like(positional[0]).contiguous()
        expected = ops.attend(*positional, **named)
        result = write(positional, named, out, torch.empty(0, dtype=torch.uint8))
        self.assertTrue(torch.equal(out, expected))
        self.assertTrue(torch.equal(result, expected + 1))

    def test_backward_is_refused(self):
        positional, named = make_call(estimator="exact")
        positional[0] = positional[0].detach().requires_grad_()
        with self.assertRaisesRegex(RuntimeError, "allot::attend.*not implemented"):
            ops.attend(*positional, **named).sum().backward()


class Errors(unittest.TestCase):
    def refused(self, error, words, change):
        for device in DEVICES:
            with self.subTest(device=device, words=words):
                positional, named = make_call(device)
                change(positional, named)
                with self.assertRaisesRegex(error, words):
                    ops.attend(*positional, **named)

    def test_errors_name_argument_value_and_expectation(self):
        def index(i, value):
            return lambda positional, named: positional.__setitem__(i, value(positional[i]))

        self.refused(ValueError, r"page_table has shape \[3, .*expected 4", index(3, lambda t: t[:3]))
        self.refused(ValueError, r"query has shape \[14, 64\]; expected 3 dimensions", index(0, lambda t: t[0]))
        self.refused(ValueError, r"key_pages .*expected 64 in dimension 3", index(1, lambda t: t[..., :32].contiguous()))
        self.refused(TypeError, r"lengths has dtype Long; expected Int", index(5, lambda t: t.long()))
        self.refused(TypeError, r"value_pages has dtype Float; expected BFloat16", index(2, lambda t: t.float()))
        self.refused(ValueError, "guess", lambda positional, named: named.update(estimator="guess"))
        norms = torch.ones(3, 2, 16)
        self.refused(ValueError, "sys has no use for value_norms",
                     lambda positional, named: named.update(value_norms=norms.to(positional[0].device)))
        self.refused(ValueError, r"value_norms has shape \[3, 2, 16\]; expected \[",
                     lambda positional, named: named.update(value_norms=norms.to(positional[0].device), estimator="joint"))
        self.refused(TypeError, "value_norms has dtype Double", lambda positional, named: named.update(
            value_norms=norms.to(positional[0].device).double(), estimator="joint"))
        self.refused(ValueError, "max_budget is None", lambda positional, named: named.pop("max_budget"))

    def test_errors_of_stored_norms_name_argument_value_and_expectation(self):
        for device in DEVICES:
            good = dict(values=torch.ones(2, 3, 8), slots=torch.tensor([0, 4]), value_norms=torch.zeros(2, 3, 16))
            for error, words, changed in (
                (ValueError, r"slots has shape \[1\]; expected 2", dict(slots=torch.tensor([0]))),
                (TypeError, "slots has dtype Int; expected Long", dict(slots=torch.tensor([0, 4], dtype=torch.int32))),
                (ValueError, r"value_norms has shape \[2, 4, 16\]; expected 3", dict(value_norms=torch.zeros(2, 4, 16))),
                (ValueError, "values has shape .*strides", dict(values=torch.ones(2, 8, 3).transpose(1, 2))),
                (TypeError, "values has dtype Double", dict(values=torch.ones(2, 3, 8).double())),
            ):
                with self.subTest(device=device, words=words), self.assertRaisesRegex(error, words):
                    ops.store_value_norms(**{name: tensor.to(device) for name, tensor in (good | changed).items()})
        with self.assertRaisesRegex(ValueError, "token 1 has cache slot 32; .*0 to 31"):
            ops.store_value_norms(**(good | dict(slots=torch.tensor([0, 32]))))

    def test_content_beyond_the_bounds_is_found_at_the_launch_on_the_cpu(self):
        positional, named = make_call("cpu")
        with self.assertRaisesRegex(ValueError, "sequence 1 has length 300, but max_length is 299"):
            ops.attend(*positional, **(named | dict(max_length=299)))


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU: torch.cuda.is_available() is False")
class Cuda(unittest.TestCase):
    def test_cuda_and_cpu_choose_the_same_keys(self):
        for estimator in [*SAMPLED, "joint by norms"]:
            for queries in (None, (3, 40, 16, 1)):
                with self.subTest(estimator=estimator, queries=queries):
                    positional, named = make_call("cuda", estimator=estimator.split()[0], queries=queries, head_dim=128)
                    if estimator == "joint by norms":
                        positional[2] *= torch.rand(positional[2].shape[:3], device="cuda")[..., None] * 3
                        named = with_norms(positional, named)
                    on_cpu = ops.attend(*move(positional, "cpu"), **{
                        name: value.cpu() if torch.is_tensor(value) else value for name, value in named.items()})
                    on_cuda = ops.attend(*positional, **named).cpu()
                    share = moved_samples(on_cuda, on_cpu, named["max_budget"])
                    largest = (on_cuda.double() - on_cpu.double()).abs().max().item()
                    print(f"{estimator}: {100 * share:.3f} % of the samples moved, largest difference {largest:.4f}")
                    self.assertLess(share, MOST_MOVED)
                    self.assertLess(largest, 0.5)

    def test_float16_runs(self):
        positional, named = make_call("cuda", torch.float16, estimator="exact", head_dim=128)
        out = ops.attend(*positional, **named).cpu().double()
        self.assertLess((out - plain_attention(positional)).abs().max().item(), 2**-9)

    def test_graph_follows_lengths_budgets_and_pages(self):
        positional, named = make_call("cuda", head_dim=128)
        workspace = make_workspace(positional, named)
        out = torch.empty_like(positional[0]).contiguous()

        def run():
            ops.attend_out(*positional, **named, out=out, workspace=workspace)

        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        positional[5].sub_(torch.tensor([1, 150, 7, 0], dtype=torch.int32, device="cuda"))
        positional[6].copy_(torch.tensor([3, 64, 0, 9], dtype=torch.int32, device="cuda"))
        graph.replay()
        ops.check(workspace)
        replayed = out.clone()
        run()
        self.assertTrue(torch.equal(replayed, out))
        self.assertEqual(replayed[2].abs().max().item(), 0)

    def test_work_is_queued_on_the_current_stream(self):
        positional, named = make_call("cuda", head_dim=128)
        expected = ops.attend(*positional, **named)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            positional[0].zero_()
            torch.cuda._sleep(50_000_000)  # the query returns only after this
            positional[0].copy_(make_call("cuda", head_dim=128)[0][0])
            out = ops.attend(*positional, **named)
        stream.synchronize()
        self.assertTrue(torch.equal(out, expected))

    def test_faults_found_on_the_device_are_raised_by_check(self):
        for argument, value, words in ((5, 301, "sequence 1.*301"), (3, 10**6, "1000000"), (6, 65, "sequence 1.*65")):
            with self.subTest(words=words):
                positional, named = make_call("cuda", head_dim=128)
                workspace = make_workspace(positional, named)
                out = torch.empty_like(positional[0]).contiguous()
                positional[argument].view(len(positional[5]), -1)[1, 0] = value
                ops.attend_out(*positional, **named, out=out, workspace=workspace)
                with self.assertRaisesRegex(ValueError, words):
                    ops.check(workspace)
                ops.check(workspace)  # a fault is raised once
                self.assertTrue(out[1].isnan().all().item())
                self.assertFalse(out[0].isnan().any().item())

    def test_small_workspace_and_mixed_devices_are_refused(self):
        positional, named = make_call("cuda", head_dim=128)
        out = torch.empty_like(positional[0]).contiguous()
        with self.assertRaisesRegex(ValueError, "workspace"):
            ops.attend_out(*positional, **named, out=out, workspace=torch.empty(16, dtype=torch.uint8, device="cuda"))
        positional[5] = positional[5].cpu()
        with self.assertRaisesRegex(TypeError, "lengths is on cpu, but query is on cuda"):
            ops.attend(*positional, **named)

    def test_what_has_no_cuda_kernel_is_not_implemented(self):
        positional, named = make_call("cuda", torch.float32)
        with self.assertRaises(NotImplementedError):
            ops.attend(*positional, **named)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + unittest_options)
