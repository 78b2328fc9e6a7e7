"""The attention backend CUSTOM: a KV cache that allot's kernels read in place, and the layers' attention."""

from __future__ import annotations

from typing import Any

import torch
from allot_attention.paged import ValueNorms
from allot_attention.schedule import ScheduleError
from vllm.config import get_current_vllm_config
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, MultipleOf

from allot_vllm.metadata import AllotMetadata, AllotMetadataBuilder
from allot_vllm.settings import refuse_layer
from allot_vllm.state import state_of


class AllotBackend(AttentionBackend):
    supported_dtypes = [torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes = ["auto", "bfloat16", "float16"]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[AllotAttention]:
        return AllotAttention

    @staticmethod
    def get_builder_cls() -> type[AllotMetadataBuilder]:
        return AllotMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """All key pages, then all value pages: each half is contiguous, as the kernels take it."""
        return (2, num_blocks, num_kv_heads, block_size, head_size)

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [32, 64, 96, 128, 256]

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major >= 8)

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False


class AllotAttention(AttentionImpl[AllotMetadata]):
    """Attention of one layer. Requests with one new token are sampled, prompts where the schedule says so."""

    supports_dcp = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        **options: Any,
    ):
        refuse_layer(
            alibi_slopes=alibi_slopes,
            sliding_window=sliding_window,
            kv_cache_dtype=kv_cache_dtype,
            logits_soft_cap=logits_soft_cap,
            attn_type=attn_type,
            kv_sharing_target_layer_name=kv_sharing_target_layer_name,
            options=options,
        )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        vllm_config = get_current_vllm_config()
        self._state = state_of(vllm_config)
        self._state.reserve_workspace(self.num_heads, self.num_kv_heads, head_size, vllm_config)
        self._layer: int | None = None
        self._norms: ValueNorms | None = None
        if self._state.device.type == "cuda":
            from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

            version = get_flash_attn_version(head_size=head_size)
            if version is None:
                raise ScheduleError(
                    "vLLM has no FlashAttention for this GPU, which exact prompts run in; use another attention backend"
                )
            self._flash_version: int = version

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Writes the new keys and values [tokens, kv_heads, head_size] to their slots; -1 is no slot."""
        key_pages, value_pages = kv_cache.unbind(0)
        _, norms = self._of_layer(layer)
        norms.store(value[: slot_mapping.shape[0]], slot_mapping, value_pages)
        if key.is_cuda:
            from vllm._custom_ops import reshape_and_cache_flash

            # The operator writes by strides into [pages, page_size, kv_heads, head_size].
            halves = key_pages.transpose(1, 2), value_pages.transpose(1, 2)
            reshape_and_cache_flash(key, value, *halves, slot_mapping, self.kv_cache_dtype, layer._k_scale, layer._v_scale)
            return
        real = slot_mapping >= 0
        slots, page_size = slot_mapping[real], key_pages.shape[2]
        for new, pages in ((key, key_pages), (value, value_pages)):
            pages[slots // page_size, :, slots % page_size] = new[: slot_mapping.shape[0]][real]

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: AllotMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Fills output [tokens, heads, head_size] for the tokens of the step; rows that pad it are left as they are. Without
        metadata, in vLLM's profiling, there is no cache, and the output is 0."""
        if output_scale is not None or output_block_scale is not None:
            raise ScheduleError("allot_vllm gives no quantised output; leave out the fusion of attention and quantisation")
        if attn_metadata is None:
            return output.fill_(0)
        number, _ = self._of_layer(layer)
        m = attn_metadata
        key_pages, value_pages = kv_cache.unbind(0)
        exact = self._state.is_exact(number)
        if not exact and self._state.schedule.method.prefill == "sampled":
            self._launch(m, m.requests, m.tokens, m.max_queries, query, key_pages, value_pages, output)
            return output
        if m.decodes:
            self._launch(m, m.decodes, m.decodes, 1, query, key_pages, value_pages, output, exact)
        if m.prompt_start is not None:
            self._prompts(m, query, key_pages, value_pages, output)
        return output

    def _of_layer(self, layer: Any) -> tuple[int, ValueNorms]:
        """Its number, and the norms of its values."""
        if self._layer is None or self._norms is None:
            self._layer = extract_layer_index(layer.layer_name)
            self._norms = ValueNorms(self._state.schedule, self._layer)
            self._state.release_norms_room()
        return self._layer, self._norms

    def _launch(
        self,
        m: AllotMetadata,
        requests: int,
        tokens: int,
        max_queries: int,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        output: torch.Tensor,
        exact: bool = False,
    ) -> None:
        """The first `requests` requests in allot's kernels."""
        layer = self._layer or 0
        budget = self._state.schedule.samples[layer] or 0
        torch.ops.allot.attend_out(
            query[:tokens],
            key_pages,
            value_pages,
            m.page_table[:requests],
            m.query_start[: requests + 1],
            m.lengths[:requests],
            None if exact else m.budgets[layer, :requests],
            None if exact else m.draws[:requests],
            scale=self.scale,
            layer=layer,
            max_queries=max_queries,
            max_length=m.max_length,
            rows_read=None if exact or self._state.rows_read is None else self._state.rows_read[layer, :requests],
            value_norms=None if exact or self._norms is None else self._norms.of(value_pages),
            **self._state.arguments("exact" if exact else self._state.schedule.method.estimator, budget),
            out=output[:tokens],
            workspace=self._state.workspace,
        )

    def _prompts(
        self,
        m: AllotMetadata,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """Exact attention of the requests behind the decoding ones: vLLM's FlashAttention on a GPU, allot's kernels on the CPU."""
        assert m.prompt_start is not None
        tokens, prompts = slice(m.decodes, m.tokens), slice(m.decodes, m.requests)
        if query.is_cuda:
            from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func  # type: ignore[attr-defined]

            flash_attn_varlen_func(
                q=query[tokens],
                k=key_pages.transpose(1, 2),
                v=value_pages.transpose(1, 2),
                out=output[tokens],
                cu_seqlens_q=m.prompt_start,
                max_seqlen_q=m.max_queries,
                seqused_k=m.lengths[prompts],
                max_seqlen_k=m.max_length,
                softmax_scale=self.scale,
                causal=True,
                block_table=m.page_table[prompts],
                fa_version=self._flash_version,
            )
            return
        output[tokens] = torch.ops.allot.attend(
            query[tokens],
            key_pages,
            value_pages,
            m.page_table[prompts],
            m.prompt_start.long(),
            m.lengths[prompts],
            scale=self.scale,
            max_queries=m.max_queries,
            max_length=m.max_length,
        )
