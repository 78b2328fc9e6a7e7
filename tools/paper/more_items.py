"""The figures, algorithms and appendices of the S2ANTA paper beside what is here."""

from __future__ import annotations

import math

from items import KERNELS, LLAMA, RULER, VARIANCES, Item, coverage_distance, errors, long
from results import Results, digits, significant


def slope(r: Results, name: str, estimator: str) -> float:
    """Of log(squared error) over log(samples), by least squares; of the formula where there is one."""
    points = [
        (math.log(row["samples"]), math.log(row["squared_error_formula"] or row["squared_error"]))
        for row in r.rows(name, estimator=estimator)
    ]
    x = sum(point[0] for point in points) / len(points)
    y = sum(point[1] for point in points) / len(points)
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def slopes(r: Results, name: str) -> str:
    return " / ".join(f"{slope(r, name, estimator):.2f}" for estimator in ("iid", "strat", "sys"))


def deviations(r: Results) -> list[float]:
    """Standard errors between measured and closed-form squared errors, of iid and strat."""
    return [
        abs(row["squared_error"] - row["squared_error_formula"]) / row["squared_error_standard_error"]
        for name in VARIANCES
        for row in r.rows(name)
        if row["squared_error_formula"] is not None
    ]


def bernoulli(r: Results, stage: str, budget: int, column: str = "error") -> float:
    return 100 * r.row("bernoulli", score_stage=stage, budget=budget)[column]


