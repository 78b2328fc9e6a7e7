"""What identifies a model's weights: the fingerprint that allot records in a schedule, computed from the same files."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_BLOCKS = 4
_BLOCK_BYTES = 1024


class _Tensor:
    def __init__(self, file: Path, first: int, name: str, header: dict[str, Any]):
        begin, end = header["data_offsets"]
        self.name, self.dtype, self.shape = name, header["dtype"], header["shape"]
        self._file, self._begin, self._bytes = file, first + begin, end - begin

    def sample(self) -> bytes:
        """Name, dtype, shape and a fixed sample of the bytes."""
        shape = "".join(f" {size}" for size in self.shape)
        text = f"{self.name}\n{self.dtype}{shape}\n".encode()
        with self._file.open("rb") as file:
            if self._bytes <= _BLOCKS * _BLOCK_BYTES:
                file.seek(self._begin)
                return text + file.read(self._bytes)
            stride = (self._bytes - _BLOCK_BYTES) // (_BLOCKS - 1)
            for block in range(_BLOCKS):
                file.seek(self._begin + block * stride)
                text += file.read(_BLOCK_BYTES)
        return text


def _tensors(path: Path) -> list[_Tensor]:
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    return [_Tensor(path, 8 + size, name, entry) for name, entry in header.items() if name != "__metadata__"]


def _sha256_of(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def weights_fingerprint(directory: Path) -> str:
    """SHA-256 over every tensor's name, dtype, shape and sample, in the order of the names. Throws FileNotFoundError where
    the directory has no safetensors files."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        files = [single]
    elif index.exists():
        files = [directory / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    else:
        raise FileNotFoundError(f"{directory} has neither {single.name} nor {index.name}")
    tensors = {tensor.name: tensor for file in files for tensor in _tensors(file)}
    return _sha256_of(tensors[name].sample() for name in sorted(tensors, key=str.encode))


def adapter_fingerprint(directory: Path) -> str:
    """SHA-256 over the matrices and the scaling of every module of a LoRA adapter as PEFT saves it, in the order of the
    names of the modules in the model."""
    settings = json.loads((directory / "adapter_config.json").read_text())
    if settings.get("rank_pattern") or settings.get("alpha_pattern"):
        raise ValueError(f"{directory} has ranks or alphas by module, which allot_attention cannot identify")
    divisor = math.sqrt(settings["r"]) if settings.get("use_rslora") else float(settings["r"])
    (scaling,) = struct.unpack("<I", struct.pack("<f", float(settings["lora_alpha"]) / divisor))
    modules: dict[str, dict[str, _Tensor]] = {}
    for tensor in _tensors(directory / "adapter_model.safetensors"):
        module, _, factor = tensor.name.removesuffix(".weight").rpartition(".")
        modules.setdefault(module.removeprefix("base_model.model."), {})[factor] = tensor
    parts = [b"low-rank updates\n"]
    for name in sorted(modules, key=str.encode):
        parts += [modules[name]["lora_A"].sample(), modules[name]["lora_B"].sample(), f"scaling {scaling}\n".encode()]
    return _sha256_of(parts)
