"""SGLang with the sampled attention that an allot schedule asks for: a plugin that adds the attention backend "allot".

    SGLANG_USE_HND_KVCACHE=1 python3 -m sglang.launch_server --model-path exported --attention-backend allot --page-size 16 \
        --disable-prefill-cuda-graph

The directory's config.json is what `allot export --format hf-model` wrote. README.md says what is followed and what is refused.
"""

from __future__ import annotations

from typing import Any

__all__ = ["NAME", "register", "reset", "save_report"]

NAME = "allot"


def register() -> None:
    """Makes "allot" a choice of --attention-backend. SGLang calls it in every process before it reads the command line; no kernel is
    loaded."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.server_args import add_attention_backend_choices

    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])
    register_attention_backend(NAME)(_backend)


def _backend(runner: Any) -> Any:
    from allot_sglang.backend import AllotAttnBackend

    return AllotAttnBackend(runner)


def save_report(engine: Any, path: Any) -> None:
    """Writes what every layer did since the engine started or reset(), for `allot verify --executed`. `engine` is SGLang's Engine;
    its scheduler writes the file. Raises where a launch found a fault."""
    engine.collective_rpc("allot_save_report", path=str(path))


def reset(engine: Any) -> None:
    """Lets the counts of save_report() begin at 0."""
    engine.collective_rpc("allot_reset")