def figures(r: Results) -> list[Item]:
    at = {b: (bernoulli(r, "bernoulli", b), bernoulli(r, "bernoulli-strat", b)) for b in (1, 4, 16)}
    ablated = {name: r.rows(name) for name in ("ablate-tiny", "ablate-smollm2")}
    base = {name: r[name]["base"] for name in ablated}

    def lost(name: str) -> str:
        of = base[name]
        accuracy = [100 * row["correct"] / row["n"] for row in ablated[name]]
        worst = sorted(range(len(accuracy)), key=lambda layer: accuracy[layer])[:3]
        kept = sum(value >= 100 * of["correct"] / of["n"] - 5 for value in accuracy)
        return (
            f"base {100 * of['correct'] / of['n']:.0f} %, worst layers "
            + ", ".join(f"{layer} ({accuracy[layer]:.0f} %)" for layer in worst)
            + f", {kept} of {len(accuracy)} layers cost less than 5 points"
        )

    samples = ",".join(str(count) for count in r["tune-reinforce"]["schedule"])
    automatic = ",".join(str(count) for count in r["tune-auto"]["schedule"])
    return [
        Item(
            "Figure 1",
            "a drawing: SANTA reads S rows of V where SDPA reads n",
            "`allot analyze operations`",
            f"none of a drawing; its point in numbers, SmolLM2 over 8,192 tokens with S = 32: {digits(r.row('variance-smollm2', estimator='iid', samples=32)['rows'], 1)} distinct rows of 8,192",
            "no difference",
        ),
        Item(
            "Figure 2",
            "a drawing of `prop`'s kernels: scores and statistics, budgets, gather",
            "`allot bench attention --estimators prop`",
            f"none of a drawing; two launches in place of three, {r.kernel('1x32k', 'prop')} us at 1 x 32k, S = 128 ([kernels.md](internals/kernels.md#results))",
            "budgets are formed in the value kernel, a row at a time",
        ),
        Item(
            "Figure 3",
            "a drawing of `flash`'s kernels: samples in every tile, merged by a second kernel",
            "`allot bench attention --estimators flash`",
            f"none of a drawing; the estimator by the same two kernels as `prop`, {r.kernel('1x32k-s2048', 'flash')} us at 1 x 32k, S = 2048",
            "without the drawing's reason to be, no barrier: here `sys` is as fast and has none of the waste",
        ),
        Item(
            "Figure 4",
            "a decode step at 32k keys, RTX 6000 Ada, Llama 8B's shapes: `prop` S = 128 is 1.50 times as fast as FlashInfer, `flash` S = 2048 1.51 times",
            "`allot bench attention`; `bench/peers/published_s2anta.py`",
            f"one H200, 1 x 32k: `prop` S = 128 {r.kernel('1x32k', 'prop')} us, `flash` S = 2048 {r.kernel('1x32k-s2048', 'flash')}, `sys` S = 128 {r.kernel('1x32k', 'sys')}; fastest exact kernel (cuDNN) {r.kernel('1x32k', 'best exact peer')}: {r.kernel('1x32k', 'best exact peer') / r.kernel('1x32k', 'prop'):.2f}, {r.kernel('1x32k-s2048', 'best exact peer') / r.kernel('1x32k-s2048', 'flash'):.2f} and {r.kernel('1x32k', 'best exact peer') / r.kernel('1x32k', 'sys'):.2f} times. The published kernels there: {r.quote(KERNELS, '| 1x32k | 87.1 (85.8-88.0) | 76.8', '87.1')} (`prop`, 128) and {r.quote(KERNELS, '| 1x32k-s2048 | 111.3 (109.8-112.5) | 93.5', '93.5')} (`flash`, 2,048)",
            "another GPU, with five times the bandwidth and an exact kernel near it: there the published kernels lose to exact attention ([kernels.md](internals/kernels.md#beside-the-published-kernels-and-flashinfer-microseconds-5th-to-95th-percentile))",
        ),
        Item(
            "Figure 5",
            "a drawing: a Bernoulli query skips features of the keys",
            "`allot analyze bernoulli`",
            f"none of a drawing; with B = 4 {bernoulli(r, 'bernoulli-strat', 4, 'features'):.0f} % of the features and {bernoulli(r, 'bernoulli-strat', 4, 'sectors'):.0f} % of the sectors of 16 are read",
            "what a GPU reads is sectors, so its memory saves nothing",
        ),
        Item(
            "Figure 6",
            "error of Bernoulli scores at B = 4: about 60 % with independent and 30 % with stratified draws; slopes -1/2 and -1",
            "`allot analyze bernoulli --budgets 1,2,4,8,16,32`",
            f"B = 4: {at[4][0]:.1f} and {at[4][1]:.1f} %, a ratio of {digits(at[4][1] / at[4][0], 2)}; from B = 4 to 16 they fall to one in {at[4][0] / at[16][0]:.2f} and {at[4][1] / at[16][1]:.2f}",
            "read off a figure there; the ratio is the paper's within 10 %",
        ),
        Item(
            "Figure 7",
            "squared error over S, 8k tokens, Llama 8B: slopes -1.10 / -1.27 / -1.29 of SANTA, `strat`, `sys`",
            "`allot analyze variance --score-deviation 3`, `--states FILE`",
            f"`iid` / `strat` / `sys`: random states of deviation 3 {slopes(r, 'variance-3')}, SmolLM2 over 8,192 tokens {slopes(r, 'variance-smollm2')}",
            "on fixed states the slope of independent draws is -1 by Appendix N's own formula ([findings](#where-the-paper-and-these-numbers-disagree)); the others depend on how peaked the weights are",
        ),
        Item(
            "Figure 8",
            "one sample in one layer: DeepSeek loses all in layers 12-18 of 28, Llama in the first of 32, other layers next to nothing",
            "`allot ablate --base 16 --plots DIR`",
            f"word problems: embedded model {lost('ablate-tiny')}; SmolLM2 {lost('ablate-smollm2')}",
            "other models: layers differ as widely, and which of them carry the accuracy is the model's. MMLU is not measured (Table 5); `ablate --task mmlu-…` is tested on questions of its form",
        ),
        Item(
            "Figure 9",
            "the learned schedule of DeepSeek: most samples in the first and the middle layers; reward over 501 updates",
            "`allot tune --policy reinforce-paper --floor 0`; `allot report`",
            f"embedded model, 64 samples: {samples} by Algorithm 1 after {r['tune-reinforce']['episodes']:,} episodes, {automatic} by `auto` after {r['tune-auto']['episodes']:,}",
            f"another model, which needs its samples in its first layer (Figure 8); {r['tune-reinforce']['episodes'] // 10} updates of Algorithm 1, against the paper's 501, have begun to move them there. Reports draw the reward an episode, the figure the baseline an update",
        ),
        Item(
            "Figure 10",
            "a drawing: pods of workers and one aggregator around a shared volume",
            "`kubectl apply -k k8s/overlays/…` ([operations.md](operations.md))",
            f"none of a drawing; one aggregator on two cores granted {r.quote('README.md', 'granted 14,500 leases', '14,500')} leases a second to {r.quote('README.md', '10,000 simulated workers', '10,000')} simulated workers",
            "ZeroMQ and a SQLite history in place of files on a volume",
        ),
    ]


