"""Whether a server can execute its schedule: reads and checks both when the attention backend is made, and refuses with one sentence
what would otherwise run other attention than the schedule says."""

from __future__ import annotations

import logging
import re
from typing import Any

import torch
from allot_attention import operators
from allot_attention.model import check_identity
from allot_attention.schedule import Schedule, ScheduleError, read_schedule
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from allot_sglang import NAME

_log = logging.getLogger("allot_sglang")
_NUMBERS = re.compile(r"allot:(?P<question>\d+)(:(?P<seed>\d+)(:.*)?)?", re.DOTALL)


def numbers_of(rid: str) -> dict[str, Any]:
    """Question and sampling seed in the name of a request, "allot:QUESTION", "allot:QUESTION:SEED" or "allot:QUESTION:SEED:anything";
    none in other names."""
    if not rid.startswith("allot:"):
        return {}
    found = _NUMBERS.fullmatch(rid)
    if found is None:
        return {"allot_question": rid}  # no number, which whoever notes it says
    return {"allot_question": int(found["question"]), "allot_sampling_seed": int(found["seed"] or 0)}


def schedule_of(runner: Any) -> tuple[Schedule, dict[str, Any] | None]:
    """The schedule in the model's config.json or in --json-model-override-args, and what identifies the model's weights (None of
    SGLang's dummies). Throws ScheduleError where it cannot be followed."""
    args = runner.server_args
    _refuse_server(runner, args)
    schedule = read_schedule(runner.model_config.hf_config)
    if schedule.method.prefill == "sampled" and not args.disable_radix_cache:
        raise ScheduleError(
            "the schedule samples prompts, so a prompt's keys and values belong to its question, but the radix cache would give them to "
            "others; set --disable-radix-cache"
        )
    identity = _check_weights(runner, args, schedule)
    _refuse_cache(runner.token_to_kv_pool, runner.page_size)
    missing = operators.load()
    if missing:
        raise ScheduleError(f"allot's operators cannot run, and allot_sglang has nothing else: {missing}")
    return schedule, identity


def counts_rows(runner: Any) -> bool:
    """Whether the kernels are to count value rows: --json-model-override-args '{"allot_count_rows": true}', since SGLang has no options
    for its plugins. Throws ScheduleError for anything but true and false."""
    asked = getattr(runner.model_config.hf_config, "allot_count_rows", False)
    if not isinstance(asked, bool):
        raise ScheduleError(f"the model's configuration has allot_count_rows={asked!r}; expected true or false")
    return asked


def _refuse_server(runner: Any, args: Any) -> None:
    for name in ("tp_size", "pp_size", "attn_cp_size", "dcp_size"):
        size = getattr(args, name)
        if size > 1:
            raise ScheduleError(f"allot_sglang runs a model on one GPU, but {name} is {size}; set it to 1")
    if args.speculative_algorithm is not None or getattr(runner, "is_draft_worker", False):
        raise ScheduleError("allot_sglang knows no speculative decoding; leave out --speculative-algorithm")
    if args.enable_lora or args.lora_paths:
        raise ScheduleError(
            "a schedule is for the weights that it was learned with, which adapters of requests change; leave out --enable-lora and "
            "--lora-paths"
        )
    options = {
        "enable_mixed_chunk": "steps that mix prompts and requests that decode",
        "enable_two_batch_overlap": "batches that are split in two",
        "enable_hierarchical_cache": "a cache that moves to the host",
        "enable_pdmux": "prompts beside decoding on one GPU (PD multiplexing)",
        "enable_dp_attention": "data-parallel attention",
        "dllm_algorithm": "diffusion models",
    }
    for name, what in options.items():
        if getattr(args, name):
            raise ScheduleError(f"allot_sglang knows no {what}; leave out --{name.replace('_', '-')}")
    if args.disaggregation_mode != "null":
        raise ScheduleError("allot_sglang knows no disaggregation of prompts and decoding; leave out --disaggregation-mode")
    for phase in ("prefill", "decode"):
        name = getattr(runner, f"{phase}_attention_backend_str")
        if name != NAME:
            raise ScheduleError(
                f"the attention backend of {phase} is {name}, which does not follow the schedule; set --attention-backend {NAME} and leave "
                f"out --{phase}-attention-backend"
            )
    if not (args.disable_cuda_graph or args.disable_prefill_cuda_graph or args.cuda_graph_backend_prefill == "disabled"):
        raise ScheduleError("allot_sglang runs prompts without CUDA graphs; set --disable-prefill-cuda-graph")
    window = runner.sliding_window_size
    if window is not None and window > 0:
        raise ScheduleError(
            f"allot_sglang knows no sliding windows, but the model has one of {window} tokens; use another attention backend"
        )


def _refuse_cache(pool: Any, page_size: int) -> None:
    if type(pool) is not MHATokenToKVPool:
        raise ScheduleError(
            f"allot_sglang reads the cache MHATokenToKVPool, but the model's is {type(pool).__name__}; use another attention backend"
        )
    if pool.kv_cache_layout != "hnd":
        raise ScheduleError(
            f"allot's kernels read head-major pages, but the cache's layout is {pool.kv_cache_layout}; start the server with "
            "SGLANG_USE_HND_KVCACHE=1 in its environment"
        )
    if page_size % 16 != 0:
        raise ScheduleError(f"allot's kernels read pages of multiples of 16 tokens, but page_size is {page_size}; set --page-size 16")
    known = (torch.float32, torch.bfloat16) if torch.device(pool.device).type == "cpu" else (torch.bfloat16, torch.float16)
    if pool.dtype not in known:
        raise ScheduleError(
            f"allot's kernels read caches of {' and '.join(map(str, known))} on {pool.device}, but this one is {pool.dtype}; set "
            "--kv-cache-dtype auto"
        )


def _check_weights(runner: Any, args: Any, schedule: Schedule) -> dict[str, Any] | None:
    adapter = schedule.model.get("adapter")
    if adapter is not None:
        raise ScheduleError(
            f"the schedule was learned with the adapter {adapter.get('id')}, which allot_sglang cannot put on a model; export a model "
            "with it merged: allot export --format hf-model --model DIR --adapter DIR"
        )
    if args.load_format == "dummy":
        _log.warning("the weights are SGLang's dummies, so they are not compared with those of the schedule")
        return None
    return check_identity(runner.model_config.hf_config, schedule)


def refuse_layer(layer: Any, options: dict[str, Any]) -> None:
    """Throws ScheduleError where an attention layer asks for what the kernels do not have."""
    if layer.sliding_window_size > 0:
        raise ScheduleError(
            f"allot_sglang knows no sliding windows, but layer {layer.layer_id} has one of {layer.sliding_window_size} tokens; use another "
            "attention backend"
        )
    if layer.attn_type != AttentionType.DECODER or layer.is_cross_attention:
        raise ScheduleError(
            f"allot_sglang knows causal attention of decoders only, but layer {layer.layer_id} has other; use another attention backend"
        )
    asked = {
        "soft caps of scores": layer.logit_cap > 0,
        "values of another size than the keys": layer.v_head_dim != layer.qk_head_dim,
        "scores that change with the position (xai_temperature_len)": layer.xai_temperature_len > 0,
        **{name: value is not None for name, value in options.items()},
    }
    for name, value in asked.items():
        if value:
            raise ScheduleError(
                f"allot_sglang knows no {name}, but layer {layer.layer_id} asks for it; use another attention backend"
            )
