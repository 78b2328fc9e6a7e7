"""Trains assets/smol-words, a LoRA adapter that makes SmolLM2-135M-Instruct solve the word problems of
../make_tiny_gsm/problems.py and a little of GSM8K. One GPU, a few minutes, with torch, transformers and peft:

    ./setup --model smollm2
    python3 assets/smol-words/train.py --base .deps/models/smollm2-135m-instruct \\
        --gsm8k train.jsonl --out assets/smol-words

The form is that of the prompt style `plain`: the question, a line end, the worked solution, the end token. Nothing but
the words of the solutions is trained on: no layer is treated in its own way. The questions of ../tiny-gsm (train.jsonl
for tuning schedules, heldout.jsonl) are never trained on. Training on a GPU is not bit-reproducible; the figures come
out alike."""

import argparse
import json
import pathlib
import random
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "make_tiny_gsm")]
import lora  # noqa: E402
import problems  # noqa: E402

TRAIN_SEED = 1  # of problems.py; ../tiny-gsm holds questions of seeds 2 and 3


def read_questions(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def training_rows(options):
    held = {p["question"] for name in ("train.jsonl", "heldout.jsonl")
            for p in read_questions(HERE.parent / "tiny-gsm" / name)}
    rows = [problems.problem(TRAIN_SEED, i) for i in range(options.words)]
    if options.gsm8k:
        rows += read_questions(options.gsm8k) * options.gsm8k_epochs
    return [p for p in rows if p["question"] not in held]


def batches_of(lengths, size, seed):
    """Rows of like length share a batch, in pools, so that little is padded."""
    shuffle = random.Random(seed)
    order = list(range(len(lengths)))
    shuffle.shuffle(order)
    batches = []
    for start in range(0, len(order), 32 * size):
        pool = sorted(order[start:start + 32 * size], key=lengths.__getitem__)
        parts = [pool[i:i + size] for i in range(0, len(pool), size)]
        shuffle.shuffle(parts)
        batches += [p for p in parts if len(p) == size]
    return batches


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=pathlib.Path, required=True, help="directory of SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--gsm8k", type=pathlib.Path, help="GSM8K's train.jsonl as published")
    parser.add_argument("--gsm8k-epochs", type=int, default=4)
    parser.add_argument("--words", type=int, default=80_000, help="problems of problems.py")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")

    tokenizer = AutoTokenizer.from_pretrained(options.base)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    rows = training_rows(options)
    questions = tokenizer([p["question"] + "\n" for p in rows], add_special_tokens=False)["input_ids"]
    answers = tokenizer([p["answer"] for p in rows], add_special_tokens=False)["input_ids"]
    ids = [q + a + [end] for q, a in zip(questions, answers)]
    lengths = [len(row) for row in ids]
    print(f"{len(ids)} problems, {sum(lengths) / len(ids):.0f} tokens each", flush=True)

    base = AutoModelForCausalLM.from_pretrained(options.base, dtype=torch.float32).cuda()
    base.config.use_cache = False
    net, trained = lora.with_adapter(base, options.rank)
    optimizer = torch.optim.AdamW(trained, lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    batches = batches_of(lengths, options.batch, options.seed)
    began = time.time()
    for step, batch in enumerate(batches):
        rate = lora.rate_at(step / len(batches), step, options.learning_rate)
        for group in optimizer.param_groups:
            group["lr"] = rate
        longest = max(lengths[i] for i in batch)
        # Padding stands at the end, where causal attention lets no other token see it.
        tokens = torch.tensor([ids[i] + [end] * (longest - lengths[i]) for i in batch]).cuda()
        place = torch.arange(longest - 1)
        first = torch.tensor([len(questions[i]) for i in batch])[:, None]
        last = torch.tensor([lengths[i] for i in batch])[:, None]
        counted = ((place >= first - 1) & (place < last - 1)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            hidden = base.model(input_ids=tokens[:, :-1]).last_hidden_state
            logits = base.lm_head(hidden[counted])
        loss = torch.nn.functional.cross_entropy(logits.float(), tokens[:, 1:][counted])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        if step % 100 == 99 or step == len(batches) - 1:
            print(f"step {step + 1}/{len(batches)} loss {loss.item():.4f} {time.time() - began:.0f} s", flush=True)

    lora.save(net, options.out)


if __name__ == "__main__":
    main()
