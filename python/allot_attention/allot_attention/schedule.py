"""What `allot export --format hf-config` wrote under the key `allot` of a model's config.json, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

KEY = "allot"
UNITS = ("samples", "rows")
ROW_ESTIMATORS = ("joint", "pooled", "level")
_NORMS = "value-norms"  # the parameter of joint that makes a row's size q_n |V_n|


class ScheduleError(ValueError):
    """A schedule that cannot be executed as it says, with the reason and what can be done."""


@dataclass(frozen=True)
class Method:
    """How attention is estimated: conditions.attention of docs/schedule-format.md."""

    estimator: str
    unit: str
    prefill: str
    tile: int
    score_stage: str
    score_budget: int
    mean_group_query: bool
    value_norms: bool = False  # sizes of rows take in the norms of values

    def conditions(self) -> dict[str, Any]:
        """The object that it was read from; what is at its default is left out, as allot does."""
        written = asdict(self)
        if self.unit == "samples":
            del written["unit"]
        if written.pop("value_norms"):
            written["parameters"] = {_NORMS: 1}
        return written

    def arguments(self) -> dict[str, Any]:
        """What a launch of the operators takes of it, by the names of the operators' parameters; where there are `value_norms`,
        the launch takes these, too."""
        return {name: value for name, value in asdict(self).items() if name not in ("prefill", "value_norms")}


@dataclass(frozen=True)
class Schedule:
    """A schedule with the conditions that it was learned under."""

    samples: tuple[int | None, ...]  # one entry a layer, in method.unit; None: exact attention
    method: Method
    model: Mapping[str, Any]  # conditions.model
    seed: int  # first half of the key of every draw
    run_id: str


def _field(container: Mapping[str, Any], name: str, kind: type | tuple[type, ...], place: str) -> Any:
    value = container.get(name)
    is_flag = isinstance(value, bool)
    if not isinstance(value, kind) or (is_flag and kind is not bool):
        expected = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        raise ScheduleError(f"config.json: '{place}.{name}' is {value!r}; expected {expected}; export the schedule again")
    return value


def _samples(key: Mapping[str, Any]) -> tuple[int | None, ...]:
    samples: list[int | None] = []
    for layer, entry in enumerate(_field(key, "samples", list, KEY)):
        if entry == "exact":
            samples.append(None)
        elif isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry <= 262144:
            samples.append(entry)
        else:
            raise ScheduleError(
                f"config.json: '{KEY}.samples' has {entry!r} for layer {layer}; expected 0 to 262144 or \"exact\""
            )
    return tuple(samples)


def read_schedule(config: Any) -> Schedule:
    """The schedule in a model's configuration. Throws ScheduleError where there is none, where it is damaged, where its
    length or shape is not the model's, and where it asks for something that this package does not know."""
    key = getattr(config, KEY, None)
    if not isinstance(key, Mapping):
        raise ScheduleError(
            f"the model's config.json has no key '{KEY}', so there is no schedule to follow; write one with `allot export "
            "--format hf-config`, or load the model with another attn_implementation"
        )
    version = key.get("schema_version")
    if version not in (2, 3):
        raise ScheduleError(f"the schedule's 'schema_version' is {version!r}, this allot_attention reads 2 and 3")
    samples = _samples(key)
    conditions = _field(key, "conditions", Mapping, KEY)
    place = f"{KEY}.conditions"
    attention = _field(conditions, "attention", Mapping, place)
    method = Method(
        estimator=_field(attention, "estimator", str, f"{place}.attention"),
        unit=attention.get("unit", "samples"),
        prefill=_field(attention, "prefill", str, f"{place}.attention"),
        tile=_field(attention, "tile", int, f"{place}.attention"),
        score_stage=_field(attention, "score_stage", str, f"{place}.attention"),
        score_budget=_field(attention, "score_budget", int, f"{place}.attention"),
        mean_group_query=_field(attention, "mean_group_query", bool, f"{place}.attention"),
        value_norms=_value_norms(attention),
    )
    model = _field(conditions, "model", Mapping, place)
    _check_method(method, attention)
    _check_shape(config, samples, model)
    seed = conditions.get("seed")
    return Schedule(
        samples=samples,
        method=method,
        model=model,
        seed=0 if seed is None else _field(conditions, "seed", int, place),
        run_id=str(key.get("run_id", "")),
    )


def _value_norms(attention: Mapping[str, Any]) -> bool:
    """The one parameter of estimators that is known here."""
    parameters = attention.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise ScheduleError(f"the schedule's conditions.attention.parameters is {parameters!r}; expected an object")
    known = attention.get("estimator") == "joint" and parameters.get(_NORMS, 0) in (0, 1)
    others = {name: value for name, value in parameters.items() if not (known and name == _NORMS)}
    if others:
        named = ", ".join(f"{name} {value}" for name, value in others.items())
        raise ScheduleError(
            f"the schedule was learned with {named}, which allot_attention cannot follow; it knows {_NORMS} 0 and 1 of joint"
        )
    return bool(parameters.get(_NORMS) == 1)


def _check_method(method: Method, attention: Mapping[str, Any]) -> None:
    if method.unit not in UNITS or (method.unit == "rows" and method.estimator not in ROW_ESTIMATORS):
        raise ScheduleError(
            f"the schedule counts {method.unit!r} with estimator {method.estimator}; expected samples, or rows with one of "
            f"{', '.join(ROW_ESTIMATORS)}"
        )
    if method.prefill not in ("dense", "sampled"):
        raise ScheduleError(f"the schedule's prefill is {method.prefill!r}; expected dense or sampled")
    known = {field.name for field in fields(Method)} - {"value_norms"} | {"parameters"}
    unknown = sorted(set(attention) - known)
    if unknown:
        raise ScheduleError(
            f"the schedule's conditions.attention has {', '.join(unknown)}, which this allot_attention does not know; use one "
            "of the version of the allot that wrote it"
        )


def _check_shape(config: Any, samples: tuple[int | None, ...], model: Mapping[str, Any]) -> None:
    layers = config.num_hidden_layers
    if len(samples) != layers:
        raise ScheduleError(
            f"the schedule has {len(samples)} layers, the model has {layers}; it is another model's schedule"
        )
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    shape = {"layers": layers, "num_q_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    for name, value in shape.items():
        if model.get(name) != value:
            raise ScheduleError(
                f"the schedule is for a model with {name} {model.get(name)!r}, this one has {value}; it is another model's "
                "schedule"
            )
