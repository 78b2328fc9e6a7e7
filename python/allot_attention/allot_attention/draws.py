"""allot's random numbers: Philox4x32-10 by coordinates, in PyTorch.

A draw is a function of (run seed, sampling seed, question, layer, head, position, number of the draw) and of nothing else:
the same as in allot's engine and kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_WORD = 0xFFFFFFFF


def _product(factor: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # int64 wraps where the product of two 32-bit words passes 2^63; its bits are right all the same.
    product = word * factor
    return (product >> 32) & _WORD, product & _WORD


def philox4x32_10(counter: list[torch.Tensor], key0: torch.Tensor, key1: torch.Tensor) -> list[torch.Tensor]:
    """Ten rounds of a counter of four words; words and keys are int64 tensors of values below 2^32, broadcast together."""
    word = list(counter)
    for _ in range(10):
        high_a, low_a = _product(0xD2511F53, word[0])
        high_b, low_b = _product(0xCD9E8D57, word[2])
        word = [high_b ^ word[1] ^ key0, low_b, high_a ^ word[3] ^ key1, low_a]
        key0 = (key0 + 0x9E3779B9) & _WORD
        key1 = (key1 + 0xBB67AE85) & _WORD
    return word


@dataclass(frozen=True)
class DrawRows:
    """Coordinates of the draws of attention rows; the tensors are int64 and broadcast together."""

    run_seed: torch.Tensor
    sampling_seed: torch.Tensor
    question: torch.Tensor
    layer: int
    head: torch.Tensor
    position: torch.Tensor

    def uniform(self, draws: int) -> torch.Tensor:
        """Draws 0 to `draws` - 1 of every row, uniform on [0, 1) in steps of 2^-24: float64, [rows..., draws]."""
        blocks = torch.arange((draws + 3) // 4, device=self.position.device)
        question, head, position, run_seed, sampling_seed = (
            tensor.unsqueeze(-1)
            for tensor in torch.broadcast_tensors(  # type: ignore[no-untyped-call]
                self.question, self.head, self.position, self.run_seed, self.sampling_seed
            )
        )
        words = torch.broadcast_tensors(  # type: ignore[no-untyped-call]
            question, (self.layer << 16) | head, position, blocks
        )
        result = torch.stack(philox4x32_10(list(words), run_seed, sampling_seed), dim=-1)
        return (result.flatten(-2)[..., :draws] >> 8).double() * 2.0**-24
