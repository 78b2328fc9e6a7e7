"""The two functions that Transformers calls: one makes the mask of a forward pass, the other is the attention of a layer."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from allot_attention import estimators, executed, operators
from allot_attention.draws import DrawRows
from allot_attention.model import Masked, State, state_of
from allot_attention.schedule import Method, ScheduleError

NAME = "allot"
_PATHS = ("auto", "operators", "eager")
_BLOCK_ELEMENTS = 1 << 24  # of the weights that eager PyTorch has in memory at a time

_log = logging.getLogger("allot_attention")
_path = "auto"
_missing_operators: str | None = None  # why there are none; None before they were looked for
_said: set[str] = set()


def register(path: str = "auto") -> None:
    """Adds the attention "allot" to Transformers; may be called again. `path` is "operators" (allot's kernels, an error
    where they cannot run), "eager" (the estimators in PyTorch) or "auto" (operators where they can run, else eager, which is
    logged once). """
    global _path, _missing_operators
    if path not in _PATHS:
        raise ValueError(f"path is {path!r}; expected one of {', '.join(_PATHS)}")
    _path = path
    _missing_operators = None
    _said.clear()
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    # Continuous batching looks for the attention under this name.
    AttentionInterface.register("paged|" + NAME, _refuse_paged)
    AttentionMaskInterface.register("paged|" + NAME, _refuse_paged)


def _refuse_paged(*_args: Any, **_kwargs: Any) -> Any:
    raise ScheduleError("allot_attention knows no paged cache (continuous batching); call generate() instead of generate_batch()")


def mask(*args: Any, **kwargs: Any) -> torch.Tensor:
    """True where a query sees a key, [batch, 1, queries, keys]; never left out, since the layers take the positions from
    it."""
    if kwargs.get("local_size") is not None:
        raise ScheduleError(
            "allot_attention knows no sliding windows or chunks; load the model with another attn_implementation"
        )
    config = kwargs.get("config")
    if config is not None:
        state_of(config)
    kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    result: torch.Tensor = sdpa_mask(*args, **kwargs)
    return result


class _WithoutGradient(torch.autograd.Function):
    """Lets a forward pass with gradients switched on through, and says why there are none when they are asked for."""

    @staticmethod
    def forward(_ctx: Any, out: torch.Tensor, _query: torch.Tensor) -> torch.Tensor:
        return out.clone()

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> Any:
        raise RuntimeError(
            "sampled attention has no gradients; train with another attn_implementation, evaluate under torch.no_grad()"
        )


def _refuse_options(module: torch.nn.Module, query: torch.Tensor, dropout: float, options: dict[str, Any]) -> None:
    refused = {
        "sliding_window": "knows no sliding windows",
        "softcap": "knows no soft caps of scores",
        "s_aux": "knows no attention sinks",
        "position_bias": "knows no position biases",
        "head_mask": "knows no head masks",
        "cache": "knows no paged cache (continuous batching)",
    }
    for name, reason in refused.items():
        if options.get(name) is not None:
            raise ScheduleError(
                f"allot_attention {reason}, but the model asks for {name}; load it with another attn_implementation"
            )
    if getattr(module, "sliding_window", None) is not None:
        raise ScheduleError(
            f"allot_attention knows no sliding windows, but the model has one of {module.sliding_window} tokens; load it with another "
            "attn_implementation"
        )
    if options.get("output_attentions"):
        raise ScheduleError("allot_attention gives no attention weights; leave out output_attentions")
    if not getattr(module, "is_causal", True) or options.get("is_causal") is False:
        raise ScheduleError("allot_attention knows causal attention only; load the model with another attn_implementation")
    if dropout > 0:
        raise ScheduleError(f"allot_attention knows no dropout, but the model asks for {dropout}; call model.eval()")
    if getattr(module, "layer_idx", None) is None:
        raise ScheduleError("the model does not number its attention layers (layer_idx), so a schedule cannot be followed")


def _masked(state: State, layer: int, visible: torch.Tensor | None, queries: int, keys: int) -> Masked:
    """What all layers of a forward pass need of its mask; computed by the first of them."""
    if visible is None or visible.dtype != torch.bool or visible.shape[-2:] != (queries, keys):
        found = "none" if visible is None else f"{visible.dtype} {list(visible.shape)}"
        raise ScheduleError(
            f"allot_attention needs a mask of True and False with {queries} queries and {keys} keys, but got {found}; give the "
            "model a mask [batch, tokens], or none"
        )
    # The same tensor may hold another step's mask (compiled models reuse memory), so a lower layer begins from scratch.
    known = state.masked if state.mask is visible and layer > state.last_layer else None
    state.last_layer = layer
    if known is not None:
        return known
    seen = visible[:, 0]
    counts = seen.sum(-1)
    number = torch.arange(keys, device=visible.device)
    # The first key of a sequence is the first that its last query sees.
    first = torch.where(seen[:, -1], number, keys).min(-1).values
    expected = (number >= first[:, None, None]) & (number < (first[:, None] + counts)[..., None])
    last = counts[:, -1:]
    following = torch.arange(queries - 1, -1, -1, device=visible.device)
    contiguous = (
        bool((seen == expected).all()) and bool((counts == (last - following).clamp(min=0)).all()) and bool((last > 0).all())
    )
    state.masked = Masked(visible=visible, positions=counts - 1, first=first, contiguous=contiguous)
    state.mask = visible
    return state.masked


def _draw_rows(state: State, batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run seed, sampling seed and question of every sequence of a batch, int64 [batch]."""
    wanted = state.requests
    questions = wanted.questions
    if batch % len(questions) != 0:
        raise ScheduleError(
            f"the batch has {batch} rows, but allot_attention.requests names {len(questions)} questions; name one for every prompt"
        )
    question = torch.tensor(questions, device=device).repeat_interleave(batch // len(questions))
    run_seed = state.schedule.seed if wanted.run_seed is None else wanted.run_seed
    return torch.full_like(question, run_seed), torch.full_like(question, wanted.sampling_seed), question


def _say_once(text: str, level: int) -> None:
    if text not in _said:
        _said.add(text)
        _log.log(level, text)


def _use_operators(query: torch.Tensor, masked: Masked, method: Method) -> bool:
    global _missing_operators
    if _path == "eager":
        reason = "eager was asked for"
    else:
        if _missing_operators is None:
            _missing_operators = operators.load()
        reason = _missing_operators or operators.unsupported(query)
        if not reason and not masked.contiguous:
            reason = "the mask is more than causal with padding in front"
    if not reason:
        _say_once("attention runs in allot's operators", logging.INFO)
        return True
    if _path == "operators":
        raise ScheduleError(f"allot's operators were asked for and cannot run: {reason}")
    if method.estimator not in estimators.SUPPORTED or method.score_stage != "exact":
        raise ScheduleError(
            f"the schedule asks for estimator {method.estimator} with score stage {method.score_stage}, which only allot's operators "
            f"have, and they cannot run: {reason}"
        )
    _say_once(f"attention runs in eager PyTorch, which is slow, and not in allot's operators: {reason}", logging.WARNING)
    return False


def _exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, masked: Masked, scale: float) -> torch.Tensor:
    # A query of padding sees nothing; it is let see everything, and nobody reads the result.
    visible = masked.visible | (masked.positions < 0)[:, None, :, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out.transpose(1, 2)


def _eager_weights(query: torch.Tensor, key: torch.Tensor, visible: torch.Tensor, scale: float) -> torch.Tensor:
    """Softmax of the scores, float64 [batch, kv_heads, group, queries, keys]."""
    batch, heads, queries, head_dim = query.shape
    groups = key.shape[1]
    grouped = query.float().reshape(batch, groups, -1, head_dim)
    scores = (grouped @ key.float().transpose(-1, -2) * scale).view(batch, groups, heads // groups, queries, -1)
    scores = scores.double().masked_fill(~visible.unsqueeze(2), -math.inf)
    return scores.softmax(-1).nan_to_num(0)


def _eager(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    masked: Masked,
    draws: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    method: Method,
    budget: int,
    layer: int,
    scale: float,
) -> tuple[torch.Tensor, int]:
    """[batch, queries, heads, head_dim], and the number of distinct value rows read, of all queries and KV heads together. A
    block of queries at a time."""
    batch, heads, queries, head_dim = query.shape
    run_seed, sampling_seed, question = (number[:, None, None] for number in draws)
    norms = operators.norms_of(value).double() if method.value_norms else None
    block = max(1, _BLOCK_ELEMENTS // (batch * heads * key.shape[2]))
    parts, rows = [], 0
    for begin in range(0, queries, block):
        some = slice(begin, begin + block)
        positions = masked.positions[:, some]

        def rows_of(of_heads: torch.Tensor, positions: torch.Tensor = positions) -> DrawRows:
            at = positions.clamp(min=0)[:, None, :]
            return DrawRows(run_seed, sampling_seed, question, layer, of_heads[None, :, None], at)

        p = _eager_weights(query[:, :, some], key, masked.visible[:, :, some], scale)
        weights = estimators.select(p, method, budget, rows_of, norms)
        rows += int((weights > 0).any(2).sum())
        out = weights.float().flatten(2, 3) @ value.float()
        parts.append(out.view(batch, heads, -1, head_dim).transpose(1, 2).to(query.dtype))
    return torch.cat(parts, dim=1), rows


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of one layer under the schedule of its model: query [batch, heads, queries, head_dim], key and value
    [batch, kv_heads, keys, head_dim] with what the cache holds; returns [batch, queries, heads, head_dim]. Prompts (more
    than one token at once) are sampled where the schedule says so, single tokens always."""
    _refuse_options(module, query, dropout, kwargs)
    state = state_of(module.config)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    masked = _masked(state, layer, attention_mask, query.shape[2], key.shape[2])
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.no_grad():
        out = _layer(state, layer, query.detach(), key.detach(), value.detach(), masked, scale)
    if torch.is_grad_enabled() and query.requires_grad:
        out = _WithoutGradient.apply(out, query)  # type: ignore[no-untyped-call]
    return out, None


def _layer(
    state: State, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, masked: Masked, scale: float
) -> torch.Tensor:
    if state.recorder is not None:
        state.recorder.add(layer, query * scale, key, value, masked.positions)
    method = state.schedule.method
    budget = state.schedule.samples[layer]
    count = state.layers[layer]
    tokens = int((masked.positions >= 0).sum())
    prompt = query.shape[2] > 1
    if budget is None or method.estimator == "exact" or (prompt and method.prefill == "dense"):
        count.exact_tokens += tokens
        return _exact(query, key, value, masked, scale)
    limit = executed.row_limit(state.schedule, budget)
    seen = (masked.positions + 1).clamp(max=limit)  # of a query of padding 0
    count.row_limit += int(seen.sum()) * key.shape[1]
    draws = _draw_rows(state, query.shape[0], query.device)
    if _use_operators(query, masked, method):
        state.path = "operators"
        words = torch.stack(draws, dim=1)
        words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
        out, rows = operators.attend(
            query,
            key,
            value,
            first=masked.first,
            positions=masked.positions,
            draws=words,
            method=method,
            budget=budget,
            layer=layer,
            scale=scale,
            count_rows=count.rows is not None,
        )
    else:
        state.path = "eager"
        out, rows = _eager(query, key, value, masked, draws, method, budget, layer, scale)
    if count.rows is not None:
        count.rows += rows
    count.sampled_tokens += tokens
    count.samples += tokens * budget
    return out
