"""The commands whose results docs/paper.md rests on, and what is kept of each result.

A measurement's words may hold {smollm2}, {adapter}, {tiny}, {heldout}, {train}, {shapes}, {states}, {long}
and {contexts}, which measure.py
puts paths in place of; the committed file keeps the words as they stand here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measurement:
    words: list[str]
    keep: Callable[[str], dict]
    needs: list[str] = field(default_factory=list)  # "gsm8k", "humaneval": data not in the repository


def rounded(value):
    """Numbers with as many digits as anybody reads."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return value


def rows(*fields: str, common: tuple[str, ...] = ()) -> Callable[[str], dict]:
    """Of JSON lines: `common` fields once, which have to be equal in all rows, and `fields` of each row."""

    def keep(text: str) -> dict:
        objects = [json.loads(line) for line in text.splitlines()]
        once = {name: objects[0][name] for name in common}
        for row in objects:
            different = [name for name in common if row[name] != once[name]]
            if different:
                raise ValueError(f"rows differ in {different}, which are kept once")
        return {**once, "columns": list(fields), "rows": [[row[name] for name in fields] for row in objects]}

    return keep


def tiles(text: str) -> dict:
    """Of `analyze tiles`: a row for each estimator, tile and budget, classes of support at the largest tile and budget."""
    objects = [json.loads(line) for line in text.splitlines()]
    columns = ["error", "error_standard_error", "cosine", "bias", "rows"]
    largest = objects[-1]

    def closeness(of: dict | None) -> list:
        return [None if of is None or of[name] is None else round(of[name], 8) for name in columns]

    return {
        **{name: largest[name] for name in STATES},
        "masses": [
            {name: row[name] for name in ("tile", "tiles", "support", "support_heads", "mass_share")}
            for row in objects
            if row["estimator"] == largest["estimator"] and row["samples"] == largest["samples"]
        ],
        "rows_share": {
            row["estimator"]: row["rows_share"]
            for row in objects
            if row["tile"] == largest["tile"] and row["samples"] == largest["samples"]
        },
        "by_support": {
            row["estimator"]: {
                name: None if of is None else [of["heads"], round(of["error"], 6), round(of["cosine"], 6)]
                for name, of in row["by_support"].items()
            }
            for row in objects
            if row["tile"] == largest["tile"] and row["samples"] == largest["samples"]
        },
        "columns": ["estimator", "tile", "samples", *columns],
        "rows": [[row["estimator"], row["tile"], row["samples"], *closeness(row["all"])] for row in objects],
    }


def conditions_of(conditions: dict) -> dict:
    model = conditions["model"]
    return {
        "model": model["id"],
        "weights": model["weights_fingerprint"][:16],
        "adapter": (model.get("adapter") or {}).get("id"),
        "task": f"{conditions['task']['name']} {conditions['task']['version']}",
        "prompt_style": conditions["task"]["prompt_style"],
        "questions": conditions["measured_on"]["questions"],
        "data": conditions["measured_on"]["sha256"][:16],
        "attention": conditions["attention"],
        "generation": conditions["generation"],
        "seed": conditions["seed"],
    }


def evaluation(text: str) -> dict:
    result = json.loads(text)
    columns = ["schedule", "n", "correct", "accuracy", "interval_95", "prompt_tokens", "output_tokens", "cut_off"]
    return {
        "tool_version": result["tool_version"],
        "device": result["device"],
        "conditions": conditions_of(result["conditions"]),
        "columns": columns,
        "rows": [[schedule[column] for column in columns] for schedule in result["schedules"]],
    }


def by_cell(text: str) -> dict:
    """Of an evaluation on the contexts of assets/smol-long: a row for each schedule, kind and length."""
    result = json.loads(text)
    return {
        "tool_version": result["tool_version"],
        "device": result["device"],
        "conditions": conditions_of(result["conditions"]),
        "columns": ["schedule", "kind", "tokens", "n", "accuracy", "interval_95"],
        "rows": [
            [schedule["schedule"], kind, int(tokens), of["n"], of["accuracy"], of["interval_95"]]
            for schedule in result["schedules"]
            for cell, of in schedule["by"]["cell"].items()
            for kind, tokens in [cell.split("-")]
        ],
    }


