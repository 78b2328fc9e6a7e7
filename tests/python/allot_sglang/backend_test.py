"""The plugin's attention backend with SGLang's own classes on CPU tensors (pools, batches, layers, configuration, command line; none of
them replaced, nor any compiled module): steps as SGLang's runner makes them against allot_attention's operators and PyTorch; refusals.

    backend_test.py SOURCE --library LIBRARY [--allot EXECUTABLE] [unittest options]
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
import unittest
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "allot_attention"))
import needs  # first: says what is missing
import torch

sys.path.insert(0, str(needs.options.source / "python" / "allot_sglang"))
os.environ["SGLANG_USE_HND_KVCACHE"] = "1"
warnings.simplefilter("ignore")
try:
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import build_replay_fb_view
    from sglang.srt.server_args import ServerArgs
except (ImportError, OSError) as error:
    print(f"skipped: {sys.executable} cannot import sglang ({error}); pip install sglang==0.5.23 and configure with -DALLOT_PYTHON=<that Python>")
    sys.exit(needs.SKIPPED)

import allot_sglang
import allot_sglang.backend
from allot_attention import ScheduleError, operators
from allot_attention.identity import weights_fingerprint
from allot_sglang.backend import AllotAttnBackend
from allot_sglang.settings import numbers_of, refuse_layer

HEADS, KV_HEADS, HEAD_DIM, PAGE, LAYERS, REQUESTS = 4, 2, 16, 16, 3, 6
SCALE = HEAD_DIM**-0.5
PAGES_EACH = 6


def server_args(folder, **changed):
    options = {"device": "cpu", "page_size": PAGE, "disable_prefill_cuda_graph": True, "disable_radix_cache": True, **changed}
    return ServerArgs(model_path=str(folder), **options)


def runner_of(folder, changed=None, overrides="{}", **fields):
    """What the backend reads of a ModelRunner, whose parts are SGLang's."""
    pool = MHATokenToKVPool(
        REQUESTS * PAGES_EACH * PAGE, PAGE, torch.float32, KV_HEADS, HEAD_DIM, LAYERS, "cpu", enable_memory_saver=False
    )
    for buffer in [*pool.k_buffer, *pool.v_buffer]:
        buffer[1:] = torch.nan  # a key or value that is read without being there shows; page 0 is SGLang's for padding
    runner = SimpleNamespace(
        server_args=server_args(folder, **(changed or {})),
        model_config=ModelConfig(str(folder), model_override_args=overrides),
        token_to_kv_pool=pool,
        req_to_token_pool=ReqToTokenPool(REQUESTS, 128, "cpu", enable_memory_saver=False),
        page_size=PAGE,
        device="cpu",
        dtype=torch.float32,
        sliding_window_size=None,
        is_draft_worker=False,
        prefill_attention_backend_str="allot",
        decode_attention_backend_str="allot",
    )
    for name, value in fields.items():
        setattr(runner, name, value)
    return runner


class Request:
    """One sequence: its slot of SGLang's pool, its tokens so far, and all layers' keys and values."""

    def __init__(self, slot, rid, pages):
        self.slot, self.rid, self.pages = slot, rid, pages
        numbers = numbers_of(rid)
        self.question, self.sampling_seed = numbers.get("allot_question", 0), numbers.get("allot_sampling_seed", 0)
        self.keys = torch.zeros(LAYERS, 0, KV_HEADS, HEAD_DIM)
        self.values = torch.zeros(LAYERS, 0, KV_HEADS, HEAD_DIM)


