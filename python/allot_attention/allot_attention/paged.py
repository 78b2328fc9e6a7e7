"""What the plugins of serving engines share: schedule, numbers of the requests, workspace and counts of one engine whose paged cache
the kernels read in place."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from allot_attention.executed import LayerCount, make_report, row_limit
from allot_attention.schedule import Schedule

_WORDS = 2**32


def kernel_arguments(schedule: Schedule, estimator: str, budget: int) -> dict[str, Any]:
    """What a launch takes of the schedule's conditions."""
    if estimator == "exact":
        return {"estimator": "exact"}
    return {**schedule.method.arguments(), "estimator": estimator, "max_budget": budget}


class ValueNorms:
    """The norms of a layer's values in an engine's paged cache, written where the engine writes these. A schedule that has no
    use for them costs nothing."""

    def __init__(self, schedule: Schedule, layer: int):
        budget = schedule.samples[layer]
        self._used = schedule.method.value_norms and budget is not None
        self._norms: torch.Tensor | None = None

    def of(self, value_pages: torch.Tensor) -> torch.Tensor | None:
        """Those of pages [num_pages, kv_heads, page_size, head_dim], float32 [num_pages, kv_heads, page_size]; None where
        nobody asks for them. Always the same memory for pages of one shape."""
        if not self._used:
            return None
        if self._norms is None or self._norms.shape != value_pages.shape[:3]:
            # Not filled: a graph that is being captured would fill them again at every replay.
            self._norms = torch.empty(value_pages.shape[:3], dtype=torch.float32, device=value_pages.device)
        return self._norms

    def store(self, values: torch.Tensor, slots: torch.Tensor, value_pages: torch.Tensor) -> None:
        """Notes that values [tokens, kv_heads, head_dim] were written to these slots, int64 [tokens]; a negative one is none."""
        norms = self.of(value_pages)
        if norms is not None:
            torch.ops.allot.store_value_norms(values, slots, norms)


class RequestNumbers:
    """Run seed, sampling seed and question by an engine's slot of a request, as the kernels take them."""

    def __init__(self, run_seed: int, slots: int, device: torch.device, log: logging.Logger):
        self._log = log
        self._numbers = torch.zeros(slots, 3, dtype=torch.int64)
        self._numbers[:, 0] = run_seed
        self._stale = True
        self._on_device = torch.zeros(slots, 3, dtype=torch.int32, device=device)

    def on_device(self) -> torch.Tensor:
        """int32 [slots, 3], the bits of unsigned words; always the same memory."""
        if self._stale:
            words = torch.where(self._numbers >= _WORDS // 2, self._numbers - _WORDS, self._numbers)
            self._on_device.copy_(words.to(torch.int32))
            self._stale = False
        return self._on_device

    def set(self, slot: int, given: Mapping[str, Any]) -> None:
        """Notes `allot_question` and `allot_sampling_seed` of the request that now has this slot. A request cannot be refused
        here without ending the engine, so a value that is no number of 32 bits is logged and taken for 0."""
        for column, name in ((1, "allot_sampling_seed"), (2, "allot_question")):
            value = given.get(name, 0)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _WORDS:
                self._log.error("%s of a request is %r; expected 0 to 4294967295; its draws are those of 0", name, value)
                value = 0
            self._numbers[slot, column] = value
        self._stale = True


class Counts:
    """What the layers of an engine executed, in device memory, since the budgets are there."""

    def __init__(self, schedule: Schedule, device: torch.device):
        self._schedule = schedule
        exact = [budget is None or schedule.method.estimator == "exact" for budget in schedule.samples]
        samples = [0 if alone else budget or 0 for alone, budget in zip(exact, schedule.samples)]
        # int32 [layers, 1]: what a token of a layer may draw, 0 in exact layers.
        self.samples = torch.tensor(samples, dtype=torch.int32, device=device)[:, None]
        limits = [row_limit(schedule, count) for count in samples]
        self._row_limits = torch.tensor(limits, dtype=torch.int64, device=device)[:, None]
        self._is_exact = torch.tensor(exact, device=device)
        # By layer: tokens sampled, samples asked for, tokens exact, most rows that may be read.
        self.values = torch.zeros(len(samples), 4, dtype=torch.int64, device=device)

    def add(self, budgets: torch.Tensor, lengths: torch.Tensor, queries: torch.Tensor, exact_tokens: int | torch.Tensor) -> None:
        """Adds a step: budgets [layers, rows], lengths [rows] with the new tokens and the number of these, queries [rows], of
        the rows that the schedule lets sample, and the tokens of other rows, which every layer computes exactly."""
        sampled = queries.sum()
        self.values[:, 0] += torch.where(self._is_exact, 0, sampled)
        self.values[:, 1] += (budgets * queries).sum(1)
        self.values[:, 2] += torch.where(self._is_exact, sampled + exact_tokens, exact_tokens)
        # A request's new tokens see as many keys as it is long, and one less each before the last.
        keys = lengths.long()
        self.values[:, 3] += (self._rows_of(keys) - self._rows_of(keys - queries)).sum(1)

    def _rows_of(self, keys: torch.Tensor) -> torch.Tensor:
        """The sum of min(k, limit) over k = 1 to `keys` [rows], by layer: int64 [layers, rows]."""
        few = torch.minimum(keys, self._row_limits)
        return few * (few + 1) // 2 + (keys - few) * self._row_limits

    def report(self, engine: str, identity: Mapping[str, Any] | None, rows_read: torch.Tensor | None) -> dict[str, Any]:
        """The report of docs/schedule-format.md, "What was executed"; rows_read [layers, rows] where the kernels counted."""
        read = None if rows_read is None else rows_read.sum(1).tolist()
        layers = [
            LayerCount(
                sampled_tokens=sampled,
                exact_tokens=exact,
                samples=samples,
                rows=None if read is None else read[number],
                row_limit=limit * self._schedule.model["num_kv_heads"],
            )
            for number, (sampled, samples, exact, limit) in enumerate(self.values.tolist())
        ]
        return make_report(engine, "operators", self._schedule, identity, layers)
