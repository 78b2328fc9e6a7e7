"""Makes tests/fuzz/corpus: the inputs from which the fuzzers start, small and the same each time.

    python3 tests/fuzz/make_corpus.py
"""

import json
import pathlib
import random
import shutil
import struct

HERE = pathlib.Path(__file__).parent
REPOSITORY = HERE.parent.parent
CORPUS = HERE / "corpus"


def write(target, name, content):
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def core():
    """The bytes that core_fuzz.cc reads: an operation, its choices, the sender, the leases listed, the damage."""
    peer = 0
    hello = bytes([1, 0, 0, 0, peer, 0, 0])
    request = bytes([2, 5, peer, 0, 0])
    # The newest lease, no fault, two outcomes.
    result = bytes([3, 0, 0, 1, 1, peer, 0, 0])
    heartbeat = bytes([6, peer, 1, 0, 0])
    tick, restart, status = bytes([8, 0xFF, 0x0F]), bytes([9]), bytes([7, peer, 0, 0])
    write("core", "whole_run", hello + (request + result) * 9 + status)
    write("core", "restarts", hello + (request + result + restart + hello) * 4)
    write("core", "expiry", hello + request + (heartbeat + tick) * 3 + request + tick * 2 + result)
    for fault in range(1, 9):
        write("core", f"fault_{fault}", hello + request + bytes([3, 0, fault, 1, 1, 1, 2, peer, 0, 0]) + result)
    def release(reason, *partial):
        # Leases, the reason, the answers that are kept, the sender.
        return bytes([5, 2, 0, 1, reason, len(partial)]) + b"".join(partial) + bytes([peer, 0, 0])

    write("core", "release", hello + request + release(1) + request + restart)
    # The newest lease, no fault, two outcomes, the first of them left out.
    kept = bytes([0, 0, 1, 1, 1])
    write("core", "kept_answers", hello + request + release(2, kept) + restart + hello + request + result)
    write("core", "kept_twice", hello + request + release(2, kept, kept) + request + release(1, bytes([0, 4, 1, 1, 0])))
    frame = bytes.fromhex("080110072201772a0303ac026a020802")  # the worked example of docs/wire-protocol.md
    write("core", "frame", bytes([0, peer]) + struct.pack("<H", len(frame)) + frame)
    damaged = bytes([2, 5, peer, 0, 0xF7, 3, 0])
    write("core", "damaged", hello + damaged * 3 + request)
    chance = random.Random(1)
    for number in range(8):
        write("core", f"chance_{number}", hello + request + chance.randbytes(120))


