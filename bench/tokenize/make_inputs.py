#!/usr/bin/env python3
"""Makes what tokenize_bench and fuzz.py read: tokenizer.json files with the real tokens of Llama 3 and Qwen2, and texts.

    pip install tokenizers==0.23.3
    pip download --no-deps llama-models==0.3.0 dashscope==2.0.2     # wheels that ship the rank files; unzip them
    apt-get download installation-guide-amd64                       # dpkg-deb -x; one manual in many languages
    python bench/tokenize/make_inputs.py OUT --llama3-ranks llama_models/llama3/tokenizer.model \
        --qwen-ranks dashscope/resources/qwen.tiktoken --gsm8k train.jsonl --humaneval HumanEval.jsonl \
        --manual usr/share/doc/installation-guide-amd64

The published tokenizer.json files were themselves converted from these rank files, in two ways that this script repeats:
Llama 3 has a merge for every cut of a token into two tokens (280,147 merges, ignore_merges), Qwen2 the one merge that
byte-pair encoding ends with (151,387 merges, NFC). OUT gets llama3/tokenizer.json, qwen2/tokenizer.json, and the texts as
JSON lines of strings: english (GSM8K), code (HumanEval) and mixed (paragraphs of the manual in ten languages).
"""

import argparse
import base64
import html
import json
import pathlib
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
LANGUAGES = "cs de el en fr ja ko ru vi zh_CN".split()


def read_ranks(path):
    lines = (line.split() for line in pathlib.Path(path).read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def byte_level_alphabet():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) for byte in own} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


ALPHABET = byte_level_alphabet()


def written(token):
    return "".join(ALPHABET[byte] for byte in token)


def every_cut(ranks):
    merges = []
    for token in sorted(ranks, key=ranks.get):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(cuts, key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))
    return merges


def last_merge(ranks):
    """For each token the two parts that byte-pair encoding with the tokens before it leaves."""
    merges = []
    for token in sorted(ranks, key=ranks.get):
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], len(ranks)))
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append(tuple(parts))
    return merges


def tokenizer_of(ranks, merges, pattern, ignore_merges, specials):
    tokenizer = Tokenizer(models.BPE({written(token): rank for token, rank in ranks.items()},
                                     [(written(left), written(right)) for left, right in merges],
                                     ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    return tokenizer


def make_llama3(ranks):
    named = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
             "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
             "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
    specials = named + [f"<|reserved_special_token_{i}|>" for i in range(3, 256 - len(named) + 3)]
    tokenizer = tokenizer_of(ranks, every_cut(ranks), LLAMA3_PATTERN, True, specials)
    begin = [("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))]
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False),
         processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=begin)])
    return tokenizer


def make_qwen2(ranks):
    tokenizer = tokenizer_of(ranks, last_merge(ranks), QWEN2_PATTERN, False, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def json_lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().split("\n") if line]


def paragraphs(folder):
    """Paragraphs of the manual, one language after another in turn, markup removed."""
    columns = []
    for language in LANGUAGES:
        pages = sorted(pathlib.Path(folder, language).glob("*.html"))
        text = " ".join(page.read_text(errors="ignore") for page in pages)
        parts = re.findall(r"<p>(.*?)</p>", text, re.S)
        columns.append([html.unescape(re.sub(r"<[^>]*>", "", part)).strip() for part in parts][:700])
    rows = max(map(len, columns))
    return [column[i] for i in range(rows) for column in columns if i < len(column) and column[i]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    for name in ("llama3-ranks", "qwen-ranks", "gsm8k", "humaneval", "manual"):
        parser.add_argument("--" + name, required=True)
    args = parser.parse_args()
    for name, tokenizer in (("llama3", make_llama3(read_ranks(args.llama3_ranks))),
                            ("qwen2", make_qwen2(read_ranks(args.qwen_ranks)))):
        (args.out / name).mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(args.out / name / "tokenizer.json"))
        document = json.loads(tokenizer.to_str())
        print(name, tokenizer.get_vocab_size(), "tokens", len(document["model"]["merges"]), "merges")
    texts = {"english": [row["question"] + "\n" + row["answer"] for row in json_lines(args.gsm8k)],
             "code": [row["prompt"] + row["canonical_solution"] + row["test"] for row in json_lines(args.humaneval)],
             "mixed": paragraphs(args.manual)}
    for name, rows in texts.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (args.out / f"{name}.jsonl").write_text(lines)
        print(name, len(rows), "texts", sum(len(row.encode()) for row in rows), "bytes")


if __name__ == "__main__":
    main()
