"""States of a forward pass, kept for analyses."""

from __future__ import annotations

from pathlib import Path

import torch

from allot_attention.schedule import ScheduleError


class Recorder:
    """What the last token of a sequence attends with, layer by layer."""

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}

    def add(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """Of query [1, heads, queries, head_dim], times the scale, and a cache [1, kv_heads, capacity, head_dim] that holds
        the tokens up to positions[0, -1] from its beginning."""
        if query.shape[0] != 1 or bool((positions < 0).any()):
            raise ScheduleError(
                f"states are recorded of one sequence without padding, but the pass has {query.shape[0]} of them or padding"
            )
        keys = int(positions[0, -1]) + 1
        for name, states in (("query", query[0, :, -1]), ("key", key[0, :, :keys]), ("value", value[0, :, :keys])):
            self._tensors[f"layers.{layer}.{name}"] = states.float().cpu().contiguous().clone()

    def save(self, path: str | Path, layers: int) -> None:
        """Writes them. Throws ScheduleError unless all layers were recorded."""
        missing = [layer for layer in range(layers) if f"layers.{layer}.query" not in self._tensors]
        if missing:
            raise ScheduleError(f"no states of layer {missing[0]} were recorded; run a forward pass within recording()")
        from safetensors.torch import save_file

        save_file(self._tensors, str(path))