class Server:
    """The backend over SGLang's pools, in the order of calls of its runner."""

    def __init__(self, runner):
        self.runner = runner
        self.generator = torch.Generator().manual_seed(3)
        self.backend = ATTENTION_BACKENDS["allot"](runner)
        self.schedule = self.backend.schedule
        self.layers = [RadixAttention(HEADS, HEAD_DIM, SCALE, KV_HEADS, i) for i in range(LAYERS)]
        self.free = (torch.randperm(REQUESTS * PAGES_EACH, generator=self.generator) + 1).tolist()

    def request(self, slot, rid):
        pages, self.free = self.free[:PAGES_EACH], self.free[PAGES_EACH:]
        return Request(slot, rid, pages)

    def batch(self, parts, decode):
        """The ForwardBatch of (request, new tokens), and their new queries, keys and values."""
        locations, queries, new = [], [], []
        for request, tokens in parts:
            grown = torch.randn(2, LAYERS, tokens, KV_HEADS, HEAD_DIM, generator=self.generator)
            request.keys, request.values = torch.cat([request.keys, grown[0]], 1), torch.cat([request.values, grown[1]], 1)
            length = request.keys.shape[1]
            slots = [request.pages[t // PAGE] * PAGE + t % PAGE for t in range(length)]
            self.runner.req_to_token_pool.write((request.slot, slice(0, length)), torch.tensor(slots, dtype=torch.int32))
            locations += slots[length - tokens :]
            queries.append(torch.randn(LAYERS, tokens, HEADS, HEAD_DIM, generator=self.generator))
            new.append(grown)
        lengths = torch.tensor([request.keys.shape[1] for request, _ in parts])
        counts = [tokens for _, tokens in parts]
        batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE if decode else ForwardMode.EXTEND,
            batch_size=len(parts),
            input_ids=torch.zeros(sum(counts), dtype=torch.int64),
            req_pool_indices=torch.tensor([request.slot for request, _ in parts]),
            seq_lens=lengths,
            seq_lens_cpu=lengths.clone(),
            seq_lens_sum=int(lengths.sum()),
            out_cache_loc=torch.tensor(locations),
            positions=torch.zeros(sum(counts), dtype=torch.int64),
            rids=[request.rid for request, _ in parts],
        )
        if not decode:
            batch.extend_seq_lens = torch.tensor(counts, dtype=torch.int32)
            batch.extend_seq_lens_cpu = counts
            batch.extend_prefix_lens = lengths.to(torch.int32) - batch.extend_seq_lens
        return batch, torch.cat(queries, 1), torch.cat(new, 2)

    def run_layers(self, batch, queries, new):
        """Outputs [layers, tokens, heads, head_dim]."""
        rows = [
            self.backend.forward(queries[i].flatten(1), new[0, i], new[1, i], layer, batch) for i, layer in enumerate(self.layers)
        ]
        return torch.stack(rows).view(queries.shape)

    def step(self, parts, decode=False):
        batch, queries, new = self.batch(parts, decode)
        self.backend.init_forward_metadata(batch)
        return queries, self.run_layers(batch, queries, new)

    def expected(self, request, queries, layer, exact):
        """The last queries of a request alone, over a contiguous cache, by allot_attention's operators or PyTorch."""
        tokens = queries.shape[0]
        cache = [side[layer].transpose(0, 1)[None] for side in (request.keys, request.values)]
        length = cache[0].shape[2]
        query = queries.transpose(0, 1)[None]
        if exact:
            mask = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
            out = torch.nn.functional.scaled_dot_product_attention(query, *cache, attn_mask=mask, enable_gqa=True)
            return out[0].transpose(0, 1)
        return operators.attend(
            query,
            *cache,
            first=torch.zeros(1, dtype=torch.int64),
            positions=torch.arange(length - tokens, length)[None],
            draws=torch.tensor([[self.schedule.seed, request.sampling_seed, request.question]], dtype=torch.int32),
            method=self.schedule.method,
            budget=self.schedule.samples[layer],
            layer=layer,
            scale=SCALE,
        )[0][0]


class PluginCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        allot_sglang.register()

    def plain_model(self):
        """Each in a folder of its own: SGLang reads the config.json of a path once in a process."""
        return needs.small_model(Path(tempfile.mkdtemp(dir=self.folder)))

    def model(self, samples=(2, "exact", 3), **schedule):
        return needs.add_schedule(self.plain_model(), samples, **schedule)

    def server(self, samples=(2, "exact", 3), changed=None, overrides="{}", **schedule):
        return Server(runner_of(self.model(samples, **schedule), changed, overrides))

    def check_outputs(self, server, parts, queries, outputs, sampled):
        begin = 0
        for request, tokens in parts:
            for layer, budget in enumerate(server.schedule.samples):
                some = slice(begin, begin + tokens)
                expected = server.expected(request, queries[layer, some], layer, budget is None or not sampled)
                with self.subTest(rid=request.rid, layer=layer):
                    torch.testing.assert_close(outputs[layer, some], expected, atol=2e-5, rtol=1e-4)
            begin += tokens

    def check_prompts(self, server, parts, sampled=False):
        self.check_outputs(server, parts, *server.step(parts), sampled)

    def check_decode(self, server, requests):
        parts = [(request, 1) for request in requests]
        self.check_outputs(server, parts, *server.step(parts, decode=True), True)

    def refusal(self, act):
        with self.assertRaises(ScheduleError) as caught:
            act()
        return str(caught.exception)


class Steps(PluginCase):
    def test_decoding_draws_as_allot_attention_does_by_seed_question_layer_head_and_position(self):
        for estimator, unit, parameters in (
            ("joint", "samples", {}),
            ("joint", "rows", needs.VALUE_NORMS),
            ("joint", "samples", needs.VALUE_NORMS),
            ("sys", "samples", {}),
        ):
            server = self.server(attention=needs.attention_conditions(estimator, unit, "dense", **parameters), seed=5)
            requests = [server.request(4, "allot:70"), server.request(1, "allot:3:2:b"), server.request(6, "chat-17")]
            self.check_prompts(server, list(zip(requests, (17, 40, 9))))
            for order in ((0, 1, 2), (2, 0, 1), (1,)):
                self.check_decode(server, [requests[i] for i in order])

    def test_another_question_draws_others(self):
        server = self.server((1, 1, 1), attention=needs.attention_conditions(prefill="dense"))
        request = server.request(1, "allot:1")
        server.step([(request, 30)])
        queries, outputs = server.step([(request, 1)], decode=True)
        request.question = 2
        self.assertFalse(torch.allclose(outputs[0], server.expected(request, queries[0], 0, False), atol=1e-2))

    def test_a_slot_that_another_request_gets_draws_by_its_question(self):
        server = self.server((1, 1, 1), attention=needs.attention_conditions(prefill="dense"))
        self.check_prompts(server, [(server.request(2, "allot:9:4"), 20)])
        second = server.request(2, "allot:8")
        self.check_prompts(server, [(second, 25)])
        self.check_decode(server, [second])

    def test_prompts_of_a_dense_prefill_are_exact_in_chunks_of_any_size(self):
        server = self.server((1, 1, 1), attention=needs.attention_conditions(prefill="dense"))
        old, chunked = server.request(1, "allot:7"), server.request(2, "allot:9")
        self.check_prompts(server, [(old, 20), (chunked, 33)])
        self.check_prompts(server, [(chunked, 21)])
        self.check_prompts(server, [(chunked, 1)])  # the last token of a prompt belongs to it
        self.check_decode(server, [old, chunked])

    def test_sampled_prompts_get_the_draws_of_their_positions_in_chunks_too(self):
        server = self.server(attention=needs.attention_conditions(**needs.VALUE_NORMS))
        old, new = server.request(1, "allot:7"), server.request(4, "allot:8")
        self.check_prompts(server, [(old, 20)], sampled=True)
        self.check_prompts(server, [(new, 12)], sampled=True)
        self.check_prompts(server, [(new, 30), (old, 5)], sampled=True)
        self.check_decode(server, [new, old])

    def test_rows_behind_the_tokens_of_a_prompt_are_zero(self):
        server = self.server()
        request = server.request(1, "allot:7")
        batch, queries, new = server.batch([(request, 5)], decode=False)
        server.backend.init_forward_metadata(batch)
        padded = torch.cat([queries, torch.randn(LAYERS, 3, HEADS, HEAD_DIM)], 1)
        for number, layer in enumerate(server.layers):
            out = server.backend.forward(padded[number].flatten(1), new[0, number], new[1, number], layer, batch)
            self.assertEqual(out[5:].abs().max().item(), 0)

    def test_an_idle_step_has_no_output(self):
        server = self.server()
        batch, queries, new = server.batch([(server.request(1, "a"), 1)], decode=True)
        batch.forward_mode = ForwardMode.IDLE
        server.backend.init_forward_metadata(batch)
        nothing = server.backend.forward(queries[0, :0].flatten(1), None, None, server.layers[0], batch)
        self.assertEqual(nothing.shape, (0, HEADS * HEAD_DIM))

    def test_a_name_that_is_no_number_is_logged_and_draws_as_question_0(self):
        server = self.server()
        for rid in ("allot:x", "allot:4294967296", "allot:7:x"):
            request = server.request(1, rid)
            with self.assertLogs("allot_sglang", "ERROR"):
                server.step([(request, 3)])
            self.assertEqual(server.backend.numbers.on_device()[1, 2].item(), 0)
            server.free += request.pages
        self.assertEqual(numbers_of("allot:7:8:9:x"), {"allot_question": 7, "allot_sampling_seed": 8})
        self.assertEqual(numbers_of("a-allot:7"), {})


class Graphs(PluginCase):
    def replayed(self, server, batch, size):
        """The view that SGLang's graph runner hands to the backend before it replays a graph of `size` rows."""
        rows = batch.batch_size
        buffers = SimpleNamespace(
            input_ids=torch.zeros(size, dtype=torch.int64),
            positions=torch.zeros(size, dtype=torch.int64),
            req_pool_indices=torch.cat([batch.req_pool_indices, torch.zeros(size - rows, dtype=torch.int64)]),
            seq_lens=torch.cat([batch.seq_lens, torch.full((size - rows,), self.fill)]),
            seq_lens_cpu=torch.cat([batch.seq_lens, torch.full((size - rows,), self.fill)]),
            mamba_track_indices=None,
        )
        view = build_replay_fb_view(
            forward_batch=batch,
            buffers=buffers,
            bs=size,
            raw_bs=rows,
            num_tokens=size,
            global_num_tokens_cpu=None,
            seq_len_fill_value=self.fill,
            capture_forward_mode=ForwardMode.DECODE,
            is_encoder_decoder=False,
        )
        view.out_cache_loc = torch.cat([batch.out_cache_loc, torch.zeros(size - rows, dtype=torch.int64)])
        return view

    def test_a_replay_fills_the_memory_of_the_capture_and_padded_rows_read_nothing(self):
        server = self.server((2, 4, 3), attention=needs.attention_conditions(prefill="dense", **needs.VALUE_NORMS))
        backend = server.backend
        backend.init_cuda_graph_state(8, 8)
        self.fill = backend.get_cuda_graph_seq_len_fill_value()
        dummy = ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            batch_size=5,
            input_ids=torch.zeros(5, dtype=torch.int64),
            req_pool_indices=torch.zeros(5, dtype=torch.int64),
            seq_lens=torch.full((5,), self.fill),
            seq_lens_sum=5,
            out_cache_loc=torch.zeros(5, dtype=torch.int64),
        )
        backend.init_forward_metadata_out_graph(dummy, in_capture=True)
        backend.init_forward_metadata_in_graph(dummy)
        captured = backend.forward_metadata
        self.assertEqual(captured.max_length, 128)  # the longest that a replay may be
        # SGLang's padding request samples nothing and does not count.
        self.assertEqual(captured.budgets.abs().max().item(), 0)
        self.assertEqual(backend.counts.values.abs().max().item(), 0)

        requests = [server.request(1, "allot:7"), server.request(2, "allot:8")]
        server.step([(request, 20) for request in requests])
        batch, queries, new = server.batch([(request, 1) for request in requests], decode=True)
        view = self.replayed(server, batch, 5)
        backend.init_forward_metadata_out_graph(view)
        # A graph reads what its capture saw: the same memory.
        for field in ("query_start", "lengths", "page_table", "budgets", "draws"):
            self.assertEqual(getattr(captured, field).data_ptr(), getattr(backend.forward_metadata, field).data_ptr(), field)
        backend.forward_metadata = captured
        queries = torch.cat([queries, torch.randn(LAYERS, 3, HEADS, HEAD_DIM)], 1)
        new = torch.cat([new, torch.full((2, LAYERS, 3, KV_HEADS, HEAD_DIM), 9.0)], 2)
        outputs = server.run_layers(view, queries, new)
        self.check_outputs(server, [(request, 1) for request in requests], queries, outputs, True)
        self.assertEqual(outputs[:, 2:].abs().max().item(), 0)
        self.assertEqual(captured.lengths.tolist(), [21, 21, 1, 1, 1])
        self.assertEqual(backend.counts.values[:, 0].tolist(), [2, 2, 2])  # not the padded rows

    def test_padding_is_known_by_its_number_too(self):
        server = self.server((2, 4, 3), attention=needs.attention_conditions(prefill="dense"))
        self.fill = 1
        requests = [server.request(1, "allot:7"), server.request(2, "allot:8")]
        server.step([(request, 20) for request in requests])
        batch, _, _ = server.batch([(request, 1) for request in requests], decode=True)
        view = self.replayed(server, batch, 4)
        view.req_pool_indices[2:] = 2  # what an older step left
        server.backend.init_forward_metadata_out_graph(view)
        self.assertEqual((server.backend.forward_metadata.budgets[0, :4]).tolist(), [2, 2, 0, 0])

    def test_more_requests_than_the_graphs_were_captured_with_are_refused(self):
        server = self.server()
        batch, _, _ = server.batch([(server.request(1, "a"), 1)], decode=True)
        server.backend.init_forward_metadata_out_graph(batch, in_capture=True)
        self.assertIn("captured with memory for 7", self.refusal(lambda: server.backend.init_cuda_graph_state(8, 8)))


