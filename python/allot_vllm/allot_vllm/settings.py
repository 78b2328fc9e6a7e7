"""Whether an engine can execute its schedule: reads and checks both when the first attention layer is made, and refuses with one
sentence what would otherwise run other attention than the schedule says."""

from __future__ import annotations

import logging
from typing import Any

from allot_attention import operators
from allot_attention.model import check_identity
from allot_attention.schedule import Schedule, ScheduleError, read_schedule

_log = logging.getLogger("allot_vllm")


def schedule_of(vllm_config: Any) -> tuple[Schedule, dict[str, Any] | None]:
    """The schedule in the model's config.json or in hf_overrides, and what identifies the model's weights (None of vLLM's
    dummies). Throws ScheduleError where it cannot be followed."""
    _refuse_engine(vllm_config)
    model = vllm_config.model_config
    schedule = read_schedule(model.hf_config)
    if schedule.method.prefill == "sampled" and vllm_config.cache_config.enable_prefix_caching:
        raise ScheduleError(
            "the schedule samples prompts, so a prompt's keys and values belong to its question, but prefix caching would give them "
            "to others; set enable_prefix_caching=False"
        )
    identity = _check_weights(vllm_config, schedule)
    missing = operators.load()
    if missing:
        raise ScheduleError(f"allot's operators cannot run, and allot_vllm has nothing else: {missing}")
    return schedule, identity


def counts_rows(vllm_config: Any) -> bool:
    """Whether the kernels are to count value rows: additional_config={"allot": {"count_rows": true}}. Throws ScheduleError for
    anything else under that key."""
    additional = getattr(vllm_config, "additional_config", None)
    asked = additional.get("allot", {}) if isinstance(additional, dict) else {}
    if not isinstance(asked, dict) or set(asked) - {"count_rows"} or not isinstance(asked.get("count_rows", False), bool):
        raise ScheduleError(f"additional_config has allot={asked!r}; expected {{'count_rows': true}} or {{'count_rows': false}}")
    return bool(asked.get("count_rows", False))


def _refuse_engine(vllm_config: Any) -> None:
    parallel = vllm_config.parallel_config
    for name in (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
    ):
        size = getattr(parallel, name, 1)
        if size > 1:
            raise ScheduleError(f"allot_vllm runs a model on one GPU, but {name} is {size}; set it to 1")
    if vllm_config.speculative_config is not None:
        raise ScheduleError("allot_vllm knows no speculative decoding; leave out speculative_config")
    if vllm_config.lora_config is not None:
        raise ScheduleError(
            "a schedule is for the weights that it was learned with, which adapters of requests change; leave out enable_lora"
        )
    if vllm_config.kv_transfer_config is not None:
        raise ScheduleError("allot_vllm knows no KV connectors; leave out kv_transfer_config")
    if not vllm_config.use_v2_model_runner:
        raise ScheduleError(
            "allot_vllm learns the numbers of requests from vLLM's model runner V2, which this engine does not use; unset "
            "VLLM_USE_V2_MODEL_RUNNER, or leave out the option that vLLM's log names beside it"
        )


def _check_weights(vllm_config: Any, schedule: Schedule) -> dict[str, Any] | None:
    adapter = schedule.model.get("adapter")
    if adapter is not None:
        raise ScheduleError(
            f"the schedule was learned with the adapter {adapter.get('id')}, which allot_vllm cannot put on a model; export "
            "a model with it merged: allot export --format hf-model --model DIR --adapter DIR"
        )
    if vllm_config.load_config.load_format == "dummy":
        _log.warning("the weights are vLLM's dummies, so they are not compared with those of the schedule")
        return None
    return check_identity(vllm_config.model_config.hf_config, schedule)


def refuse_layer(
    *,
    alibi_slopes: Any,
    sliding_window: Any,
    kv_cache_dtype: str,
    logits_soft_cap: Any,
    attn_type: str,
    kv_sharing_target_layer_name: Any,
    options: dict[str, Any],
) -> None:
    """Throws ScheduleError where an attention layer asks for what the kernels do not have."""
    if sliding_window is not None:
        raise ScheduleError(
            f"allot_vllm knows no sliding windows, but the model has one of {sliding_window} tokens; use another attention backend"
        )
    if kv_cache_dtype not in ("auto", "bfloat16", "float16"):
        raise ScheduleError(f"allot_vllm reads caches of bfloat16 and float16, but kv_cache_dtype is {kv_cache_dtype}; use auto")
    if attn_type != "decoder":
        raise ScheduleError(
            f"allot_vllm knows causal attention of decoders only, not {attn_type}; use another attention backend"
        )
    asked = {
        "ALiBi": alibi_slopes,
        "soft caps of scores": logits_soft_cap or None,
        "layers that share a cache": kv_sharing_target_layer_name,
        "attention sinks": options.get("sinks"),
    }
    for name, value in asked.items():
        if value is not None:
            raise ScheduleError(f"allot_vllm knows no {name}, but the model asks for them; use another attention backend")
