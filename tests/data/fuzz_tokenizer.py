#!/usr/bin/env python3
"""Compares `allot tokenize` with the `tokenizers` package on random texts: ids, and texts of ids.

    pip install tokenizers==0.23.3
    python tests/data/fuzz_tokenizer.py build-light/bin/allot DIRECTORY... [--seed 1] [--count 20000] [--every-character] \\
        [--tokens 20000] [--gsm8k FILE]

DIRECTORY holds a tokenizer.json; bench/tokenize/make_inputs.py makes those of Llama 3 and Qwen2. Without one, the small
tokenizers of tests/data/tokenizer are taken. The same seed gives the same texts. --every-character adds a few texts
around every code point of Unicode, --tokens as many texts of the tokenizer's own tokens in random order, --gsm8k the
questions and answers of a file. Beside the ids of its texts, half as many random lists of ids are decoded. Prints each difference with its text,
and exits 1 when there is one.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

GOLDEN = pathlib.Path(__file__).parent / "tokenizer"

# What the rules of pre-tokenizers and normalizers tell apart, and what they are known to confuse.
PIECES = [
    *"abeszSTLKdmrv0159", *" \t\n\r\v\f", *".,;:!?'\"-_#$%&()<>[]{}|\\/@^`~+=*", "'s", "'S", "'\u017f", "'ll", "'LL", "'Re", "'ve",
    "'t", "'d", "'M", "\u2019s", "don't", "  ", "   ", "\n\n", "\r\n", " \n", "\n ", " " * 17, "\t\t", "1234", "3.14", "1,000",
    # letters, marks, digits of other scripts; precomposed and not
    "\u00e9", "e\u0301", "\u00df", "\u0130", "\u01c5", "\u0149", "\ufb06", "\ufb01", "\u1e9e", "\u212a", "\u212b", "A\u030a",
    "\u0300", "\u0301", "\u0323", "\u0327", "\u0334", "\u0345", "\u0344", "\u0308\u0301", "\u1e9b\u0323", "q\u0307\u0323",
    "\u0431", "\u0439", "\u0438\u0306", "\u03b1\u0345", "\u1fb3", "\u05d0\u05b8", "\u0627\u0644\u0644\u0647", "\u0661\u0662\u0663",
    "\u0915\u094d\u0937\u093f", "\u0958", "\u09cb", "\u09c7\u09be", "\u0b95\u0bca", "\u0e01\u0e33", "\u0f43", "\u1025\u102e",
    "\u1100\u1161", "\u1100\u1161\u11a8", "\uac00", "\uac00\u11a8", "\u11a8", "\uac01\u11a8", "\u3046\u3099", "\u304c",
    "\u4f60\u597d", "\u4e16\u754c", "\uff0c", "\u3002", "\u3000", "\uff11\uff12", "\u3007", "\u4e09", "\uf900", "\U0002f800",
    "\u2167", "\u00bd", "\u00b2", "\u2460", "\U0001d7d8", "\U0001d400", "\U00020000", "\U0001e900",
    # emoji with joiners, selectors, skin tones, flags
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea",
    "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e007f",
    # spaces and what looks like one
    "\u00a0", "\u0085", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u200b", "\u200d", "\u2060", "\ufeff", "\u180e",
    "\u00ad", "\x00", "\x01", "\x1b", "\x7f", "\x1c", "\x1f", "\ufffd", "\uffff", "\U0010ffff", "\ue000",
    # assigned after Unicode 9 or 14, where libraries differ
    "\u07fd", "\u0898", "\u08d3", "\u0c3c", "\u1dfa", "\ua7cb", "\U00011938", "\U00011935\U00011930", "\U00011f02", "\U00010d40",
    "\U0001e4ec", "\U0001e4f0", "\U00031350", "\U0002ebf0", "\U00016d63\U00016d67", "\U000105d2\u0307",
    # tokens of the tokenizers themselves
    "<s>", "</s>", "<|x|>", "<|", "|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>",
    "<|start_header_id|>user<|end_header_id|>", "<|reserved_special_token_5|>", "<mask>", "<strip>", "thing", "NORM", "<0x41>", "<unk>",
    # words, code
    "the", " the", " of", "ing", "Hello", " world", "antidisestablishmentarianism", "def f(x):\n    return x**2\n", "http://a.b/c?d=e",
    "\t\tif (a != b) {\n", "/* \u4f60 */", "====", "----", "....", "aaaa", "\u043f\u0440\u0438\u0432\u0435\u0442",
]

# SentencePiece's space and what stands around it.
SPACES = ["\u2581", "\u2581\u2581", " \u2581", "\u2581a", "a\u2581", " <s>", "<s> ", "</s>  ", " thing ", "_", "<0x0A>", "<0xE4>"]


def character(rng):
    limit = rng.choice([0x80, 0x250, 0x800, 0x3100, 0x10000, 0x20000, 0x110000])
    while True:
        code_point = rng.randrange(limit)
        if not 0xD800 <= code_point <= 0xDFFF:
            return chr(code_point)


def random_text(rng, pieces=PIECES):
    kind = rng.randrange(4)
    length = rng.randrange(1, rng.choice([4, 12, 40, 120]))
    if kind == 0:
        return "".join(rng.choice(pieces) for _ in range(length))
    if kind == 1:
        return "".join(character(rng) for _ in range(length))
    if kind == 2:  # few different parts, often repeated: long runs and periodic pieces
        some = [rng.choice(pieces) if rng.random() < 0.7 else character(rng) for _ in range(rng.randrange(1, 4))]
        return "".join(rng.choice(some) for _ in range(length))
    return "".join(rng.choice(pieces) if rng.random() < 0.8 else character(rng) for _ in range(length))


def texts_of_every_character():
    """Each code point beside a letter, a digit, spaces, an apostrophe, marks; eight code points a text."""
    code_points = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    for start in range(0, len(code_points), 8):
        yield "".join(f"a{c}b 1{c}2 {c} {c}\n'{c} {c}\u0301\u0323{c}. " for c in code_points[start:start + 8])


def texts_of_tokens(rng, tokenizer, count):
    """Tokens side by side that no text has so: rules across their borders, and in the middle of characters."""
    ids = range(tokenizer.get_vocab_size())
    tokens = [text for text in tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False) if text.strip("\ufffd")]
    beyond_ascii = [token for token in tokens if not token.isascii()]
    for _ in range(count):
        some = rng.choice([tokens, beyond_ascii])
        yield "".join(rng.choice(some) for _ in range(rng.randrange(1, 30)))


def allot(binary, directory, lines, *flags):
    command = [binary, "tokenize", "--model", str(directory), "--json", *flags]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in result.stdout.split("\n") if line]


def differences(binary, directory, texts, rng):
    tokenizer = Tokenizer.from_file(str(pathlib.Path(directory, "tokenizer.json")))
    theirs = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    for text, own, ids in zip(texts, allot(binary, directory, texts), theirs, strict=True):
        if own != ids:
            yield "encode", text, own, ids
    # Cut, so that characters are torn apart; and ids beside each other that no text gives.
    torn = [ids[len(ids) // 3:] for ids in theirs]
    every_id = sorted(tokenizer.get_vocab().values())
    torn += [rng.choices(every_id, k=rng.randrange(12)) for _ in range(len(texts) // 2)]
    for flags, skip in (([], False), (["--no-special"], True)):
        expected = tokenizer.decode_batch(torn, skip_special_tokens=skip)
        for ids, own, text in zip(torn, allot(binary, directory, torn, "--decode", *flags), expected, strict=True):
            if own != text:
                yield f"decode, skip_special_tokens={skip}", ids, own, text


def small_tokenizers(folder):
    for path in sorted(GOLDEN.glob("*.json")):
        document = json.loads(path.read_text())
        if "tokenizer" in document:
            directory = pathlib.Path(folder, path.stem)
            directory.mkdir()
            (directory / "tokenizer.json").write_text(json.dumps(document["tokenizer"]))
            yield directory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("directories", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--every-character", action="store_true")
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--gsm8k")
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for directory in args.directories or small_tokenizers(folder):
            rng = random.Random(args.seed)
            texts = [random_text(rng, PIECES + SPACES) for _ in range(args.count)]
            if args.gsm8k:
                questions = [json.loads(line) for line in pathlib.Path(args.gsm8k).read_text().splitlines()]
                texts += [f"{entry['question']}\n{entry['answer']}" for entry in questions]
            if args.every_character:
                texts += texts_of_every_character()
            if args.tokens:
                tokenizer = Tokenizer.from_file(str(pathlib.Path(directory, "tokenizer.json")))
                texts += texts_of_tokens(rng, tokenizer, args.tokens)
            found = list(differences(args.binary, directory, texts, rng))
            for what, given, own, expected in found[:10]:
                print(f"{directory}: {what} of {given!r}\n  allot      {own!r}\n  tokenizers {expected!r}")
            print(f"{directory}: {len(texts)} texts of seed {args.seed}, {len(found)} differences", flush=True)
            failed += len(found)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