class Reports(PluginCase):
    def test_the_report_counts_what_the_budgets_asked_for_and_reaches_the_file_through_the_scheduler(self):
        server = self.server(attention=needs.attention_conditions(prefill="dense"))
        requests = [server.request(1, "allot:7"), server.request(2, "allot:8")]
        server.step([(request, 20) for request in requests])
        for _ in range(3):
            server.step([(request, 1) for request in requests], decode=True)
        server.step([(requests[0], 1)], decode=True)
        server.step([(requests[1], 4)])
        scheduler = type("Scheduler", (), {})
        module = SimpleNamespace(Scheduler=scheduler)
        with mock.patch.dict(sys.modules, {"sglang.srt.managers.scheduler": module}):
            allot_sglang.backend._offer_reports(server.backend)
        engine = SimpleNamespace(collective_rpc=lambda method, **given: getattr(scheduler(), method)(**given))
        path = self.folder / "executed.json"
        allot_sglang.save_report(engine, path)
        report = json.loads(path.read_text())
        self.assertEqual(report, server.backend.report())
        counts = [(row["executed"], row["sampled_tokens"], row["exact_tokens"]) for row in report["layers"]]
        self.assertEqual(counts, [(2, 7, 44), (None, 0, 51), (3, 7, 44)])
        self.assertEqual([row["row_limit"] for row in report["layers"]], [7 * 2 * 4, 0, 7 * 2 * 6])
        self.assertEqual((report["engine"]["name"], report["samples"]), ("allot_sglang", [2, "exact", 3]))
        self.assertEqual(report["conditions"]["model"]["weights_fingerprint"], weights_fingerprint(Path(server.runner.server_args.model_path)))
        allot_sglang.reset(engine)
        self.assertEqual(server.backend.report()["layers"][0]["exact_tokens"], 0)

    def test_the_report_counts_sampled_prompts(self):
        server = self.server()
        request = server.request(1, "allot:7")
        server.step([(request, 20)])
        server.step([(request, 1)], decode=True)
        layers = server.backend.report()["layers"]
        self.assertEqual((layers[0]["executed"], layers[0]["sampled_tokens"], layers[0]["exact_tokens"]), (2, 21, 0))
        self.assertEqual(layers[1]["exact_tokens"], 21)


    def test_rows_are_counted_by_the_kernels_where_the_server_is_asked_to(self):
        for prefill, prompts in (("dense", 0), ("sampled", 1)):
            server = self.server(overrides='{"allot_count_rows": true}', attention=needs.attention_conditions(prefill=prefill))
            request = server.request(1, "allot:7")
            server.step([(request, 9)])
            server.backend.init_cuda_graph_state(REQUESTS + 5, REQUESTS + 5)  # larger buffers lose nothing
            for _ in range(2):
                server.step([(request, 1)], decode=True)
            report = server.backend.report()
            # 2 samples of 2 heads in 2 KV heads: 4 rows each, fewer where there are fewer keys.
            self.assertEqual(report["layers"][0]["rows"], 2 * (2 * 4 + prompts * (1 + 2 + 3 + 6 * 4)))
            self.assertEqual([row["rows"] for row in report["layers"]], [row["row_limit"] for row in report["layers"]])
            server.backend.reset_counts()
            self.assertEqual(server.backend.report()["layers"][0]["rows"], 0)
        self.assertNotIn("rows", self.server().backend.report()["layers"][0])
        self.assertIn("allot_count_rows=1", self.refusal(lambda: self.server(overrides='{"allot_count_rows": 1}')))

    def test_rows_that_pad_a_graph_count_nothing(self):
        server = self.server(overrides='{"allot_count_rows": true}', attention=needs.attention_conditions(prefill="dense"))
        request = server.request(1, "allot:7")
        server.step([(request, 9)])
        batch, queries, new = server.batch([(request, 1)], decode=True)
        batch.batch_size, batch.num_padding = 3, 2
        batch.req_pool_indices = torch.tensor([1, 0, 0])
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([10, 1, 1])
        batch.out_cache_loc = torch.cat([batch.out_cache_loc, torch.zeros(2, dtype=torch.int64)])
        server.backend.init_forward_metadata(batch)
        server.run_layers(
            batch,
            torch.cat([queries, torch.ones(LAYERS, 2, HEADS, HEAD_DIM)], 1),
            torch.cat([new, torch.ones(2, LAYERS, 2, KV_HEADS, HEAD_DIM)], 2),
        )
        self.assertEqual(server.backend.report()["layers"][0]["rows"], 2 * 4)


