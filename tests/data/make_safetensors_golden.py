"""Makes tests/data/safetensors/mixed.safetensors with the `safetensors` package; the test knows what must be in it.

    pip install safetensors==0.8.0 numpy
    python tests/data/make_safetensors_golden.py
"""

import pathlib

import numpy
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).parent / "safetensors"

if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    save_file({
        "matrix": numpy.arange(6, dtype=numpy.float32).reshape(2, 3) / 4,
        "half": numpy.array([1.5, -2], dtype=numpy.float16),
        "scalar": numpy.array(7, dtype=numpy.int64),
        "empty": numpy.zeros((0, 4), dtype=numpy.float32),
        "bytes": numpy.array([1, 2, 3], dtype=numpy.uint8),
        "flags": numpy.array([True, False]),
    }, OUT / "mixed.safetensors", metadata={"format": "np"})
