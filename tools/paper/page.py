#!/usr/bin/env python3
"""Makes docs/paper.md of the results in docs/paper, which tools/paper/measure.py makes by commands.

    tools/paper/page.py            # writes the page
    tools/paper/page.py --check    # says whether the committed page is the one that the results make; exit 1 if not
"""

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from items import TABLE_11, TABLE_11_KEYS, Item, coverage_distance, tables  # noqa: E402
from measurements import MEASUREMENTS  # noqa: E402
from more_items import algorithms, appendices, bernoulli, deviations, figures, slope  # noqa: E402
from results import ROOT, Results, digits, significant  # noqa: E402

PAGE = ROOT / "docs" / "paper.md"

EXPECTED = (
    [f"Table {number}" for number in range(1, 31)]
    + [f"Figure {number}" for number in range(1, 11)]
    + [f"Algorithm {number}" for number in range(1, 9)]
    + [f"Appendix {letter}" for letter in "ABCDEFGHIJKLMNOPQRSTU"]
)


ITEM = re.compile(r"(Table|Figure|Algorithm) \d+|Appendix [A-Z]+")


@dataclass(frozen=True)
class Bar:
    asked: str
    found: str
    met: bool


def exact_operations(r: Results) -> bool:
    """Whether tables 10 and 12 hold to the last operation, by their formulas."""
    for name in ("operations-decode", "operations-prefill"):
        queries, keys, d = (r[name][field] for field in ("queries", "keys", "head_dim"))
        for row in r.rows(name, stage="values"):
            read = {"exact": keys, "topk": row["samples"], "sys": row["samples"]}.get(row["estimator"])
            if read is None:
                continue
            products = queries * d if row["estimator"] == "sys" else queries * read * d
            expected = (queries * read * d, products, queries * read * d, queries * d)
            if expected != (row["additions"], row["multiplications"], row["reads"], row["writes"]):
                return False
        scores = r.row(name, stage="scores")
        if scores["additions"] != queries * keys * d or scores["reads"] != (queries + keys) * d:
            return False
    return True


def bars(r: Results) -> list[Bar]:
    distance = coverage_distance(r)
    ratio = bernoulli(r, "bernoulli-strat", 4) / bernoulli(r, "bernoulli", 4)
    z = deviations(r)
    operations = exact_operations(r)
    return [
        Bar("Table 11 within 0.5 points at every length and S", f"{distance:.2f} points at most, 20 entries", distance <= 0.5),
        Bar(
            "Figure 6: the ratio of stratified to independent error at B = 4 within 10 % of the paper's 30 to 60",
            f"{digits(ratio, 3)}, {100 * abs(ratio / 0.5 - 1):.0f} % from .5",
            abs(ratio / 0.5 - 1) <= 0.1,
        ),
        Bar("Tables 10 and 12 exactly", "every count is the formula's" if operations else "counts differ", operations),
        Bar(
            "Closed-form variances within 2 standard errors of measured ones",
            f"{sum(value <= 2 for value in z)} of {len(z)}, the largest distance {max(z):.2f}",
            max(z) <= 2,
        ),
    ]


def table_of(title: str, items: list[Item], width: str) -> list[str]:
    lines = [f"## {title}", f"| {width} | The paper | Command | Here | Why it differs, or what is missing |", "|---|---|---|---|---|"]
    return [*lines, *(f"| {item.name} | {item.says} | {item.command} | {item.here} | {item.why} |" for item in items), ""]


def accuracy_sweep(r: Results, title: str, prefix: str, estimators: tuple[str, ...], samples: tuple[int, ...]) -> list[str]:
    names = [f"{prefix}-{estimator}" for estimator in estimators]
    first = r[names[0]]
    questions = first["conditions"]["questions"]
    lines = [
        f"{title}: percent of {questions} held-out word problems, 95 % intervals within {r.widest(*names):.0f} points; dense {r.percent(names[0], 'dense')} %",
        "",
        "| estimator | " + " | ".join(f"S = {count}" for count in samples) + " |",
        "|---|" + "---|" * len(samples),
    ]
    for estimator, name in zip(estimators, names, strict=True):
        lines.append(f"| `{estimator}` | " + " | ".join(r.percent(name, f"uniform:{count}") for count in samples) + " |")
    return [*lines, ""]