def field(number, value):
    """One field of a protobuf message: a number as a varint, a float as a double, bytes and text with their length."""
    def varint(rest):
        rest &= 2**64 - 1
        return (bytes([rest & 0x7F | 0x80]) + varint(rest >> 7)) if rest > 0x7F else bytes([rest])

    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def codec():
    """A frame of every kind of message in wire/messages.proto."""
    model = field(1, "tiny") + field(2, "c0") + field(5, 8)
    data = field(2, "7a") + field(3, 50)
    outcome = field(1, 7) + field(2, 1) + field(3, 2) + field(4, 10) + field(5, 20)
    answers = field(1, 3) + field(2, 5) + field(3, outcome) * 2 + field(4, 0.5)
    lease = b"".join(field(n, n) for n in (1, 2, 3, 4, 5)) + field(6, bytes([8, 8])) + field(7, bytes([1, 2])) + field(8, 2**32 - 1)
    spec = (field(1, 1) + field(2, "example") + field(3, model) + field(5, field(1, "gsm8k") + field(4, data)) +
            field(7, field(2, 0.6)) + field(8, field(1, "pairs") + field(2, 64) + field(5, 0.1)) + field(10, 10))
    curve = field(1, 50) + field(3, bytes([1, 2])) + field(4, struct.pack("<2d", 0.25, 0.5))
    bodies = {
        "hello": (10, field(1, "w") + field(3, model) + field(4, data) + field(5, data) + field(6, "H200") + field(8, 1)),
        "welcome": (11, field(1, 1) + field(2, spec) + field(3, 10_000)),
        "refused": (12, field(1, 5) + field(2, "no")),
        "lease_request": (13, field(1, 4)),
        "grant": (14, field(1, lease) * 2),
        "wait": (15, field(1, 100) + field(2, 1) + field(3, 1) + field(4, "later")),
        "result": (16, answers + field(5, "out of memory") + field(6, 1)),
        "ack": (17, field(1, 3) + field(2, 5) + field(3, 2) + field(5, 1)),
        "release": (18, field(1, bytes([3, 4])) + field(2, 2) + field(3, answers)),
        "released": (19, field(1, bytes([3, 4]))),
        "heartbeat": (20, b""),
        "heartbeat_reply": (21, field(1, bytes([3]))),
        "status_request": (22, b""),
        "status": (23, field(1, "example") + field(6, 0.5) + field(7, struct.pack("<d", 1.0)) + field(14, field(1, 9)) +
                   field(15, field(1, "w") + field(6, -1)) + field(16, field(1, "learned")) + field(20, field(2, 1)) +
                   field(21, field(1, 4) + field(3, 0.5)) + field(40, curve)),
        "control": (24, field(1, 4) + field(3, 0.75) + field(4, "anna")),
        "control_reply": (25, field(1, 1) + field(2, "paused")),
    }
    for name, (number, body) in bodies.items():
        write("codec", name, field(1, 1) + field(2, 7) + field(4, "w") + field(5, bytes([3, 0xAC, 2])) + field(6, 1) +
              field(number, body))
    write("codec", "other_version", field(1, 2) + field(2, 7) + field(20, b""))
    write("codec", "no_body", field(1, 1) + field(2, 7))
    write("codec", "two_bodies", field(1, 1) + field(20, b"") + field(13, field(1, 4)))
    write("codec", "unknown_field", field(1, 1) + field(20, field(99, "x")) + field(98, 1.5))
    write("codec", "not_utf8", field(1, 1) + field(4, b"\xff\xc0") + field(20, b""))
    write("codec", "cut", (field(1, 1) + field(20, b"ab"))[:-1])


def lease_table():
    """The bytes that lease_table_fuzz.cc reads: the lease time, the attempts, then events."""
    offer, grant, expire, renew_all = bytes([0]), bytes([2, 1]), bytes([9, 255]), bytes([10])
    head = bytes([50, 2])
    write("lease_table", "expiry", head + (offer + grant + expire) * 4 + bytes([7]))
    write("lease_table", "late", head + offer + grant + expire + grant + bytes([5, 2, 1]) + bytes([5, 3, 1]))
    write("lease_table", "renewal", head + (offer + grant) * 3 + bytes([8, 1, 2, 3]) + renew_all + expire)
    write("lease_table", "ends", head + b"".join(offer + grant + bytes([4, n + 2, n]) for n in range(5)))
    chance = random.Random(2)
    for number in range(8):
        write("lease_table", f"chance_{number}", head + offer * 5 + grant * 3 + chance.randbytes(150))


