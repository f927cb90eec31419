"""The definitions against formulas written out for one set at a time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dumlp_pin import SetBatch
from dumlp_pin._layout import Packed
from dumlp_pin.functional import (
    ACTIVATIONS,
    dot_product,
    set_max,
    set_mean,
    set_softmax,
    squash,
    squash_authors,
)

BY_HAND = {
    "softmax": lambda x: torch.exp(x) / torch.exp(x).sum(0),
    "squash": lambda x: x * x.norm(dim=0) / (1 + x.norm(dim=0) ** 2),
    "squash_authors": lambda x: x * x.norm(dim=0) * (1 + x.norm(dim=0) ** 2),
    "relu": lambda x: x.clamp(min=0),
    "elu": lambda x: torch.where(x > 0, x, x.exp() - 1),
    "none": lambda x: x,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_what_they_are_called(name: str) -> None:
    sets = [torch.randn(size, 4, dtype=torch.float64) for size in (1, 3, 7)]
    batch = SetBatch.from_list(sets)
    actual = ACTIVATIONS[name](batch, None).to_list()
    for a, s in zip(actual, sets, strict=True):
        torch.testing.assert_close(a, BY_HAND[name](s))


def test_softmax_of_large_logits_is_no_overflow() -> None:
    x = torch.tensor([[1e4, -1e4], [1e4 - 1, 0.0]])
    expected = torch.stack([torch.tensor([1.0, -1.0]).sigmoid(), torch.tensor([0.0, 1.0])], dim=1)
    dense = set_softmax(x[None])[0]
    packed = set_softmax(SetBatch.from_list([x])).rows
    torch.testing.assert_close(dense, expected)
    torch.testing.assert_close(packed, expected)


@pytest.mark.parametrize("function", [squash, squash_authors, set_softmax])
def test_gradient_is_finite_where_all_is_zero(function) -> None:
    x = torch.zeros(2, 3, 4, requires_grad=True)
    function(x, torch.ones(2, 3, dtype=torch.bool)).square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.integers(0, 300), min_size=1, max_size=4),
)
def test_dot_product_of_any_order(widths: list[int], sizes: list[int]) -> None:
    factors = [
        SetBatch.from_list([torch.randn(size, width, dtype=torch.float64) for size in sizes])
        for width in widths
    ]
    letters = "abcde"[: len(widths)]
    formula = ",".join(f"n{letter}" for letter in letters) + f"->{letters}"
    by_set = zip(*(factor.to_list() for factor in factors), strict=True)
    expected = torch.stack([torch.einsum(formula, *rows) for rows in by_set])
    torch.testing.assert_close(dot_product(factors), expected)


@given(st.lists(st.integers(0, 700), min_size=1, max_size=6))
def test_blocks_hold_every_row_once_and_little_else(sizes: list[int]) -> None:
    batch = SetBatch.from_list([torch.randn(size, 2) for size in sizes])
    layout = Packed(batch)
    blocks = layout.to_blocks(batch.rows)
    assert torch.equal(layout.from_blocks(blocks), batch.rows)
    assert blocks.shape[0] * blocks.shape[1] <= 2 * max(sum(sizes), len(sizes))
    sums = layout.block_total(blocks.sum(1))
    expected = torch.stack([s.sum(0) for s in batch.to_list()])
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-4)


def test_half_precision_sums_keep_counting() -> None:
    """In bfloat16, 256 + 1 is 256: a sum kept in it would stop there."""
    ones = torch.ones(1, 4096, 1, dtype=torch.bfloat16)
    packed = SetBatch.from_padded(ones)
    for x in (ones, packed):
        assert dot_product([x]).item() == 4096
        assert dot_product([x, x]).item() == 4096
        assert set_mean(x).item() == 1


def test_pooling_of_an_empty_set_is_zero() -> None:
    batch = SetBatch.from_list([torch.full((2, 1), -3.0), torch.zeros(0, 1)])
    assert set_mean(batch).tolist() == [[-3], [0]]
    assert set_max(batch).tolist() == [[-3], [0]]
    x, mask = batch.to_padded()
    assert set_mean(x, mask).tolist() == [[-3], [0]]
    assert set_max(x, mask).tolist() == [[-3], [0]]


def test_no_element_at_all() -> None:
    nothing = torch.zeros(2, 0, 3)
    mask = torch.zeros(2, 0, dtype=torch.bool)
    assert dot_product([nothing, nothing]).eq(0).all()
    assert set_softmax(nothing, mask).shape == (2, 0, 3)
    assert set_max(nothing).tolist() == [[0, 0, 0]] * 2


def test_softmax_weights_sum_to_one_over_the_real_elements() -> None:
    mask = torch.tensor([[True, True, False], [False, False, False]])
    weights = set_softmax(torch.randn(2, 3, 5), mask)
    torch.testing.assert_close(weights.sum(1)[0], torch.ones(5))
    assert weights[~mask].eq(0).all()
    assert math.isclose(float(weights[1].sum()), 0)
