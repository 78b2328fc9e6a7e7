"""The estimators of sampled attention in plain PyTorch, in double precision, from the definitions of allot's reference
library: which keys a row reads, and with which weights.

Probabilities are [batch, kv_heads, group, queries, keys], 0 where a query does not see a key: `group` are the query heads that
read one KV head. A row that sees no key has weights 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from allot_attention.draws import DrawRows
from allot_attention.schedule import Method

# How a row of sizes [..., keys] with budget and draws becomes weights of the same shape.
_Select = Callable[[torch.Tensor, int, Callable[[int], torch.Tensor]], torch.Tensor]


def _of_total(cdf: torch.Tensor) -> torch.Tensor:
    """A CDF that ends in 1 exactly; 0 where there is no mass."""
    total = cdf[..., -1:]
    return torch.where(total > 0, cdf / total, torch.zeros_like(cdf))


def _counts(points: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Targets s + 1 - offset that fall on every key of a CDF in units of targets."""
    reached = torch.floor(points + offset.unsqueeze(-1))
    return torch.diff(reached, dim=-1, prepend=torch.zeros_like(reached[..., :1]))


def _systematic(sizes: torch.Tensor, samples: torch.Tensor | int, offset: torch.Tensor) -> torch.Tensor:
    cdf = _of_total(sizes.cumsum(-1))
    return _counts(cdf * samples, offset) * (cdf[..., -1:] > 0)


def _sys(p: torch.Tensor, samples: int, uniform: Callable[[int], torch.Tensor]) -> torch.Tensor:
    return _systematic(p, samples, uniform(1)[..., 0]) / samples


def _at_targets(p: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Each target, a point in (0, 1] of the row's mass, picks the first key whose CDF reaches it."""
    cdf = _of_total(p.cumsum(-1))
    keys = torch.searchsorted(cdf.contiguous(), targets.contiguous()).clamp_(max=p.shape[-1] - 1)
    weights = torch.zeros_like(p)
    weights.scatter_add_(-1, keys, torch.full_like(targets, 1 / targets.shape[-1]))
    return weights * (cdf[..., -1:] > 0)


def _iid(p: torch.Tensor, samples: int, uniform: Callable[[int], torch.Tensor]) -> torch.Tensor:
    return _at_targets(p, 1 - uniform(samples))


def _strat(p: torch.Tensor, samples: int, uniform: Callable[[int], torch.Tensor]) -> torch.Tensor:
    strata = torch.arange(1, samples + 1, device=p.device, dtype=p.dtype)
    return _at_targets(p, (strata - uniform(samples)) / samples)


def _threshold(sizes: torch.Tensor, samples: int, uniform: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """The largest keep their size, as many as make the next one smaller than tau = (mass not kept) / (samples - kept); the
    others are drawn systematically with weight tau."""
    keys = sizes.shape[-1]
    if samples >= keys:
        return sizes
    falling, order = torch.sort(sizes, dim=-1, descending=True, stable=True)
    rest_mass = falling.flip(-1).cumsum(-1).flip(-1)[..., :samples]  # of key k in this order and all smaller ones
    left = samples - torch.arange(samples, device=sizes.device, dtype=sizes.dtype)
    keep = (falling[..., :samples] * left >= rest_mass).long().cumprod(-1)
    kept = keep.sum(-1, keepdim=True)
    is_kept = torch.zeros_like(sizes, dtype=torch.bool).scatter_(-1, order[..., :samples], keep.bool())
    rest = sizes.masked_fill(is_kept, 0)
    draws = samples - kept
    tau = rest.sum(-1, keepdim=True) / draws.clamp(min=1)
    weights = torch.where(is_kept, sizes, _systematic(rest, draws, uniform(1)[..., 0]) * tau)
    few = (sizes > 0).sum(-1, keepdim=True) <= samples
    return torch.where(few, sizes, weights)


def _topk(p: torch.Tensor, samples: int, _uniform: Callable[[int], torch.Tensor]) -> torch.Tensor:
    order = torch.sort(p, dim=-1, descending=True, stable=True).indices[..., :samples]
    largest = torch.zeros_like(p).scatter_(-1, order, p.gather(-1, order))
    return _of_total_mass(largest)


def _of_total_mass(p: torch.Tensor) -> torch.Tensor:
    mass = p.sum(-1, keepdim=True)
    return torch.where(mass > 0, p / mass, torch.zeros_like(p))


def _level(sizes: torch.Tensor, per_mass: float, offset: torch.Tensor) -> torch.Tensor:
    hit = _counts(sizes.cumsum(-1) * per_mass, offset) > 0
    return torch.where(hit, sizes.clamp(min=1 / per_mass), torch.zeros_like(sizes))


def _shared(p: torch.Tensor, sizes: torch.Tensor, weighted: torch.Tensor) -> torch.Tensor:
    """Every head weighs a row that was read by p / pi, where weighted = size / pi."""
    factor = torch.where(weighted > 0, weighted / sizes, torch.zeros_like(sizes))
    return p * factor.unsqueeze(2)


_BY_HEAD: dict[str, _Select] = {"iid": _iid, "strat": _strat, "sys": _sys, "threshold": _threshold, "topk": _topk}
SUPPORTED = (*_BY_HEAD, "joint", "pooled", "level", "exact")


def select(
    p: torch.Tensor,
    method: Method,
    budget: int,
    draws: Callable[[torch.Tensor], DrawRows],
    norms: torch.Tensor | None = None,
) -> torch.Tensor:
    """Weights of the values, shaped as `p`. `draws` gives the coordinates of a head's rows, for int64 head numbers [heads]:
    rows [batch, heads, queries]. `norms` are those of the values, [batch, kv_heads, keys], where the method asks for them."""
    batch, groups, group, queries, keys = p.shape
    heads = torch.arange(groups * group, device=p.device)
    if method.estimator == "exact":
        return p
    if budget == 0:
        return torch.zeros_like(p)
    if method.estimator in _BY_HEAD:
        rows = draws(heads)

        def uniform(count: int) -> torch.Tensor:
            return rows.uniform(count).view(batch, groups, group, queries, count)

        return _BY_HEAD[method.estimator](p, budget, uniform)
    sizes = p.sum(2) if norms is None else p.sum(2) * norms.unsqueeze(2)
    rows_wanted = budget if method.unit == "rows" else budget * group
    if method.estimator == "pooled":
        together = sizes.transpose(1, 2).reshape(batch, queries, groups * keys)
        first = draws(heads[:1])
        weighted = _threshold(together, rows_wanted * groups, lambda count: first.uniform(count)[:, 0])
        weighted = weighted.view(batch, queries, groups, keys).transpose(1, 2)
    else:
        first = draws(heads[::group])
        if method.estimator == "joint":
            weighted = _threshold(sizes, rows_wanted, first.uniform)
        else:
            weighted = _level(sizes, rows_wanted / group, first.uniform(1)[..., 0])
    return _shared(p, sizes, weighted)
