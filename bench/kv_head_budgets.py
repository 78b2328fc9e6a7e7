"""Would a budget for each KV head be worth more than one for each layer? Measured on a pretrained model, in Transformers,
with the estimator `joint` and budgets in value rows, for totals that both ways of giving them out share:

    allot import SmolLM2-135M-Instruct.Q4_1.gguf --out DIR
    python3 bench/kv_head_budgets.py --model DIR --adapter assets/smol-words --data assets/tiny-gsm/train.jsonl \\
        --heldout assets/tiny-gsm/heldout.jsonl --rows 5,6

For each total (rows of a KV head, in the mean) it searches on divergences: over the layers, every KV head of a layer with
the same rows, for --steps batches; from what that found over the KV heads for as many more; and for comparison over the
layers for as many more. The search is that of `allot calibrate` in small: mirrored perturbations of log rows around a
centre, a model log KL = c_batch + log(sum over slots of a s^-b) fitted to everything measured, its best schedule exactly
(the terms are convex), half a step towards it. Then `even`, `layers` and `heads` are measured on texts and draws of their
own, with `pooled` in place of `joint` beside them, which shares the rows of a layer out among its KV heads token by token,
and they answer the held-out questions. One GPU, two minutes a total; torch, transformers and peft. The draws are
PyTorch's, so the numbers are not those of allot's engine to the digit."""

import argparse
import contextlib
import json
import pathlib
import re
import time

import torch
from peft import PeftModel
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.masking_utils import sdpa_mask

def tau_of(sizes, budgets):
    """tau with sum of min(1, size / tau) = budget over the last dimension; 0 where every key of a positive size is kept.
    sizes [..., keys], budgets [..., 1]."""
    falling = sizes.sort(dim=-1, descending=True).values
    kept = torch.arange(sizes.shape[-1], device=sizes.device)
    rest = falling.flip(-1).cumsum(-1).flip(-1)  # of the keys from the kept-th on
    left = budgets - kept
    tau = rest / left.clamp(min=1)
    fits = (left > 0) & (falling < tau)
    first = fits.to(torch.int8).argmax(-1, keepdim=True)
    return torch.where(fits.any(-1, keepdim=True), tau.gather(-1, first), 0)


def inclusion_of(sizes, budgets):
    """min(1, size / tau), the probability that a row is read; shapes as of tau_of."""
    tau = tau_of(sizes, budgets)
    return torch.where(tau > 0, (sizes / tau.clamp(min=1e-30)).clamp(max=1), (sizes > 0).float())


