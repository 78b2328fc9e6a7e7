#!/usr/bin/env python3
"""tokenize_bench's work with the `tokenizers` package, one text a call, on one thread.

    python bench/tokenize/hf_tokenize.py TOKENIZER_DIRECTORY TEXTS.jsonl [repetitions]

Prints one line of JSON with the median speed by processor time. The call is encode_batch_fast on one text: it makes no
offsets, which encode does, and is the fastest the package offers on one thread.
"""

import json
import os
import pathlib
import statistics
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers  # noqa: E402: reads the environment


def main():
    directory, texts_path = sys.argv[1:3]
    repetitions = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(directory, "tokenizer.json")))
    texts = [json.loads(line) for line in pathlib.Path(texts_path).read_text().split("\n") if line]
    size = sum(len(text.encode()) for text in texts)

    def encode_all():
        start = time.process_time()
        tokens = sum(len(tokenizer.encode_batch_fast([text])[0].ids) for text in texts)
        return size * 1e-6 / (time.process_time() - start), tokens

    runs = [encode_all() for _ in range(repetitions + 1)][1:]
    speeds = sorted(speed for speed, _ in runs)
    print(json.dumps({"what": f"tokenizers {tokenizers.__version__}", "tokenizer": directory, "texts": texts_path,
                      "bytes": size, "tokens": runs[0][1], "repetitions": repetitions,
                      "megabytes_per_second": round(statistics.median(speeds), 2), "slowest": round(speeds[0], 2),
                      "fastest": round(speeds[-1], 2)}))


if __name__ == "__main__":
    main()
