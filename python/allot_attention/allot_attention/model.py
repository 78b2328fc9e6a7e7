"""What is known of a model that runs under a schedule: the schedule, whose requests its rows are, and what it has
counted."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from allot_attention import identity
from allot_attention.executed import LayerCount, make_report, write_report
from allot_attention.recorder import Recorder
from allot_attention.schedule import Schedule, ScheduleError, read_schedule


@dataclass
class Requests:
    """The coordinates of the draws that are not the token's own."""

    questions: tuple[int, ...] = (0,)
    sampling_seed: int = 0
    run_seed: int | None = None  # None: the schedule's


@dataclass
class Masked:
    """What one forward pass attends to, for the layers that share a mask."""

    visible: torch.Tensor  # bool [batch, 1, queries, keys]
    positions: torch.Tensor  # int64 [batch, queries]: number of the token in its sequence, -1 for padding
    first: torch.Tensor  # int64 [batch]: where in the cache the sequence begins
    contiguous: bool  # the visible keys of every query are those from `first` on, up to its own


@dataclass
class State:
    schedule: Schedule
    requests: Requests = field(default_factory=Requests)
    layers: list[LayerCount] = field(default_factory=list)
    count_rows: bool = False
    path: str = ""  # "operators" or "eager"; "" before the first layer ran
    identity: Mapping[str, Any] | None = None  # of the model, once it was compared with the schedule's
    mask: torch.Tensor | None = None  # the one that `masked` was made of
    masked: Masked | None = None
    last_layer: int = -1  # that used it
    recorder: Recorder | None = None

    def reset(self) -> None:
        self.layers = [LayerCount(rows=0 if self.count_rows else None) for _ in self.schedule.samples]


# By the identity of the configuration, which is the one thing that all layers of a model have in common. Nothing is kept in the
# configuration itself: it would be saved with it.
_states: dict[int, tuple[weakref.ref[Any], State]] = {}


def state_of(config: Any) -> State:
    """The state of the model with this configuration; makes it, and compares the model with its schedule, at the first
    call."""
    found = _states.get(id(config))
    if found is None or found[0]() is not config:
        state = State(schedule=read_schedule(config))
        state.reset()
        number = id(config)
        _states[number] = (weakref.ref(config, lambda _: _states.pop(number, None)), state)
    else:
        state = found[1]
    if state.identity is None:
        state.identity = check_identity(config, state.schedule)
    return state


def check_identity(config: Any, schedule: Schedule, adapter: str | Path | None = None) -> dict[str, Any]:
    """Compares the weights that the model was loaded from with the schedule's, and returns what identifies them. What
    config.json was before the schedule was added cannot be known any more; weights and shape can."""
    expected = schedule.model.get("adapter")
    if expected is not None and adapter is None:
        raise ScheduleError(
            f"the schedule was learned with the adapter {expected.get('id')} (fingerprint {expected.get('fingerprint')}); put it on "
            "the model and say where it lies: allot_attention.check(model, adapter=DIR)"
        )
    if expected is None and adapter is not None:
        raise ScheduleError(f"the schedule was learned without an adapter, but {adapter} is one; use the model without it")
    directory = _directory(str(getattr(config, "_name_or_path", "") or ""), getattr(config, "_commit_hash", None))
    weights = identity.weights_fingerprint(directory)
    if weights != schedule.model.get("weights_fingerprint"):
        raise ScheduleError(
            f"the schedule is for the weights {schedule.model.get('weights_fingerprint')} (model {schedule.model.get('id')}), those in "
            f"{directory} are {weights}; use the model that it was learned on"
        )
    result: dict[str, Any] = {"id": directory.resolve().name, "weights_fingerprint": weights}
    if expected is not None and adapter is not None:
        found = identity.adapter_fingerprint(Path(adapter))
        if found != expected.get("fingerprint"):
            raise ScheduleError(
                f"the schedule is for the adapter {expected.get('fingerprint')} ({expected.get('id')}), the one in {adapter} is "
                f"{found}; use the adapter that it was learned with"
            )
        result["adapter"] = {"id": Path(adapter).resolve().name, "fingerprint": found}
    return result


