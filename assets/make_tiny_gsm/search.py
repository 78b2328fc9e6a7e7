"""Searches the best schedule of a total budget by brute force on a GPU: what allot's learners are measured against.
Coordinate moves of 8, 4, 2 and 1 samples between layers, scored on all tuning questions with several sampling seeds,
from several starts; the winner and its runners-up are then scored on the held-out questions.

    python3 search.py --model ../tiny-gsm --total 64
"""

import argparse
import json
import pathlib
import time

import torch
from safetensors.torch import load_file

import model as m


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--total", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--start", action="append", default=[], help="a,b,c,…; several are tried; default: uniform")
    options = parser.parse_args()
    began = time.time()
    net = m.Decoder().cuda()
    state = load_file(options.model / "model.safetensors")
    net.load_state_dict({k.removeprefix("model."): v.float() for k, v in state.items()})
    torch.set_float32_matmul_precision("high")
    read = lambda name: [json.loads(line) for line in (options.model / name).open()]
    tune, heldout = read("train.jsonl"), read("heldout.jsonl")
    layers = m.CONFIG["num_hidden_layers"]
    scored = {}

    def score(schedule, rounds):
        """Mean accuracy over `rounds` disjoint batches of 1000 tuning questions, each with its own sampling seed."""
        results = scored.setdefault(tuple(schedule), [])
        while len(results) < rounds:
            n = len(results)
            results.append(m.accuracy(net, tune[n % 2 * 1000:n % 2 * 1000 + 1000], list(schedule), seed=100 + n))
        return sum(results[:rounds]) / rounds

    starts = [[int(x) for x in s.split(",")] for s in options.start] or [[options.total // layers] * layers]
    for start in starts:
        best, value = tuple(start), score(start, 2)
        for size, rounds in ((8, 1), (4, 1), (2, 2), (1, 3)):
            value, improved = score(best, rounds), True
            while improved and time.time() - began < options.seconds:
                improved = False
                moves = []
                for giver in range(layers):
                    for taker in range(layers):
                        trial = list(best)
                        trial[giver] -= size
                        trial[taker] += size
                        if giver != taker and trial[giver] >= 1:
                            moves.append((score(trial, rounds), tuple(trial)))
                top = max(moves, default=(0, best))
                if top[0] > value:
                    value, best, improved = top[0], top[1], True
        print(f"from {start}: {list(best)} tuning {100 * value:.1f} %  {time.time() - began:.0f} s", flush=True)
    finalists = sorted(scored, key=lambda s: -sum(scored[s]) / len(scored[s]))[:12]
    finalists = sorted(finalists, key=lambda s: -score(s, 6))
    for s in finalists:
        held = [m.accuracy(net, heldout, list(s), seed=7 + n) for n in range(3)]
        print(f"{list(s)} tuning {100 * score(s, 6):.1f} % held-out {' '.join(f'{100 * h:.1f}' for h in held)}")
    print(f"uniform held-out {100 * m.accuracy(net, heldout, [options.total // layers] * layers, seed=7):.1f} %")


if __name__ == "__main__":
    main()
