"""The tables of the S2ANTA paper beside what is measured here: one Item each, numbers from Results."""

from __future__ import annotations

from dataclasses import dataclass

from results import Results, digits, significant

KERNELS = "docs/internals/kernels.md"
ENGINE = "docs/internals/engine.md"
LEARNING = "docs/learning.md"
ESTIMATORS = "docs/estimators.md"


@dataclass(frozen=True)
class Item:
    name: str  # "Table 1"
    says: str  # what the paper says, with its key numbers
    command: str
    here: str  # a number, or "none: " and why there is none
    why: str  # why it differs, or what is needed that is not here


VARIANCES = ("variance-1", "variance-2", "variance-3", "variance-4", "variance-smollm2")
LLAMA = "the weights of Llama-3.1-8B-Instruct and a GPU"
DEEPSEEK = "the weights of DeepSeek-R1-Distill-Qwen-7B and a GPU"
BITNET = "the weights of BitNet b1.58 2B, whose form `BitNetForCausalLM` reads ([engine.md](internals/engine.md#ternary-weights)), and a GPU"
RULER = "contexts of that length, which `allot contexts` makes in RULER's form"
RULER_COMMAND = (
    "`allot contexts --task ruler-fwe --tokens 8192 > validation.jsonl`, `allot eval --task ruler-fwe --data validation.jsonl --question-field input --answer-field outputs --max-new-tokens 64`"
)
LONG_COMMAND = "`allot eval --task assets/smol-long/contexts.json --adapter assets/smol-long --prefill dense`"
EVAL = "`allot eval --estimator sys --schedule dense --schedule uniform:2 …`"


def long(r: Results, estimator: str, samples: list[int], kinds: str = "fwe,niah,qa1", tokens: int = 8192) -> str:
    """Percents over samples, kind by kind, on contexts in RULER's form."""
    schedules = [f"uniform:{count}" for count in samples] or ["dense"]
    return ", ".join(r.contexts(estimator, schedules, kind, tokens) for kind in kinds.split(","))


def dense_contexts(r: Results, kind: str) -> str:
    """Percent of all lengths."""
    rows = r.rows("long-dense", kind=kind)
    return digits(100 * sum(row["n"] * row["accuracy"] for row in rows) / sum(row["n"] for row in rows), 1)


def errors(r: Results, name: str, estimator: str, samples: list[int], tile: int = 256, column: str = "error") -> str:
    values = [r.row(name, estimator=estimator, tile=tile, samples=count)[column] for count in samples]
    return " / ".join(digits(value, 4) if column == "cosine" else significant(value) for value in values)