def context_sweep(r: Results) -> list[str]:
    estimators = ("iid", "strat", "sys", "threshold", "joint", "prop", "flash", "topk")
    kinds = {"niah": "NIAH", "fwe": "FWE", "qa1": "QA1"}
    lengths = (1024, 2048, 4096, 8192)
    rows = r.rows("long-dense")
    lines = [
        "**SmolLM2-135M with smol-long** (tables 1, 6, 17, 25, 26): percent on contexts in RULER's form of "
        + " / ".join(f"{tokens:,}" for tokens in lengths)
        + f" tokens, {rows[0]['n']} of each kind and length, exact prefill, tiles of 256, one NVIDIA H100; 95 % intervals within "
        f"{r.widest(*(f'long-{e}' for e in ('dense', *estimators))):.0f} points; NIAH by the share of gold numbers in the reply",
        "",
        "| estimator | S | " + " | ".join(kinds.values()) + " |",
        "|---|---|" + "---|" * len(kinds),
    ]

    def line(name: str, samples: str, estimator: str, schedule: str) -> str:
        cells = (
            " / ".join(r.contexts(estimator, [schedule], kind, tokens) for tokens in lengths) for kind in kinds
        )
        return f"| {name} | {samples} | " + " | ".join(cells) + " |"

    lines.append(line("dense", "all keys", "dense", "dense"))
    for estimator in estimators:
        for schedule in dict.fromkeys(r.column(f"long-{estimator}", "schedule")):
            lines.append(line(f"`{estimator}`", schedule.removeprefix("uniform:"), estimator, schedule))
    return [*lines, ""]


BUDGETS = (1, 2, 4, 8, 16, 32, 64)
STAGES = (
    ("a head, stratified", "bernoulli"),
    ("mean query of a group, independent", "bernoulli-group"),
    ("mean query of a group, stratified", "bernoulli-strat-group"),
)