def algorithms(r: Results) -> list[Item]:
    same_keys = r.quote(KERNELS, "at most 0.44 % of the 6,870 samples of a suite of", "0.44 % of the 6,870 samples")
    learned = r["tune-reinforce"]["scores"]
    right = {name: f"{100 * learned[name]['correct'] / learned[name]['n']:.1f}" for name in ("uniform", "learned")}
    tested = "`sampling_statistics_test` on the CPU, `ctest -L gpu` on a GPU"
    return [
        Item(
            "Algorithm 1",
            "REINFORCE over the logits of a multinomial: baseline the mean reward of the update, step 0.02, 10 episodes of 16 questions",
            "`allot tune --policy reinforce-paper --floor 0`",
            f"embedded model, {r['tune-reinforce']['episodes']:,} episodes: {right['uniform']} -> {right['learned']} % of 512 held-out questions",
            "the same update; always ten episodes of it, so that timing changes nothing. Which draw is scored is read from the algorithm, not from Appendix L ([findings](#where-the-paper-and-these-numbers-disagree))",
        ),
        Item(
            "Algorithm 2",
            "`prop`, overview: statistics of tiles, budgets by largest remainder, systematic counts, gather",
            "`allot bench attention --estimators prop`",
            f"{r.kernel('16x32k', 'prop')} us at 16 x 32k, S = 128 (`sys` {r.kernel('16x32k', 'sys')}, exact {r.kernel('16x32k', 'exact')}); {same_keys} take another key than the reference",
            "two launches in place of three ([kernels.md](internals/kernels.md#how-a-launch-runs))",
        ),
        Item(
            "Algorithm 3",
            "kernel 1 of `prop`: scores, maximum and sum of a tile, weights kept on request",
            tested,
            f"{r.quote(KERNELS, '64 consecutive keys share one maximum', '64')} keys share a maximum; weights kept in 2 bytes; keys read at {r.quote(KERNELS, '| 3746 | 1.69 |', '3746')} GB/s at 16 x 32k",
            "weights in half precision relative to their maximum, whose rounded values are what is drawn from",
        ),
        Item(
            "Algorithm 4",
            "kernel 2 of `prop`: largest remainder of S W_t",
            "`allot analyze tiles` (column bias)",
            f"the rule's bias on random states of 32,768 keys, tiles of 256: {errors(r, 'tiles-random', 'prop', [128], column='bias')} of the exact output at S = 128, {errors(r, 'tiles-random', 'prop', [2048], column='bias')} at 2,048",
            "ties go to the lower tile; no kernel of its own",
        ),
        Item(
            "Algorithm 5",
            "kernel 3 of `prop`: counts floor(a + P + x) - floor(a + P), gather for a head group",
            tested,
            f"written anew in a test, double precision: error, cosine and rows of `allot analyze tiles` equal but for rounding; {same_keys} of the kernels differ",
            "the same targets, looked up by bisection; a row that several heads of a group want is read by each",
        ),
        Item(
            "Algorithm 6",
            "`flash`, overview: S / T samples in every tile, merged as FlashDecoding does",
            "`allot bench attention --estimators flash`",
            f"{r.kernel('1x32k-s2048', 'flash')} us at 1 x 32k, S = 2048 (`sys` {r.kernel('1x32k-s2048', 'sys')}, exact {r.kernel('1x32k-s2048', 'exact')})",
            "by the kernels of `prop`",
        ),
        Item(
            "Algorithm 7",
            "kernel 1 of `flash`: statistics and samples of a tile in one pass, S_tile about S / T (rounded)",
            "`allot analyze tiles --estimators flash`",
            f"error with tiles of 32 / 64 / 256 at S = 2048, SmolLM2's last layer: {' / '.join(errors(r, 'tiles-smollm2-last', 'flash', [2048], tile) for tile in (32, 64, 256))}",
            "S mod T tiles, the first ones, have one sample more, so that S are drawn (the published code rounds up); fewer samples than tiles are refused",
        ),
        Item(
            "Algorithm 8",
            "kernel 2 of `flash`: tiles merged by their weights",
            "`allot analyze tiles --estimators flash`",
            f"bias of the merged estimate {errors(r, 'tiles-smollm2', 'flash', [256], column='bias')}: unbiased, as the weights of tiles are exact",
            "no kernel of its own: a sample weighs W_t / (Z S_t)",
        ),
    ]


