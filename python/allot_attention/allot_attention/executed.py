"""What the layers of an engine have executed, in the one form that `allot verify --executed` reads: docs/schedule-format.md,
"What was executed"."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from allot_attention.schedule import Schedule, ScheduleError

SCHEMA_VERSION = 1


@dataclass
class LayerCount:
    """What a layer did since counting began: sums over tokens."""

    sampled_tokens: int = 0
    exact_tokens: int = 0
    samples: int = 0  # of a query head (or rows of a KV head), of the tokens sampled
    rows: int | None = None  # distinct value rows that were read for these, over the KV heads; None: not counted
    row_limit: int = 0  # most that may have been read: row_limit() and the keys of each token, over the KV heads


def row_limit(schedule: Schedule, budget: int) -> int:
    """Most distinct value rows that a KV head reads for a token that sees many keys."""
    if budget == 0:
        return 0
    model, method = schedule.model, schedule.method
    rows = budget if method.unit == "rows" else budget * (model["num_q_heads"] // model["num_kv_heads"])
    return int(rows) + (method.estimator == "level")


def _conditions(schedule: Schedule, identity: Mapping[str, Any] | None) -> dict[str, Any]:
    """`identity` is what the engine found of its model; None where it could not compare it."""
    model, method = schedule.model, schedule.method
    found = dict(identity) if identity is not None else {"id": None, "weights_fingerprint": None}
    described: dict[str, Any] = {
        "id": found["id"],
        "config_sha256": None,  # that of a config.json without the schedule, which nobody has any more
        "tokenizer_sha256": None,
        "weights_fingerprint": found["weights_fingerprint"],
        **{name: model[name] for name in ("layers", "num_q_heads", "num_kv_heads", "head_dim")},
    }
    if found.get("adapter") is not None:
        described["adapter"] = found["adapter"]
    generation = ("dtype", "temperature", "top_p", "repetition_penalty", "max_new_tokens", "stop")
    return {
        "model": described,
        "task": dict.fromkeys(("name", "version", "prompt_style")),
        "attention": method.conditions(),
        "generation": dict.fromkeys(generation),
        "seed": schedule.seed,
    }


def make_report(
    engine: str,
    computed_by: str,
    schedule: Schedule,
    identity: Mapping[str, Any] | None,
    layers: Sequence[LayerCount],
) -> dict[str, Any]:
    """The report of an engine, as values that json.dumps takes. `engine` is the name of the package, which has the version."""
    try:
        version = metadata.version(engine)
    except metadata.PackageNotFoundError:  # used from its sources
        version = "unknown"
    described = []
    for number, layer in enumerate(layers):
        one: dict[str, Any] = {
            "layer": number,
            "sampled_tokens": layer.sampled_tokens,
            "exact_tokens": layer.exact_tokens,
            "samples": layer.samples,
            "executed": layer.samples / layer.sampled_tokens if layer.sampled_tokens else None,
        }
        if layer.rows is not None:
            one["rows"] = layer.rows
        one["row_limit"] = layer.row_limit
        described.append(one)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "engine": {"name": engine, "version": version, "computed_by": computed_by or "nothing"},
        "conditions": _conditions(schedule, identity),
    }
    if schedule.run_id:
        report["run_id"] = schedule.run_id
    report["samples"] = ["exact" if asked is None else asked for asked in schedule.samples]
    report["layers"] = described
    return report


def write_report(report: Mapping[str, Any], path: str | Path) -> None:
    """Writes a report whole or not at all."""
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    except OSError as error:
        raise ScheduleError(f"the report cannot be written to {target}: {error}") from error
    try:
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(report, indent=2) + "\n")
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
