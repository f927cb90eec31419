"""Set Transformer: attention in plain loops, in every form of sets, and its sizes."""

import math

import pytest
import torch
from torch import Tensor

from dumlp_pin import SetBatch, create_model
from dumlp_pin.models import count_macs, count_parameters
from dumlp_pin.models.set_transformer import ISAB, MAB, PMA, SAB, SetTransformerClassifier


def attention_block_by_hand(block: MAB, x: Tensor, y: Tensor) -> Tensor:
    """One query and one head at a time: h + relu(W_o h), h = W_q x + the mean of W_v y weighed by
    the softmax of (W_q x) (W_k y) / sqrt(width)."""
    width, size = block.width, block.width // block.heads
    out = []
    for query in block.query(x):
        h = query.clone()
        for head in range(block.heads):
            part = slice(head * size, (head + 1) * size)
            scores = [float(query[part] @ key[part]) / math.sqrt(width) for key in block.key(y)]
            total = sum(math.exp(score) for score in scores)
            for score, value in zip(scores, block.value(y), strict=True):
                h[part] += math.exp(score) / total * value[part]
        out.append(h + torch.relu(block.out.weight @ h + block.out.bias))
    return torch.stack(out)


@torch.no_grad()
def test_an_attention_block_by_hand() -> None:
    block = MAB(3, 5, width=6, heads=2).double()
    x, y = torch.randn(2, 4, 3).double(), torch.randn(2, 7, 5).double()
    expected = torch.stack(
        [attention_block_by_hand(block, *pair) for pair in zip(x, y, strict=True)]
    )
    torch.testing.assert_close(block(x, y), expected)


@torch.no_grad()
def test_pooling_by_attention_by_hand() -> None:
    pool = PMA(width=6, heads=3, seeds=2).double()
    sets = [torch.randn(size, 6).double() for size in (5, 1, 300)]
    expected = [attention_block_by_hand(pool.attend, pool.seeds, x).flatten() for x in sets]
    torch.testing.assert_close(pool(SetBatch.from_list(sets)), torch.stack(expected))
    assert pool.out_features == 12


@torch.no_grad()
def test_induced_attention_by_hand() -> None:
    block = ISAB(3, width=4, heads=2, points=3).double()
    x = torch.randn(1, 8, 3).double()
    found = attention_block_by_hand(block.gather, block.points, x[0])
    torch.testing.assert_close(block(x)[0], attention_block_by_hand(block.attend, x[0], found))


@torch.no_grad()
def test_set_attention_by_hand() -> None:
    block = SAB(3, width=4, heads=2).double()
    sets = [torch.randn(size, 3).double() for size in (6, 1, 0, 3)]
    found = block(SetBatch.from_list(sets)).to_list()
    for x, actual in zip(sets, found, strict=True):
        if len(x):
            torch.testing.assert_close(actual, attention_block_by_hand(block.attend, x, x))


@pytest.mark.parametrize("points", [0, 4])
def test_three_forms_of_sets_and_empty_ones(points: int) -> None:
    """What the laws check of the registered model, which has induced attention only."""
    model = SetTransformerClassifier(3, 5, width=8, heads=2, points=points).double().eval()
    sets = [torch.randn(size, 3).double() for size in (6, 0, 2)]
    packed = model(SetBatch.from_list(sets))
    x, mask = SetBatch.from_list(sets).to_padded(9)
    x = torch.where(mask[:, :, None], x, math.nan).requires_grad_()
    torch.testing.assert_close(model(x, mask=mask), packed)
    torch.testing.assert_close(model(sets[0][None]), packed[:1])
    assert packed.isfinite().all()

    model(x, mask=mask).square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert not x.grad[~mask].any()


def test_a_seed_of_an_empty_set_is_left_to_itself() -> None:
    pool = PMA(width=4, heads=2)
    h = pool.attend.query(pool.seeds)
    expected = h + torch.relu(pool.attend.out(h))
    torch.testing.assert_close(pool(torch.empty(1, 0, 4)), expected)


def test_heads_that_do_not_share_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^heads share the width evenly, got width 8, heads 3$"):
        MAB(3, 3, width=8, heads=3)


def test_parameters_and_multiply_adds() -> None:
    model = create_model("set_transformer_modelnet40")
    assert count_parameters(model) == 1_142_568  # 1.14 million
    assert round(count_macs(model, torch.rand(1, 1024, 6)) / 1e6) == 517
    published = create_model("set_transformer_modelnet40", in_features=3)
    assert count_parameters(published) == 1_140_264
    assert round(count_macs(published, torch.rand(1, 1024, 3)) / 1e6) == 515


@pytest.mark.parametrize("heads", [1, 4, 256])
def test_parameters_of_the_extractor(heads: int) -> None:
    model = create_model("set_transformer_celeba", heads=heads)
    assert count_parameters(model.extractor) == 263_424
