#!/usr/bin/env python3
"""Makes a model whose keys have outlier channels out of one whose keys have none, to see what a KV cache of fewer bits does to them.

    outlier_model.py MODEL OUT [--factor F] [--bias B] [--pairs N]

Of every KV head the N rotary pairs of channels that turn most slowly become F times as large in the keys, and F times as small in
the queries of its group. F is a power of two, so every product of a query with a key, and with them the model's logits, keep
their bits. With --bias B these channels of the keys also get a bias of B or -B, which makes a Qwen2 model of a Llama: pairs
that turn slowly give all keys of a text nearly the same score by it, which attention does not see, as with the large biases
that Qwen2's own keys have.

MODEL is a directory with one model.safetensors of F32 or BF16, of Llama or Qwen2; OUT must not exist. Needs nothing but Python.
"""

import argparse
import array
import json
import math
import pathlib
import re
import shutil
import struct
import sys

FLOATS = {"F32": 4, "BF16": 2}
PROJECTION = re.compile(r"model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(weight|bias)")


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} in the order of the file."""
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: (field["dtype"], field["shape"], data[begin + field["data_offsets"][0]:begin + field["data_offsets"][1]])
            for name, field in sorted(header.items(), key=lambda item: item[1]["data_offsets"])}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def numbers(data, dtype):
    if dtype == "BF16":
        wide = array.array("I", (bits << 16 for bits in array.array("H", data)))
        return array.array("f", wide.tobytes())
    return array.array("f", data)


def stored(values, dtype):
    """The inverse, rounded to the nearest, and in the middle to the even one."""
    if dtype == "BF16":
        wide = array.array("I", values.tobytes())
        return array.array("H", ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 for bits in wide)).tobytes()
    return values.tobytes()


def scaled_rows(tensor, rows, factor):
    dtype, shape, data = tensor
    row_bytes = len(data) // shape[0]
    result = bytearray(data)
    for row in rows:
        place = slice(row * row_bytes, (row + 1) * row_bytes)
        result[place] = stored(array.array("f", (factor * x for x in numbers(data[place], dtype))), dtype)
    return dtype, shape, bytes(result)


def with_outliers(config, tensors, options):
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    if not 1 <= options.pairs <= dim // 2:
        sys.exit(f"--pairs is {options.pairs}, expected 1 to {dim // 2}, as a head of {dim} has")
    # Later channels turn more slowly; channel i turns with channel i + dim / 2.
    slow = [half + i for i in range(dim // 2 - options.pairs, dim // 2) for half in (0, dim // 2)]
    rows_of = {"q": [head * dim + i for head in range(heads) for i in slow],
               "k": [head * dim + i for head in range(kv_heads) for i in slow]}
    factors = {"q": 1 / options.factor, "k": options.factor}
    result = {}
    for name, tensor in tensors.items():
        found = PROJECTION.fullmatch(name)
        if found and found[2] in rows_of:
            tensor = scaled_rows(tensor, rows_of[found[2]], factors[found[2]])
        result[name] = tensor
        if found and found[3] == "weight" and options.bias and name.replace("weight", "bias") not in tensors:
            rows = tensor[1][0]
            result[name.replace("weight", "bias")] = (tensor[0], [rows], bytes(rows * FLOATS[tensor[0]]))
    for name, (dtype, shape, data) in list(result.items()) if options.bias else []:
        found = PROJECTION.fullmatch(name)
        if not found or found.groups()[1:] != ("k", "bias"):
            continue
        values = numbers(data, dtype)
        for place, row in enumerate(rows_of["k"]):
            values[row] += options.bias if place % 3 else -options.bias
        result[name] = (dtype, shape, stored(values, dtype))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--factor", type=float, default=64, help="a power of two; default 64")
    parser.add_argument("--bias", type=float, default=0, help="of these channels of the keys; default 0, none")
    parser.add_argument("--pairs", type=int, default=2, help="pairs of channels of every KV head; default 2")
    options = parser.parse_args()
    if options.factor <= 0 or math.frexp(options.factor)[0] != 0.5:
        sys.exit(f"--factor is {options.factor:g}, expected a power of two, with which no bit of a product changes")
    config = json.loads((options.model / "config.json").read_text())
    architecture = config["architectures"][0]
    if architecture not in ("LlamaForCausalLM", "Qwen2ForCausalLM"):
        sys.exit(f"{options.model} is a {architecture}, expected LlamaForCausalLM or Qwen2ForCausalLM")
    if options.bias and (config.get("attention_bias") or config.get("mlp_bias")):
        sys.exit(f"{options.model} has biases that a Qwen2 model has not; leave --bias out")
    tensors = read_safetensors(options.model / "model.safetensors")
    wrong = {dtype for dtype, _, _ in tensors.values()} - set(FLOATS)
    if wrong:
        sys.exit(f"{options.model} has tensors of {', '.join(sorted(wrong))}, expected {' or '.join(FLOATS)}")
    tensors = with_outliers(config, tensors, options)
    if options.bias:
        for field in ("attention_bias", "mlp_bias"):
            config.pop(field, None)
        config.update(architectures=["Qwen2ForCausalLM"], model_type="qwen2", use_sliding_window=False)
    options.out.mkdir()
    for file in options.model.iterdir():
        if file.is_file() and file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, options.out / file.name)
    (options.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_safetensors(options.out / "model.safetensors", tensors)


if __name__ == "__main__":
    main()
