"""The eager estimators: their draws, their means, and their choice against that of allot's operators.

estimators_test.py SOURCE --library LIBRARY [unittest options]
"""

import sys
import unittest

import needs  # first: says what is missing
import torch

from allot_attention import attention, estimators, operators
from allot_attention.draws import DrawRows, philox4x32_10
from allot_attention.model import Masked
from allot_attention.schedule import Method

UNBIASED = ("iid", "strat", "sys", "threshold", "joint", "pooled", "level")


def method(estimator, unit="samples", value_norms=False):
    return Method(estimator, unit, "sampled", 256, "exact", 0, False, value_norms)


def words(*numbers):
    return [torch.tensor([number]) for number in numbers]


class Draws(unittest.TestCase):
    def test_philox_gives_the_vectors_of_its_authors(self):
        vectors = [
            ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
            ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
            (
                (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
                (0xA4093822, 0x299F31D0),
                (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
            ),
        ]
        for counter, key, expected in vectors:
            self.assertEqual(tuple(word.item() for word in philox4x32_10(words(*counter), *words(*key))), expected)

    def test_more_draws_of_a_row_begin_with_the_fewer(self):
        one = torch.tensor([3])
        rows = DrawRows(one, one, one, 2, one, torch.arange(5))
        self.assertTrue(torch.equal(rows.uniform(9)[..., :3], rows.uniform(3)))
        self.assertEqual(rows.uniform(9).shape, (5, 9))


class Means(unittest.TestCase):
    """Over many questions the weights of a row average to its probabilities."""

    QUESTIONS = 6000

    def weights(self, estimator, budget, unit="samples", keys=7, norms=None):
        random = torch.Generator().manual_seed(5)
        p = (2 * torch.randn(1, 2, 2, 1, keys, generator=random, dtype=torch.float64)).softmax(-1)
        many = p.expand(self.QUESTIONS, -1, -1, -1, -1)
        zero = torch.zeros(1, 1, 1, dtype=torch.int64)
        question = torch.arange(self.QUESTIONS)[:, None, None]

        def draws(heads):
            return DrawRows(zero, zero, question, 3, heads[None, :, None], zero + keys - 1)

        if norms is not None:
            norms = torch.tensor(norms, dtype=torch.float64).expand(self.QUESTIONS, 2, -1)
        return p[0], estimators.select(many, method(estimator, unit, norms is not None), budget, draws, norms)

    def test_estimators_are_unbiased(self):
        cases = [(estimator, budget, "samples") for estimator in UNBIASED for budget in (1, 2, 3)]
        cases += [(estimator, rows, "rows") for estimator in ("joint", "pooled", "level") for rows in (1, 3)]
        for estimator, budget, unit in cases:
            with self.subTest(estimator=estimator, budget=budget, unit=unit):
                p, weights = self.weights(estimator, budget, unit)
                # One hit more or less is what the deviation of a key that is hardly ever picked says nothing about.
                error = weights.std(0) / self.QUESTIONS**0.5 + 1 / self.QUESTIONS
                self.assertLess(((weights.mean(0) - p).abs() / error).max().item(), 5)

    def test_joint_by_norms_of_values_is_unbiased_and_reads_long_rows_more_often(self):
        norms = [0.1, 1, 1, 3, 1, 0.0, 1]
        for budget in (1, 2):
            p, weights = self.weights("joint", budget, norms=norms)
            read = (weights > 0).any(2).double().mean(0)
            plain = (self.weights("joint", budget)[1] > 0).any(2).double().mean(0)
            error = weights.std(0) / self.QUESTIONS**0.5 + 1 / self.QUESTIONS
            wrong = ((weights.mean(0) - p).abs() / error)[..., [0, 1, 2, 3, 4, 6]]
            self.assertLess(wrong.max().item(), 5)
            self.assertTrue((read[..., 3] >= plain[..., 3]).all())
            self.assertTrue((read[..., 0] < plain[..., 0]).all())
            self.assertEqual(read[..., 5].max().item(), 0)  # nothing is lost with a row that has no length

    def test_as_many_rows_as_keys_are_exact(self):
        for estimator in ("threshold", "joint", "pooled"):
            p, weights = self.weights(estimator, 7)
            self.assertTrue(torch.allclose(weights, p.expand_as(weights), atol=1e-14), estimator)

    def test_a_budget_of_0_is_no_output_and_topk_renormalises(self):
        self.assertEqual(self.weights("joint", 0)[1].abs().sum().item(), 0)
        p, weights = self.weights("topk", 2)
        self.assertTrue(torch.allclose(weights.sum(-1), torch.ones(1, dtype=torch.float64)))
        self.assertTrue(((weights > 0).sum(-1) == 2).all())

    def test_joint_reads_at_most_the_rows_of_its_group(self):
        for unit, budget, rows in (("samples", 2, 4), ("rows", 3, 3)):
            read = (self.weights("joint", budget, unit)[1] > 0).any(2).sum(-1)
            self.assertEqual(read.max().item(), rows)


class Operators(unittest.TestCase):
    """The same rows, draws and budgets in allot's kernels and in eager PyTorch: the same output, but where a target lies
    within rounding of a key's boundary."""

    def setUp(self):
        self.assertEqual(operators.load(), "")

    def compare(self, estimator, unit, budget, queries, padding, dtype=torch.float32, value_norms=False):
        random = torch.Generator().manual_seed(11)
        batch, heads, kv_heads, keys, head_dim, layer = 3, 6, 2, 40, 32, 4
        query = torch.randn(batch, heads, queries, head_dim, generator=random).to(dtype) * 1.5
        key, value = (torch.randn(batch, kv_heads, keys, head_dim, generator=random).to(dtype) for _ in range(2))
        value *= torch.rand(batch, kv_heads, keys, 1, generator=random).to(dtype) * 2  # rows of different lengths
        first = torch.tensor(padding)
        last = torch.arange(keys - queries, keys)
        visible = (torch.arange(keys) <= last[:, None]) & (torch.arange(keys) >= first[:, None, None])
        masked = Masked(visible[:, None], visible.sum(-1) - 1, first, True)
        question = torch.tensor([4, 2**32 - 1, 0])
        draws = (torch.full((batch,), 3_000_000_000), torch.full((batch,), 9), question)
        arguments = (method(estimator, unit, value_norms), budget, layer, head_dim**-0.5)
        eager, eager_rows = attention._eager(query, key, value, masked, draws, *arguments)
        packed = torch.stack(draws, 1)
        packed = torch.where(packed >= 2**31, packed - 2**32, packed).int()
        out, rows = operators.attend(
            query,
            key,
            value,
            first=first,
            positions=masked.positions,
            draws=packed,
            method=arguments[0],
            budget=budget,
            layer=layer,
            scale=arguments[3],
            count_rows=True,
        )
        # Both count what they read; a target within rounding of a boundary may fall on one row more or less.
        self.assertAlmostEqual(rows / eager_rows, 1, delta=0.02)
        real = masked.positions >= 0
        tolerance = 1e-4 if dtype == torch.float32 else 2e-2
        same = ((out[real].float() - eager[real].float()).abs() < tolerance).all(-1).float().mean().item()
        self.assertEqual(out[~real].abs().sum().item(), 0)
        return same

    def test_both_paths_read_the_same_rows(self):
        units = {estimator: ("samples",) for estimator in ("iid", "strat", "sys", "threshold", "topk")}
        units |= {estimator: ("samples", "rows") for estimator in ("joint", "pooled", "level")}
        for estimator, some in units.items():
            for unit in some:
                for budget, queries, padding in (
                    (1, 1, (0, 0, 0)),
                    (4, 1, (0, 3, 17)),
                    (7, 40, (0, 0, 0)),
                    (5, 40, (2, 0, 31)),
                ):
                    with self.subTest(estimator=estimator, unit=unit, budget=budget, queries=queries, padding=padding):
                        self.assertGreater(self.compare(estimator, unit, budget, queries, padding), 0.99)
                        if estimator == "joint":
                            self.assertGreater(self.compare(estimator, unit, budget, queries, padding, value_norms=True), 0.99)

    def test_bfloat16_agrees_within_its_rounding(self):
        self.assertGreater(self.compare("joint", "samples", 4, 40, (0, 5, 1), torch.bfloat16), 0.97)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *needs.unittest_options])
