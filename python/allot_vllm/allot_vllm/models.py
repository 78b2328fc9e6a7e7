"""vLLM's models with a model state that passes the numbers of requests (allot_question, allot_sampling_seed) on to the attention,
which vLLM's metadata does not do. Under another attention backend they are vLLM's models."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaForCausalLM as _Llama
from vllm.model_executor.models.mistral import MistralForCausalLM as _Mistral
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM as _Qwen2
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM as _Qwen3
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from allot_vllm.state import State, state_of


class NumberedRequests(DefaultModelState):
    """The default state, which also notes the numbers of each request and which row of a step is whose."""

    def __init__(self, vllm_config: VllmConfig, model: Any, *args: Any, **kwargs: Any):
        super().__init__(vllm_config, model, *args, **kwargs)
        self._allot: State | None = None
        if vllm_config.attention_config.backend == AttentionBackendEnum.CUSTOM:
            self._allot = state_of(vllm_config)
            self._allot.numbered = True
            model.allot_state = self._allot

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        super().add_request(req_index, new_req_data)
        if self._allot is not None:
            parameters = new_req_data.sampling_params
            self._allot.add_request(req_index, parameters.extra_args if parameters else None)

    def prepare_attn(self, input_batch: InputBatch, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if self._allot is not None:
            self._allot.rows_of_slots = input_batch.idx_mapping
        return super().prepare_attn(input_batch, *args, **kwargs)


class LlamaForCausalLM(_Llama):
    @staticmethod
    def get_model_state_cls() -> type[NumberedRequests]:
        return NumberedRequests


class MistralForCausalLM(_Mistral):
    @staticmethod
    def get_model_state_cls() -> type[NumberedRequests]:
        return NumberedRequests


class Qwen2ForCausalLM(_Qwen2):
    @staticmethod
    def get_model_state_cls() -> type[NumberedRequests]:
        return NumberedRequests


class Qwen3ForCausalLM(_Qwen3):
    @staticmethod
    def get_model_state_cls() -> type[NumberedRequests]:
        return NumberedRequests