def contexts(estimator: str, schedules: list[str]) -> Measurement:
    """Needs a GPU: 800 contexts of 1,024 to 8,192 tokens under each schedule."""
    words = ["eval", "--model", "{smollm2}", "--adapter", "{long}", "--task", "{long}/contexts.json", "--data", "{contexts}"]
    words += ["--question-field", "input", "--answer-field", "outputs", "--limit", "800", "--prefill", "dense"]
    words += ["--device", "cuda", "--max-sequences", "96", "--estimator", estimator]
    for schedule in schedules:
        words += ["--schedule", schedule]
    return Measurement([*words, "--json"], by_cell)


def evaluate(model: list[str], estimator: str, schedules: list[str], limit: int, *more: str) -> Measurement:
    words = ["eval", *model, "--data", "{heldout}", "--limit", str(limit), "--estimator", estimator, *more]
    for schedule in schedules:
        words += ["--schedule", schedule]
    return Measurement([*words, "--json"], evaluation)


def uniform(*samples: int, dense: bool = False) -> list[str]:
    return (["dense"] if dense else []) + [f"uniform:{count}" for count in samples]


TINY = ["--model", "{tiny}", "--max-new-tokens", "96"]
SMOL = ["--model", "{smollm2}", "--adapter", "{adapter}", "--prompt-style", "plain", "--max-new-tokens", "96"]
BITNET = ["--model", "{bitnet}", "--max-new-tokens", "96"]
BITNET_SAMPLES = uniform(1, 2, 4, 8, 16, 32, 64, 128)
TINY_SAMPLES = uniform(2, 4, 8, 16, 32, 64, 128, 256)
SMOL_SAMPLES = uniform(4, 8, 16, 32, 64)
BERNOULLI = ["--score-stage", "bernoulli-strat", "--score-budget"]
# Appendix C.2's mean query is estimated by independent draws, and the paper's key access fits those.
MEAN_QUERY = ["--score-stage", "bernoulli", "--mean-group-query", "--score-budget"]
STRATIFIED_MEAN_QUERY = ["--score-stage", "bernoulli-strat", "--mean-group-query", "--score-budget"]


def bernoulli_stages(name: str, model: list[str], limit: int, samples: list[str]) -> dict[str, Measurement]:
    """The rows of tables 7 to 9."""
    dense = ["--prefill", "dense"]
    return {
        **{
            f"{name}-bernoulli-{budget}": evaluate(model, "exact", uniform(1), limit, *BERNOULLI, str(budget))
            for budget in (1, 2, 4, 8, 16)
        },
        **{
            f"{name}-bernoulli-group-{budget}": evaluate(model, "exact", uniform(1), limit, *MEAN_QUERY, str(budget))
            for budget in (2, 4, 8, 16)
        },
        **{
            f"{name}-bernoulli-decode-{budget}": evaluate(
                model, "exact", uniform(1), limit, *MEAN_QUERY, str(budget), *dense
            )
            for budget in (1, 2, 4, 8, 16)
        },
        f"{name}-bernoulli-iid": evaluate(model, "iid", samples, limit, *MEAN_QUERY, "4"),
    }


STATES = ("states", "layers", "keys", "head_dim", "score_deviation", "heads", "replicates", "seed", "tool_version")
VARIANCE = rows(
    "estimator", "samples", "squared_error", "squared_error_standard_error", "squared_error_formula",
    "rows", "rows_standard_error", "rows_formula", common=STATES,
)  # fmt: skip
BERNOULLI_ROWS = rows("score_stage", "budget", "error", "standard_error", "features", "sectors",
                      common=("keys", "head_dim", "group", "instances", "seed", "tool_version"))  # fmt: skip
FIDELITY = rows("estimator", "samples", "exact_layers", "texts", "tokens", "positions", "divergence",
                "divergence_standard_error", "top1_agreement", "rows_per_kv_head",
                common=("mode", "device", "tool_version"))  # fmt: skip
OPERATIONS = rows("stage", "estimator", "samples", "additions", "multiplications", "reads", "writes", "picojoules",
                  common=("queries", "keys", "head_dim", "group", "tool_version"))  # fmt: skip


def last_layer(samples: int, layers: int = 30) -> str:
    return ",".join(["exact"] * (layers - 1) + [str(samples)])


def ablation(text: str) -> dict:
    result = json.loads(text)
    columns = ["layer", "n", "correct"]
    return {
        "tool_version": result["tool_version"],
        "conditions": conditions_of(result["conditions"]),
        "base": {name: result["base"][name] for name in ("n", "correct", "samples")},
        "columns": columns,
        "rows": [[layer[column] for column in columns] for layer in result["layers"]],
    }


def ablate(model: list[str], estimator: str, limit: int) -> Measurement:
    words = ["ablate", *model, "--data", "{heldout}", "--limit", str(limit), "--estimator", estimator, "--base", "16"]
    return Measurement([*words, "--json"], ablation)


