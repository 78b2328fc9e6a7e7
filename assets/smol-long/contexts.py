"""Writes contexts of several kinds and lengths as one file of JSON lines, for contexts.json and replies.json:

    python3 assets/smol-long/contexts.py --allot build/bin/allot --model DIR --count 100 --seed 19 --out held.jsonl

A line is one of `allot contexts` with its `cell`, such as "niah-4096", and the `reply` that train.py teaches. Lines go
round the cells, so the first N of a file have all of them alike."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

# Options of `allot contexts`.
KINDS = {
    "niah": ["--task", "ruler-niah-multivalue"],
    "fwe": ["--task", "ruler-fwe"],
    "qa1": ["--task", "ruler-qa", "--hops", "1"],
    "qa2": ["--task", "ruler-qa", "--hops", "2"],
}


def contexts(allot, model, kind, tokens, count, seed):
    command = [*shlex.split(allot), "contexts", *KINDS[kind], "--model", str(model), "--tokens", str(tokens)]
    done = subprocess.run([*command, "--count", str(count), "--seed", str(seed)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(done.args)}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def reply_to(row, kind):
    """Numbers in the order of the text, which can be known, unlike that of `outputs`; words by frequency."""
    answers = sorted(row["outputs"], key=row["input"].index) if kind == "niah" else row["outputs"]
    return " " + ", ".join(answers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allot", required=True, help="command that runs allot")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="directory with the tokenizer")
    parser.add_argument("--lengths", default="1024,2048,4096,8192", help="tokens, with commas between")
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas between")
    parser.add_argument("--count", type=int, default=100, help="contexts of each kind and length")
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()

    cells = [(kind, int(length)) for length in options.lengths.split(",") for kind in options.kinds.split(",")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        of_cells = list(pool.map(lambda cell: contexts(options.allot, options.model, *cell, options.count, options.seed),
                                 cells))
    with options.out.open("w", encoding="utf-8") as out:
        for rows in zip(*of_cells):
            for (kind, length), row in zip(cells, rows):
                out.write(json.dumps({"cell": f"{kind}-{length}", **row, "reply": reply_to(row, kind)}) + "\n")


if __name__ == "__main__":
    main()