class Registration(PluginCase):
    def test_the_plugin_adds_its_backend_once_and_the_command_line_takes_it(self):
        allot_sglang.register()
        self.assertEqual(ATTENTION_BACKEND_CHOICES.count("allot"), 1)
        self.assertIn("allot", ATTENTION_BACKENDS)
        parser = argparse.ArgumentParser()
        ServerArgs.add_cli_args(parser)
        parsed = parser.parse_args(["--model-path", "m", "--attention-backend", "allot"])
        self.assertEqual(parsed.attention_backend, "allot")
        project = tomllib.loads((needs.options.source / "python/allot_sglang/pyproject.toml").read_text())
        self.assertEqual(project["project"]["entry-points"]["sglang.srt.plugins"], {"allot": "allot_sglang:register"})

    def test_a_key_in_the_override_arguments_serves_as_well(self):
        overrides = json.loads((self.model() / "config.json").read_text())["allot"]
        runner = runner_of(self.plain_model(), overrides=json.dumps({"allot": overrides}))
        self.assertEqual(AllotAttnBackend(runner).schedule.samples, (2, None, 3))


class Refusals(PluginCase):
    def start(self, changed=None, fields=None, **schedule):
        folder = self.model(**schedule)
        return lambda: AllotAttnBackend(runner_of(folder, changed, **(fields or {})))

    def test_a_server_with_options_that_a_schedule_cannot_follow(self):
        for changed, words in (
            ({"tp_size": 2}, "tp_size is 2"),
            ({"pp_size": 2}, "pp_size is 2"),
            ({"attn_cp_size": 2}, "attn_cp_size is 2"),
            ({"dcp_size": 2}, "dcp_size is 2"),
            ({"speculative_algorithm": "EAGLE"}, "speculative decoding"),
            ({"enable_lora": True}, "--enable-lora"),
            ({"enable_mixed_chunk": True}, "--enable-mixed-chunk"),
            ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
            ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
            ({"enable_pdmux": True}, "--enable-pdmux"),
            ({"enable_dp_attention": True}, "--enable-dp-attention"),
            ({"dllm_algorithm": "LowConfidence"}, "--dllm-algorithm"),
            ({"disaggregation_mode": "decode"}, "--disaggregation-mode"),
            ({"disable_prefill_cuda_graph": False}, "--disable-prefill-cuda-graph"),
            ({"disable_radix_cache": False}, "--disable-radix-cache"),
        ):
            with self.subTest(words=words):
                self.assertIn(words, self.refusal(self.start(changed)))
        dense = needs.attention_conditions(prefill="dense")
        self.start({"disable_radix_cache": False}, attention=dense)()

    def test_a_runner_of_another_backend_window_or_draft(self):
        for fields, words in (
            ({"prefill_attention_backend_str": "fa3"}, "prefill is fa3"),
            ({"decode_attention_backend_str": "triton"}, "decode is triton"),
            ({"sliding_window_size": 64}, "one of 64 tokens"),
            ({"is_draft_worker": True}, "speculative decoding"),
            ({"page_size": 8}, "page_size is 8"),
        ):
            with self.subTest(words=words):
                self.assertIn(words, self.refusal(self.start(fields=fields)))

    def test_another_cache(self):
        def pool(dtype=torch.float32, kind=MHATokenToKVPool, hnd="1"):
            with mock.patch.dict(os.environ, {"SGLANG_USE_HND_KVCACHE": hnd}):
                return kind(64, PAGE, dtype, KV_HEADS, HEAD_DIM, LAYERS, "cpu", enable_memory_saver=False)

        class Other(MHATokenToKVPool):
            pass

        for changed, words in (
            ({"hnd": "0"}, "SGLANG_USE_HND_KVCACHE=1"),
            ({"dtype": torch.float8_e4m3fn}, "float8_e4m3fn"),
            ({"kind": Other}, "Other"),
        ):
            with self.subTest(words=words):
                self.assertIn(words, self.refusal(self.start(fields={"token_to_kv_pool": pool(**changed)})))

    def test_a_layer_that_asks_for_other_attention(self):
        for options, words in (
            ({"sliding_window_size": 64}, "one of 64 tokens"),
            ({"logit_cap": 30.0}, "soft caps"),
            ({"attn_type": AttentionType.ENCODER_ONLY}, "decoders only"),
            ({"is_cross_attention": True}, "decoders only"),
            ({"v_head_dim": 8}, "another size"),
        ):
            with self.subTest(words=words):
                layer = RadixAttention(HEADS, HEAD_DIM, SCALE, KV_HEADS, 2, **options)
                self.assertIn(words, self.refusal(lambda layer=layer: refuse_layer(layer, {})))
        layer = RadixAttention(HEADS, HEAD_DIM, SCALE, KV_HEADS, 2)
        refuse_layer(layer, {})
        layer.xai_temperature_len = 8
        self.assertIn("xai_temperature_len", self.refusal(lambda: refuse_layer(layer, {})))
        server = self.server()
        batch, queries, new = server.batch([(server.request(1, "a"), 3)], decode=False)
        server.backend.init_forward_metadata(batch)
        call = [queries[0].flatten(1), new[0, 0], new[1, 0], server.layers[0], batch]
        server.backend.forward(*call)
        self.assertIn("sinks", self.refusal(lambda: server.backend.forward(*call, sinks=torch.ones(HEADS))))
        call[1] = None
        self.assertIn("another's cache", self.refusal(lambda: server.backend.forward(*call)))

    def test_another_kind_of_step(self):
        server = self.server()
        for mode in (ForwardMode.MIXED, ForwardMode.TARGET_VERIFY, ForwardMode.SPLIT_PREFILL):
            batch, _, _ = server.batch([(server.request(1, "a"), 1)], decode=True)
            batch.forward_mode = mode
            self.assertIn(mode.name, self.refusal(lambda batch=batch: server.backend.init_forward_metadata(batch)))

    def test_another_model(self):
        without = self.plain_model()
        self.assertIn("no key 'allot'", self.refusal(lambda: AllotAttnBackend(runner_of(without))))
        self.assertIn("2 layers, the model has 3", self.refusal(self.start(samples=(1, 2))))
        adapter = {"id": "words", "fingerprint": "0" * 64}
        self.assertIn("adapter words, which allot_sglang", self.refusal(self.start(adapter=adapter)))
        folder = self.model()
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
        self.assertIn("is for the weights", self.refusal(lambda: AllotAttnBackend(runner_of(folder))))
        AllotAttnBackend(runner_of(folder, {"load_format": "dummy"}))