def learned(text: str) -> dict:
    result = json.loads(text)
    return {
        "schedule": result["schedule"],
        "total": result["total"],
        "episodes": result["episodes"],
        "scores": {
            name: {field: score[field] for field in ("samples", "n", "correct", "interval_95") if field in score}
            for name, score in result["scores"].items()
        },
    }


def tune(*more: str) -> Measurement:
    words = ["tune", "--config", "configs/quickstart.conf", "--run", "{run}", "--preflight", "0", "--until", "episodes"]
    return Measurement([*words, *more, "--json"], learned)


MEASUREMENTS: dict[str, Measurement] = {
    "operations-decode": Measurement(
        ["analyze", "operations", "--pass", "decode", "--keys", "8192", "--samples", "32", "--json"], OPERATIONS
    ),
    "operations-prefill": Measurement(
        ["analyze", "operations", "--pass", "prefill", "--keys", "1024", "--samples", "16", "--json"], OPERATIONS
    ),
    "coverage": Measurement(
        ["analyze", "coverage", "--json"],
        rows("keys", "heads", "samples", "share", "standard_error", "expected",
             common=("head_dim", "estimator", "seed", "tool_version")),  # fmt: skip
    ),
    **{
        f"variance-{deviation}": Measurement(
            ["analyze", "variance", "--score-deviation", str(deviation), "--json"], VARIANCE
        )
        for deviation in (1, 2, 3, 4)
    },
    "variance-smollm2": Measurement(["analyze", "variance", "{states}", "--json"], VARIANCE, ["gsm8k"]),
    "tails": Measurement(
        ["analyze", "tails", "--score-deviation", "3", "--json"],
        rows("estimator", "samples", "delta", "quantile", "bound", "beyond", common=STATES),
    ),
    "bernoulli": Measurement(["analyze", "bernoulli", "--budgets", "1,2,4,8,16,32", "--json"], BERNOULLI_ROWS),
    "bernoulli-group": Measurement(
        ["analyze", "bernoulli", "--group", "4", "--budgets", "1,2,4,8,16", "--json"], BERNOULLI_ROWS
    ),
    "amdahl": Measurement(
        ["analyze", "amdahl", "--model", "{shapes}/llama-3.1-8b", "--sequences", "6", "--keys", "30000",
         "--samples", "128", "--json"],
        rows("keys", "sequences", "weight_bytes", "key_bytes", "speedup_of_attention", "speedup_at_most"),
    ),  # fmt: skip
    "tiles-random": Measurement(
        ["analyze", "tiles", "--keys", "32768", "--head-dim", "128", "--score-deviation", "3", "--samples",
         "128,256,1024,2048", "--json"], tiles,
    ),  # fmt: skip
    "tiles-smollm2": Measurement(
        ["analyze", "tiles", "{states}", "--samples", "64,128,256,512,1024,2048", "--replicates", "8", "--json"],
        tiles, ["gsm8k"],
    ),  # fmt: skip
    "tiles-smollm2-last": Measurement(
        ["analyze", "tiles", "{states}", "--layers", "last", "--samples", "64,128,256,512,1024,2048",
         "--replicates", "64", "--json"], tiles, ["gsm8k"],
    ),  # fmt: skip
    # Tables 6 and 17 by the output of attention: no answers, the same contexts of 8,192 tokens.
    "closeness-smollm2": Measurement(
        ["analyze", "tiles", "{states}", "--estimators", "topk,iid,strat,sys,threshold", "--tiles", "256", "--samples",
         "64,128,256", "--replicates", "8", "--json"], tiles, ["gsm8k"],
    ),  # fmt: skip
    "eval-tiny-sys": evaluate(TINY, "sys", ["dense", *TINY_SAMPLES], 128),
    "eval-tiny-strat": evaluate(TINY, "strat", TINY_SAMPLES, 128),
    "eval-tiny-iid": evaluate(TINY, "iid", TINY_SAMPLES, 128),
    "eval-tiny-topk": evaluate(TINY, "topk", TINY_SAMPLES, 128),
    "eval-tiny-prop": evaluate(TINY, "prop", uniform(8, 16, 32, 64), 128, "--tile", "64", "--prefill", "dense"),
    "eval-tiny-flash": evaluate(TINY, "flash", uniform(16, 32, 64), 128, "--tile", "64", "--prefill", "dense"),
    "eval-tiny-sys-decode": evaluate(TINY, "sys", uniform(8, 16, 32, 64), 128, "--prefill", "dense"),
    **bernoulli_stages("eval-tiny", TINY, 128, uniform(8, 16, 32, 64, 128)),
    "eval-bitnet-sys": evaluate(BITNET, "sys", ["dense", *BITNET_SAMPLES], 128),
    "eval-bitnet-iid": evaluate(BITNET, "iid", BITNET_SAMPLES, 128),
    **bernoulli_stages("eval-bitnet", BITNET, 128, BITNET_SAMPLES),
    **{
        f"eval-bitnet-bernoulli-strat-group-{budget}": evaluate(
            BITNET, "exact", uniform(1), 128, *STRATIFIED_MEAN_QUERY, str(budget)
        )
        for budget in (2, 4, 8, 16)
    },
    "eval-smollm2-sys": evaluate(SMOL, "sys", ["dense", *SMOL_SAMPLES], 64),
    "eval-smollm2-strat": evaluate(SMOL, "strat", SMOL_SAMPLES, 64),
    "eval-smollm2-iid": evaluate(SMOL, "iid", SMOL_SAMPLES, 64),
    "eval-smollm2-topk": evaluate(SMOL, "topk", SMOL_SAMPLES, 64),
    "eval-smollm2-prop": evaluate(SMOL, "prop", uniform(8, 16, 32), 64, "--tile", "64", "--prefill", "dense"),
    "eval-smollm2-flash": evaluate(SMOL, "flash", uniform(16, 32, 64), 64, "--tile", "64", "--prefill", "dense"),
    **{
        f"eval-smollm2-humaneval-{estimator}": Measurement(
            ["eval", "--model", "{smollm2}", "--task", "humaneval-chat", "--data", "{humaneval}", "--question-field",
             "prompt", "--answer-field", "canonical_solution", "--allow-code-execution", "--max-new-tokens", "256",
             "--prefill", "dense", "--estimator", estimator, "--tile", "64",
             *(word for name in schedules for word in ("--schedule", name)), "--json"],
            evaluation, ["humaneval"],
        )
        for estimator, schedules in (("prop", ["dense", *uniform(16, 64)]), ("flash", uniform(16, 64)))
    },  # fmt: skip
    # Tables 1, 6, 17, 25 and 26: contexts in RULER's form.
    "long-dense": contexts("sys", ["dense"]),
    "long-iid": contexts("iid", uniform(8, 32, 128, 512)),
    "long-strat": contexts("strat", uniform(8, 32, 128)),
    "long-sys": contexts("sys", uniform(8, 32, 128, 512)),
    "long-threshold": contexts("threshold", uniform(8, 32, 128)),
    "long-joint": contexts("joint", uniform(2, 8, 32, 128)),
    "long-prop": contexts("prop", uniform(8, 32, 128, 512)),
    "long-flash": contexts("flash", uniform(32, 128, 512)),
    "long-topk": contexts("topk", uniform(8, 32, 128, 512)),
    "ablate-tiny": ablate(TINY, "sys", 128),
    "ablate-smollm2": ablate(SMOL, "sys", 32),
    # Table 28: the last layer alone samples, so every position is a step from exact states.
    **{
        f"fidelity-smollm2-{estimator}": Measurement(
            ["analyze", "fidelity", "--model", "{smollm2}", "--text", "{text}", "--tokens", "2048", "--limit", "2",
             "--dtype", "float32", "--estimator", estimator, "--tile", "64",
             *(word for count in (64, 128, 256, 512) for word in ("--schedule", last_layer(count))), "--json"],
            FIDELITY, ["gsm8k"],
        )
        for estimator in ("sys", "prop", "flash")
    },  # fmt: skip
    "tune-auto": tune("--policy", "auto", "--episodes", "250", "--estimator", "sys"),
    "tune-reinforce": tune(
        "--policy", "reinforce-paper", "--floor", "0", "--episodes", "600", "--estimator", "iid", "--reward", "answers"
    ),
    **{
        f"eval-smollm2-{name}-{budget}": evaluate(SMOL, "exact", uniform(1), 256, *stage, str(budget))
        for name, stage, budgets in (
            ("bernoulli", BERNOULLI, (1, 2, 4, 8, 16, 32, 64)),
            ("bernoulli-group", MEAN_QUERY, (4, 8, 16, 32, 64)),
            ("bernoulli-strat-group", STRATIFIED_MEAN_QUERY, (8, 16, 32, 64)),
        )
        for budget in budgets
    },
    "eval-smollm2-exact": evaluate(SMOL, "exact", ["dense"], 256),
}
