"""Trains assets/tiny-gsm, writes it as a Hugging Face directory with its train and held-out questions, and prints its
accuracy dense and sampled; or assets/tiny-gsm-bitnet, which answers the same questions. One GPU, a few minutes:

    python3 train.py --out ../tiny-gsm
    python3 train.py --architecture bitnet --out ../tiny-gsm-bitnet

The questions of train.jsonl (for tuning schedules) and heldout.jsonl are never trained on."""

import argparse
import json
import math
import multiprocessing
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import model as m
import problems

LENGTH = 448
TRAIN_SEED, TUNE_SEED, HELDOUT_SEED = 1, 2, 3
TUNE_COUNT, HELDOUT_COUNT = 2000, 1000


def encode_range(job):
    """Token ids [count, LENGTH] (padded) and prompt lengths of training problems begin..end, held back ones left out."""
    begin, end, held = job
    ids, starts = [], []
    for index in range(begin, end):
        p = problems.problem(TRAIN_SEED, index)
        if p["question"] in held:
            continue
        prompt = [m.BOS] + m.encode(p["question"] + "\n")
        row = prompt + m.encode(p["answer"]) + [m.EOS]
        if len(row) <= LENGTH:
            ids.append(row + [m.PAD] * (LENGTH - len(row)))
            starts.append(len(prompt))
    return np.array(ids, np.uint8), np.array(starts, np.int32)


def training_set(count, held):
    jobs = [(i, min(i + 5000, count), held) for i in range(0, count, 5000)]
    with multiprocessing.Pool() as pool:
        parts = pool.map(encode_range, jobs, chunksize=1)
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def packed(signs):
    """-1, 0 and 1 [4 n, in] in bytes [n, in]: row i of the quarter q in bits 2 q and 2 q + 1 of row i, plus one, as
    transformers packs them."""
    quarters = (signs + 1).to(torch.uint8).chunk(4)
    return sum(quarter << 2 * q for q, quarter in enumerate(quarters))


def unpacked(bytes_):
    return torch.cat([(bytes_ >> 2 * q) & 3 for q in range(4)]).float() - 1


def state_of(net):
    """The tensors of a checkpoint: bfloat16, ternary weights packed with their scale beside them."""
    state = {}
    products = {name for name, module in net.named_modules() if isinstance(module, m.BitLinear)}
    for name, value in net.state_dict().items():
        module = name.removesuffix(".weight")
        if module in products:
            signs, scale = m.ternary(value.detach())
            state["model." + name] = packed(signs).cpu().contiguous()
            state[f"model.{module}.weight_scale"] = scale.reshape(1).to(torch.bfloat16).cpu()
        else:
            state["model." + name] = value.detach().to(torch.bfloat16).cpu().contiguous()
    return state


def load_state(net, state):
    """The weights of a checkpoint as state_of made it."""
    values = {}
    for name, value in state.items():
        if name.endswith(".weight_scale"):
            continue
        scale = state.get(name + "_scale")
        values[name.removeprefix("model.")] = value.float() if scale is None else unpacked(value) * scale.float()
    net.load_state_dict(values)
    for module in net.modules():
        if isinstance(module, m.BitLinear):
            module.kept = True


