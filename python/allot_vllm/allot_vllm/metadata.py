"""What the layers of a step share: which rows decode and which are prompts, and lengths, budgets and draws in buffers that keep
their addresses, because a captured decode step reads them again at every replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from allot_attention.schedule import ScheduleError
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

from allot_vllm.state import state_of


@dataclass
class AllotMetadata(AttentionMetadata):
    """One step. The first `decodes` requests have one new token each, those after them are prompts with more."""

    decodes: int
    requests: int
    tokens: int
    query_start: torch.Tensor  # int64 [requests + 1]
    prompt_start: torch.Tensor | None  # int32 [prompts + 1], from the first token of the first prompt on; None without prompts
    lengths: torch.Tensor  # int32 [requests], new tokens included
    page_table: torch.Tensor  # int32 [requests, pages]
    budgets: torch.Tensor  # int32 [layers, at least requests]; 0 in rows that pad a graph
    draws: torch.Tensor  # int32 [requests, 3]
    max_queries: int
    max_length: int


def leading_decodes(lengths: list[int]) -> int:
    """How many requests at the front have one new token. Throws ScheduleError where others follow after prompts."""
    decodes = next((row for row, count in enumerate(lengths) if count != 1), len(lengths))
    if 1 in lengths[decodes:]:
        raise ScheduleError(
            "a request that decodes stands behind a prompt, which allot_vllm does not expect of vLLM 0.26.0; install that version"
        )
    return decodes


class AllotMetadataBuilder(AttentionMetadataBuilder[AllotMetadata]):
    # Steps with prompts run without graphs around the attention; decode steps are captured whole.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._state = state = state_of(vllm_config)
        if not state.numbered:
            raise ScheduleError(
                f"allot_vllm does not know the model {vllm_config.model_config.architectures}, so its requests would have no numbers "
                "to draw by; use another attention backend"
            )
        requests = vllm_config.scheduler_config.max_num_seqs
        self._query_start = torch.zeros(requests + 1, dtype=torch.int64, device=device)
        # Of a step that decodes, with the rows that pad its graph: vLLM repeats the last start there.
        self._one_each = torch.arange(requests + 1, dtype=torch.int64, device=device)
        self._lengths = torch.ones(requests, dtype=torch.int32, device=device)
        self._budgets = torch.zeros(len(state.schedule.samples), requests, dtype=torch.int32, device=device)
        self._draws = torch.zeros(requests, 3, dtype=torch.int32, device=device)

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> AllotMetadata:
        return self._build(common_attn_metadata, counted=False)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> AllotMetadata:
        return self._build(common_attn_metadata, counted=True)

    def _build(self, common: CommonAttentionMetadata, counted: bool) -> AllotMetadata:
        if common.causal is not True:
            raise ScheduleError("allot_vllm knows causal attention only; use another attention backend")
        requests, tokens = min(common.num_reqs, common.num_actual_tokens), common.num_actual_tokens
        decodes, prompt_start, query_start = requests, None, self._one_each[: requests + 1]
        if common.max_query_len > 1:
            starts = common.query_start_loc_cpu.tolist()
            counts = [end - begin for begin, end in zip(starts, starts[1:])]
            requests = len(counts) - counts.count(0)  # vLLM pads behind the last request
            decodes = leading_decodes(counts[:requests])
            tokens = starts[requests]
            prompt_start = common.query_start_loc[decodes : requests + 1] - decodes
            query_start = self._query_start[: requests + 1]
            query_start.copy_(common.query_start_loc[: requests + 1])
        lengths, draws = self._lengths[:requests], self._draws[:requests]
        # A row that pads a graph has length 0, which the kernels would report as a fault: it reads nothing with budget 0.
        torch.clamp(common.seq_lens[:requests], min=1, out=lengths)
        torch.mul(self._state.counts.samples, common.seq_lens[:requests] > 0, out=self._budgets[:, :requests])
        slots = self._state.rows_of_slots
        if slots is not None:
            rows = min(requests, slots.shape[0])
            torch.index_select(self._state.numbers(), 0, slots[:rows].clamp(min=0), out=draws[:rows])
        if counted:
            self._count(common.seq_lens[:requests], query_start, decodes, tokens)
        return AllotMetadata(
            decodes=decodes,
            requests=requests,
            tokens=tokens,
            query_start=query_start,
            prompt_start=prompt_start,
            lengths=lengths,
            page_table=common.block_table_tensor[:requests],
            budgets=self._budgets,
            draws=draws,
            max_queries=common.max_query_len,
            max_length=common.max_seq_len,
        )

    def _count(self, lengths: torch.Tensor, query_start: torch.Tensor, decodes: int, tokens: int) -> None:
        """Adds what the layers of this step find in their budgets. Where prompts are exact, `decodes` rows come before them,
        of one token each."""
        real = lengths > 0
        rows, exact = (len(real), 0) if self._state.schedule.method.prefill == "sampled" else (decodes, tokens - decodes)
        queries = torch.where(real[:rows], query_start[1 : rows + 1] - query_start[:rows], 0)
        self._state.counts.add(self._budgets[:, :rows], lengths[:rows], queries, exact)