def tokenizer():
    """Every component in its smallest form. The merges follow from the vocabulary, as in a trained file."""
    base = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": None}
    words = {"type": "WordLevel", "vocab": {"<unk>": 0, "H": 1, "Hello": 2, ",": 3}, "unk_token": "<unk>"}
    pairs = {"type": "BPE", "vocab": {"<unk>": 0, "H": 1, "e": 2, "l": 3, "o": 4, "ll": 5, "He": 6, "Hell": 7},
             "merges": [["l", "l"], ["H", "e"], ["He", "ll"]], "unk_token": "<unk>", "fuse_unk": True}
    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"},
             "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": 9, "content": "<s>", "single_word": False, "lstrip": True, "rstrip": True, "normalized": False,
              "special": True}]
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [9], "tokens": ["<s>"]}}}
    # Bytes as ByteLevel writes them: a space is U+0120, a line feed U+010A. A whole alphabet would make long inputs.
    alphabet = "Helo,w!12345<s>\u0120\u010a\u00e4\u00bd\u0142"
    byte_pairs = {"type": "BPE", "vocab": {c: n for n, c in enumerate(dict.fromkeys(alphabet))} | {"He": 30, "ll": 31},
                  "merges": ["H e", "l l"], "ignore_merges": True}
    fallback = {"type": "BPE", "vocab": {f"<0x{n:02X}>": n for n in (0x0A, 0x20, 0x48, 0xE4, 0xBD, 0xA0)} | {"H": 256}, "merges": [],
                "byte_fallback": True, "unk_token": None}
    space = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    pieces = {"type": "BPE", "vocab": {"<unk>": 0, "\u2581": 1, "H": 2, "e": 3, "l": 4, "\u2581H": 5, "<0x0A>": 6}, "merges": ["\u2581 H"],
              "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    files = {
        "sentence_piece": base | {"model": pieces, "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"}, space | {"pattern": {"String": " "}, "content": "\u2581"}]},
            "decoder": {"type": "Sequence", "decoders": [space, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]}},
        "metaspace": base | {"model": pieces, "added_tokens": added, "pre_tokenizer": metaspace, "decoder": metaspace | {"split": True}},
        "bytes_fallback": base | {"model": byte_pairs | {"byte_fallback": True}, "pre_tokenizer": level, "decoder": {
            "type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, space, {"type": "ByteLevel"}]}},
        "words": base | {"model": words, "pre_tokenizer": {"type": "Whitespace"}},
        "words_plain": base | {"model": words, "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": added,
                               "post_processor": template},
        "pairs": base | {"model": pairs, "normalizer": {"type": "NFC"}, "pre_tokenizer": split},
        "pairs_split": base | {"model": pairs, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split | {"behavior": "MergedWithNext", "invert": True}, {"type": "Digits", "individual_digits": True}]}},
        "bytes": base | {"model": byte_pairs, "pre_tokenizer": level, "decoder": {"type": "ByteLevel"}},
        "fallback": base | {"model": fallback, "decoder": {"type": "Sequence", "decoders": [
            {"type": "ByteFallback"}, {"type": "Fuse"}]}},
    }
    for name, file in files.items():
        text = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
        write("tokenizer", name, text)
        write("tokenizer", name + "_text", text.encode() + b"\0 Hello  lle\r\n\xcc\x8812 <s>a \xe4\xbd\xa0\xf0\x9f\x98\x80")
    write("tokenizer", "gpt2_without_type", json.dumps(
        {"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "pre_tokenizer": None}))


def safetensors():
    def file(header, data):
        text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
        return struct.pack("<Q", len(text)) + text + data

    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    write("safetensors", "one", file({"a": tensor}, bytes(8)))
    write("safetensors", "two", file({"__metadata__": {"format": "pt"}, "a": tensor,
                                      "b": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [8, 12]}}, bytes(12)))
    write("safetensors", "empty", file({"a": {"dtype": "I8", "shape": [0, 4], "data_offsets": [0, 0]}}, b""))
    write("safetensors", "scalar", file({"a": {"dtype": "BOOL", "shape": [], "data_offsets": [0, 1]}}, b"\1"))
    write("safetensors", "overflow", file(
        {"a": {"dtype": "F64", "shape": [2**62, 8], "data_offsets": [0, 0]}}, b""))
    write("safetensors", "gap", file({"a": tensor | {"data_offsets": [1, 9]}}, bytes(9)))
    write("safetensors", "overlap", file({"a": tensor, "b": tensor | {"data_offsets": [4, 12]}}, bytes(12)))
    write("safetensors", "short", file({"a": tensor}, bytes(7)))
    write("safetensors", "twice", file(b'{"a":{},"a":{}}', b""))
    write("safetensors", "long_header", struct.pack("<Q", 2**63) + b"{}")
    write("safetensors", "lfs", "version https://git-lfs.github.com/spec/v1\n")
    write("safetensors", "mixed", (REPOSITORY / "tests/data/safetensors/mixed.safetensors").read_bytes())


def adapter():
    """adapter_config.json, a zero byte, adapter_model.safetensors; the decoder is that of adapter_fuzz.cc."""
    def factors(module, rank, inputs, outputs, size=4, dtype="F32"):
        name = f"base_model.model.{module}.lora_"
        return {name + "A.weight": (dtype, [rank, inputs], size), name + "B.weight": (dtype, [outputs, rank], size)}

    def write_adapter(name, settings, tensors, cut=0):
        header, data = {}, b""
        for number, (tensor, (dtype, shape, size)) in enumerate(tensors.items()):
            content = bytes([number + 1, 0, 128, 63][:size] if size == 4 else [number + 1, 63]) * (shape[0] * shape[1])
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        text = json.dumps(header, separators=(",", ":")).encode()
        whole = json.dumps(settings, separators=(",", ":")).encode() + b"\0" + struct.pack("<Q", len(text)) + text + data
        write("adapter", name, whole[:len(whole) - cut])

    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"}
    q = factors("model.layers.0.self_attn.q_proj", 2, 4, 4)
    write_adapter("plain", settings, q)
    write_adapter("cut", settings, q, cut=1)
    write_adapter("two", settings | {"use_rslora": True, "base_model_name_or_path": "a"},
                  q | factors("model.layers.1.mlp.down_proj", 2, 3, 4, 2, "BF16"))
    write_adapter("half", settings | {"init_lora_weights": "gaussian"},
                  factors("model.layers.1.self_attn.k_proj", 2, 4, 2, 2, "F16"))
    write_adapter("patterns", settings | {"rank_pattern": {"^model.layers.0.*q_proj": 1}, "alpha_pattern": {"q_proj": 0.5}},
                  factors("model.layers.0.self_attn.q_proj", 1, 4, 4))
    write_adapter("dora", settings | {"use_dora": True, "modules_to_save": None}, q)
    write_adapter("pissa", settings | {"init_lora_weights": "pissa_niter_4"}, q)
    write_adapter("one_factor", settings, dict([next(iter(q.items()))]))
    write_adapter("other_rank", settings | {"r": 3}, q)
    write_adapter("other_base", settings, factors("model.layers.0.self_attn.q_proj", 2, 8, 4))
    write_adapter("embedding", settings, {"base_model.model.model.embed_tokens.lora_embedding_A": ("F32", [2, 4], 4)})


def gguf():
    """Files by the smallest writer of the format: version 3, numbers as the file has them."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(content):
        if isinstance(content, bool):
            return struct.pack("<I?", 7, content)
        if isinstance(content, str):
            return struct.pack("<I", 8) + text(content)
        if isinstance(content, float):
            return struct.pack("<If", 6, content)
        if isinstance(content, list):
            rest = b"".join(value(each) for each in content[:1])[:4] or struct.pack("<I", 0)
            return struct.pack("<I", 9) + rest + struct.pack("<Q", len(content)) + b"".join(value(each)[4:] for each in content)
        return struct.pack("<II", 4, content)

    def file(fields, tensors, version=3):
        head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields))
        head += b"".join(text(key) + value(content) for key, content in fields.items())
        data = b""
        for name, (kind, shape, content) in tensors.items():
            head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(data))
            data += content + bytes(-len(content) % 32)
        return head + bytes(-len(head) % 32) + data

    def floats(*shape):
        count = 1
        for size in shape:
            count *= size
        return 0, shape, struct.pack(f"<{count}f", *(n / 4 for n in range(count)))

    def model(architecture, pre):
        fields = {"general.architecture": architecture}
        for key, number in {"block_count": 1, "context_length": 9, "embedding_length": 2, "feed_forward_length": 1,
                            "attention.head_count": 1, "attention.key_length": 2,
                            "attention.layer_norm_rms_epsilon": 1e-5}.items():
            fields[f"{architecture}.{key}"] = number
        fields |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
                   "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 3}
        tensors = {"token_embd.weight": floats(4, 2), "output_norm.weight": floats(2)}
        rows = {"attn_q": 2, "attn_k": 2, "attn_v": 2, "attn_output": 2, "ffn_gate": 1, "ffn_up": 1}
        tensors |= {f"blk.0.{name}.weight": floats(out, 2) for name, out in rows.items()}
        tensors |= {"blk.0.ffn_down.weight": floats(2, 1), "blk.0.attn_norm.weight": floats(2), "blk.0.ffn_norm.weight": floats(2)}
        if architecture == "qwen2":
            tensors |= {f"blk.0.attn_{name}.bias": floats(2) for name in "qkv"}
        if architecture == "qwen3":
            tensors |= {f"blk.0.attn_{name}_norm.weight": floats(2) for name in "qk"}
        return fields, tensors

    write("gguf", "llama", file(*model("llama", "smollm")))
    write("gguf", "qwen2", file(*model("qwen2", "qwen2"), version=2))
    write("gguf", "qwen3", file(*model("qwen3", "default")))
    fields, tensors = model("llama", "llama-bpe")
    fields |= {"tokenizer.ggml.bos_token_id": 3, "tokenizer.ggml.add_eos_token": True, "tokenizer.chat_template": "{{ x }}"}
    write("gguf", "llama3", file(fields, tensors | {"rope_freqs.weight": (0, (1,), struct.pack("<f", 1))}))
    fields, tensors = model("llama", "gpt-2")
    write("gguf", "untied_experts", file(fields | {"llama.expert_count": 2}, tensors | {"output.weight": floats(4, 2)}))
    # A block of each type, smaller ones first.
    sizes = {1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 12: (256, 144),
             13: (256, 176), 14: (256, 210)}
    chance = random.Random(3)
    write("gguf", "blocks", file({"general.alignment": 32}, {f"t{kind}": (kind, (elements,), chance.randbytes(size))
                                                             for kind, (elements, size) in sizes.items()}))
    write("gguf", "values", file({"u": 7, "f": 1.5, "b": True, "s": "text", "list": [1, 2], "texts": ["a", ""], "none": []}, {}))
    write("gguf", "beyond", file({}, {"t": floats(2)})[:-28])
    write("gguf", "many_tensors", b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0))
    write("gguf", "many_fields", b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60))
    write("gguf", "long_text", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**64 - 8) + bytes(16))
    write("gguf", "long_array", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 12, 2**61))
    write("gguf", "overflow", file({}, {"t": (0, (2**33, 2**33), b"")}))
    write("gguf", "big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    write("gguf", "version_1", b"GGUF" + struct.pack("<III", 1, 0, 0))


def documents():
    config = json.loads((REPOSITORY / "assets/tiny-gsm/config.json").read_text())
    write("documents", "config", "c" + json.dumps(config, separators=(",", ":")))
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
    write("documents", "config_scaled", "c" + json.dumps(config | {"rope_scaling": scaling}, separators=(",", ":")))
    write("documents", "generation", "g" + json.dumps(
        {"eos_token_id": [1, 2], "bos_token_id": 0, "temperature": 0.6, "top_p": 0.9, "do_sample": True}))
    # The worked example of its documentation.
    text = (REPOSITORY / "docs/schedule-format.md").read_text()
    write("documents", "schedule", "s" + text.split("```json\n")[1].split("```")[0])
    write("documents", "schedule_1", "s" + (REPOSITORY / "tests/data/schedule/version_1.json").read_text())
    write("documents", "spec", "r" + json.dumps({
        "schema_version": 1, "run_id": "example", "model": {"id": "tiny", "layers": 8}, "model_path": "/models/tiny",
        "task": {"name": "gsm8k", "train": {"sha256": "7a", "questions": 50}, "heldout_questions": 6},
        "policy": {"name": "pairs", "total": "64", "floor": 1, "perturbation": 1.25}, "seed": 7, "episodes": "10"}))


def jinja():
    chat = REPOSITORY / "tests/data/chat"
    for name in ("deepseek_r1_distill", "llama3_2", "mistral_v3_tekken", "qwen3"):
        write("jinja", name, (chat / f"{name}.jinja").read_bytes())
    # The small templates that render, some to an input.
    cases = [case for case, text in json.loads((chat / "language.json").read_text())["cases"] if text is not None]
    for first in range(0, len(cases), 8):
        write("jinja", f"language_{first // 8}", "\n".join(cases[first:first + 8]))


def main():
    shutil.rmtree(CORPUS, ignore_errors=True)
    for target in (codec, core, lease_table, tokenizer, safetensors, adapter, gguf, documents, jinja):
        target()


if __name__ == "__main__":
    main()
