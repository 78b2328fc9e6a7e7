"""Holds what `allot import` makes of a GGUF file to what transformers makes of it: every tensor, the ids of many texts, the
fields of the configuration, logits. Not run by the tests: it needs torch and a model.

    pip install transformers==5.17.0 accelerate gguf==0.19.0 safetensors torch
    python tests/data/compare_gguf_import.py --allot build-light/bin/allot --gguf SmolLM2-135M-Instruct.Q4_1.gguf \\
        --lines train.jsonl --random 3000

Tensors are compared as float32, bit by bit. Ids are compared twice: with the tokenizer that transformers makes of the file,
where differences are counted and the first are shown, and with the same tokenizer after its pre-tokenizer, and what it does
with bytes that have no token, were put right for the name that the file gives (docs/internals/gguf.md, "The tokenizer"), where
any difference is a failure. Logits, after every token of the first lines, are those of `allot logits` in float32; they may be
twice as far as transformers' own in float32 from those of its model of the file in float64. Exit status 1 on a failure.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
import safetensors.numpy
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

# Fields that say where a configuration came from, or that only one of both files has and that change nothing.
UNIMPORTANT = {"_name_or_path", "_model_name_or_path", "architectures", "dtype", "transformers_version", "unk_token_id"}
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPLITS = {"llama-bpe": QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|"), "qwen2": QWEN2}


def compare_config(gguf, out):
    theirs = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name).to_dict()
    ours = AutoConfig.from_pretrained(out).to_dict()
    differences = {key: (theirs.get(key), ours.get(key)) for key in sorted(theirs.keys() | ours.keys())
                   if key not in UNIMPORTANT and theirs.get(key) != ours.get(key)}
    print(f"config: {len(theirs.keys() - UNIMPORTANT)} fields, {len(differences)} differ (transformers, allot): {differences}")
    return not differences


def compare_tensors(gguf, out):
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    theirs = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    ours = safetensors.numpy.load_file(out / "model.safetensors")
    if "lm_head.weight" not in ours:  # tied
        assert numpy.array_equal(theirs.pop("lm_head.weight"), theirs["model.embed_tokens.weight"])
    different = [name for name in theirs if name not in ours or theirs[name].shape != ours[name].shape or
                 not numpy.array_equal(theirs[name].view(numpy.uint32), ours[name].view(numpy.uint32))]
    missing = sorted(ours.keys() - theirs.keys())
    numbers = sum(tensor.size for tensor in theirs.values())
    print(f"tensors: {len(theirs)} of {numbers} numbers, {len(different)} differ {different[:5]}, not in transformers: {missing}")
    return not different and not missing


def compare_logits(gguf, out, allot, texts):
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ids_of_texts = [tokenizer(text).input_ids for text in texts]

    def logits():
        with torch.inference_mode():
            return [model(torch.tensor([ids])).logits[0].numpy() for ids in ids_of_texts]

    theirs = logits()
    model.double()
    exact = logits()
    ours = []
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "logits.npy"
        for ids in ids_of_texts:
            told = ",".join(map(str, ids))
            subprocess.run([allot, "logits", "--model", out, "--ids", told, "--dtype", "float32", "--out", file], check=True)
            ours.append(numpy.load(file))

    def farthest(of_texts):
        return max(float(numpy.abs(x - y).max()) for x, y in zip(of_texts, exact, strict=True))

    far, allowed = farthest(ours), 2 * farthest(theirs)
    count = sum(map(len, ids_of_texts))
    top = sum(int((x.argmax(-1) == y.argmax(-1)).sum()) for x, y in zip(ours, exact, strict=True))
    print(f"logits after {count} tokens: {far:.2g} from float64, where twice transformers' own distance is {allowed:.2g}; "
          f"the most likely token is the same after {top}")
    return far <= allowed and top == count


def put_right(made, pre):
    """transformers' tokenizer with the pre-tokenizer of that name, and without a token for bytes that have none."""
    file = json.loads(made)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pre not in SPLITS}
    first = {"type": "Digits", "individual_digits": True} if pre == "smollm" else {
        "type": "Split", "pattern": {"Regex": SPLITS[pre]}, "behavior": "Isolated", "invert": False}
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [first, byte_level]}
    file["model"] |= {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": pre == "llama-bpe"}
    file["normalizer"] = {"type": "NFC"} if pre == "qwen2" else None
    return Tokenizer.from_str(json.dumps(file))


def random_texts(count):
    chance = random.Random(5)
    ranges = [(0x20, 0x7F), (0x00, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x600), (0x900, 0xA00), (0x2000, 0x2100),
              (0x3040, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F700), (0x30, 0x3A)]
    for _ in range(count):
        text = ""
        for _ in range(chance.randint(1, 12)):
            first, last = chance.choice(ranges)
            text += "".join(chr(chance.randrange(first, last)) for _ in range(chance.randint(1, 6)))
            text += chance.choice(["", " ", "  ", "\n", "<|im_start|>", "<|im_end|>"])
        yield text


def compare_ids(what, gguf, out, allot, texts):
    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    pre = GGUFReader(gguf).fields["tokenizer.ggml.pre"].contents()
    right = put_right(theirs.backend_tokenizer.to_str(), pre)
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    told = subprocess.run([allot, "tokenize", "--json", "--model", out], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    ours = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(ours) == len(texts)
    wrong, unlike, first = 0, 0, []
    for text, ids in zip(texts, ours):
        expected = right.encode(text).ids
        wrong += ids != expected
        if ids != expected:
            print(f"  WRONG {text!r}: {ids}, expected {expected}")
        if ids != theirs(text).input_ids:
            unlike += 1
            first += [text] * (len(first) < 3)
    print(f"ids of {len(texts)} {what}: {wrong} wrong; {unlike} unlike transformers' own of this file, such as {first}")
    return wrong == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--allot", required=True, type=pathlib.Path)
    parser.add_argument("--gguf", required=True, type=pathlib.Path)
    parser.add_argument("--lines", action="append", default=[], type=pathlib.Path, help="files whose lines are texts")
    parser.add_argument("--random", type=int, default=3000, help="random texts")
    options = parser.parse_args()
    lines = [line for file in options.lines for line in file.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "model"
        subprocess.run([options.allot, "import", options.gguf, "--out", out, "--dtype", "float32"], check=True)
        same = [compare_config(options.gguf, out), compare_tensors(options.gguf, out),
                compare_ids("lines", options.gguf, out, options.allot, lines),
                compare_logits(options.gguf, out, options.allot, lines[:8]),
                compare_ids("random texts", options.gguf, out, options.allot, list(random_texts(options.random)))]
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
