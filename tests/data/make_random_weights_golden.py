#!/usr/bin/env python3
"""Prints the numbers of tests/model/random_weights_test.cc: the formula of model/random_weights.h in Python's integers.

Needs nothing but Python. A product of a float32 and a 17-bit integer is exact in Python's float, so rounding it to
float32 rounds once.
"""

import math
import struct

SEED = 0x123456789ABCDEF0
NAME = "model.layers.0.mlp.up_proj.weight"
DEVIATION = 0.02
INDICES = (0, 1, 6, 15, (5 << 35) + 3)
LOW = 0xFFFFFFFF


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def philox4x32_10(counter, key0, key1):
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [b >> 32 ^ counter[1] ^ key0, b & LOW, a >> 32 ^ counter[3] ^ key1, a & LOW]
        key0, key1 = key0 + 0x9E3779B9 & LOW, key1 + 0xBB67AE85 & LOW
    return counter


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def main():
    name_hash = fnv1a(NAME)
    step = float32(DEVIATION / math.sqrt((65536**2 - 1) / 3))
    print(f"hash {name_hash:#X}, step {bits(step):#X}")
    for i in INDICES:
        block = i // 8
        counter = [block & LOW, block >> 32, name_hash & LOW, name_hash >> 32]
        word = philox4x32_10(counter, SEED & LOW, SEED >> 32)[i % 8 // 2]
        u = word >> 16 if i % 2 else word & 0xFFFF
        print(f"element {i}: {bits(float32(step * (2 * u - 65535))):#X}")


if __name__ == "__main__":
    main()