class SampledAttention:
    """The attention function of a model's layers. Exact unless `rows` is set."""

    def __init__(self):
        self.rows = None  # of the sequences of this pass: int tensor [batch, layers, kv_heads]
        self.pooled = False  # one tau for the KV heads of a layer
        self.draws = None  # torch.Generator
        self.texts = 0  # sequences b and b + texts are the same text and share their draws

    def weights(self, probabilities, budgets):
        """The weights of the value rows: [batch, kv_heads, group, queries, keys] in and out, budgets [batch, kv_heads]."""
        sizes = probabilities.sum(2)
        if self.pooled:
            of_layer = sizes.transpose(1, 2).flatten(2)  # [batch, queries, kv_heads * keys]
            inclusion = inclusion_of(of_layer, budgets.sum(1)[:, None, None])
        else:
            of_layer = sizes
            inclusion = inclusion_of(sizes, budgets[:, :, None, None])
        # Whole numbers of targets but for rounding, which moves the last one by one row at most.
        drawn = torch.where(inclusion < 1, inclusion, 0).double()
        shape = (self.texts, *inclusion.shape[1:-1], 1)
        offset = torch.rand(shape, generator=self.draws, device=sizes.device).double()
        offset = offset.repeat(sizes.shape[0] // self.texts, *[1] * (inclusion.dim() - 1))
        ends = drawn.cumsum(-1) + offset
        read = (inclusion >= 1) | (ends.floor() > (ends - drawn).floor())
        scale = torch.where(read, 1 / inclusion.clamp(min=1e-30), 0)
        if self.pooled:
            scale = scale.unflatten(2, (sizes.shape[1], sizes.shape[3])).transpose(1, 2)
        return probabilities * scale[:, :, None]

    def __call__(self, module, query, key, value, attention_mask, scaling, **_):
        batch, heads, queries, dim = query.shape
        groups = key.shape[1]
        scores = query.view(batch, groups, heads // groups, queries, dim) @ key[:, :, None].transpose(-1, -2) * scaling
        weights = scores.float().masked_fill(~attention_mask[:, :, None], float("-inf")).softmax(-1)
        weights = weights.nan_to_num(0)  # of padding, which sees nothing
        if self.rows is not None:
            weights = self.weights(weights, self.rows[:, module.layer_idx])
        out = weights.to(value.dtype) @ value[:, :, None]
        return out.reshape(batch, heads, queries, dim).transpose(1, 2).contiguous(), None


def mask(*args, **kwargs):
    kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    return sdpa_mask(*args, **kwargs)


class Model:
    def __init__(self, options):
        self.attention = SampledAttention()
        AttentionInterface.register("kv_heads", self.attention)
        AttentionMaskInterface.register("kv_heads", mask)
        self.device = options.device
        self.tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="kv_heads")
        if options.adapter:
            model = PeftModel.from_pretrained(model, options.adapter).merge_and_unload()
        self.model = model.to(self.device).eval()
        self.layers = model.config.num_hidden_layers
        self.kv_heads = model.config.num_key_value_heads

    def encode(self, problems):
        """Right-padded ids [texts, length], and where the tokens after them are predicted from: the solution's."""
        ids, first = [], []
        for problem in problems:
            prompt = self.tokenizer(problem["question"] + "\n", add_special_tokens=False)["input_ids"]
            ids.append(prompt + self.tokenizer(problem["answer"], add_special_tokens=False)["input_ids"])
            first.append(len(prompt) - 1)
        length = max(map(len, ids))
        padded = torch.tensor([one + [0] * (length - len(one)) for one in ids], device=self.device)
        at = torch.arange(length, device=self.device)
        ends = torch.tensor([len(one) - 1 for one in ids], device=self.device)
        counted = (at >= torch.tensor(first, device=self.device)[:, None]) & (at < ends[:, None])
        return padded, counted

    @torch.inference_mode()
    def divergence(self, problems, schedules, seed, pooled=False):
        """Mean KL(dense || sampled) of the solutions' tokens: [schedules], each [layers, kv_heads] rows."""
        ids, counted = self.encode(problems)
        dense = self.model(ids, use_cache=False).logits.log_softmax(-1)
        with self.sampling(torch.stack(schedules).repeat_interleave(len(problems), 0), len(problems), seed, pooled):
            logits = self.model(ids.repeat(len(schedules), 1), use_cache=False).logits
        sampled = logits.view(len(schedules), *dense.shape)
        kl = [(dense.exp() * (dense - one.log_softmax(-1))).sum(-1)[counted].mean() for one in sampled]
        return torch.stack(kl).clamp(min=1e-7)

    @contextlib.contextmanager
    def sampling(self, budgets, texts, seed, pooled):
        attention = self.attention
        attention.rows, attention.texts, attention.pooled = budgets, texts, pooled
        attention.draws = torch.Generator(self.device).manual_seed(seed)
        try:
            yield
        finally:
            attention.rows = None

    @torch.inference_mode()
    def right(self, problems, schedule, seed, pooled=False, at_once=500):
        """How many of the problems are answered right, greedily, prompt and reply sampled."""
        right = 0
        for start in range(0, len(problems), at_once):
            part = problems[start:start + at_once]
            inputs = self.tokenizer([p["question"] + "\n" for p in part], return_tensors="pt", padding=True,
                                    add_special_tokens=False).to(self.device)
            budgets = None if schedule is None else schedule.expand(len(part), -1, -1)
            with self.sampling(budgets, len(part), seed + start, pooled):
                out = self.model.generate(**inputs, max_new_tokens=128, do_sample=False,
                                          pad_token_id=self.tokenizer.pad_token_id)
            replies = self.tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
            for problem, reply in zip(part, replies):
                found = re.search(r"#### (-?[\d,]+)", reply)
                right += found is not None and found[1] == re.search(r"#### (-?[\d,]+)", problem["answer"])[1]
        return right


def apportion(amounts, total):
    """Whole numbers of at least 1 in these proportions above 1, of that sum; largest remainder."""
    shares = (amounts - 1).clamp(min=1e-9)
    exact = shares / shares.sum() * (total - len(amounts))
    low = exact.floor()
    order = (exact - low).argsort(descending=True, stable=True)
    low[order[:int(total - len(amounts) - low.sum())]] += 1
    return 1 + low


def cheapest(a, b, total):
    """The whole numbers of at least 1, of that sum, with the least sum of a s^-b."""
    s = torch.ones_like(a)
    gain = a * (s**-b - (s + 1)**-b)
    for _ in range(int(total) - len(a)):
        i = gain.argmax()
        s[i] += 1
        gain[i] = a[i] * (s[i]**-b[i] - (s[i] + 1)**-b[i])
    return s


def fit(schedules, log_kl, batch, weights):
    """log a and b of every slot, by maximum posterior: log a ~ N(0, 1), log b ~ N(log 1, .25), errors of 0.1."""
    n = schedules.shape[1]
    parameters = [torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in (n, n, int(batch.max()) + 1)]
    log_a, log_b, c = parameters
    with torch.no_grad():
        c += log_kl.mean()
    logs = schedules.log()
    optimiser = torch.optim.LBFGS(parameters, max_iter=150, line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        expected = c[batch] + (log_a - log_b.exp() * logs).logsumexp(1)
        value = (weights * ((log_kl - expected) / 0.1)**2).sum() / 2
        value = value + (log_a**2).sum() / 2 + ((log_b / 0.25)**2).sum() / 2
        value.backward()
        return value

    optimiser.step(loss)
    return log_a.detach().exp(), log_b.detach().exp()


class Search:
    """A schedule of `slots` numbers with that sum, by divergences; slots are layers or KV heads."""

    def __init__(self, model, problems, slots, total, options, start=None, step=0):
        self.model, self.problems, self.options, self.total = model, problems, options, total
        self.each = model.layers * model.kv_heads // slots
        self.random = torch.Generator().manual_seed(1000 * options.seed + slots)
        self.centre = torch.full((slots,), total / slots, dtype=torch.float64) if start is None else start.clone()
        self.step, self.seen, self.values, self.batches = step, [], [], []

    def run(self, steps):
        centres = []
        for done in range(steps):
            width = 1.25 * (0.5 / 1.25)**(done / max(1, steps - 1))
            asked = []
            for _ in range(self.options.pairs):
                signs = torch.randint(0, 2, self.centre.shape, generator=self.random).double() * 2 - 1
                for sign in (signs, -signs):
                    asked.append(apportion(1 + (self.centre - 1).clamp(min=0.3) * (width * sign).exp(), self.total))
            picked = torch.randperm(len(self.problems), generator=self.random)[:self.options.texts]
            kl = self.model.divergence([self.problems[i] for i in picked], [self.expanded(one) for one in asked],
                                       100_000 * self.options.seed + self.step)
            self.seen += asked
            self.values += kl.double().log().tolist()
            self.batches += [len(self.batches) // len(asked)] * len(asked)
            self.step += 1
            schedules = torch.stack(self.seen)
            away = (schedules.log() - self.centre.log()).square().mean(1)
            a, b = fit(schedules, torch.tensor(self.values, dtype=torch.float64), torch.tensor(self.batches), 1 / (1 + away))
            best = cheapest(a, b, self.total)
            self.centre = self.centre * ((best.log() - self.centre.log()) / 2).clamp(min=-0.7, max=0.7).exp()
            self.centre *= self.total / self.centre.sum()
            centres.append(self.centre.log())
        # The better of the mean of the later centres and the model's best, on other texts.
        mean = torch.stack(centres[len(centres) * 2 // 5:]).mean(0).exp()
        found = [apportion(mean, self.total), best]
        logs = check(self.model, self.problems[:128], {i: self.expanded(one) for i, one in enumerate(found)},
                     100_000 * self.options.seed + 50_000)
        return found[0 if logs[0].mean() <= logs[1].mean() else 1]

    def expanded(self, slots):
        """[layers, kv_heads]"""
        return slots.repeat_interleave(self.each).view(self.model.layers, self.model.kv_heads).long().to(self.model.device)


def check(model, problems, named, seed, pooled=False):
    """log KL of each on the same fresh texts and draws: [batches of texts]."""
    logs = torch.stack([model.divergence(problems[start:start + 16], list(named.values()), seed + start, pooled).log()
                        for start in range(0, len(problems), 16)])
    return dict(zip(named, logs.T))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--adapter", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="questions with solutions: searched on, and checked on")
    parser.add_argument("--heldout", type=pathlib.Path, help="questions to answer")
    parser.add_argument("--limit", type=int, default=1000, help="of the questions to answer")
    parser.add_argument("--rows", default="6", help="value rows of a KV head in the mean; several with commas")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    model = Model(options)
    read = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
    searched, checked = read[:512], read[512:1024]
    heldout = []
    if options.heldout:
        heldout = [json.loads(line) for line in options.heldout.read_text(encoding="utf-8").splitlines()][:options.limit]
        print(json.dumps({"schedule": "dense", "right": model.right(heldout, None, options.seed), "of": len(heldout)}), flush=True)
    for mean_rows in map(float, options.rows.split(",")):
        of_layers = round(mean_rows * model.layers)
        start = time.perf_counter()
        layers = Search(model, searched, model.layers, of_layers, options)
        first = layers.run(options.steps)
        heads = Search(model, searched, model.layers * model.kv_heads, of_layers * model.kv_heads, options,
                       start=first.repeat_interleave(model.kv_heads), step=options.steps)
        by_head = heads.run(options.steps)
        by_layer = layers.run(options.steps)
        even = apportion(torch.full((model.layers,), 2.0), of_layers)
        named = {"even": layers.expanded(even), "layers": layers.expanded(by_layer), "heads": heads.expanded(by_head)}
        seconds = time.perf_counter() - start
        for pooled in (False, True):
            logs = check(model, checked, named, 100_000 * options.seed + 60_000, pooled)
            for name, schedule in named.items():
                apart = logs[name] - logs["layers"]
                line = {"rows": mean_rows, "estimator": "pooled" if pooled else "joint", "schedule": name, "seed": options.seed,
                        "divergence": round(logs[name].mean().exp().item(), 5),
                        "ratio_to_layers": round(apart.mean().exp().item(), 3),
                        "log_ratio_error": round((apart.std() / len(apart)**0.5).item(), 3)}
                if heldout:
                    line |= {"right": model.right(heldout, schedule, options.seed, pooled), "of": len(heldout)}
                if not pooled:
                    line["budgets"] = schedule.tolist() if name == "heads" else schedule[:, 0].tolist()
                print(json.dumps(line), flush=True)
        print(json.dumps({"rows": mean_rows, "seconds_of_searches": round(seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()
