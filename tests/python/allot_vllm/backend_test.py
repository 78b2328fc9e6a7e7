"""The plugin's cache, metadata and layers on CPU tensors, steps as vLLM's model runner makes them, against allot_attention; refusals.

    backend_test.py SOURCE --library LIBRARY [--allot EXECUTABLE] [unittest options]
"""

import json
import logging
import shlex
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "allot_attention"))
import needs  # first: says what is missing
import torch
import transformers

sys.path.insert(0, str(needs.options.source / "python" / "allot_vllm"))
try:
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState
except (ImportError, OSError) as error:
    print(f"skipped: {sys.executable} cannot import vllm ({error}); pip install vllm==0.26.0 and configure with -DALLOT_PYTHON=<that Python>")
    sys.exit(needs.SKIPPED)

import allot_vllm
import allot_vllm.backend
import allot_vllm.models
import allot_vllm.state
from allot_attention import ScheduleError, operators
from allot_attention.identity import weights_fingerprint
from allot_attention.schedule import read_schedule
from allot_vllm.backend import AllotAttention, AllotBackend
from allot_vllm.metadata import AllotMetadataBuilder, leading_decodes
from allot_vllm.settings import schedule_of

HEADS, KV_HEADS, HEAD_DIM, PAGE, LAYERS = 4, 2, 16, 16, 3
SCALE = HEAD_DIM**-0.5


class Compilation:
    """Stands for vLLM's CompilationConfig: an identity that a weak reference can be made of."""


