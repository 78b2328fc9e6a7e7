"""What the layers, the metadata builder and the model state of one engine share in its worker."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from allot_attention.paged import Counts, RequestNumbers, kernel_arguments
from allot_attention.schedule import Schedule, ScheduleError

from allot_vllm.settings import counts_rows, schedule_of

_log = logging.getLogger("allot_vllm")


class State:
    """Schedule, workspace of the kernels, numbers of the requests and counts of one engine."""

    def __init__(
        self,
        schedule: Schedule,
        max_requests: int,
        device: torch.device,
        *,
        identity: Mapping[str, Any] | None = None,
        count_rows: bool = False,
    ):
        self.schedule = schedule
        self.identity = identity
        self.device = device
        self.workspace: torch.Tensor | None = None
        self._norms_room: torch.Tensor | None = None
        self.numbered = False  # the model passes the numbers of its requests on
        self.rows_of_slots: torch.Tensor | None = None  # int32 [requests of the step]: slot of each row
        self._numbers = RequestNumbers(schedule.seed, max_requests, device, _log)
        self.counts = Counts(schedule, device)
        # By layer and row of a step, what the kernels have read; None where they are not to count.
        self.rows_read: torch.Tensor | None = None
        if count_rows:
            self.rows_read = torch.zeros(len(schedule.samples), max_requests, dtype=torch.int64, device=device)

    def numbers(self) -> torch.Tensor:
        """int32 [slots, 3] on the device: run seed, sampling seed, question."""
        return self._numbers.on_device()

    def add_request(self, slot: int, extra_args: Mapping[str, Any] | None) -> None:
        """Notes question and sampling seed of the request that now has this slot."""
        self._numbers.set(slot, extra_args or {})

    def reserve_workspace(self, num_heads: int, num_kv_heads: int, head_size: int, vllm_config: Any) -> None:
        """Allocates the workspace for every launch of this engine, once; before the cache, so that vLLM's profiling counts it.
        Throws what the kernels say of shapes and estimators that they do not have."""
        if self.workspace is not None:
            return
        method = self.schedule.method
        scheduler, model = vllm_config.scheduler_config, vllm_config.model_config
        batch, length = scheduler.max_num_seqs, model.max_model_len
        block = vllm_config.cache_config.block_size or 16
        tokens = max(scheduler.max_num_batched_tokens, batch)

        def bytes_of(queries: int, max_queries: int, estimator: str) -> int:
            def empty(*shape: int, dtype: torch.dtype = model.dtype) -> torch.Tensor:
                return torch.empty(shape, dtype=dtype, device=self.device)

            sampled = estimator != "exact"
            result: int = torch.ops.allot.workspace_bytes(
                empty(queries, num_heads, head_size),
                empty(1, num_kv_heads, block, head_size),
                empty(1, num_kv_heads, block, head_size),
                empty(batch, -(-length // block), dtype=torch.int32),
                empty(batch + 1, dtype=torch.int64),
                empty(batch, dtype=torch.int32),
                empty(batch, dtype=torch.int32) if sampled else None,
                empty(batch, 3, dtype=torch.int32) if sampled else None,
                scale=1.0,
                max_queries=max_queries,
                max_length=length,
                rows_read=empty(batch, dtype=torch.int64) if sampled and self.rows_read is not None else None,
                value_norms=empty(1, num_kv_heads, block, dtype=torch.float32) if sampled and method.value_norms else None,
                **self.arguments(estimator, max(s or 0 for s in self.schedule.samples)),
            )
            return result

        needed = bytes_of(batch, 1, method.estimator)
        if None in self.schedule.samples:
            needed = max(needed, bytes_of(batch, 1, "exact"))
        if method.prefill == "sampled":
            needed = max(needed, bytes_of(tokens, min(tokens, length), method.estimator))
        self.workspace = torch.empty(max(needed, 1), dtype=torch.uint8, device=self.device)
        torch.ops.allot.reset_workspace(self.workspace)
        _log.info("allot's workspace for %d requests of up to %d tokens takes %.0f MB", batch, length, needed / 1e6)

        if method.value_norms and self.device.type == "cuda":
            self._reserve_norms_room(vllm_config.cache_config.gpu_memory_utilization, head_size * model.dtype.itemsize)

    def _reserve_norms_room(self, share: float, vector_bytes: int) -> None:
        """Holds memory while vLLM measures how much of the GPU's it can give the cache, whose norms are made after it: a float for
        each pair of a key and a value."""
        _, total = torch.cuda.mem_get_info(self.device)
        most = int(total * share * 4 / (2 * vector_bytes + 4))
        self._norms_room = torch.empty(most, dtype=torch.uint8, device=self.device)
        _log.info("up to %.0f MB are held for norms of values", most / 1e6)

    def release_norms_room(self) -> None:
        self._norms_room = None

    def arguments(self, estimator: str, budget: int) -> dict[str, Any]:
        """What a launch takes of the schedule's conditions."""
        return kernel_arguments(self.schedule, estimator, budget)

    def is_exact(self, layer: int) -> bool:
        return self.schedule.samples[layer] is None or self.schedule.method.estimator == "exact"

    def reset_counts(self) -> None:
        self.counts.values.zero_()
        if self.rows_read is not None:
            self.rows_read.zero_()

    def report(self) -> dict[str, Any]:
        if self.workspace is not None:
            torch.ops.allot.check(self.workspace)
        return self.counts.report("allot_vllm", self.identity, self.rows_read)


# By the identity of the compilation configuration, which all parts of an engine's worker have in common.
_states: dict[int, tuple[weakref.ref[Any], State]] = {}


def state_of(vllm_config: Any) -> State:
    """The state of this engine; reads and checks its schedule at the first call. Throws ScheduleError."""
    key = vllm_config.compilation_config
    found = _states.get(id(key))
    if found is not None and found[0]() is key:
        return found[1]
    device = torch.device(vllm_config.device_config.device)
    schedule, identity = schedule_of(vllm_config)
    requests = vllm_config.scheduler_config.max_num_seqs
    state = State(schedule, requests, device, identity=identity, count_rows=counts_rows(vllm_config))
    number = id(key)
    _states[number] = (weakref.ref(key, lambda _: _states.pop(number, None)), state)
    return state


def _state_of_model(model: Any) -> State:
    state = getattr(model, "allot_state", None)
    if not isinstance(state, State):
        raise ScheduleError("this engine does not run allot's attention; start it with attention_config={'backend': 'CUSTOM'}")
    return state


def report_of_worker(model: Any) -> dict[str, Any]:
    return _state_of_model(model).report()


def reset_worker(model: Any) -> None:
    _state_of_model(model).reset_counts()