def write_directory(out, net, tune, heldout):
    out.mkdir(parents=True, exist_ok=True)
    state = state_of(net)
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    special = [{"id": i, "content": m.VOCAB[i], "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i in range(4)]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                                    {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [m.BOS], "tokens": ["<s>"]}}},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {c: i for i, c in enumerate(m.VOCAB)}, "unk_token": "<unk>"},
    }
    files = {
        "config.json": net.c,
        "generation_config.json": {"bos_token_id": m.BOS, "eos_token_id": m.EOS, "pad_token_id": m.PAD, "do_sample": False},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                                  "pad_token": "<pad>", "unk_token": "<unk>", "model_max_length": 1024,
                                  "clean_up_tokenization_spaces": False},
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=1) + "\n")
    # Every model answers the same questions; they lie beside the Llama.
    questions = (("train.jsonl", tune), ("heldout.jsonl", heldout)) if net.c is m.CONFIG else ()
    for name, rows in questions:
        (out / name).write_text("".join(json.dumps(p) + "\n" for p in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--architecture", choices=m.CONFIGS, default="llama")
    parser.add_argument("--examples", type=int, default=1_250_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompt-weight", type=float, default=0.05, help="loss weight of the question's characters")
    parser.add_argument("--score-decay", type=float,
                        help="weight decay of the first layer's q and k projections, 7 for the Llama: it keeps that layer's "
                             "attention spread out, as the first layers of large models have it, so that it needs many "
                             "samples; 0.1, as everywhere, for the BitNet")
    options = parser.parse_args()
    config = m.CONFIGS[options.architecture]
    if options.score_decay is None:
        options.score_decay = 7.0 if options.architecture == "llama" else 0.1
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")

    tune = [problems.problem(TUNE_SEED, i) for i in range(TUNE_COUNT)]
    tune_questions = {p["question"] for p in tune}
    heldout, index = [], 0
    while len(heldout) < HELDOUT_COUNT:
        p = problems.problem(HELDOUT_SEED, index)
        index += 1
        if p["question"] not in tune_questions:
            heldout.append(p)
    held = tune_questions | {p["question"] for p in heldout}
    began = time.time()
    ids, starts = training_set(options.examples, held)
    print(f"{len(ids)} training problems in {time.time() - began:.0f} s", flush=True)

    lengths = (ids != m.PAD).sum(1)
    net = m.Decoder(config).to(device)
    print(f"{sum(p.numel() for p in net.parameters()) / 1e6:.2f} M parameters", flush=True)
    soft = [f"layers.0.self_attn.{x}_proj.weight" for x in "qk"]
    scores = [p for n, p in net.named_parameters() if n in soft]
    decay = [p for n, p in net.named_parameters() if p.dim() == 2 and n not in soft]
    rest = [p for p in net.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0},
                                   {"params": scores, "weight_decay": options.score_decay}],
                                  lr=options.learning_rate, betas=(0.9, 0.98), fused=True)
    cos, sin = m.rope_table(LENGTH, config["head_dim"], config["rope_theta"], device)
    order = np.random.default_rng(options.seed).permutation(len(ids))
    # Problems of like length share a batch, in pools, so that little is padded.
    pools = [order[i:i + 32 * options.batch] for i in range(0, len(order), 32 * options.batch)]
    batches = []
    for pool in pools:
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        parts = [pool[i:i + options.batch] for i in range(0, len(pool), options.batch)]
        np.random.default_rng(len(batches)).shuffle(parts)
        batches += [p for p in parts if len(p) == options.batch]
    steps = len(batches)
    forward = torch.compile(net, dynamic=True)
    began = time.time()
    for step, rows in enumerate(batches):
        warm = min(1.0, (step + 1) / 200)
        rate = options.learning_rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        longest = (int(lengths[rows].max()) + 15) // 16 * 16
        batch = torch.from_numpy(ids[rows][:, :longest]).to(device, non_blocking=True).long()
        start = torch.from_numpy(starts[rows]).to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16):
            logits = forward(batch[:, :-1], cos[:longest - 1], sin[:longest - 1])
        target = batch[:, 1:]
        place = torch.arange(longest - 1, device=device)
        weight = ((place >= start[:, None] - 1) & (target != m.PAD)).float() + options.prompt_weight * (
            (place < start[:, None] - 1) & (target != m.PAD)).float()
        loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none")
        loss = (loss * weight.flatten()).sum() / weight.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % 1000 == 999 or step == steps - 1:
            right = m.accuracy(net, heldout[:200])
            print(f"step {step}/{steps} loss {loss.item():.4f} dense {100 * right:.1f} % {time.time() - began:.0f} s", flush=True)

    write_directory(options.out, net, tune, heldout)
    load_state(net, load_file(options.out / "model.safetensors"))
    layers = config["num_hidden_layers"]
    print(f"dense {100 * m.accuracy(net, heldout):.1f} %")
    for s in (4, 8, 16, 32, 64):
        print(f"uniform {s}: {100 * m.accuracy(net, heldout, [s] * layers):.1f} %")
    for schedule in ([22] + [6] * 7, [29] + [5] * 7, [36] + [4] * 7) if options.architecture == "llama" else ():
        print(f"{schedule}: {100 * m.accuracy(net, heldout, schedule):.1f} %", flush=True)
    for layer in range(layers):
        schedule = [16] * layers
        schedule[layer] = 1
        print(f"one-hot in layer {layer} over 16: {100 * m.accuracy(net, heldout, schedule):.1f} %")


if __name__ == "__main__":
    main()