def engine_config(hf_config, **changed):
    """What the plugin reads of a VllmConfig. A name of `changed` is "part__field", or a field of the whole."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=hf_config, dtype=torch.float32, max_model_len=96, architectures=["LlamaForCausalLM"]
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=6, max_num_batched_tokens=64),
        cache_config=SimpleNamespace(enable_prefix_caching=False, block_size=PAGE),
        load_config=SimpleNamespace(load_format="auto"),
        device_config=SimpleNamespace(device="cpu"),
        attention_config=SimpleNamespace(backend=AttentionBackendEnum.CUSTOM),
        compilation_config=Compilation(),
        speculative_config=None,
        lora_config=None,
        kv_transfer_config=None,
        use_v2_model_runner=True,
    )
    for name, value in changed.items():
        part, _, field = name.rpartition("__")
        setattr(getattr(config, part) if part else config, field, value)
    return config


class Request:
    """One sequence: its tokens so far, all layers' keys and values, and its pages."""

    def __init__(self, slot, question, pages, sampling_seed=0):
        self.slot, self.question, self.sampling_seed, self.pages = slot, question, sampling_seed, pages
        self.keys = torch.zeros(LAYERS, 0, KV_HEADS, HEAD_DIM)
        self.values = torch.zeros(LAYERS, 0, KV_HEADS, HEAD_DIM)

    def grow(self, tokens, generator):
        new = torch.randn(2, LAYERS, tokens, KV_HEADS, HEAD_DIM, generator=generator)
        self.keys, self.values = torch.cat([self.keys, new[0]], 1), torch.cat([self.values, new[1]], 1)
        return torch.randn(LAYERS, tokens, HEADS, HEAD_DIM, generator=generator), new

    def slots(self, tokens):
        length = self.keys.shape[1]
        return [self.pages[t // PAGE] * PAGE + t % PAGE for t in range(length - tokens, length)]


class Engine:
    """The plugin's layers over a cache of its shape, in the order of calls of vLLM's runner."""

    def __init__(self, config):
        self.config = config
        self.generator = torch.Generator().manual_seed(3)
        with mock.patch.object(allot_vllm.backend, "get_current_vllm_config", lambda: config):
            self.layers = [
                (AllotAttention(HEADS, HEAD_DIM, SCALE, KV_HEADS), SimpleNamespace(layer_name=f"model.layers.{i}.self_attn.attn"))
                for i in range(LAYERS)
            ]
        self.state = allot_vllm.state.state_of(config)
        self.state.numbered = True
        self.builder = AllotMetadataBuilder(None, [], config, torch.device("cpu"))
        # NaN where nothing was written: a key or value that is read without being there shows.
        self.caches = [torch.full(AllotBackend.get_kv_cache_shape(48, PAGE, KV_HEADS, HEAD_DIM), torch.nan) for _ in self.layers]

    def request(self, slot, question, sampling_seed=0):
        order = torch.randperm(8, generator=self.generator)
        extra = {"allot_question": question, "allot_sampling_seed": sampling_seed}
        self.state.add_request(slot, extra)
        return Request(slot, question, [int(page) * 6 + slot for page in order], sampling_seed)

    def step(self, parts, padded=0):
        """Runs (request, new tokens) through all layers, with `padded` empty rows as a graph has them. Returns the queries and
        the outputs by layer, [layers, tokens, heads, head_dim]."""
        grown = [request.grow(tokens, self.generator) for request, tokens in parts]
        counts = [tokens for _, tokens in parts]
        starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        starts = torch.cat([starts, starts[-1:].repeat(padded)])
        lengths = [request.keys.shape[1] for request, _ in parts]
        table = torch.zeros(len(parts) + padded, 6, dtype=torch.int32)
        for row, (request, _) in enumerate(parts):
            table[row] = torch.tensor(request.pages[:6])
        slots = torch.tensor([slot for request, tokens in parts for slot in request.slots(tokens)] + [-1] * padded)
        self.state.rows_of_slots = torch.tensor([request.slot for request, _ in parts], dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor(lengths + [0] * padded, dtype=torch.int32),
            num_reqs=len(parts) + padded,
            num_actual_tokens=sum(counts) + padded,
            max_query_len=max(counts),
            max_seq_len=max(lengths),
            block_table_tensor=table,
            slot_mapping=slots,
        )
        metadata = self.builder.build(common_prefix_len=0, common_attn_metadata=common)
        queries = torch.cat([query for query, _ in grown], 1)
        queries = torch.cat([queries, torch.randn(LAYERS, padded, HEADS, HEAD_DIM)], 1)
        new = torch.cat([both for _, both in grown], 2)
        new = torch.cat([new, torch.full((2, LAYERS, padded, KV_HEADS, HEAD_DIM), 9.0)], 2)
        outputs = torch.full_like(queries, 7.0)
        for number, (implementation, layer) in enumerate(self.layers):
            cache = self.caches[number]
            implementation.do_kv_cache_update(layer, new[0, number], new[1, number], cache, slots)
            implementation.forward(
                layer, queries[number], new[0, number], new[1, number], cache, metadata, outputs[number]
            )
        self.metadata = metadata
        return queries, outputs

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
        schedule = self.state.schedule
        draws = torch.tensor([[schedule.seed, request.sampling_seed, request.question]], dtype=torch.int32)
        return operators.attend(
            query,
            *cache,
            first=torch.zeros(1, dtype=torch.int64),
            positions=torch.arange(length - tokens, length)[None],
            draws=draws,
            method=schedule.method,
            budget=schedule.samples[layer],
            layer=layer,
            scale=SCALE,
        )[0][0]


class PluginCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def hf_config(self, samples=(2, "exact", 3), **schedule):
        needs.add_schedule(needs.small_model(self.folder), samples, **schedule)
        return transformers.AutoConfig.from_pretrained(self.folder)

    def engine(self, samples=(2, "exact", 3), changed=None, **schedule):
        return Engine(engine_config(self.hf_config(samples, **schedule), **(changed or {})))

    def check_parts(self, engine, parts, padded=0, sampled_prompts=False):
        queries, outputs = engine.step(parts, padded)
        begin = 0
        for request, tokens in parts:
            for layer, budget in enumerate(engine.state.schedule.samples):
                exact = budget is None or (tokens > 1 and not sampled_prompts)
                some = slice(begin, begin + tokens)
                expected = engine.expected(request, queries[layer, some], layer, exact)
                with self.subTest(question=request.question, layer=layer):
                    torch.testing.assert_close(outputs[layer, some], expected, atol=2e-5, rtol=1e-4)
            begin += tokens
        return queries, outputs

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
            engine = self.engine(attention=needs.attention_conditions(estimator, unit, "dense", **parameters), seed=5)
            requests = [engine.request(4, 70), engine.request(0, 3, sampling_seed=2), engine.request(5, 2**31 - 1)]
            self.check_parts(engine, [(requests[0], 17), (requests[1], 40), (requests[2], 9)])
            for order in ((0, 1, 2), (2, 0, 1), (1,)):
                self.check_parts(engine, [(requests[i], 1) for i in order])

    def test_another_question_draws_others(self):
        engine = self.engine((1, 1, 1), attention=needs.attention_conditions(prefill="dense"))
        request = engine.request(0, 1)
        engine.step([(request, 30)])
        queries, outputs = engine.step([(request, 1)])
        request.question = 2
        self.assertFalse(torch.allclose(outputs[0], engine.expected(request, queries[0], 0, False), atol=1e-2))

    def test_prompts_of_a_dense_prefill_are_exact_beside_requests_that_decode(self):
        engine = self.engine((1, 1, 1), attention=needs.attention_conditions(prefill="dense"))
        old, new, chunked = engine.request(0, 7), engine.request(1, 8), engine.request(2, 9)
        self.check_parts(engine, [(old, 20), (chunked, 33)])
        self.check_parts(engine, [(old, 1), (new, 12), (chunked, 21)])
        self.check_parts(engine, [(old, 1), (new, 1), (chunked, 1)])

    def test_sampled_prompts_get_the_draws_of_their_positions_in_chunks_too(self):
        engine = self.engine(attention=needs.attention_conditions(**needs.VALUE_NORMS))
        old, new = engine.request(0, 7), engine.request(3, 8)
        self.check_parts(engine, [(old, 20)], sampled_prompts=True)
        self.check_parts(engine, [(old, 1), (new, 12)], sampled_prompts=True)
        self.check_parts(engine, [(old, 1), (new, 30)], sampled_prompts=True)

    def test_rows_that_pad_a_graph_read_nothing_and_change_no_other(self):
        engine = self.engine((2, 4, 3), attention=needs.attention_conditions(prefill="dense", **needs.VALUE_NORMS))
        requests = [engine.request(0, 7), engine.request(1, 8)]
        engine.step([(request, 20) for request in requests])
        _, outputs = self.check_parts(engine, [(request, 1) for request in requests], padded=3)
        self.assertEqual(outputs[:, 2:].abs().max().item(), 0)
        self.assertEqual(engine.metadata.lengths.tolist(), [21, 21, 1, 1, 1])

    def test_prompts_may_be_padded_behind_the_last_request(self):
        engine = self.engine(attention=needs.attention_conditions(prefill="dense"))
        self.check_parts(engine, [(engine.request(0, 7), 20), (engine.request(1, 8), 5)], padded=2)

    def test_buffers_keep_their_addresses_from_step_to_step(self):
        engine = self.engine(attention=needs.attention_conditions(prefill="dense", **needs.VALUE_NORMS))
        request, addresses, starts = engine.request(0, 7), set(), set()
        norms = []
        for tokens in (5, 1, 4, 1):
            engine.step([(request, tokens)])
            m = engine.metadata
            addresses.add(tuple(t.data_ptr() for t in (m.lengths, m.budgets, m.draws)))
            starts.add(m.query_start.data_ptr())
            norms.append([layer._norms.of(cache[1]) for (layer, _), cache in zip(engine.layers, engine.caches)])
        self.assertEqual((len(addresses), len(starts)), (1, 2))  # starts of prompts, and of steps that decode
        self.assertIsNone(norms[0][1])  # of a layer with exact attention
        for layer in (0, 2):
            self.assertEqual(len({of_step[layer].data_ptr() for of_step in norms}), 1)

    def test_profiling_without_metadata_gives_zeros(self):
        engine = self.engine()
        implementation, layer = engine.layers[0]
        output = torch.ones(5, HEADS, HEAD_DIM)
        implementation.forward(layer, output, output, output, engine.caches[0], None, output)
        self.assertEqual(output.abs().max().item(), 0)

    def test_the_report_counts_what_the_budgets_asked_for(self):
        engine = self.engine(attention=needs.attention_conditions(prefill="dense"))
        requests = [engine.request(0, 7), engine.request(1, 8)]
        engine.step([(request, 20) for request in requests])
        for _ in range(3):
            engine.step([(request, 1) for request in requests], padded=2)
        engine.step([(requests[0], 1), (requests[1], 4)])
        model = SimpleNamespace(allot_state=engine.state)
        report = allot_vllm.state.report_of_worker(model)
        counts = [(row["executed"], row["sampled_tokens"], row["exact_tokens"]) for row in report["layers"]]
        self.assertEqual(counts, [(2, 7, 44), (None, 0, 51), (3, 7, 44)])
        self.assertEqual(report["samples"], [2, "exact", 3])
        self.assertNotIn("rows", report["layers"][0])
        # Two samples of two heads each, in two KV heads.
        self.assertEqual([row["row_limit"] for row in report["layers"]], [7 * 2 * 4, 0, 7 * 2 * 6])
        model_found = report["conditions"]["model"]
        self.assertEqual(model_found["weights_fingerprint"], weights_fingerprint(self.folder))
        allot_vllm.state.reset_worker(model)
        self.assertEqual(allot_vllm.state.report_of_worker(model)["layers"][0]["exact_tokens"], 0)
        self.assertIn("CUSTOM", self.refusal(lambda: allot_vllm.state.report_of_worker(SimpleNamespace())))

    def test_the_report_counts_sampled_prompts(self):
        engine = self.engine()
        request = engine.request(0, 7)
        engine.step([(request, 20)])
        engine.step([(request, 1)])
        layers = engine.state.report()["layers"]
        self.assertEqual([(row["executed"], row["sampled_tokens"], row["exact_tokens"]) for row in layers][0], (2, 21, 0))
        self.assertEqual(layers[1]["exact_tokens"], 21)

    def test_rows_are_counted_by_the_kernels_where_the_engine_is_asked_to(self):
        for prefill, prompts in (("dense", 0), ("sampled", 2)):
            changed = {"additional_config": {"allot": {"count_rows": True}}}
            engine = self.engine(changed=changed, attention=needs.attention_conditions(prefill=prefill))
            requests = [engine.request(0, 7), engine.request(1, 8)]
            self.check_parts(engine, [(request, 9) for request in requests], sampled_prompts=prefill == "sampled")
            engine.step([(request, 1) for request in requests], padded=2)
            report = engine.state.report()
            # 2 samples of 2 heads in 2 KV heads: 4 rows each, fewer where there are fewer keys.
            first = report["layers"][0]
            self.assertEqual(first["rows"], 2 * (2 * 4 + prompts * (1 + 2 + 3 + 6 * 4)))
            self.assertEqual([row["rows"] for row in report["layers"]], [row["row_limit"] for row in report["layers"]])
            path = self.folder / "executed.json"
            allot_vllm.save_report(SimpleNamespace(apply_model=lambda f: [f(SimpleNamespace(allot_state=engine.state))]), path)
            self.assertEqual(json.loads(path.read_text()), report)
            engine.state.reset_counts()
            self.assertEqual(engine.state.report()["layers"][0]["rows"], 0)

    def test_what_is_not_known_of_counting_is_refused(self):
        for asked in ({"count": True}, {"count_rows": 1}, "rows"):
            changed = {"additional_config": {"allot": asked}}
            self.assertIn("count_rows", self.refusal(lambda changed=changed: self.engine(changed=changed)))


class Requests(PluginCase):
    def test_numbers_are_words_of_32_bits_and_a_request_without_them_draws_as_question_0(self):
        state = self.engine(seed=2**32 - 2).state
        state.add_request(1, {"allot_question": 2**32 - 1, "allot_sampling_seed": 2**31})
        state.add_request(2, None)
        self.assertEqual(state.numbers()[1:3].tolist(), [[-2, -(2**31), -1], [-2, 0, 0]])

    def test_a_number_that_is_none_is_logged_and_taken_for_0(self):
        state = self.engine().state
        for wrong in (-1, 2**32, "7", True, 1.5):
            with self.assertLogs("allot_vllm", logging.ERROR) as logs:
                state.add_request(1, {"allot_question": wrong})
            self.assertIn(repr(wrong), logs.output[0])
            self.assertEqual(state.numbers()[1, 2].item(), 0)

    def test_the_model_state_passes_numbers_and_rows_on_under_this_backend_alone(self):
        config = engine_config(self.hf_config())
        request = SimpleNamespace(sampling_params=SimpleNamespace(extra_args={"allot_question": 71}))
        with mock.patch.multiple(
            DefaultModelState,
            __init__=lambda self, *_, **__: None,
            add_request=lambda *_: None,
            prepare_attn=lambda *_, **__: {"built": True},
        ):
            model = SimpleNamespace()
            state = allot_vllm.models.NumberedRequests(config, model)
            state.add_request(2, request)
            rows = torch.tensor([2, 0])
            self.assertEqual(state.prepare_attn(SimpleNamespace(idx_mapping=rows)), {"built": True})
            self.assertEqual(model.allot_state.numbers()[2].tolist(), [1, 0, 71])
            self.assertIs(model.allot_state.rows_of_slots, rows)
            self.assertTrue(model.allot_state.numbered)
            config = engine_config(self.hf_config(), attention_config__backend=AttentionBackendEnum.FLASH_ATTN)
            other = SimpleNamespace()
            state = allot_vllm.models.NumberedRequests(config, other)
            state.add_request(2, request)
            state.prepare_attn(SimpleNamespace(idx_mapping=rows))
            self.assertFalse(hasattr(other, "allot_state"))


@unittest.skipUnless(needs.options.allot, "left out: needs the allot executable (--allot)")
class Export(PluginCase):
    def test_vllm_reads_the_exported_command_to_the_same_schedule(self):
        samples = [38, 7, 2, 2, 6, 2, 2, 5]
        for prefill, caching in (("dense", None), ("sampled", False)):
            conditions = needs.attention_conditions("level", "rows", prefill)
            schedule = needs.tiny_gsm_schedule(self.folder / "schedule.json", samples, conditions)
            words = ["export", "--schedule", schedule, "--format", "vllm", "--model", needs.TINY_GSM, "--out", self.folder / "out"]
            done = subprocess.run([needs.options.allot, *map(str, words)], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            command = shlex.split((self.folder / "out" / "vllm-serve.sh").read_text().splitlines()[1])
            self.assertEqual((command[:3], command[-1]), (["exec", "vllm", "serve"], "$@"))
            with mock.patch.object(current_platform, "device_type", "cpu"):
                parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
            parsed = parser.parse_args(["--model", *command[3:-1]])
            self.assertEqual((parsed.model, parsed.attention_backend), (str(needs.TINY_GSM), "CUSTOM"))
            self.assertEqual(parsed.enable_prefix_caching, caching)
            self.assertEqual(parsed.hf_overrides, json.loads((self.folder / "out" / "hf-overrides.json").read_text()))
            config = transformers.AutoConfig.from_pretrained(needs.TINY_GSM)
            config.update(parsed.hf_overrides)
            read, identity = schedule_of(engine_config(config))
            self.assertEqual((list(read.samples), read.method.estimator), (samples, "level"))
            self.assertEqual((read.method.unit, read.method.prefill), ("rows", prefill))
            self.assertEqual(identity["weights_fingerprint"], read.model["weights_fingerprint"])


class Registration(PluginCase):
    def test_the_plugin_fills_the_slot_custom_and_knows_its_models(self):
        allot_vllm.register()
        allot_vllm.register()
        self.assertIs(AttentionBackendEnum.CUSTOM.get_class(), AllotBackend)
        self.assertEqual(AllotBackend.get_name(), AttentionBackendEnum.CUSTOM.name)
        for name in ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"):
            self.assertIn(f"allot_vllm.models:{name}", repr(ModelRegistry.models[name]).replace("', class_name='", ":"))
            self.assertIs(getattr(allot_vllm.models, name).get_model_state_cls(), allot_vllm.models.NumberedRequests)
        project = tomllib.loads((needs.options.source / "python/allot_vllm/pyproject.toml").read_text())
        self.assertEqual(project["project"]["entry-points"]["vllm.general_plugins"], {"allot": "allot_vllm:register"})

    def test_the_halves_of_the_cache_are_what_the_kernels_take(self):
        shape = AllotBackend.get_kv_cache_shape(11, 32, KV_HEADS, HEAD_DIM)
        for half in torch.empty(shape).unbind(0):
            self.assertEqual((half.is_contiguous(), tuple(half.shape)), (True, (11, KV_HEADS, 32, HEAD_DIM)))
        self.assertEqual(AllotBackend.get_kv_cache_block_dim(16, KV_HEADS, HEAD_DIM), 1)
        self.assertFalse(AllotBackend.indexes_kv_by_block_stride())
        self.assertEqual(AllotMetadataBuilder._cudagraph_support, AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE)

    def test_vllm_refuses_the_backend_for_what_it_does_not_support(self):
        good = {
            "head_size": 128,
            "dtype": torch.bfloat16,
            "kv_cache_dtype": "auto",
            "block_size": 16,
            "use_mla": False,
            "has_sink": False,
            "use_sparse": False,
            "use_mm_prefix": False,
            "use_per_head_quant_scales": False,
            "device_capability": SimpleNamespace(major=9, minor=0),
            "attn_type": "decoder",
        }
        self.assertEqual(AllotBackend.validate_configuration(**good), [])
        for change in (
            {"head_size": 80},
            {"dtype": torch.float32},
            {"kv_cache_dtype": "fp8"},
            {"block_size": 8},
            {"has_sink": True},
            {"use_mla": True},
            {"device_capability": SimpleNamespace(major=7, minor=5)},
            {"attn_type": "encoder_only"},
            {"has_sliding_window": True},
            {"use_kv_connector": True},
        ):
            with self.subTest(change=change):
                self.assertEqual(len(AllotBackend.validate_configuration(**{**good, **change})), 1)


class Refusals(PluginCase):
    def start(self, changed=None, **schedule):
        config = engine_config(self.hf_config(**schedule), **(changed or {}))
        return lambda: allot_vllm.state.state_of(config)

    def test_an_engine_with_options_that_a_schedule_cannot_follow(self):
        for changed, words in (
            ({"parallel_config__tensor_parallel_size": 2}, "tensor_parallel_size is 2"),
            ({"parallel_config__pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
            ({"parallel_config__decode_context_parallel_size": 4}, "decode_context_parallel_size is 4"),
            ({"speculative_config": object()}, "speculative decoding"),
            ({"lora_config": object()}, "enable_lora"),
            ({"kv_transfer_config": object()}, "KV connectors"),
            ({"use_v2_model_runner": False}, "VLLM_USE_V2_MODEL_RUNNER"),
            ({"cache_config__enable_prefix_caching": True}, "enable_prefix_caching=False"),
        ):
            with self.subTest(words=words):
                self.assertIn(words, self.refusal(self.start(changed)))
        dense = needs.attention_conditions(prefill="dense")
        self.start({"cache_config__enable_prefix_caching": True}, attention=dense)()

    def test_a_layer_that_asks_for_other_attention(self):
        config = engine_config(self.hf_config())
        for options, words in (
            ({"sliding_window": 64}, "one of 64 tokens"),
            ({"kv_cache_dtype": "fp8_e4m3"}, "fp8_e4m3"),
            ({"alibi_slopes": [1.0]}, "ALiBi"),
            ({"logits_soft_cap": 30.0}, "soft caps"),
            ({"attn_type": "encoder_only"}, "encoder_only"),
            ({"kv_sharing_target_layer_name": "model.layers.0"}, "share a cache"),
            ({"sinks": torch.ones(4)}, "sinks"),
        ):
            with self.subTest(words=words), mock.patch.object(allot_vllm.backend, "get_current_vllm_config", lambda: config):
                self.assertIn(words, self.refusal(lambda: AllotAttention(HEADS, HEAD_DIM, SCALE, KV_HEADS, **options)))

    def test_another_model(self):
        self.assertIn("no key 'allot'", self.refusal(lambda: allot_vllm.state.state_of(engine_config(self.without_key()))))
        self.assertIn("2 layers, the model has 3", self.refusal(self.start(samples=(1, 2))))
        config = self.hf_config()
        weights = self.folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
        self.assertIn("is for the weights", self.refusal(lambda: allot_vllm.state.state_of(engine_config(config))))
        allot_vllm.state.state_of(engine_config(config, load_config__load_format="dummy"))
        adapter = {"id": "words", "fingerprint": "0" * 64}
        self.assertIn("adapter words", self.refusal(self.start(adapter=adapter)))

    def without_key(self):
        return transformers.AutoConfig.from_pretrained(needs.small_model(self.folder))

    def test_a_key_in_hf_overrides_serves_as_well(self):
        overrides = self.hf_config().allot
        config = self.without_key()
        config.update({"allot": overrides})
        self.assertEqual(allot_vllm.state.state_of(engine_config(config)).schedule, read_schedule(self.hf_config()))

    def test_a_model_whose_requests_have_no_numbers(self):
        config = engine_config(self.hf_config(), model_config__architectures=["PhiForCausalLM"])
        self.assertIn("PhiForCausalLM", self.refusal(lambda: AllotMetadataBuilder(None, [], config, torch.device("cpu"))))

    def test_steps_that_vllm_does_not_make(self):
        self.assertEqual([leading_decodes(counts) for counts in ([1, 1, 5], [4, 2], [1])], [2, 0, 1])
        self.assertIn("0.26.0", self.refusal(lambda: leading_decodes([1, 5, 1])))
        engine = self.engine()
        implementation, layer = engine.layers[0]
        rows = torch.ones(1, HEADS, HEAD_DIM)
        call = [layer, rows, rows, rows, engine.caches[0], None, rows, torch.ones(1)]
        self.assertIn("quantised", self.refusal(lambda: implementation.forward(*call)))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *needs.unittest_options])