def tables(r: Results) -> list[Item]:
    tiny, smol, small = "eval-tiny-", "eval-smollm2-", "eval-bitnet-"

    def by_budget(model: str, budgets: tuple[int, ...]) -> str:
        return " / ".join(r.percent(f"{model}-{budget}", "uniform:1") for budget in budgets)

    step = r.quote(ENGINE, "6 x 30,000 10.61 ms exact and 7.88 sampled")
    bound = r.row("amdahl", keys=30000)
    rows_read = {
        estimator: " / ".join(
            digits(r.row("variance-smollm2", estimator=estimator, samples=count)["rows"], 1)
            for count in (32, 64, 128, 256)
        )
        for estimator in ("iid", "strat", "sys")
    }
    features = {
        name: " / ".join(
            digits(100 * r.row(name, score_stage=stage, budget=budget)["features"], 1) for budget in budgets
        )
        for name, stage, budgets in (
            ("bernoulli", "bernoulli-strat", (1, 2, 4, 8, 16)),
            ("bernoulli-group", "bernoulli", (2, 4, 8, 16)),
        )
    }
    decode = r.rows("operations-decode", stage="values")
    prefill = r.rows("operations-prefill", stage="values")
    top1 = {
        estimator: " / ".join(
            digits(100 * agreement, 2) for agreement in r.column(f"fidelity-smollm2-{estimator}", "top1_agreement")
        )
        for estimator in ("sys", "prop", "flash")
    }
    by_support = {
        estimator: classes for estimator, classes in r["tiles-smollm2"]["by_support"].items() if estimator != "prop"
    }
    supported = {
        estimator: " / ".join(significant(of[1]) for of in classes.values() if of) for estimator, classes in by_support.items()
    }
    heads = " / ".join(str(of[0]) for of in by_support["flash"].values() if of)
    learned = r["tune-reinforce"]["scores"]
    automatic = r["tune-auto"]["scores"]

    def right(evaluation: dict, name: str) -> str:
        return f"{100 * evaluation[name]['correct'] / evaluation[name]['n']:.1f}"

    return [
        Item(
            "Table 1",
            "RULER at 32k tokens, exact prefill: `prop` at S = 128 has 95.4 / 98.3 / 64.4 / 60.2 % (FWE, NIAH, QA1, QA2), `flash` at 2,048 94.1 / 98.3 / 64.6 / 60.0 and at 256 66.2 % of FWE, SDPA 95.6 / 98.4 / 64.0 / 58.8",
            RULER_COMMAND + " `--prefill dense --estimator prop --schedule uniform:128`; " + LONG_COMMAND,
            f"SmolLM2, contexts of 8,192 tokens in RULER's form, FWE / NIAH / QA1: `prop` at S = 128 {long(r, 'prop', [128]).replace(', ', ' / ')} %, `flash` at 512 {long(r, 'flash', [512]).replace(', ', ' / ')}, at 32, a sample a tile, {long(r, 'flash', [32]).replace(', ', ' / ')}; dense {long(r, 'dense', []).replace(', ', ' / ')} ([sweeps](#sweeps)). Word problems, exact prefill, tiles of 64: the embedded model with S = 16 / 32 / 64 `prop` {r.percents(tiny + 'prop', [16, 32, 64])} %, `flash` {r.percents(tiny + 'flash', [16, 32, 64])}, `sys` {r.percents(tiny + 'sys-decode', [16, 32, 64])}; SmolLM2 with S = 16 / 32 `prop` {r.percents(smol + 'prop', [16, 32])}, `flash` {r.percents(smol + 'flash', [16, 32])}",
            f"needs {LLAMA}, and {RULER}. Over 8,192 tokens as in the paper: `prop` answers with few samples what dense attention does, `flash` with few loses what stands in one place of the text. A text of four or five tiles leaves `flash` little to waste, and all three answer alike. QA2 takes two facts, which this model does not combine (dense {long(r, 'dense', [], 'qa2')} %)",
        ),
        Item(
            "Table 2",
            "LongBench v2 at 30k tokens: `prop` at S = 128 28.1 ± 1.0 %, `flash` at 2,048 28.8 ± 3.4, SDPA 28.4 ± 1.5",
            "`allot eval --task longbench-v2-32k --data data.json` ([longbench](../evaluation/longbench/README.md))",
            "none: neither LongBench v2's 503 contexts nor the model is here, and what a small model makes of them would be chance",
            f"needs {LLAMA}, and the data. Chance is 25 %, so the three numbers lie within 4 points of it and tell little of the estimators",
        ),
        Item(
            "Table 3",
            "6 prompts of 30k tokens and 2,048 new ones, RTX 6000 Ada: FlashAttention-2 8.237 ms an output token, `flash` 6.589 (1.250 times faster), `prop` 6.702 (1.229); a model of the traffic gives 1.26",
            "`allot bench decode --model configs/shapes/llama-3.1-8b --random-weights 1 --cache-fill random --attention both`; `allot analyze amdahl`",
            f"one H200, a step of the six: {step} (`sys`, S = 128), 1.35 times; by the traffic {bound['speedup_of_attention']:.2f} where attention is 1.5 times as fast, at most {bound['speedup_at_most']:.2f} ([engine.md](internals/engine.md#on-a-gpu))",
            "random weights at full shape take the time of trained ones. Another GPU, whose exact attention is nearer to its memory's speed; `sys` in place of the paper's two kernels",
        ),
        Item(
            "Table 4",
            "GSM8K, Llama 8B: `sys` / `strat` / SANTA at S = 16 44.6 / 39.1 / 5.5 %, at 32 68.6 / 67.0 / 38.3, at 256 77.6 / 78.2 / 75.6; SDPA 78.1",
            EVAL,
            f"`sys` / `strat` / `iid` at S = 16: embedded model {r.percent(tiny + 'sys', 'uniform:16')} / {r.percent(tiny + 'strat', 'uniform:16')} / {r.percent(tiny + 'iid', 'uniform:16')} %, SmolLM2 {r.percent(smol + 'sys', 'uniform:16')} / {r.percent(smol + 'strat', 'uniform:16')} / {r.percent(smol + 'iid', 'uniform:16')}; at 32: {r.percent(tiny + 'sys', 'uniform:32')} / {r.percent(tiny + 'strat', 'uniform:32')} / {r.percent(tiny + 'iid', 'uniform:32')} and {r.percent(smol + 'sys', 'uniform:32')} / {r.percent(smol + 'strat', 'uniform:32')} / {r.percent(smol + 'iid', 'uniform:32')}; dense {r.percent(tiny + 'sys', 'dense')} and {r.percent(smol + 'sys', 'dense')} (all S: [sweeps](#sweeps))",
            f"easier questions and smaller models; the shape is the paper's: nothing, then a steep rise, independent draws last. Its own numbers need {LLAMA}",
        ),
        Item(
            "Table 5",
            "MMLU, Llama 8B: `sys` / `strat` / SANTA at S = 16 34.1 / 32.5 / 26.2 %, at 256 51.1 / 50.9 / 49.8; SDPA 49.9",
            "`allot eval --task mmlu-llama --data anatomy_test.csv`",
            "none: MMLU's files are not here, and the models that are would answer by chance, sampled or not (SmolLM2-135M says A to all of 200 four-choice questions, [mmlu](../evaluation/mmlu/README.md))",
            f"needs {LLAMA}, and MMLU's files; the task, its prompt and its grading are here (Table 24)",
        ),
        Item(
            "Table 6",
            "RULER at 8k tokens, S = 256: `sys` 97.9 / 95.0 / 71.2 / 69.4 %, `strat` 98.3 / 94.6 / 71.2 / 67.0, SANTA 96.2 / 93.2 / 68.0 / 66.4, SDPA 98.5 / 94.6 / 71.8 / 68.6",
            RULER_COMMAND + "; " + LONG_COMMAND + "; `allot analyze tiles --states FILE --estimators iid,strat,sys`",
            f"SmolLM2, contexts of 8,192 tokens in RULER's form, exact prefill, S = 8 / 32 / 128, FWE, NIAH, QA1: `sys` {long(r, 'sys', [8, 32, 128])} %, `strat` {long(r, 'strat', [8, 32, 128])}, `iid` {long(r, 'iid', [8, 32, 128])}; dense {long(r, 'dense', [])} ([sweeps](#sweeps)). The output of attention over 8,192 tokens of text (SmolLM2, all layers), relative error at S = 64 / 128 / 256: `sys` {errors(r, 'closeness-smollm2', 'sys', [64, 128, 256])}, `strat` {errors(r, 'closeness-smollm2', 'strat', [64, 128, 256])}, `iid` {errors(r, 'closeness-smollm2', 'iid', [64, 128, 256])}",
            f"needs {LLAMA}, and {RULER}. Easier contexts: with S = 128 all answer as dense attention does, at 8 the order is the paper's, `sys` and `strat` alike and `iid` behind. The errors have that order, too",
        ),
        Item(
            "Table 7",
            "GSM8K, BitNet 2B, stratified Bernoulli scores with B = 1 / 2 / 4 / 8 / 16: 1.9 / 48.7 / 64.5 / 65.1 / 65.8 % (SDPA 65.7), reading 25.6 / 46.3 / 67.5 / 82.6 / 91.1 % of the key features a head; by mean group query with B = 2 / 4 / 8 / 16 48.6 / 63.8 / 65.6 / 66.2 %, reading 57.9 / 84.7 / 97.1 / 99.7",
            "`allot eval --estimator exact --schedule uniform:1 --score-stage bernoulli-strat --score-budget 4`, `--score-stage bernoulli --mean-group-query`; `allot analyze bernoulli --group 4`",
            f"word problems, the small BitNet (groups of four heads of 64; dense {r.percent(small + 'sys', 'dense')} %), B = 1 / 2 / 4 / 8 / 16: {by_budget(small + 'bernoulli', (1, 2, 4, 8, 16))} %; mean group query (independent draws as in Appendix C.2), 2 / 4 / 8 / 16: {by_budget(small + 'bernoulli-group', (2, 4, 8, 16))} %; the embedded Llama: {by_budget(tiny + 'bernoulli', (1, 2, 4, 8, 16))} %, and (groups of two) {by_budget(tiny + 'bernoulli-group', (2, 4, 8, 16))} %; SmolLM2, B = 4 / 8 / 16 / 32 / 64: {by_budget(smol + 'bernoulli', (4, 8, 16, 32, 64))} %, and (groups of three) B = 4 / 8 / 16 / 32 / 64 {by_budget(smol + 'bernoulli-group', (4, 8, 16, 32, 64))} %. Features read by normal queries, the same B: a head {features['bernoulli']} %, by the mean query of four {features['bernoulli-group']}",
            f"needs {BITNET}. The rise with B is the paper's, and a Llama that learned the same problems has it, too; a pretrained one has not, and independent draws of a mean query cost more than in the paper ([findings](#where-the-paper-and-these-numbers-disagree)). On a GPU nothing is saved: every sector of 16 features has one that is read ([estimators.md](estimators.md#without-a-model))",
        ),
        Item(
            "Table 8",
            "RULER at 4k tokens, Bernoulli scores by mean group query in decoding alone, B = 4 / 8 / 16: FWE 70.4 / 89.4 / 92.7 % (SDPA 94.0), reading 47.3 / 72.8 / 92.1 % of the key features",
            "`allot eval … --score-stage bernoulli --score-budget 8 --mean-group-query --prefill dense`",
            f"word problems, exact prefill, B = 1 / 2 / 4 / 8 / 16: the small BitNet {by_budget(small + 'bernoulli-decode', (1, 2, 4, 8, 16))} %, the embedded Llama {by_budget(tiny + 'bernoulli-decode', (1, 2, 4, 8, 16))} %",
            f"needs {LLAMA}, and {RULER}. Easier questions; the same rise with B",
        ),
        Item(
            "Table 9",
            "GSM8K, BitNet 2B, B = 4 by mean group query and SANTA with S = 8 / 16 / 32 / 64 / 128: 55.0 / 60.7 / 62.3 / 63.8 / 64.1 % (SDPA 65.7), reading 84.7 % of the keys' features and 2.4 / 3.7 / 6.2 / 10.8 / 14.3 % of the value rows",
            "`allot eval --estimator iid --schedule uniform:64 --score-stage bernoulli --score-budget 4 --mean-group-query`",
            f"the small BitNet, S = 1 / 2 / 4 / 8 / 16 / 32 / 64 / 128: {r.percents(small + 'bernoulli-iid', [1, 2, 4, 8, 16, 32, 64, 128])} % (exact scores {r.percents(small + 'iid', [1, 2, 4, 8, 16, 32, 64, 128])}); the embedded Llama, S = 8 / 16 / 32 / 64 / 128: {r.percents(tiny + 'bernoulli-iid', [8, 16, 32, 64, 128])} % (exact scores, S = 16 / 32 / 64 / 128: {r.percents(tiny + 'iid', [16, 32, 64, 128])})",
            f"needs {BITNET}. The small BitNet needs fewer samples than the paper's, and loses more to independent draws of the mean query. The Llama has a layer that needs many samples by construction",
        ),
        Item(
            "Table 10",
            "a decode step's value stage: SDPA adds, multiplies and reads n d elements; SANTA adds and reads S d, and divides d times",
            "`allot analyze operations --pass decode --keys 8192 --samples 32`",
            f"n = 8,192, d = 128, S = 32: exact {decode[0]['additions']:,} additions, {decode[0]['multiplications']:,} multiplications, {decode[0]['reads']:,} reads; SANTA {decode[2]['additions']:,}, {decode[2]['multiplications']:,}, {decode[2]['reads']:,}; {decode[0]['writes']} writes each",
            "no difference: the paper's formulas, exactly",
        ),
        Item(
            "Table 11",
            "value rows that a causal prefill reads, normal inputs: S = 1 / 4 / 8 / 16 49.9 / 80.0 / 88.9 / 94.1 % at 1,024 keys, the same up to 16,384",
            "`allot analyze coverage`",
            f"{' / '.join(digits(100 * share, 2) for share in r.column('coverage', 'share', keys=1024))} % at 1,024 keys, {' / '.join(digits(100 * share, 2) for share in r.column('coverage', 'share', keys=16384))} at 16,384; all 20 entries within {coverage_distance(r):.2f} points of the paper's",
            "no difference beyond chance. The table is S / (S + 1): nothing of it depends on the length ([estimators.md](estimators.md#without-a-model))",
        ),
        Item(
            "Table 12",
            "a prefill a head: scores n² d additions and multiplications; values n² d (SDPA), n k d (top-k), n S d additions and n d divisions (SANTA)",
            "`allot analyze operations --pass prefill --keys 1024 --samples 16`",
            f"n = 1,024, d = 128, S = k = 16: additions {prefill[0]['additions']:,} / {prefill[1]['additions']:,} / {prefill[2]['additions']:,} (exact, top-k, SANTA), multiplications {prefill[0]['multiplications']:,} / {prefill[1]['multiplications']:,} / {prefill[2]['multiplications']:,}",
            "no difference: the paper's formulas, exactly",
        ),
        Item(
            "Table 13",
            "GSM8K, DeepSeek 7B: top-k / SANTA at 8 72.3 / 52.5 %, at 16 82.5 / 79.0, at 256 88.2 / 86.9; SDPA 88.8",
            "`allot eval --estimator topk --schedule uniform:8 …`, `--estimator iid`",
            f"`topk` / `iid`: embedded model at 8 {r.percent(tiny + 'topk', 'uniform:8')} / {r.percent(tiny + 'iid', 'uniform:8')} %, at 32 {r.percent(tiny + 'topk', 'uniform:32')} / {r.percent(tiny + 'iid', 'uniform:32')}; SmolLM2 at 8 {r.percent(smol + 'topk', 'uniform:8')} / {r.percent(smol + 'iid', 'uniform:8')}, at 32 {r.percent(smol + 'topk', 'uniform:32')} / {r.percent(smol + 'iid', 'uniform:32')} ([sweeps](#sweeps))",
            f"needs {DEEPSEEK} (`configs/paper-gsm8k-qwen7b.conf` has its conditions)",
        ),
        Item(
            "Table 14",
            "GSM8K, Llama 8B: top-k / SANTA / `strat` / `sys` at 8 41.3 / 1.4 / 1.7 / 2.1 %, at 16 62.9 / 5.5 / 39.1 / 44.6, at 64 76.1 / 63.6 / 74.4 / 76.4",
            EVAL + " for each estimator",
            f"`topk` / `iid` / `strat` / `sys` at 8: embedded model {' / '.join(r.percent(tiny + e, 'uniform:8') for e in ('topk', 'iid', 'strat', 'sys'))} %, SmolLM2 {' / '.join(r.percent(smol + e, 'uniform:8') for e in ('topk', 'iid', 'strat', 'sys'))}; at 16: {' / '.join(r.percent(tiny + e, 'uniform:16') for e in ('topk', 'iid', 'strat', 'sys'))} and {' / '.join(r.percent(smol + e, 'uniform:16') for e in ('topk', 'iid', 'strat', 'sys'))} ([sweeps](#sweeps))",
            f"needs {LLAMA}. Top-k at small budgets: ahead on SmolLM2, as in the paper; behind on the embedded model, whose first layer attends to many keys alike, which is what top-k drops",
        ),
        Item(
            "Table 15",
            "MMLU, DeepSeek 7B: top-k / SANTA at 8 55.1 / 44.6 %, at 32 60.8 / 61.1; SDPA 63.2",
            "`allot eval --task mmlu-deepseek --data anatomy_test.csv --estimator topk`",
            "none: as Table 5",
            f"needs {DEEPSEEK}, and MMLU's files",
        ),
        Item(
            "Table 16",
            "MMLU, Llama 8B: top-k / SANTA / `strat` / `sys` at 16 45.3 / 26.2 / 32.5 / 34.1 %, at 256 49.8 / 49.8 / 50.9 / 51.1; SDPA 49.9",
            "`allot eval --task mmlu-llama --data anatomy_test.csv`",
            "none: as Table 5",
            f"needs {LLAMA}, and MMLU's files",
        ),
        Item(
            "Table 17",
            "RULER at 8k tokens, S = k = 256, QA2: `sys` 69.4 %, `strat` 67.0, SANTA 66.4, top-k 64.2, SDPA 68.6",
            RULER_COMMAND + " `--estimator topk`; " + LONG_COMMAND + "; `allot analyze tiles --states FILE --estimators topk,iid,strat,sys`",
            f"the contexts of Table 6, `topk` at 8 / 32 / 128 / 512, FWE, NIAH, QA1: {long(r, 'topk', [8, 32, 128, 512])} %, `sys` {long(r, 'sys', [8, 32, 128, 512])}. The output of attention as in Table 6, relative error at 64 / 128 / 256: `topk` {errors(r, 'closeness-smollm2', 'topk', [64, 128, 256])}, `sys` {errors(r, 'closeness-smollm2', 'sys', [64, 128, 256])}; distinct rows read {errors(r, 'closeness-smollm2', 'topk', [64, 128, 256], column='rows')} and {errors(r, 'closeness-smollm2', 'sys', [64, 128, 256], column='rows')}",
            f"needs {LLAMA}, and {RULER}. Top-k is far behind at few samples, most where the needles are, and further with every doubling of the length ([estimators.md](estimators.md#long-contexts)). In the output at equal S the two err alike; but top-k reads S rows and `sys` fewer, and at about equal rows ({r.row('closeness-smollm2', estimator='topk', samples=64)['rows']:.0f} and {r.row('closeness-smollm2', estimator='sys', samples=256)['rows']:.0f}) `sys` has less than half the error",
        ),
        Item(
            "Table 18",
            "LongBench v2 over S: `flash` at 128 / 256 / 512 / 1024 / 2048 8.7 / 14.0 / 26.6 / 27.2 / 28.8 %, `prop` at 64 to 1024 28.1 to 29.1",
            "`allot eval --task longbench-v2-32k --data data.json`",
            "none: as Table 2",
            f"needs {LLAMA}, and the data. With tiles of 256 and more than 32,768 keys `flash` at S = 128 is refused here: it has no sample for every tile",
        ),
        Item(
            "Table 19",
            "DeepSeek 7B, 224 samples in 28 layers, 5,010 episodes: GSM8K 52.46 -> 66.06 %, MMLU 44.55 -> 48.86",
            "`allot tune --policy reinforce-paper --floor 0 --estimator iid` (all conditions: `configs/paper-gsm8k-qwen7b.conf`); `allot tune`",
            f"embedded model, 64 samples in 8 layers, 512 held-out questions: Algorithm 1 with {r['tune-reinforce']['episodes']:,} episodes and `iid` {right(learned, 'uniform')} -> {right(learned, 'learned')} %, `auto` with {r['tune-auto']['episodes']} and `sys` {right(automatic, 'uniform')} -> {right(automatic, 'learned')}. SmolLM2, `sys`, 165 samples in 30 layers, 2,000 episodes, five seeds on H100s: {r.quote(LEARNING, '37.0 (1.0) | +4.8 (+2.1 to +6.2)', '+4.8 (+2.1 to +6.2)')} points with Algorithm 1, {r.quote(LEARNING, '46.4 (1.2) | +14.3 (+12.5 to +16.2)', '+14.3 (+12.5 to +16.2)')} with `auto` ([learning.md](learning.md#five-seeds))",
            f"needs {DEEPSEEK}: the paper's run took some 1,000 GPU-hours. Transfer to another task is not measured: no second task is within reach of the models here",
        ),
        Item(
            "Table 20",
            "distinct keys of a query over 8,192 tokens, S = 32 / 64 / 128 / 256: SANTA 11.0 / 16.7 / 25.9 / 38.3, `strat` 12.7 / 21.2 / 35.8 / 60.3, `sys` 13.0 / 21.7 / 36.4 / 61.6",
            "`allot analyze variance --states FILE`",
            f"SmolLM2, 8,192 tokens, all layers: `iid` {rows_read['iid']}, `strat` {rows_read['strat']}, `sys` {rows_read['sys']}",
            f"another model and text; `sys` above `strat` above `iid` in both. The expected number is a sum over the weights: {rows_met(r)} of the measured numbers are within 2 standard errors of it",
        ),
        Item(
            "Table 21",
            "DeepSeek and GSM8K: `\\boxed{}`, the last box or else the final 200 characters, PRM800K's comparison",
            "`allot eval --task gsm8k --prompt-style boxed`; `allot grade`",
            f"on {r.quote('docs/paper-differences.md', 'on 5,276 such replies', '5,276')} replies without box or marker {r.quote('docs/paper-differences.md', '(0.4 % of those replies are accepted)', '0.4 %')} are accepted; the answers of all {r.quote('evaluation/gsm8k/README.md', '105 of the 8,792 do', '8,792')} published solutions are read as numbers",
            "what counts as the answer at the end of a reply without a box is open in the paper ([paper-differences.md](paper-differences.md))",
        ),
        Item(
            "Table 22",
            "DeepSeek and MMLU: a letter in `\\boxed{}`, else the last of A-D in the final 300 characters",
            "`allot eval --task mmlu-deepseek`; `allot grade --task mmlu-deepseek`",
            f"{r.quote('evaluation/mmlu/README.md', '191 hand-made replies, at least 60 a form', '191')} hand-made replies graded as by hand, the three generated forms together",
            "how choices are labelled, the paper does not say; \"A. \" here",
        ),
        Item(
            "Table 23",
            "Llama and GSM8K: Meta's template with a system text, the first integer of the last line, else of the last 25 words",
            "`allot eval --task gsm8k --prompt-style llama-chat`; `allot grade`",
            "the answers of 8,792 published solutions, as in Table 21; prompt and extraction by golden cases (`gsm8k_test`, `extraction_test`, `number_test`)",
            "the date lines of Meta's template are left out; numbers are read whole, 18.50 too, where the paper says integer-looking",
        ),
        Item(
            "Table 24",
            "Llama and MMLU: system text, the first of A-D behind the last newline, else the last of the final ten words",
            "`allot eval --task mmlu-llama`; `allot grade --task mmlu-llama`",
            "191 hand-made replies as in Table 22; by likelihood 200 of 200 choices are lm-evaluation-harness's ([mmlu](../evaluation/mmlu/README.md))",
            "none known. The fallback takes letters within words, as the paper says it",
        ),
        Item(
            "Table 25",
            "RULER: FWE by the share of three words, NIAH by the first four integers, QA by a gold answer within the reply",
            "`allot eval --task ruler-fwe`, `ruler-niah-multivalue`, `ruler-qa`; `allot grade`",
            f"{r.quote('evaluation/ruler/README.md', 'On 1,000 generated replies each', '1,000')} generated replies each have the scores of RULER's own functions with FWE and QA; {r.quote('evaluation/ruler/README.md', '188 hand-made replies', '188')} hand-made ones as by hand; SmolLM2 with `assets/smol-long`, dense, 200 contexts a task of 1,024 to 8,192 tokens: FWE {dense_contexts(r, 'fwe')}, NIAH {dense_contexts(r, 'niah')}, QA1 {dense_contexts(r, 'qa1')}, QA2 {dense_contexts(r, 'qa2')} %",
            "NIAH is graded as the paper says it, which is stricter than RULER's own",
        ),
        Item(
            "Table 26",
            "RULER at 8k tokens: `prop` at S = 64 / 128 / 256 96.6 / 98.0 / 98.1 % of FWE, `flash` at 64 / 128 / 256 / 1024 66.5 / 86.1 / 94.8 / 98.1; SDPA 98.5",
            RULER_COMMAND + " `--prefill dense`; " + LONG_COMMAND + "; `allot analyze tiles --states FILE`",
            f"SmolLM2, FWE of 8,192 tokens in RULER's form: `prop` at S = 8 / 32 / 128 / 512 {long(r, 'prop', [8, 32, 128, 512], 'fwe')} %, `flash` at 32 / 128 / 512 {long(r, 'flash', [32, 128, 512], 'fwe')}; NIAH {long(r, 'prop', [8, 32, 128, 512], 'niah')} and {long(r, 'flash', [32, 128, 512], 'niah')}; dense {long(r, 'dense', [], 'fwe,niah')}. The output of attention over 8,192 tokens (SmolLM2, all layers, tiles of 256), relative error: `prop` at 64 / 128 / 256 {errors(r, 'tiles-smollm2', 'prop', [64, 128, 256])}, `flash` at 64 / 128 / 256 / 1024 {errors(r, 'tiles-smollm2', 'flash', [64, 128, 256, 1024])}",
            f"needs {LLAMA}, and {RULER}. `flash` has at 1024 the error that `prop` has between 128 and 256, as in the table it answers at 1024 what `prop` answers at 128",
        ),
        Item(
            "Table 27",
            "HumanEval pass@1: `prop` / `flash` at S = 16 46.5 / 12.8 %, at 256 63.2 / 63.0; SDPA 65.2",
            "`allot eval --task humaneval-chat --data HumanEval.jsonl --question-field prompt --answer-field canonical_solution --allow-code-execution`",
            f"SmolLM2 without an adapter, exact prefill, all {r['eval-smollm2-humaneval-prop']['conditions']['questions']} problems, tiles of 64, at most 256 new tokens: `prop` at S = 16 / 64 {r.percents('eval-smollm2-humaneval-prop', [16, 64])} %, `flash` {r.percents('eval-smollm2-humaneval-flash', [16, 64])}, dense {r.percent('eval-smollm2-humaneval-prop', 'dense')}; all {r.quote('evaluation/humaneval/README.md', 'all 164 published solutions', '164')} published solutions pass",
            f"needs {LLAMA}: of a model of 135 M parameters too few functions pass to tell schedules apart. Prompt and limits of the paper are not known",
        ),
        Item(
            "Table 28",
            "the last layer alone sampled, FWE: relative error / cosine / same top token of `flash` at 2,048 .055 / .997 / 97 %, at 256 .244 / .963 / 91; `prop` at 128 .131 / .986 / 96, at 1,024 .035 / .999 / 98",
            "`allot analyze tiles --states FILE --layers last`; `allot analyze fidelity` with all other layers exact",
            f"SmolLM2, 8,192 tokens, tiles of 256: `flash` at 256 / 1024 / 2048 {errors(r, 'tiles-smollm2-last', 'flash', [256, 1024, 2048])}, cosine {errors(r, 'tiles-smollm2-last', 'flash', [256, 1024, 2048], column='cosine')}; `prop` at 128 / 256 / 1024 {errors(r, 'tiles-smollm2-last', 'prop', [128, 256, 1024])}, cosine {errors(r, 'tiles-smollm2-last', 'prop', [128, 256, 1024], column='cosine')}. Same top token at S = 64 / 128 / 256 / 512 over two texts of 2,048 tokens, tiles of 64: `flash` {top1['flash']} %, `prop` {top1['prop']}, `sys` {top1['sys']}",
            "another model and text, a quarter of the keys: errors between half the paper's and the paper's",
        ),
        Item(
            "Table 29",
            "`flash`, S = 2048, tiles of 256: relative error .035 / .047 / .068 / .084 / .073 on FWE where 90 % of the weights lie in 1 / 2 / 3-4 / 5-8 / 9+ tiles, on QA2 .055 to .190",
            "`allot analyze tiles --states FILE --samples 2048`",
            f"SmolLM2, 8,192 tokens, all layers, {heads} heads in these classes: `flash` {supported['flash']}, `sys` {supported['sys']}",
            "the same rise. It is not `flash`'s alone: `sys`, which knows no tiles, has it, too, three to five times lower; flat weights are harder to sample",
        ),
        Item(
            "Table 30",
            "`flash`, S = 2048, tiles of 32 / 64 / 256: relative error .145 / .119 / .055 on FWE, .390 / .269 / .144 on QA2",
            "`allot analyze tiles --states FILE --layers last`",
            f"SmolLM2, 8,192 tokens, last layer: `flash` {' / '.join(errors(r, 'tiles-smollm2-last', 'flash', [2048], tile) for tile in (32, 64, 256))}, `prop` {' / '.join(errors(r, 'tiles-smollm2-last', 'prop', [2048], tile) for tile in (32, 64, 256))}, `sys` {errors(r, 'tiles-smollm2-last', 'sys', [2048])}; random states of 32,768 keys: `flash` {' / '.join(errors(r, 'tiles-random', 'flash', [2048], tile) for tile in (32, 64, 256))}",
            "another model; the same fall with larger tiles, and none for `prop` and `sys`",
        ),
    ]


def rows_met(r: Results) -> str:
    """How many measured numbers of distinct rows lie within 2 standard errors of what the weights say: "65 of 69"."""
    met = [
        abs(row["rows"] - row["rows_formula"]) <= 2 * row["rows_standard_error"]
        for name in VARIANCES
        for row in r.rows(name)
        if row["rows_standard_error"] > 0
    ]
    return f"{sum(met)} of {len(met)}"


# Table 11 of the paper, percent: by samples, then 1024, 2048, 4096, 8192, 16384 keys.
TABLE_11 = {
    1: (49.90, 50.04, 49.96, 49.95, 49.95),
    4: (79.95, 80.00, 79.96, 79.96, 79.95),
    8: (88.92, 88.83, 88.86, 88.86, 88.85),
    16: (94.07, 94.11, 94.10, 94.09, 94.08),
}
TABLE_11_KEYS = (1024, 2048, 4096, 8192, 16384)


def coverage_distance(r: Results) -> float:
    """The largest distance of an entry of Table 11, in points."""
    return max(
        abs(100 * r.row("coverage", keys=keys, samples=samples)["share"] - paper)
        for samples, entries in TABLE_11.items()
        for keys, paper in zip(TABLE_11_KEYS, entries, strict=True)
    )
