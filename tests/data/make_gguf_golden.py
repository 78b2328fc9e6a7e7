"""Makes tests/data/gguf: GGUF files, and what the Python packages make of them.

    pip install gguf==0.19.0 numpy tokenizers==0.23.3
    python tests/data/make_gguf_golden.py

blocks.gguf    a tensor of each type that allot reads, named like the type, and the float32 numbers that
               gguf.quants.dequantize gives, in a tensor NAME.expected. Types that the package cannot quantise are random
               bytes under scales that are finite numbers.
llama.gguf, qwen2.gguf, qwen3.gguf
               small models with tensors of several types and a vocabulary of all bytes and some merges.
expected.json  of each model: the SHA-256 of every tensor of the checkpoint, dequantised by the package to float32 and, for
               llama, with the rows of query and key put back as transformers' LlamaTensorProcessor does; and the ids
               that the package `tokenizers` gives for some texts.
tests/data/compare_gguf_import.py holds these files to transformers itself.
"""

import hashlib
import json
import pathlib

import gguf
import numpy
from gguf import GGMLQuantizationType as Type
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

OUT = pathlib.Path(__file__).parent / "gguf"
TEXTS = ["", "hello hello", "he said: 12345 + 6,789 = 19134", "  two  spaces\n\n\tand a tab ", "don't I'LL we've",
         "<s>he<eot>ll</s> <mark>he", "na\u00efve cafe\u0301 \u4f60\u597d \U0001f600", "\u0665\u00bd\u2167 1\u00a02", "a1b22c333 d4444"]