def bernoulli_sweep(r: Results) -> list[str]:
    """Exact attention over Bernoulli scores; a dash where nothing was measured."""
    lines = ["**Bernoulli scores**, prompt and reply (tables 7, 9): percent of held-out word problems, `--estimator exact`. "
             "A dash: not measured, since fewer draws answer no more than the first number of a row, and more no better than its last", ""]
    lines += ["| heads | draws | " + " | ".join(f"B = {budget}" for budget in BUDGETS) + " |", "|---|---|" + "---|" * len(BUDGETS)]
    for model, prefix in (
        ("embedded Llama, groups of 2 heads of 32", "eval-tiny"),
        ("small BitNet, groups of 4 heads of 64", "eval-bitnet"),
        ("SmolLM2, groups of 3 heads of 64", "eval-smollm2"),
    ):
        for draws, stage in STAGES:
            names = {budget: f"{prefix}-{stage}-{budget}" for budget in BUDGETS}
            if not any(name in r.all for name in names.values()):
                continue
            cells = (r.percent(name, "uniform:1") if name in r.all else "-" for name in names.values())
            lines.append(f"| {model} | {draws} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def tile_sweep(r: Results, title: str, name: str) -> list[str]:
    samples = sorted(set(r.column(name, "samples")))
    tile = max(r.column(name, "tile"))
    lines = [f"{title}, tiles of {tile}: relative error (cosine; distinct rows)", ""]
    lines += ["| estimator | " + " | ".join(f"S = {count}" for count in samples) + " |", "|---|" + "---|" * len(samples)]
    for estimator in dict.fromkeys(r.column(name, "estimator")):
        cells = []
        for count in samples:
            row = r.row(name, estimator=estimator, tile=tile, samples=count)
            cells.append(f"{significant(row['error'])} ({digits(row['cosine'], 4)}; {row['rows']:,.0f})" if row["error"] else "refused")
        lines.append(f"| `{estimator}` | " + " | ".join(cells) + " |")
    return [*lines, ""]


def sweeps(r: Results) -> list[str]:
    lines = ["## Sweeps"]
    estimators = ("sys", "strat", "iid", "topk")
    lines += accuracy_sweep(r, "**Embedded model** (tables 4, 13, 14)", "eval-tiny", estimators, (2, 4, 8, 16, 32, 64, 128, 256))
    lines += accuracy_sweep(r, "**SmolLM2-135M with smol-words**", "eval-smollm2", estimators, (4, 8, 16, 32, 64))
    lines += context_sweep(r)
    lines += bernoulli_sweep(r)
    lines += ["**Table 11**, percent of the rows of V; the paper's in brackets", ""]
    lines += ["| S | " + " | ".join(f"{keys:,} keys" for keys in TABLE_11_KEYS) + " |", "|---|" + "---|" * len(TABLE_11_KEYS)]
    for samples, entries in TABLE_11.items():
        cells = (
            f"{100 * r.row('coverage', keys=keys, samples=samples)['share']:.2f} ({paper:.2f})"
            for keys, paper in zip(TABLE_11_KEYS, entries, strict=True)
        )
        lines.append(f"| {samples} | " + " | ".join(cells) + " |")
    lines.append("")
    lines += tile_sweep(r, "**Same-state error**, SmolLM2's last layer, 18 heads over 8,192 tokens (tables 28 to 30)", "tiles-smollm2-last")
    lines += tile_sweep(r, "**The same over all layers**, 540 heads (tables 26, 29)", "tiles-smollm2")
    lines += tile_sweep(r, "**Random states**, scores of deviation 3, 32,768 keys of 128 elements, 8 heads", "tiles-random")
    return lines


def findings(r: Results) -> list[str]:
    def right(stage: str, budgets: tuple[int, ...]) -> str:
        return " / ".join(r.percent(f"{stage}-{budget}", "uniform:1") for budget in budgets)

    def group_features(stage: str, budget: int) -> str:
        return f"{100 * r.row('bernoulli-group', score_stage=stage, budget=budget)['features']:.0f}"

    def of_dense(prefix: str) -> str:
        dense = r.row(f"{prefix}-sys", schedule="dense")["accuracy"]
        kept = (r.row(f"{prefix}-bernoulli-{budget}", schedule="uniform:1")["accuracy"] / dense for budget in (1, 2, 4, 8, 16))
        return " / ".join(f"{100 * share:.0f}" for share in kept)

    prop = r.row("tiles-random", estimator="prop", tile=256, samples=128)
    flash = r.row("tiles-smollm2-last", estimator="flash", tile=256, samples=2048)
    systematic = r.row("tiles-smollm2-last", estimator="sys", tile=256, samples=2048)
    return [
        "## Where the paper and these numbers disagree",
        "None of this touches what the paper is about: sampled values with few samples do what exact attention does, and strata help.",
        "",
        f"- **Figure 7's slope of -1.1 for independent draws.** Appendix N's closed form is tr(Σ) / S, so on fixed states the slope is -1 whatever the weights; measured here {slope(r, 'variance-smollm2', 'iid'):.3f} on SmolLM2. A slope of -1.1 needs states that change with S, as they do where the layers before were sampled, too: with independent draws in all of them SmolLM2's slope was {r.quote('docs/estimators.md', '-1.015 (-1.03, -1.01, -1.00 a text)', '-1.015')} ([estimators.md](estimators.md#without-a-model)). The other two slopes, -1.27 and -1.29, are met: {slope(r, 'variance-smollm2', 'strat'):.2f} and {slope(r, 'variance-smollm2', 'sys'):.2f}. They do not \"match the 1/S scaling\", as Appendix D puts it: they are steeper, which is the point of strata.",
        f"- **`prop` is not unbiased.** Section 3 calls both kernels executions of the systematic estimator, which is. Largest remainders give a tile S_t / S of the weights in place of W_t, the same in every draw, so the mean is off by the sum of (S_t / S - W_t) times the tile's mean: {significant(prop['bias'])} of the exact output at S = 128 with 128 tiles of random states (deviation 3), where one estimate's error is {significant(prop['error'])}. On SmolLM2's states, whose weights lie in few tiles, it is at most {significant(max(row['bias'] for row in r.rows('tiles-smollm2', estimator='prop', tile=256)))} with S from 64 on. It falls with S, so the paper's accuracies need not suffer by it, but the estimator is not the systematic one.",
        f"- **What tiles cost.** Appendix U closes with samples shared out by the tiles' weights as future work. `sys` does so without tiles: at S = 2048 its error on SmolLM2's last layer is {significant(systematic['error'])}, that of `flash` {significant(flash['error'])}, with {systematic['rows']:,.0f} distinct rows read instead of {flash['rows']:,.0f}; on an H200 a launch takes {r.kernel('1x32k-s2048', 'sys')} us with `sys` and {r.kernel('1x32k-s2048', 'flash')} with `flash` (1 x 32k).",
        "- **Appendix L against Algorithm 1.** The appendix samples one schedule and scores ten batches of 16 questions under it. An update of one such file has the same schedule ten times, so the sum of (r - b)(s - N p) is exactly 0. Algorithm 1, which draws a schedule for each episode, must be what was run.",
        "- **Table 11 is not about length or Gaussians.** It is S / (S + 1) for weights that are alike, at any length: a row is missed by all queries behind it with a chance whose mean is 1 / (S + 1).",
        "- **Key access of Bernoulli queries** (tables 7 to 9) counts features. Memory is read in sectors of 16 features, and in each of them one is drawn, at B = 4 in "
        f"{bernoulli(r, 'bernoulli-strat', 4, 'sectors'):.1f} % of them: on a GPU as it is, with keys as they lie, nothing is saved.",
        f"- **Bernoulli scores on other models** (table 7). Of dense accuracy BitNet 2B keeps 3 / 74 / 98 / 99 / 100 % with B = 1 / 2 / 4 / 8 / 16. The small BitNet keeps {of_dense('eval-bitnet')}, and the embedded Llama, trained on the same problems with full weights, {of_dense('eval-tiny')}: ternary weights are not needed for it. SmolLM2, a pretrained Llama with heads of 64, has {right('eval-smollm2-bernoulli', (4, 8, 16, 32))} % right with B = 4 / 8 / 16 / 32, where its exact scores have {r.percent('eval-smollm2-exact', 'dense')}: four samples a feature are no rule.",
        f"- **Mean group queries** (table 7). With B = 2 / 4 the paper loses next to nothing by them: 48.6 / 63.8 % after 48.7 / 64.5. By independent draws, which Appendix C.2 describes and its key access fits, the small BitNet has {right('eval-bitnet-bernoulli-group', (2, 4))} % after {right('eval-bitnet-bernoulli', (2, 4))}, SmolLM2 with B = 16 / 32 {right('eval-smollm2-bernoulli-group', (16, 32))} after {right('eval-smollm2-bernoulli', (16, 32))}. Stratified draws of the same mean query lose little or nothing: {right('eval-bitnet-bernoulli-strat-group', (2, 4))} %, and SmolLM2 with B = 8 / 16 / 32 {right('eval-smollm2-bernoulli-strat-group', (8, 16, 32))} after {right('eval-smollm2-bernoulli', (8, 16, 32))}. They read more of the features at the same B, of normal queries of 128 elements {group_features('bernoulli-strat', 2)} % with B = 2 where independent ones read {group_features('bernoulli', 2)}, and with B = 4 {group_features('bernoulli', 4)}: fewer features, and more right answers ([sweeps](#sweeps)).",
        "- **Intervals.** Table 19 has 52.46 ± 1.47 where Table 13 has ± 1.57 for the same number. Table 2's accuracies lie between 28.1 and 28.8 with intervals up to ± 3.4, near the 25 % of chance.",
        "- **Section 3.5** puts 1.25 for a whole decode step beside 1.26 by a model of its traffic; on an H200 a faster exact kernel and `sys` give 1.35, and 1.43 is the most that traffic allows with 128 samples.",
        "",
        "What the paper leaves open, and how it is read here, is [paper-differences.md](paper-differences.md).",
        "",
    ]


def page(r: Results) -> str:
    processors = sorted({result["processor"] for result in r.all.values()})
    lines = [
        "# The S2ANTA paper beside allot",
        "<!-- Made by tools/paper/page.py of the results in docs/paper; change those or the script, not this file. -->",
        "Every table, figure, algorithm and appendix of \"Stochastic Sparse Attention for Memory-Bound Inference\" (arXiv:2605.01910): what it says, the command of allot that gives the matching thing, the number here, and why it differs or what is missing. \"None\" stands with its reason.",
        "",
        f"**Conditions.** What is measured without further words was measured on {' and '.join(processors)}, by the commands in `docs/paper/*.json`, which hold their results: `allot {r['coverage']['tool_version']}`, seed 0 (`tune`: 1), no timing among them. The embedded model is `assets/tiny-gsm` (8 layers, 5.9 M parameters; bfloat16, greedy, at most 96 new tokens), the small BitNet `assets/tiny-gsm-bitnet` (6 layers, 11.1 M parameters, ternary weights and inputs on a grid of eight bits), SmolLM2 is SmolLM2-135M-Instruct (30 layers, 9 query and 3 KV heads of 64; for word problems with the adapter `assets/smol-words`), questions are the word problems of `assets/tiny-gsm/heldout.jsonl`, prompt and reply sampled where nothing else is said. Contexts of 8,192 tokens whose states are looked at are two texts of GSM8K's questions and solutions, and exact attention computed these states in float32; contexts with answers are those of `allot contexts`, with the adapter `assets/smol-long`. Times and long runs come from other pages, which name their GPU and are linked; the script stops where such a page no longer says what is quoted.",
        "",
        "    tools/paper/measure.py --allot build/bin/allot --gsm8k test.jsonl --humaneval HumanEval.jsonl --python .deps/check/bin/python   # what is missing in docs/paper, or --only NAME --again",
        "    tools/paper/page.py                              # the page; --check: is it the committed one?",
        "",
        "## Bars",
        "| asked | found | met? |",
        "|---|---|---|",
        *(f"| {bar.asked} | {bar.found} | {'met' if bar.met else '**not met**'} |" for bar in bars(r)),
        "",
        *table_of("Tables", tables(r), "Table"),
        *table_of("Figures", figures(r), "Figure"),
        *table_of("Algorithms", algorithms(r), "Algorithm"),
        *table_of("Appendices", appendices(r), "Appendix"),
        *findings(r),
        *sweeps(r),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def problems(text: str) -> list[str]:
    """What is wrong with a page: an item that is missing or doubled, an empty cell, a cell that gives neither number nor reason."""
    found = []
    rows: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        cells = cells_of(line) if line.startswith("| ") else []
        if cells and ITEM.fullmatch(cells[0]):
            rows.setdefault(cells[0], []).append(cells)
    for name in EXPECTED:
        if len(rows.get(name, [])) != 1:
            found.append(f"{name} stands {len(rows.get(name, []))} times, once is expected")
    found += [f"{name} is no part of the paper" for name in rows if name not in EXPECTED]
    for name, of_name in rows.items():
        for cells in of_name:
            if len(cells) != 5:
                found.append(f"{name} has {len(cells)} cells, 5 are expected")
                continue
            found += [f"{name}: cell {place + 1} is empty" for place, cell in enumerate(cells) if len(cell) < 3]
            here = cells[3]
            if here.startswith("none"):
                if len(here) < len("none: why"):
                    found.append(f"{name} has no number and no reason")
            elif not any(character.isdigit() for character in here):
                found.append(f"{name} has no number")
    return found


def stale(r: Results) -> list[str]:
    """Results of other commands than those of measurements.py."""
    found = [f"docs/paper/{name}.json is no measurement any more" for name in r.all if name not in MEASUREMENTS]
    for name, measurement in MEASUREMENTS.items():
        if name not in r.all:
            found.append(f"docs/paper/{name}.json is missing; tools/paper/measure.py makes it")
        elif r[name]["command"] != "allot " + " ".join(measurement.words):
            found.append(f"docs/paper/{name}.json is of another command; tools/paper/measure.py --again --only {name}")
    return found


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "paper")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    results = Results(options.results)
    made = page(results)
    wrong = problems(made) + stale(results) + [f"bar not met: {bar.asked}: {bar.found}" for bar in bars(results) if not bar.met]
    if options.check:
        committed = options.page.read_text()
        if committed != made:
            wrong.append(f"{options.page.name} is not what tools/paper/page.py makes of the results:")
            wrong += list(difflib.unified_diff(committed.splitlines(), made.splitlines(), "committed", "made", lineterm="", n=0))[:20]
    else:
        options.page.write_text(made)
    for line in wrong:
        say(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
