"""allot's own kernels as PyTorch operators: loading the library, and a call of `allot::attend` on a contiguous cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from allot_attention.schedule import Method, ScheduleError

LIBRARY_VARIABLE = "ALLOT_TORCH_LIBRARY"
_PACKAGED = Path(__file__).parent / "lib" / "liballot_torch.so"
_PAGE = 16  # tokens; pages of the CUDA kernels are multiples of it


def load() -> str:
    """Loads the operator library that ALLOT_TORCH_LIBRARY names, else the one in this package. Returns why it cannot be
    used, "" where it can. Throws ScheduleError where a library that was asked for by name does not load."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if hasattr(torch.ops.allot, "attend"):
        return _too_old()
    path = Path(named) if named else _PACKAGED
    if not named and not path.exists():
        return f"this package was installed without it; {LIBRARY_VARIABLE} can name a liballot_torch.so"
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError) as error:
        if named:
            raise ScheduleError(
                f"{LIBRARY_VARIABLE} names {named}, which torch {torch.__version__} cannot load: {error}"
            ) from error
        return f"torch {torch.__version__} cannot load {path}: {error}"
    return _too_old()


def _too_old() -> str:
    arguments = {argument.name for argument in torch.ops.allot.attend.default._schema.arguments}
    for name, what in (("unit", "unit"), ("value_norms", "norms of values")):
        if name not in arguments:
            return f"the library is older than this package: its operators know no {what}"
    written = {argument.name for argument in torch.ops.allot.attend_out.default._schema.arguments}
    return "" if "rows_read" in written else "the library is older than this package: its operators count no rows"


def unsupported(query: torch.Tensor) -> str:
    """Why the operators cannot take tensors like `query` [..., head_dim]; "" where they can."""
    dtypes = (torch.float32, torch.bfloat16) if query.device.type == "cpu" else (torch.bfloat16, torch.float16)
    if query.device.type not in ("cpu", "cuda"):
        return f"they have no kernels for {query.device.type}"
    if query.dtype not in dtypes:
        return f"they take {' and '.join(str(dtype) for dtype in dtypes)} on {query.device.type}, not {query.dtype}"
    if query.shape[-1] % 8 != 0 or query.shape[-1] > 256:
        return f"they take head dimensions that are multiples of 8 up to 256, not {query.shape[-1]}"
    return ""


def _pages(cache: torch.Tensor, first: torch.Tensor, shifted: bool) -> torch.Tensor:
    """A cache [batch, kv_heads, capacity, head_dim] as one page a sequence that begins with its first token. A copy is made
    only where sequences are padded on the left, or where a GPU needs whole pages of 16."""
    if shifted:
        capacity = cache.shape[2]
        place = (torch.arange(capacity, device=cache.device) + first[:, None]).clamp_(max=capacity - 1)
        cache = cache.gather(2, place[:, None, :, None].expand_as(cache))
    if cache.device.type == "cuda" and cache.shape[2] % _PAGE != 0:
        cache = torch.nn.functional.pad(cache, (0, 0, 0, -cache.shape[2] % _PAGE))
    return cache.contiguous()


def norms_of(values: torch.Tensor) -> torch.Tensor:
    """The norms of vectors [..., head_dim], float32 [...]."""
    norms: torch.Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float32)
    return norms.contiguous()


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    first: torch.Tensor,
    positions: torch.Tensor,
    draws: torch.Tensor,
    method: Method,
    budget: int,
    layer: int,
    scale: float,
    count_rows: bool = False,
) -> tuple[torch.Tensor, int]:
    """Sampled attention of queries [batch, heads, queries, head_dim] over a cache [batch, kv_heads, keys, head_dim], as
    [batch, queries, heads, head_dim]. Query i of sequence b is the token number positions[b, i] >= 0 of its sequence, whose
    first token lies at first[b] of the cache; the queries of a sequence follow one another and end with its last token,
    those of position -1 are padding in front and get 0. draws is int32 [batch, 3]: run seed, sampling seed, question. The
    number is that of distinct value rows that the kernels read, of all queries and KV heads, and 0 without `count_rows`."""
    batch, heads, queries, head_dim = query.shape
    rows = query.transpose(1, 2).reshape(batch * queries, heads, head_dim).contiguous()
    real = (positions >= 0).flatten()
    padded = not bool(real.all())
    counts = (positions >= 0).sum(1)
    start = torch.zeros(batch + 1, dtype=torch.int64, device=query.device)
    start[1:] = counts.cumsum(0)
    shifted = bool((first > 0).any())
    pages = [_pages(cache, first, shifted) for cache in (key, value)]
    positional = (
        rows[real] if padded else rows,
        *pages,
        torch.arange(batch, dtype=torch.int32, device=query.device)[:, None],
        start,
        (positions[:, -1] + 1).to(torch.int32),
        torch.full((batch,), budget, dtype=torch.int32, device=query.device),
        draws,
    )
    named = {
        **method.arguments(),
        "scale": scale,
        "layer": layer,
        "max_queries": queries,
        "max_budget": budget,
        "value_norms": norms_of(pages[1]) if method.value_norms else None,
    }
    out, read = _counted(positional, named) if count_rows else (torch.ops.allot.attend(*positional, **named), 0)
    if padded:
        whole = rows.new_zeros(rows.shape)
        whole[real] = out
        out = whole
    return out.view(batch, queries, heads, head_dim), read


def _counted(positional: tuple[torch.Tensor, ...], named: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """The output, and the value rows that the kernels read for it."""
    query, lengths = positional[0], positional[5]
    rows_read = torch.zeros(lengths.shape[0], dtype=torch.int64, device=query.device)
    size = torch.ops.allot.workspace_bytes(*positional, **named, rows_read=rows_read)
    workspace = torch.empty(size, dtype=torch.uint8, device=query.device)
    torch.ops.allot.reset_workspace(workspace)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    torch.ops.allot.attend_out(*positional, **named, out=out, workspace=workspace, rows_read=rows_read)
    return out, int(rows_read.sum())