def blocks():
    chance = numpy.random.default_rng(7)
    writer = gguf.GGUFWriter(OUT / "blocks.gguf", "blocks")
    for kind in (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q5_K,
                 Type.Q6_K):
        numbers = chance.standard_normal((2, 256 if kind.name.endswith("_K") else 64)).astype(numpy.float32)
        numbers[1] *= 300
        writer_type = kind
        if kind.name.endswith("_K"):
            size = gguf.GGML_QUANT_SIZES[kind][1]
            data = chance.integers(0, 256, (2, size), dtype=numpy.uint8)
            # Where the block has float16 scales: not infinite and not NaN.
            for place in [(0, 2), (2, 4)] if kind != Type.Q6_K else [(208, 210)]:
                scale = chance.standard_normal(2).astype(numpy.float16)
                data[:, place[0]:place[1]] = scale.reshape(2, 1).view(numpy.uint8)
        else:
            data = gguf.quants.quantize(numbers, kind)
        expected = gguf.quants.dequantize(data, kind).astype(numpy.float32)
        writer.add_tensor(kind.name, data, raw_dtype=writer_type)
        writer.add_tensor(kind.name + ".expected", expected)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def byte_alphabet():
    """The characters for bytes 0 to 255 in byte-level BPE."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


VOCABULARY = [*byte_alphabet(), "he", "ll", "hell", "hello", "\u0120he", "12", "\u01201", "\u0120\u0120", "<s>", "</s>", "<eot>", "<mark>"]
MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 he", "1 2", "\u0120 1", "\u0120 \u0120"]
CONTROL = ["<s>", "</s>", "<eot>"]
QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                 r"|\s+(?!\S)|\s+")
LLAMA3_PATTERN = QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
HIDDEN, INTERMEDIATE, Q_HEADS, KV_HEADS, HEAD_DIM = 32, 32, 4, 2, 8


def tokenizer(pre):
    """What the models' own tokenizer.json has for this name of a pre-tokenizer."""
    made = Tokenizer(BPE({token: number for number, token in enumerate(VOCABULARY)}, [tuple(rule.split(" ")) for rule in MERGES],
                         ignore_merges=pre == "llama-bpe"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")
    if pre == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
    else:
        first = pre_tokenizers.Split(Regex(QWEN2_PATTERN if pre == "qwen2" else LLAMA3_PATTERN), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([first, byte_level])
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    made.add_tokens([AddedToken("<mark>", normalized=False)])
    return made


def model(architecture, pre, layers, tied):
    chance = numpy.random.default_rng(len(architecture) + tied)
    writer = gguf.GGUFWriter(OUT / f"{architecture}.gguf", architecture)
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(Q_HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(25000.0)
    if architecture == "llama":
        writer.add_rope_dimension_count(HEAD_DIM)
    if architecture == "qwen3":
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(VOCABULARY)
    writer.add_token_merges(MERGES)
    writer.add_token_types([3 if token in CONTROL else 4 if token == "<mark>" else 1 for token in VOCABULARY])
    writer.add_bos_token_id(VOCABULARY.index("<s>"))
    writer.add_eos_token_id(VOCABULARY.index("</s>"))
    writer.add_eot_token_id(VOCABULARY.index("<eot>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")

    kinds = iter([Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.F32, Type.Q5_1, Type.F16, Type.BF16] * 2)
    tensors = {}

    def tensor(gguf_name, name, *shape, heads=0):
        kind = Type.F32 if len(shape) == 1 else Type.Q4_0 if shape[0] == len(VOCABULARY) else next(kinds)
        data = gguf.quants.quantize(chance.standard_normal(shape).astype(numpy.float32) / 8, kind)
        writer.add_tensor(gguf_name, data, raw_dtype=kind)
        numbers = gguf.quants.dequantize(data, kind).astype(numpy.float32)
        if heads:
            half = shape[0] // heads // 2
            numbers = numbers.reshape(heads, half, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        tensors[name] = hashlib.sha256(numpy.ascontiguousarray(numbers).tobytes()).hexdigest()

    tensor("token_embd.weight", "model.embed_tokens.weight", len(VOCABULARY), HIDDEN)
    for layer in range(layers):
        here, there = f"blk.{layer}.", f"model.layers.{layer}."
        interleaved = architecture == "llama"
        for short, name, heads in (("q", "q_proj", Q_HEADS), ("k", "k_proj", KV_HEADS), ("v", "v_proj", KV_HEADS)):
            put_back = heads if interleaved and short != "v" else 0
            tensor(f"{here}attn_{short}.weight", f"{there}self_attn.{name}.weight", heads * HEAD_DIM, HIDDEN, heads=put_back)
            if architecture == "qwen2":
                tensor(f"{here}attn_{short}.bias", f"{there}self_attn.{name}.bias", heads * HEAD_DIM)
            if architecture == "qwen3" and short != "v":
                tensor(f"{here}attn_{short}_norm.weight", f"{there}self_attn.{short}_norm.weight", HEAD_DIM)
        tensor(here + "attn_output.weight", there + "self_attn.o_proj.weight", HIDDEN, Q_HEADS * HEAD_DIM)
        tensor(here + "ffn_gate.weight", there + "mlp.gate_proj.weight", INTERMEDIATE, HIDDEN)
        tensor(here + "ffn_up.weight", there + "mlp.up_proj.weight", INTERMEDIATE, HIDDEN)
        tensor(here + "ffn_down.weight", there + "mlp.down_proj.weight", HIDDEN, INTERMEDIATE)
        tensor(here + "attn_norm.weight", there + "input_layernorm.weight", HIDDEN)
        tensor(here + "ffn_norm.weight", there + "post_attention_layernorm.weight", HIDDEN)
    tensor("output_norm.weight", "model.norm.weight", HIDDEN)
    if not tied:
        tensor("output.weight", "lm_head.weight", len(VOCABULARY), HIDDEN)
    finish(writer)
    made = tokenizer(pre)
    return {"tensors": tensors, "ids": {text: made.encode(text).ids for text in TEXTS}}


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    blocks()
    expected = {"llama": model("llama", "smollm", 2, True), "qwen2": model("qwen2", "qwen2", 1, False),
                "qwen3": model("qwen3", "llama-bpe", 1, True)}
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