def _directory(name: str, revision: str | None) -> Path:
    """Where the weights lie; `revision` is the commit of a model that is named by its hub name."""
    if name and Path(name).is_dir() and any(Path(name).glob("model.safetensors*")):
        return Path(name)
    if name and not Path(name).exists():
        from transformers.utils.hub import cached_file

        for file in ("model.safetensors", "model.safetensors.index.json"):
            cached = cached_file(name, file, revision=revision, local_files_only=True, _raise_exceptions_for_missing_entries=False)
            if cached is not None:
                return Path(cached).parent
    raise ScheduleError(
        f"the model was not loaded from safetensors files ({name or 'no directory'}), so it cannot be compared with the schedule's; "
        "load it with from_pretrained"
    )


def check(model: Any, adapter: str | Path | None = None) -> Schedule:
    """Reads the schedule of a model and compares both at once, instead of at the first forward pass. `adapter` is the
    directory of the LoRA adapter (as PEFT saves it) that was put on the model. Returns the schedule. Throws
    ScheduleError."""
    config = model.config
    schedule = read_schedule(config)
    state = State(schedule=schedule, identity=check_identity(config, schedule, adapter))
    state.reset()
    number = id(config)
    _states[number] = (weakref.ref(config, lambda _: _states.pop(number, None)), state)
    return schedule


@contextmanager
def requests(model: Any, questions: Sequence[int], *, sampling_seed: int = 0, seed: int | None = None) -> Iterator[None]:
    """Within it the rows of a batch have these numbers as coordinates of their draws, one a prompt (beams and several
    replies of a prompt share its number), with the schedule's seed or `seed`. Without it every row has the number 0: what a
    row gets never depends on its place in a batch. Numbers and seeds are 0 to 2^32 - 1."""
    for name, number in [*(("question", q) for q in questions), ("sampling_seed", sampling_seed), ("seed", seed or 0)]:
        if not 0 <= number < 2**32:
            raise ValueError(f"{name} is {number}; expected 0 to 4294967295")
    if not questions:
        raise ValueError("requests names no questions; expected one a prompt")
    state = state_of(model.config)
    before = state.requests
    state.requests = Requests(tuple(questions), sampling_seed, seed)
    try:
        yield
    finally:
        state.requests = before


@contextmanager
def counting(model: Any, *, rows: bool = False) -> Iterator[None]:
    """Counts from 0 what the layers do within it; report() says it, then or later. With `rows` the distinct value rows, too,
    which the operators count as they read them (eager PyTorch as it chooses them)."""
    state = state_of(model.config)
    before, state.count_rows = state.count_rows, rows
    state.reset()
    try:
        yield
    finally:
        state.count_rows = before


@contextmanager
def recording(model: Any, path: str | Path) -> Iterator[None]:
    """Writes a safetensors file, at its end, of what the last token of the last forward pass within it attended with in every
    layer, for `allot analyze variance --states FILE`: `layers.i.query` [heads, head_dim], times the scale of the scores,
    `layers.i.key` and `layers.i.value` [kv_heads, keys, head_dim], float32. A pass is of one sequence without padding.
    Throws ScheduleError for another, or where there was none."""
    state = state_of(model.config)
    before, state.recorder = state.recorder, Recorder()
    try:
        yield
        state.recorder.save(path, len(state.schedule.samples))
    finally:
        state.recorder = before


def report(model: Any) -> Mapping[str, Any]:
    """What every layer did since the model was loaded or counting() began, in the form of docs/schedule-format.md ("What was
    executed"): tokens sampled and exact, samples of the tokens sampled per query head (or value rows per KV head, by
    `unit`), and the distinct value rows that were read, where they were counted."""
    state = state_of(model.config)
    return make_report("allot_attention", state.path, state.schedule, state.identity, state.layers)


def save_report(model: Any, path: str | Path) -> None:
    """Writes report() to a file, for `allot verify --executed`."""
    write_report(report(model), path)
