"""The attention backend "allot": the layers' attention over SGLang's head-major cache, which allot's kernels read in place."""

from __future__ import annotations

import logging
import sys
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from allot_attention.executed import write_report
from allot_attention.paged import Counts, RequestNumbers, ValueNorms, kernel_arguments
from allot_attention.schedule import ScheduleError
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from allot_sglang.settings import counts_rows, numbers_of, refuse_layer, schedule_of

_log = logging.getLogger("allot_sglang")


@dataclass
class Step:
    """What the layers of a step share."""

    tokens: int
    query_start: torch.Tensor  # int64 [requests + 1]
    lengths: torch.Tensor  # int32 [requests], new tokens included
    page_table: torch.Tensor  # int32 [requests, pages]
    budgets: torch.Tensor  # int32 [layers, requests]; 0 in rows that pad a graph
    draws: torch.Tensor  # int32 [requests, 3]
    max_queries: int
    max_length: int
    exact: bool  # a prompt that the schedule does not sample


class AllotAttnBackend(AttentionBackend):
    """Requests that decode are sampled, prompts where the schedule says so. Throws ScheduleError where the server cannot follow its
    schedule."""

    # Without them a step has no bound of its lengths but the model's, so that all of a table's width is planned for.
    needs_cpu_seq_lens = True

    def __init__(self, runner: Any):
        super().__init__()
        self.schedule, self.identity = schedule_of(runner)
        self.device = torch.device(runner.device)
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.page_size: int = runner.page_size
        self.data_type = self.kv_cache_dtype = self.token_to_kv_pool.dtype
        self._dtype: torch.dtype = runner.dtype
        self.max_length: int = runner.model_config.context_len
        table = runner.req_to_token_pool.req_to_token
        # Slots of the first token of every page: [requests, pages]
        self._first_slots = table[:, :: self.page_size]
        self.numbers = RequestNumbers(self.schedule.seed, table.shape[0], self.device, _log)
        self.counts = Counts(self.schedule, self.device)
        # By layer and row of a step, what the kernels have read, int64; None where they are not to count.
        self.rows_read: torch.Tensor | None = None
        self._count_rows = counts_rows(runner)
        self._norms = [ValueNorms(self.schedule, layer) for layer in range(len(self.schedule.samples))]
        pages = [self.token_to_kv_pool.get_kv_buffer(number)[1] for number in range(len(self._norms))]
        made = [norms.of(values) for norms, values in zip(self._norms, pages)]
        if self.schedule.method.value_norms:
            _log.info("norms of values take %.0f MB", sum(norms.nbytes for norms in made if norms is not None) / 1e6)
        self.forward_metadata: Step | None = None
        self._checked: set[int] = set()
        self._decode_workspace: torch.Tensor | None = None
        self._prompt_workspace: torch.Tensor | None = None
        self._rows = 0
        self._captured = False
        self._reserve(table.shape[0])
        _offer_reports(self)

    # Buffers that keep their addresses, because a captured step reads them again at every replay.

    def _reserve(self, rows: int) -> None:
        if rows <= self._rows:
            return
        if self._captured:
            raise ScheduleError(
                f"a step has {rows} requests, but the CUDA graphs were captured with memory for {self._rows}, which allot_sglang does not "
                "expect of SGLang 0.5.23; install that version"
            )
        self._rows = rows
        layers = len(self.schedule.samples)
        self._one_each = torch.arange(rows + 1, dtype=torch.int64, device=self.device)
        self._lengths = torch.ones(rows, dtype=torch.int32, device=self.device)
        self._budgets = torch.zeros(layers, rows, dtype=torch.int32, device=self.device)
        self._draws = torch.zeros(rows, 3, dtype=torch.int32, device=self.device)
        self._page_table = torch.zeros(rows, self._first_slots.shape[1], dtype=torch.int32, device=self.device)
        if self._count_rows:
            counted = self.rows_read
            self.rows_read = torch.zeros(layers, rows, dtype=torch.int64, device=self.device)
            if counted is not None:
                self.rows_read[:, : counted.shape[1]] = counted
        estimators = {self.schedule.method.estimator} | ({"exact"} if None in self.schedule.samples else set())
        needed = max(self._workspace_bytes(rows, rows, 1, self.max_length, estimator) for estimator in estimators)
        self._decode_workspace = self._workspace_of(needed)
        _log.info("allot's workspace for %d requests of up to %d tokens takes %.0f MB", rows, self.max_length, needed / 1e6)

    def _workspace_of(self, size: int) -> torch.Tensor:
        workspace = torch.empty(max(size, 1), dtype=torch.uint8, device=self.device)
        torch.ops.allot.reset_workspace(workspace)
        return workspace

    def _workspace_bytes(self, rows: int, queries: int, max_queries: int, length: int, estimator: str) -> int:
        model = self.schedule.model

        def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=self.device)

        page = empty(1, model["num_kv_heads"], self.page_size, model["head_dim"], dtype=self.data_type)
        sampled = estimator != "exact"
        result: int = torch.ops.allot.workspace_bytes(
            empty(queries, model["num_q_heads"], model["head_dim"], dtype=self._dtype),
            page,
            page,
            empty(rows, -(-length // self.page_size), dtype=torch.int32),
            empty(rows + 1, dtype=torch.int64),
            empty(rows, dtype=torch.int32),
            empty(rows, dtype=torch.int32) if sampled else None,
            empty(rows, 3, dtype=torch.int32) if sampled else None,
            scale=1.0,
            max_queries=max_queries,
            max_length=length,
            rows_read=empty(rows, dtype=torch.int64) if sampled and self._count_rows else None,
            value_norms=empty(*page.shape[:3], dtype=torch.float32) if sampled and self.schedule.method.value_norms else None,
            **kernel_arguments(self.schedule, estimator, max(samples or 0 for samples in self.schedule.samples)),
        )
        return result

    # What SGLang calls before the layers of a step.

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        self._reserve(max_bs)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        mode = forward_batch.forward_mode
        if mode == ForwardMode.DECODE:
            self.forward_metadata = self._decode_step(forward_batch, in_capture)
        elif mode == ForwardMode.EXTEND:
            self.forward_metadata = self._prompt_step(forward_batch)
        elif mode == ForwardMode.IDLE:
            self.forward_metadata = None
        else:
            raise ScheduleError(
                f"allot_sglang knows steps of prompts and steps that decode, not {mode.name}; leave out the option that asks for it"
            )

    def _decode_step(self, batch: Any, in_capture: bool) -> Step:
        rows = batch.batch_size
        self._reserve(rows)
        self._captured |= in_capture
        slots = batch.req_pool_indices[:rows]
        # Rows that pad a graph, and all of its capture, have SGLang's padding request, the first; they read nothing with budget 0.
        real = slots > 0
        padded = getattr(batch, "num_padding", 0) or 0
        if padded:
            real[rows - padded :] = False
        lengths, budgets = self._lengths[:rows], self._budgets[:, :rows]
        lengths.copy_(batch.seq_lens[:rows].clamp(min=1))
        torch.mul(self.counts.samples, real, out=budgets)
        torch.index_select(self.numbers.on_device(), 0, slots, out=self._draws[:rows])
        # A graph keeps the bound of its capture.
        bound = None if in_capture else batch.seq_lens_cpu
        self.counts.add(budgets, lengths, real.int(), 0)
        return Step(
            tokens=rows,
            query_start=self._one_each[: rows + 1],
            lengths=lengths,
            page_table=self._pages_of(slots, self._page_table[:rows]),
            budgets=self._budgets,
            draws=self._draws[:rows],
            max_queries=1,
            max_length=self.max_length if bound is None else max(int(bound[:rows].max()), 1),
            exact=False,
        )

    def _prompt_step(self, batch: Any) -> Step:
        slots = batch.req_pool_indices
        self._note_requests(batch)
        rows, counts = len(slots), batch.extend_seq_lens_cpu
        queries = batch.extend_seq_lens.to(torch.int64)
        start = torch.zeros(rows + 1, dtype=torch.int64, device=self.device)
        start[1:] = queries.cumsum(0)
        lengths = batch.seq_lens.to(torch.int32)
        real = slots > 0
        budgets = self.counts.samples * real
        exact = self.schedule.method.prefill == "dense"
        if exact:
            none = slice(0, 0)
            self.counts.add(budgets[:, none], lengths[none], queries[none], (queries * real).sum())
        else:
            self.counts.add(budgets, lengths, queries * real, 0)
        table = torch.empty(rows, self._first_slots.shape[1], dtype=torch.int32, device=self.device)
        known = batch.seq_lens_cpu
        return Step(
            tokens=sum(counts),
            query_start=start,
            lengths=lengths,
            page_table=self._pages_of(slots, table),
            budgets=budgets,
            draws=self.numbers.on_device()[slots],
            max_queries=max(counts),
            max_length=self.max_length if known is None else int(known.max()),
            exact=exact,
        )

    def _note_requests(self, batch: Any) -> None:
        """A request begins with a step of its prompt, and begins again with one where it was retracted, so its numbers are known
        before it decodes."""
        rids = getattr(batch, "rids", None)
        if not rids:
            return
        slots = batch.req_pool_indices_cpu if batch.req_pool_indices_cpu is not None else batch.req_pool_indices
        for rid, slot in zip(rids, slots.tolist()):
            self.numbers.set(slot, numbers_of(rid))

    def _pages_of(self, slots: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        torch.index_select(self._first_slots, 0, slots, out=table)
        return table.floor_divide_(self.page_size)

    # What it calls in every layer.

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """q [tokens, heads * head_dim] of one token a request, k and v [tokens, kv_heads, head_dim]; returns the shape of q."""
        return self._layer(q, k, v, layer, forward_batch, save_kv_cache, kwargs)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The same for the new tokens of prompts, one request after another; rows behind them are 0."""
        return self._layer(q, k, v, layer, forward_batch, save_kv_cache, kwargs)

    def _layer(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        batch: Any,
        save_kv_cache: bool,
        options: dict[str, Any],
    ) -> torch.Tensor:
        number = layer.layer_id
        if number not in self._checked or options:
            refuse_layer(layer, options)
            self._checked.add(number)
        step = self.forward_metadata
        assert step is not None
        if k is None or v is None:
            raise ScheduleError(f"layer {number} shares another's cache, which allot_sglang does not know; use another attention backend")
        if save_kv_cache:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(batch.out_cache_loc, None), k, v)
        query = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = torch.empty_like(query)
        out[step.tokens :].zero_()
        key_pages, value_pages = self.token_to_kv_pool.get_kv_buffer(number)
        norms = self._norms[number]
        norms.store(v.view(-1, value_pages.shape[1], value_pages.shape[3]), batch.out_cache_loc.long(), value_pages)
        budget = self.schedule.samples[number]
        exact = step.exact or budget is None or self.schedule.method.estimator == "exact"
        estimator = "exact" if exact else self.schedule.method.estimator
        torch.ops.allot.attend_out(
            query[: step.tokens],
            key_pages,
            value_pages,
            step.page_table,
            step.query_start,
            step.lengths,
            None if exact else step.budgets[number, : len(step.lengths)],
            None if exact else step.draws,
            scale=float(layer.scaling),
            layer=number,
            max_queries=step.max_queries,
            max_length=step.max_length,
            rows_read=None if exact or self.rows_read is None else self.rows_read[number, : len(step.lengths)],
            value_norms=None if exact else norms.of(value_pages),
            **kernel_arguments(self.schedule, estimator, budget or 0),
            out=out[: step.tokens],
            workspace=self._workspace(step, estimator),
        )
        return out.view(q.shape[0], -1)

    def _workspace(self, step: Step, estimator: str) -> torch.Tensor:
        """The memory of a launch. Prompts are in no graph, so theirs grows with them."""
        if step.max_queries == 1 and step.query_start.data_ptr() == self._one_each.data_ptr():
            assert self._decode_workspace is not None
            return self._decode_workspace
        length = step.page_table.shape[1] * self.page_size
        needed = self._workspace_bytes(len(step.lengths), step.tokens, step.max_queries, min(length, step.max_length), estimator)
        if self._prompt_workspace is None or self._prompt_workspace.numel() < needed:
            self._check(self._prompt_workspace)
            self._prompt_workspace = self._workspace_of(needed)
        return self._prompt_workspace

    @staticmethod
    def _check(workspace: torch.Tensor | None) -> None:
        if workspace is not None:
            torch.ops.allot.check(workspace)

    def report(self) -> dict[str, Any]:
        """What every layer did, in the form of docs/schedule-format.md ("What was executed"). Waits for the device and raises where a
        launch found a fault."""
        self._check(self._decode_workspace)
        self._check(self._prompt_workspace)
        return self.counts.report("allot_sglang", self.identity, self.rows_read)

    def reset_counts(self) -> None:
        self.counts.values.zero_()
        if self.rows_read is not None:
            self.rows_read.zero_()


_live: weakref.ref[AllotAttnBackend] | None = None


def _running() -> AllotAttnBackend:
    backend = None if _live is None else _live()
    if backend is None:
        raise ScheduleError("this server does not run allot's attention; start it with --attention-backend allot")
    return backend


def _save_report(_scheduler: Any, path: str) -> None:
    write_report(_running().report(), path)


def _reset(_scheduler: Any) -> None:
    _running().reset_counts()


def _offer_reports(backend: AllotAttnBackend) -> None:
    """SGLang's Engine.collective_rpc calls methods of its scheduler by name; these are added to it."""
    global _live
    _live = weakref.ref(backend)
    scheduler = sys.modules.get("sglang.srt.managers.scheduler")
    if scheduler is not None:
        scheduler.Scheduler.allot_save_report = _save_report
        scheduler.Scheduler.allot_reset = _reset