@unittest.skipUnless(needs.options.allot, "left out: needs the allot executable (--allot)")
class Export(PluginCase):
    def test_sglang_reads_the_exported_command_to_a_server_that_the_backend_takes(self):
        samples = [38, 7, 2, 2, 6, 2, 2, 5]
        for prefill, uncached in (("dense", False), ("sampled", True)):
            conditions = needs.attention_conditions("level", "rows", prefill)
            schedule = needs.tiny_gsm_schedule(self.folder / "schedule.json", samples, conditions)
            words = ["export", "--schedule", schedule, "--format", "sglang", "--model", needs.TINY_GSM, "--out", self.folder / "out"]
            done = subprocess.run([needs.options.allot, *map(str, words)], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            command = shlex.split((self.folder / "out" / "sglang-serve.sh").read_text().splitlines()[1])
            head = ["exec", "env", "SGLANG_USE_HND_KVCACHE=1", "python3", "-m", "sglang.launch_server"]
            self.assertEqual((command[: len(head)], command[-1]), (head, "$@"))
            parser = argparse.ArgumentParser()
            ServerArgs.add_cli_args(parser)
            parsed = ServerArgs.from_cli_args(parser.parse_args(command[len(head) : -1]))
            self.assertEqual((parsed.model_path, parsed.attention_backend, parsed.page_size), (str(needs.TINY_GSM), "allot", 16))
            self.assertEqual((parsed.disable_radix_cache, parsed.disable_prefill_cuda_graph), (uncached, True))
            config = ModelConfig(parsed.model_path, model_override_args=parsed.json_model_override_args)
            pool = MHATokenToKVPool(64, PAGE, torch.float32, 4, 32, 8, "cpu", enable_memory_saver=False)
            backend = AllotAttnBackend(runner_of(needs.TINY_GSM, model_config=config, server_args=parsed, token_to_kv_pool=pool))
            read = backend.schedule
            self.assertEqual((list(read.samples), read.method.estimator), (samples, "level"))
            self.assertEqual((read.method.unit, read.method.prefill), ("rows", prefill))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *needs.unittest_options])