def appendices(r: Results) -> list[Item]:
    z = deviations(r)
    tails = r.rows("tails", estimator="iid")
    table10 = r.rows("operations-decode", stage="values")
    return [
        Item(
            "Appendix A",
            "SANTA and S²ANTA are unbiased; variance tr(Σ) / S, that of strata never more",
            "`allot analyze variance`",
            f"{sum(value <= 2 for value in z)} of {len(z)} measured squared errors within 2 standard errors of the closed forms (largest {max(z):.1f}); `strat` below `iid` in {sum(strat_below(r))} of {len(strat_below(r))} pairs",
            "no difference beyond chance",
        ),
        Item(
            "Appendix B",
            "Theorem B.1: a Bernstein bound on the distance of estimate and exact output, for independent draws",
            "`allot analyze tails`",
            f"random states, deviation 3: the bound is {min(row['bound'] / row['quantile'] for row in tails):.1f} to {max(row['bound'] / row['quantile'] for row in tails):.1f} times the distance that is passed with chance delta; at most {100 * max(row['beyond'] for row in tails):.2f} % of the estimates lie beyond it",
            "it holds; a bound, so no equality is expected",
        ),
        Item(
            "Appendix C",
            "Bernoulli scores: unbiased, error by independent and stratified draws, mean group query",
            "`allot analyze bernoulli [--group 4]`",
            f"B = 4: {bernoulli(r, 'bernoulli', 4):.1f} and {bernoulli(r, 'bernoulli-strat', 4):.1f} %; mean query of four, independent: {100 * r.row('bernoulli-group', score_stage='bernoulli', budget=4)['error']:.1f} %",
            "no difference: the paper reads about 60 and 30 % off Figure 6",
        ),
        Item(
            "Appendix D",
            "Figure 7 and its slopes",
            "`allot analyze variance --states FILE`",
            f"slopes {slopes(r, 'variance-smollm2')} (`iid` / `strat` / `sys`), SmolLM2",
            "see Figure 7",
        ),
        Item(
            "Appendix E",
            "Table 10's counts",
            "`allot analyze operations --pass decode`",
            f"arithmetic of the value stage at 8,192 keys: exact {table10[0]['picojoules'] / 1e6:.2f} uJ a head, SANTA with S = 32 {table10[2]['picojoules'] / 1e6:.4f}",
            "no difference in the counts; the energy is by Appendix H's 3.7 and 0.9 pJ",
        ),
        Item(
            "Appendix F",
            "Table 11: a prefill reads most rows of V",
            "`allot analyze coverage`",
            f"all entries within {coverage_distance(r):.2f} points",
            "a statement on normal inputs; real attention is peaked",
        ),
        Item(
            "Appendix G",
            "Table 12's counts",
            "`allot analyze operations --pass prefill`",
            f"{r.row('operations-prefill', stage='values', estimator='sys')['additions']:,} additions of SANTA with 1,024 queries, S = 16, d = 128: n S d exactly",
            "no difference",
        ),
        Item(
            "Appendix H",
            "tables 13 to 17 (top-k), and an energy of 4.6 k pJ against 0.9 S pJ",
            "`allot eval --estimator topk`; `allot analyze operations`",
            f"S = k = 32, 8,192 keys: `topk` {table10[1]['picojoules']:,.0f} pJ, `sys` {table10[2]['picojoules']:,.0f}, {table10[1]['picojoules'] / table10[2]['picojoules']:.2f} times less (with the divisions)",
            "about 5 in the paper, which leaves the divisions out",
        ),
        Item(
            "Appendix I",
            "Table 18: LongBench v2 over S",
            "`allot eval --task longbench-v2-32k --data data.json`",
            "none: as Table 2",
            f"needs {LLAMA}, and the data",
        ),
        Item(
            "Appendix J",
            "Figure 8: one-hot ablation",
            "`allot ablate`, `--per-kv-head`",
            f"the worst layer leaves {100 * min(row['correct'] / row['n'] for row in r.rows('ablate-tiny')):.0f} % (embedded model) and {100 * min(row['correct'] / row['n'] for row in r.rows('ablate-smollm2')):.0f} % (SmolLM2)",
            "other models",
        ),
        Item(
            "Appendix K",
            "Algorithm 1, Figure 9, Table 19",
            "`allot tune --config configs/paper-gsm8k-qwen7b.conf`",
            f"{r['tune-reinforce']['episodes']:,} episodes of the embedded model as Algorithm 1 says; what the paper leaves open is in [paper-differences.md](paper-differences.md)",
            "see Table 19",
        ),
        Item(
            "Appendix L",
            "50 preemptible workers on Kubernetes, 20 hours, files on a shared volume",
            "`allot aggregator`, `allot worker`; [operations.md](operations.md)",
            f"a history of a million episodes is ready {r.quote('README.md', 'it was ready after 3.6 seconds at most', '3.6')} seconds after a restart; any process may be killed ([faults.md](internals/faults.md))",
            "a protocol with leases in place of files. The appendix's order of steps cannot be meant ([findings](#where-the-paper-and-these-numbers-disagree))",
        ),
        Item(
            "Appendix M",
            "Table 20: distinct keys",
            "`allot analyze variance --states FILE`",
            f"S = 256: {' / '.join(digits(r.row('variance-smollm2', estimator=e, samples=256)['rows'], 1) for e in ('iid', 'strat', 'sys'))} (`iid` / `strat` / `sys`)",
            "see Table 20",
        ),
        Item(
            "Appendix N",
            "how variance and distinct keys are measured: closed forms, replicates for systematic draws, means over heads, layers, prompts",
            "`allot analyze variance`",
            f"both: closed forms and {r['variance-smollm2']['replicates']} replicates of each of {r['variance-smollm2']['heads']} heads, for `sys` replicates alone",
            "squared distances from the exact output instead of from the replicates' mean: both are unbiased for the trace",
        ),
        Item(
            "Appendix O",
            "tables 21 to 25; GSM8K and MMLU three times at temperature 0.6, top-p 0.95, penalty 1.1; bootstrap intervals",
            "`allot eval --repeats 3` ([evaluating.md](evaluating.md))",
            f"the {5} tables' tasks are here ([tasks.md](tasks.md)); sampling parameters are the prompt styles' defaults",
            "the length of replies and a limit to the likeliest tokens are not stated ([paper-differences.md](paper-differences.md))",
        ),
        Item(
            "Appendix P",
            "pseudocode of `prop`: algorithms 2 to 5",
            "`allot bench attention --estimators prop`",
            f"{r.kernel('1x8k', 'prop')} / {r.kernel('1x32k', 'prop')} / {r.kernel('1x128k', 'prop')} us at 1 x 8k / 32k / 128k, S = 128",
            "see algorithms 2 to 5",
        ),
        Item(
            "Appendix Q",
            "pseudocode of `flash`: algorithms 6 to 8",
            "`allot bench attention --estimators flash`",
            f"{r.kernel('1x8k', 'flash')} / {r.kernel('1x32k', 'flash')} us at 1 x 8k / 32k, S = 128; refused at 1 x 128k, which has 512 tiles",
            "see algorithms 6 to 8",
        ),
        Item(
            "Appendix R",
            "the microbenchmark: CUDA events, 512 MB touched before each run, 10 + 40 runs, means; batch 1, bf16, random inputs",
            "`allot bench attention`",
            f"the same protocol ({r.quote(KERNELS, '40 after 10, 512 MB touched before each')}), as a CUDA graph, medians with the 5th and 95th percentile; an H200 that reads {r.quote(KERNELS, '4285 GB/s')}",
            "a graph leaves out what launching costs the host, for all kernels alike",
        ),
        Item(
            "Appendix S",
            "Table 26: `prop` and `flash` at 8k tokens",
            RULER_EVAL,
            f"FWE and NIAH of 8,192 tokens, SmolLM2, S = 32: `prop` {long(r, 'prop', [32], 'fwe,niah')} %, `flash` {long(r, 'flash', [32], 'fwe,niah')} (Table 26); relative error of attention's output over 8,192 tokens at S = 256: `prop` {errors(r, 'tiles-smollm2', 'prop', [256])}, `flash` {errors(r, 'tiles-smollm2', 'flash', [256])}",
            f"needs {LLAMA}, and {RULER}",
        ),
        Item(
            "Appendix T",
            "Table 27: HumanEval",
            "`allot eval --task humaneval-chat --allow-code-execution`",
            f"SmolLM2: dense {r.percent('eval-smollm2-humaneval-prop', 'dense')} %, `prop` with S = 64 {r.percent('eval-smollm2-humaneval-prop', 'uniform:64')}; 164 of 164 published solutions pass in the sandboxed grader",
            f"needs {LLAMA}",
        ),
        Item(
            "Appendix U",
            "tables 28 to 30: same-state fidelity, support and size of tiles",
            "`allot analyze tiles`",
            f"last layer, S = 2048, tiles of 256: `flash` {errors(r, 'tiles-smollm2-last', 'flash', [2048])}, `prop` {errors(r, 'tiles-smollm2-last', 'prop', [2048])}, `sys` {errors(r, 'tiles-smollm2-last', 'sys', [2048])}",
            "\"dynamic tile-aware sample allocation\", which it proposes, is `sys`: {0} times closer than `flash` at the same S".format(
                f"{r.row('tiles-smollm2-last', estimator='flash', tile=256, samples=2048)['error'] / r.row('tiles-smollm2-last', estimator='sys', tile=256, samples=2048)['error']:.1f}"
            ),
        ),
    ]


RULER_EVAL = "`allot eval --task ruler-fwe --prefill dense --estimator prop`; `allot analyze tiles --states FILE`"


def strat_below(r: Results) -> list[bool]:
    """Of every budget and state, whether strata have the smaller squared error by formula."""
    return [
        r.row(name, estimator="strat", samples=samples)["squared_error_formula"]
        < r.row(name, estimator="iid", samples=samples)["squared_error_formula"]
        for name in VARIANCES
        for samples in r.column(name, "samples", estimator="iid")
    ]
