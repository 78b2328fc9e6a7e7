"""Trains assets/smol-long, a LoRA adapter with which SmolLM2-135M-Instruct answers questions on contexts of 512 to 8,192
tokens: four numbers hidden in a text, the most frequent of invented words, and facts in one or two of many documents.
One GPU, a few minutes, with torch, transformers and peft:

    ./setup --model smollm2
    python3 assets/smol-long/contexts.py --allot build/bin/allot --model .deps/models/smollm2-135m-instruct --out held.jsonl
    python3 assets/smol-long/train.py --base .deps/models/smollm2-135m-instruct --allot build/bin/allot \\
        --held held.jsonl --out assets/smol-long

Contexts are those of `allot contexts`, of other seeds than the held-out files, and none that asks for the same thing or
has a held-out answer is trained on. Only answers are trained on: the numbers in the order of the text, the words by
frequency, a town; and the end token. Contexts with documents have more questions behind the first one, each with its
answer. Lengths grow as the training goes on, by the clock, so that a slower GPU sees less of each. No layer is treated in
its own way. Training on a GPU is not bit-reproducible; the figures come out alike."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import lora  # noqa: E402
from contexts import contexts, reply_to  # noqa: E402

SHARES = {"niah": 0.35, "fwe": 0.20, "qa1": 0.25, "qa2": 0.20}  # of the tokens
# Until which share of the time, and what share of the micro-batches has which length (in units of the longest).
STAGES = [
    (0.15, {1 / 8: 1.0}),
    (0.30, {1 / 4: 0.7, 1 / 8: 0.3}),
    (0.55, {1 / 2: 0.6, 1 / 4: 0.25, 1 / 8: 0.15}),
    (1.00, {1: 0.55, 1 / 2: 0.2, 1 / 4: 0.15, 1 / 8: 0.1}),
]
FILLS = (1.0, 0.85, 1.0, 0.7)  # of a length, by part: answers do not always stand at the same position
FIRST_SEED = 1_000_000
IGNORED = -100


def held_rows(options):
    return [json.loads(line) for path in options.held for line in path.read_text(encoding="utf-8").splitlines()]


def asked_of(text):
    """The last paragraph: the question and "Answer:"."""
    return text.rsplit("\n\n", 1)[1]


def part_of(options, kind, length, part, count):
    """Part `part` of the contexts of a kind and a length; the parts have a seed each."""
    tokens = int(length * FILLS[part % len(FILLS)])
    if kind.startswith("qa"):
        tokens -= max(64, length // 16)  # for the other questions
    seed = FIRST_SEED * options.seed + 1000 * list(SHARES).index(kind) + 10_000 * length + part
    return contexts(options.allot, options.base, kind, tokens, count, seed)


def other_questions(row, kind, shuffle):
    """Questions on the documents of a context beside its own one, with their answers."""
    born = dict(re.findall(r"(\w+ \w+) was born in (\w+)\.", row["input"]))
    workshop, learned = {}, []
    for name, craft, teacher, town in re.findall(r"(\w+ \w+) learned ([^.]+?) from (\w+ \w+) and has a workshop in (\w+)\.",
                                                 row["input"]):
        workshop[name] = town
        learned.append((name, craft, teacher))
    found = []
    for name, craft, teacher in learned:
        asked, of = (name, name) if kind == "qa1" else (f"the one from whom {name} learned {craft}", teacher)
        if of in born:
            found.append((f"Question: In which town was {asked} born?\nAnswer:", born[of]))
            found.append((f"Question: In which town is the workshop of {asked}?\nAnswer:", workshop[of]))
    shuffle.shuffle(found)
    own = asked_of(row["input"])
    return [(question, answer) for question, answer in found if question != own]


def token_rows(tokenizer, rows, kind, length, seed):
    """For each context [2, length]: token ids, and for each of them the target, IGNORED where nothing is learned."""
    end = tokenizer.eos_token_id
    shuffle = random.Random(seed)

    def encode(texts):  # by what threads may share
        return [found.ids for found in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]

    result = []
    prompts, answers = encode([row["input"] for row in rows]), encode([reply_to(row, kind) for row in rows])
    for row, prompt, answer in zip(rows, prompts, answers):
        ids, targets = list(prompt), [IGNORED] * len(prompt)

        def add(question, found):
            if len(ids) + len(question) + len(found) + 1 > length:
                return False
            ids.extend(question + found + [end])
            targets.extend([IGNORED] * len(question) + found + [end])
            return True

        if not add([], answer):
            continue
        if kind.startswith("qa"):
            more = other_questions(row, kind, shuffle)[: length // 256]
            if more:
                for question, found in zip(encode(["\n\n" + q for q, _ in more]), encode([" " + a for _, a in more])):
                    if not add(question, found):
                        break
        targets = targets[1:] + [IGNORED] * (length - len(targets) + 1)  # of a position: the token after it
        # Padding stands at the end, where causal attention lets no other token see it.
        result.append((torch.tensor([ids + [end] * (length - len(ids)), targets], dtype=torch.int32), kind))
    return result


def training_rows(options, tokenizer, lengths):
    """By length. As many as --million-tokens says, shared out as the stages use them."""
    held_questions, held_answers = set(), set()
    for row in held_rows(options):
        held_answers.update(row["outputs"])
        if not row["cell"].startswith("fwe"):  # which all ask the same
            held_questions.add(asked_of(row["input"]))
    tokens_of = dict.fromkeys(lengths, 0.0)
    before = 0.0
    for until, mix in STAGES:
        for share, part in mix.items():
            tokens_of[int(share * options.longest)] += (until - before) * part * options.million_tokens * 1e6
        before = until
    jobs = []
    for length, tokens in tokens_of.items():
        for kind, share in SHARES.items():
            count = max(2, round(tokens * share / length))
            parts = max(len(FILLS), round(count * length / 300_000))
            jobs += [(kind, length, part, -(-count // parts)) for part in range(parts)]

    def made(job):
        found = part_of(options, *job)
        kept = [row for row in found if asked_of(row["input"]) not in held_questions
                and not held_answers.intersection(row["outputs"])]
        return job[1], len(found) - len(kept), token_rows(tokenizer, kept, job[0], job[1], job[2])

    rows = {length: [] for length in lengths}
    dropped = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for length, without, found in pool.map(made, jobs):
            dropped += without
            rows[length] += found
    for length in lengths:
        random.Random(options.seed).shuffle(rows[length])
        print(f"{len(rows[length])} contexts of {length} tokens", flush=True)
    print(f"{dropped} contexts left out that ask what the held-out files ask", flush=True)
    return rows


class Batches:
    """Micro-batches of about as many tokens each, of one length, which the stage's mix draws."""

    def __init__(self, rows, longest, tokens, seed):
        self.rows, self.longest, self.tokens = rows, longest, tokens
        self.next = dict.fromkeys(rows, 0)
        self.draw = random.Random(seed)

    def at(self, progress):
        mix = next((mix for until, mix in STAGES if progress < until), STAGES[-1][1])
        share = self.draw.choices(list(mix), list(mix.values()))[0]
        return self.of(int(share * self.longest))

    def of(self, length):
        rows, first = self.rows[length], self.next[length]
        count = max(1, self.tokens // length)
        self.next[length] = (first + count) % len(rows)
        return [rows[(first + i) % len(rows)] for i in range(count)]


def row_losses(base, rows, device):
    """Mean cross-entropy of each row's targets, [rows]."""
    ids, targets = torch.stack([row for row, _ in rows]).to(device, torch.long).unbind(1)
    counted = targets != IGNORED
    hidden = base.model(input_ids=ids).last_hidden_state
    logits = base.lm_head(hidden[counted])
    losses = torch.nn.functional.cross_entropy(logits.float(), targets[counted], reduction="none")
    of_row = torch.arange(len(rows), device=device)[:, None].expand_as(counted)[counted]
    sums = torch.zeros(len(rows), device=device).index_add(0, of_row, losses)
    return sums / counted.sum(1)


def compile_layers(base, batches, device):
    """Where torch.compile can do it on this machine; for every length now, so that no step fails later."""
    torch._dynamo.config.cache_size_limit = 64
    for layer in base.model.layers:
        layer.compile(dynamic=False)
    try:
        for length in batches.rows:
            row_losses(base, batches.of(length), device).mean().backward()
    except Exception as error:  # whatever a compiler may raise
        print(f"without torch.compile: {(str(error).splitlines() or [type(error)])[0]}", flush=True)
        not_compiled(base)
    base.zero_grad(set_to_none=True)


def not_compiled(base):
    for layer in base.model.layers:
        layer._compiled_call_impl = None


def train(options, base, trained, rows):
    """Weights and activations in the type of the base, the adapter's optimiser in float32."""
    exact = [p.detach().float().clone() for p in trained]
    optimizer = torch.optim.AdamW(exact, lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    batches = Batches(rows, options.longest, options.micro_tokens, options.seed)
    limit = 60.0 * options.minutes
    began, seen, step, losses = time.time(), 0, 0, {}
    if options.compile:
        compile_layers(base, batches, options.device)
        print(f"compiled after {time.time() - began:.0f} s", flush=True)
    while (progress := max((time.time() - began) / limit, step / options.steps if options.steps else 0.0)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = lora.rate_at(progress, step, options.learning_rate)
        for _ in range(options.micro_batches):
            batch = batches.at(progress)
            found = row_losses(base, batch, options.device)
            (found.mean() / options.micro_batches).backward()
            seen += len(batch) * batch[0][0].shape[1]
            for (row, kind), loss in zip(batch, found.detach()):
                losses.setdefault((kind, row.shape[1]), []).append(loss)
        for p, e in zip(trained, exact):
            e.grad = p.grad.float()
            p.grad = None
        torch.nn.utils.clip_grad_norm_(exact, 1.0)
        optimizer.step()
        with torch.no_grad():
            for p, e in zip(trained, exact):
                p.copy_(e)
        step += 1
        if step % options.every == 0:
            means = " ".join(f"{kind}/{length} {sum(all_) / len(all_):.3f}"
                             for (kind, length), all_ in sorted(losses.items()))
            print(f"step {step} {time.time() - began:.0f} s {seen / 1e6:.2f} M tokens: {means}", flush=True)
            losses = {}
    print(f"{step} steps, {seen / 1e6:.2f} M tokens, {time.time() - began:.0f} s", flush=True)


def share_right(row, reply):
    found = sum(answer.lower() in reply.lower() for answer in row["outputs"])
    return found / len(row["outputs"])


@torch.no_grad()
def evaluate(options, net, tokenizer):
    """Shares of the gold answers in greedy replies under dense attention, of the first contexts of each cell."""
    tokenizer.padding_side = "left"
    net.config.use_cache = True
    cells = {}
    for row in held_rows(options):
        cells.setdefault(row["cell"], []).append(row)
    by_length = {}
    for cell, rows in cells.items():
        by_length.setdefault(int(cell.rsplit("-", 1)[1]), []).extend(rows[: options.evaluate])
    for length, rows in sorted(by_length.items()):
        scores = {}
        size = max(1, 8 * options.micro_tokens // length)
        for first in range(0, len(rows), size):
            part = rows[first:first + size]
            batch = tokenizer([row["input"] for row in part], return_tensors="pt", padding=True).to(options.device)
            ids = net.generate(**batch, max_new_tokens=48, do_sample=False)
            replies = tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1]:], skip_special_tokens=True)
            for row, reply in zip(part, replies):
                scores.setdefault(row["cell"], []).append(share_right(row, reply))
        for cell, found in scores.items():
            print(f"{cell}: {100 * sum(found) / len(found):.1f} % of {len(found)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=pathlib.Path, required=True, help="directory of SmolLM2-135M-Instruct")
    parser.add_argument("--allot", required=True, help="command that runs allot, for its contexts")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--held", type=pathlib.Path, nargs="*", default=[], help="files of contexts.py, to evaluate on")
    parser.add_argument("--evaluate", type=int, default=16, help="contexts of each held-out cell")
    parser.add_argument("--minutes", type=float, default=5.0, help="of training, without making contexts")
    parser.add_argument("--steps", type=int, default=0, help="at most so many; 0: as many as the time allows")
    parser.add_argument("--longest", type=int, default=8192, help="tokens")
    parser.add_argument("--million-tokens", type=float, default=30.0, help="of contexts; seen again when all are used")
    parser.add_argument("--micro-tokens", type=int, default=16384, help="of a forward pass")
    parser.add_argument("--micro-batches", type=int, default=3, help="of a step")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="compile the layers first")
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations: less memory, slower")
    parser.add_argument("--every", type=int, default=20, help="steps between lines of progress")
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    began = time.time()
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    lengths = sorted({int(share * options.longest) for _, mix in STAGES for share in mix})
    rows = training_rows(options, tokenizer, lengths)
    print(f"contexts after {time.time() - began:.0f} s", flush=True)

    base = AutoModelForCausalLM.from_pretrained(options.base, dtype=torch.bfloat16, attn_implementation="sdpa")
    base = base.to(options.device)
    base.config.use_cache = False
    net, trained = lora.with_adapter(base, options.rank, torch.bfloat16)
    if options.checkpoint:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.enable_input_require_grads()
        base.train()
    train(options, base, trained, rows)
    lora.save(net, options.out)
    base.eval()
    if options.compile:
        not_compiled(base)
    if options.evaluate:
        evaluate(options, net, tokenizer)


if __name__ == "__main__":
    main()
