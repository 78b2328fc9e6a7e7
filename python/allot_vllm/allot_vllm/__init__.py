"""vLLM with the sampled attention that an allot schedule asks for: a general plugin with a custom attention backend.

    llm = LLM("exported", attention_config={"backend": "CUSTOM"})
    llm.generate(prompts, [SamplingParams(extra_args={"allot_question": 17})])

The directory's config.json is what `allot export --format hf-config` wrote. README.md says what is followed and what is refused.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register", "report", "reset", "save_report"]

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def register() -> None:
    """Makes the attention backend CUSTOM allot's, and lets the models that allot knows pass the numbers of their requests on.
    vLLM calls it in every process, more than once; nothing heavy is imported."""
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "allot_vllm.backend.AllotBackend")
    for name in _ARCHITECTURES:
        ModelRegistry.register_model(name, f"allot_vllm.models:{name}")


def report(llm: Any) -> list[dict[str, Any]]:
    """What every layer did since the engine started (its warm-up included) or reset(), one entry a worker, in the form of
    docs/schedule-format.md ("What was executed"). Value rows are counted where the engine was started with
    additional_config={"allot": {"count_rows": True}}. Waits for the device and raises where a launch found a fault. A function is sent to the workers, which
    vLLM does only with VLLM_ALLOW_INSECURE_SERIALIZATION=1 or VLLM_ENABLE_V1_MULTIPROCESSING=0."""
    from allot_vllm.state import report_of_worker

    result: list[dict[str, Any]] = llm.apply_model(report_of_worker)
    return result


def save_report(llm: Any, path: Any) -> None:
    """Writes report() to a file, for `allot verify --executed`."""
    from allot_attention.executed import write_report

    (only,) = report(llm)  # one GPU a model, so one worker
    write_report(only, path)


def reset(llm: Any) -> None:
    """Lets the counts of report() begin at 0."""
    from allot_vllm.state import reset_worker

    llm.apply_model(reset_worker)
