"""The identities of a Hello, computed from files as docs/wire-protocol.md, Identities, says. Standard library only."""

import hashlib
import json
import math
import pathlib
import struct

BLOCKS = 4
BLOCK_BYTES = 1024


def of_file(path):
    """SHA-256 of all bytes of a file, as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def tensors_of(path):
    """(name, dtype, shape, bytes) of each tensor of a safetensors file."""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    data = content[8 + length:]
    for name, entry in json.loads(content[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, entry["dtype"], entry["shape"], data[begin:end]


def sample(name, dtype, shape, data):
    """What is hashed of one tensor: a line with its name, a line with its dtype and sizes, then its bytes where they are at most
    4 KiB, else four blocks of 1 KiB at 0, s, 2 s and 3 s, with s = (bytes - 1024) div 3."""
    head = name + "\n" + " ".join([dtype, *map(str, shape)]) + "\n"
    if len(data) > BLOCKS * BLOCK_BYTES:
        stride = (len(data) - BLOCK_BYTES) // (BLOCKS - 1)
        data = b"".join(data[block * stride:block * stride + BLOCK_BYTES] for block in range(BLOCKS))
    return head.encode() + data


def weights_fingerprint(directory):
    directory = pathlib.Path(directory)
    single = directory / "model.safetensors"
    if single.exists():
        tensors = {tensor[0]: tensor for tensor in tensors_of(single)}
    else:
        places = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
        tensors = {tensor[0]: tensor for shard in set(places.values()) for tensor in tensors_of(directory / shard)
                   if places.get(tensor[0]) == shard}
    ordered = sorted(tensors.values(), key=lambda tensor: tensor[0].encode())
    return hashlib.sha256(b"".join(sample(*tensor) for tensor in ordered)).hexdigest()


def of_adapter(directory):
    """The fingerprint of a LoRA adapter as PEFT saves it whose modules have one rank and one alpha (no rank_pattern or alpha_pattern)."""
    directory = pathlib.Path(directory)
    config = json.loads((directory / "adapter_config.json").read_text())
    scaling = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    (bits,) = struct.unpack("<I", struct.pack("<f", scaling))
    tensors = {tensor[0]: tensor for tensor in tensors_of(directory / "adapter_model.safetensors")}
    modules = sorted({name.rpartition(".lora_")[0] for name in tensors}, key=str.encode)
    hashed = b"low-rank updates\n"
    for module in modules:
        hashed += sample(*tensors[module + ".lora_A.weight"]) + sample(*tensors[module + ".lora_B.weight"])
        hashed += f"scaling {bits}\n".encode()
    return hashlib.sha256(hashed).hexdigest()


def of_model(directory):
    directory = pathlib.Path(directory)
    return {"config_sha256": of_file(directory / "config.json"), "tokenizer_sha256": of_file(directory / "tokenizer.json"),
            "weights_fingerprint": weights_fingerprint(directory)}
