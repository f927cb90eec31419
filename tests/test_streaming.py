"""A set in pieces against the same set at once."""

from __future__ import annotations

import copy
import itertools
import random
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from dumlp_pin import MLP, AggregationBlock, create_model
from dumlp_pin._parts import IN_PARTS
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.functional import ACTIVATIONS
from dumlp_pin.models import PinClassifier
from dumlp_pin.streaming import ROWS_ON_CPU, AggregationState, read_chunks
from tests.contract import Subject
from tests.training.runs import python

PAIRS = list(itertools.product(ACTIVATIONS, repeat=2))
names = st.lists(st.sampled_from(list(ACTIVATIONS)), min_size=1, max_size=4)
seeds = st.integers(0, 2**31)


def make(
    *activations: str, seed: int = 0, dtype: torch.dtype = torch.float64, spread: float = 1
) -> AggregationBlock:
    """A block with a factor a name, whose branches give numbers about as large as `spread`."""
    branches = [(8, 5), (4,), (8, 3), (2,)][: len(activations)]
    subject = Subject(
        "", lambda: AggregationBlock(3, branches, activations, scale=0.5), (3,), False
    )
    block = cast(AggregationBlock, subject.build(seed, dtype))
    for norm in last_norms(block):
        norm.weight.data *= spread
    return block


def last_norms(block: AggregationBlock) -> list[BatchNorm]:
    return [cast(BatchNorm, cast(MLP, branch).norms[-1]) for branch in block.branches]


def draw(size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=generator, dtype=torch.float64).to(dtype)


def streamed(block: AggregationBlock, *chunks: Tensor) -> AggregationState:
    state = block.stream()
    for chunk in chunks:
        state.update(chunk)
    return state


def at_once(block: AggregationBlock, x: Tensor) -> Tensor:
    with torch.no_grad():
        return block(x[None])[0]


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11) -> None:
    """Equal up to rounding of sums, whose terms are about as large as the largest of them."""
    largest = float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * largest)


def test_every_activation_has_a_form_in_parts() -> None:
    assert IN_PARTS.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair_of_activations(pair: tuple[str, str]) -> None:
    block, x = make(*pair), draw(50)
    assert_close(streamed(block, *x.split(7)).result(), at_once(block, x))


@given(activations=names, sizes=st.lists(st.integers(0, 40), max_size=6), seed=seeds)
@settings(deadline=None)
def test_any_order_and_any_cuts(activations: list[str], sizes: list[int], seed: int) -> None:
    block, x = make(*activations, seed=seed), draw(sum(sizes), seed)
    state = streamed(block, *x.split(sizes))
    assert state.count == len(x)
    if len(x):
        assert_close(state.result(), at_once(block, x))
    else:
        assert not state.result().any()


def test_a_chunk_longer_than_what_goes_through_at_once() -> None:
    block, x = make("softmax", "none"), draw(2 * ROWS_ON_CPU + 5)
    assert_close(streamed(block, x).result(), at_once(block, x))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_large_numbers(pair: tuple[str, str], order: int) -> None:
    """Logits of +-1e4 that rise or fall from chunk to chunk: the peak moves, or never does."""
    block, x = make(*pair, spread=1e4), draw(60)
    with torch.no_grad():
        rank = block.branches[0](x)[:, 0].argsort()
        assert block.branches[0](x).abs().max() > 1e4
    x = x[rank if order > 0 else rank.flip(0)]
    result = streamed(block, *x.split(7)).result()
    assert result.isfinite().all()
    assert_close(result, at_once(block, x), 1e-9)  # the rounding of a logit counts 1e4 times


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_copies_of_one_element_and_one_alone(pair: tuple[str, str]) -> None:
    block, x = make(*pair), draw(1)
    assert_close(streamed(block, x).result(), at_once(block, x))
    copies = x.expand(100, 3)
    assert_close(streamed(block, *copies.split(9)).result(), at_once(block, copies))


def test_a_column_of_zeros() -> None:
    block = make("squash", "squash_authors", spread=0)
    for norm in last_norms(block):
        norm.bias.data.zero_()
    assert not streamed(block, draw(5)).result().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_precision(pair: tuple[str, str], dtype: torch.dtype) -> None:
    """No worse than twice the error of the block at once, up to the rounding of the output."""
    block, x = make(*pair, dtype=dtype), draw(3000, dtype=dtype)
    expected = at_once(copy.deepcopy(block).double(), x.double())
    result = streamed(block, *x.split(700)).result()
    assert result.dtype == dtype
    allowed = 2 * error(at_once(block, x), expected) + torch.finfo(dtype).eps
    assert error(result, expected) < allowed


def test_a_million_elements() -> None:
    """Sums that float32 cannot hold: beyond 2^24 it counts no ones."""
    block, chunk = make("none", dtype=torch.float32), draw(100_000, dtype=torch.float32)
    expected = 10 * at_once(copy.deepcopy(block).double(), chunk.double())
    assert error(streamed(block, *[chunk] * 10).result(), expected) < 1e-6
    assert len(streamed(block, chunk).to_bytes()) == len(block.stream().to_bytes())


def test_a_thousand_merges_in_any_order() -> None:
    block, x = make("softmax", "squash", spread=10), draw(1001)
    empty = block.stream()
    pieces = [copy.copy(empty) for _ in x]
    for piece, element in zip(pieces, x, strict=True):
        piece.update(element[None])
    expected = at_once(block, x)
    for seed in range(3):
        choice = random.Random(seed)
        states = [copy.copy(piece) for piece in pieces]
        choice.shuffle(states)
        while len(states) > 1:
            last = states.pop()
            choice.choice(states).merge(last)
        assert states[0].count == len(x)
        assert_close(states[0].result(), expected)
    assert empty.count == 0
    assert not empty.result().any()


IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from tests.test_streaming import draw, make, streamed

folder = Path(sys.argv[1])
block = make("softmax", "squash", seed=1)  # other weights, until these are loaded
block.load_state_dict(load_file(folder / "block.safetensors"))
(folder / "state").write_bytes(streamed(block, draw(100)[60:]).to_bytes())
"""


def test_bytes_come_from_another_process(tmp_path: Path) -> None:
    block, x = make("softmax", "squash"), draw(100)
    save_file(block.state_dict(), tmp_path / "block.safetensors")
    process = python("-c", IN_ANOTHER_PROCESS, str(tmp_path))
    assert process.communicate() == ("", "")
    state = AggregationState.from_bytes(block, (tmp_path / "state").read_bytes())
    assert state.count == 40
    assert torch.equal(state.result(), streamed(block, x[60:]).result())
    state.merge(streamed(block, x[:60]))
    assert_close(state.result(), at_once(block, x))


@given(activations=names, seed=seeds, forgotten=st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_bytes_keep_everything(activations: list[str], seed: int, forgotten: int) -> None:
    block, x = make(*activations, seed=seed), draw(60, seed)
    state = streamed(block, x)
    state.forget(x[:forgotten])
    back = AggregationState.from_bytes(block, state.to_bytes())
    assert back.count == state.count == 60 - forgotten
    assert torch.equal(back.result(), state.result())
    for other in (state, back):
        other.update(x[:9])
        other.forget(x[40:])
    assert torch.equal(back.result(), state.result())


@given(activations=names, size=st.integers(0, 30), extra=st.integers(0, 30), seed=seeds)
@settings(deadline=None)
def test_what_is_forgotten_was_never_there(
    activations: list[str], size: int, extra: int, seed: int
) -> None:
    block, x = make(*activations, seed=seed), draw(size + extra, seed)
    state = streamed(block, *x.split(7))
    state.forget(x[size:])
    assert state.count == size
    fresh = streamed(block, x[:size]).result()
    if size:
        # A share of 1e-4 is left of some softmax here, so four of sixteen digits may be lost.
        assert_close(state.result(), fresh, 1e-9)
    else:
        assert torch.equal(state.result(), fresh)


def test_a_window_slides() -> None:
    block, x = make("softmax", "squash", dtype=torch.float32), draw(4000, dtype=torch.float32)
    state = streamed(block, x[:100])
    for start in range(100, len(x), 100):
        state.update(x[start : start + 100])
        state.forget(x[start - 100 : start])
    assert state.count == 100
    expected = at_once(copy.deepcopy(block).double(), x[-100:].double())
    assert error(state.result(), expected) < 1e-5


def test_forgetting_what_dominates_is_refused() -> None:
    block, x = make("softmax", "none", dtype=torch.float32, spread=1e3), draw(50)
    with torch.no_grad():
        weights = block.branches[0](x.float()).softmax(0)
    top = int(weights[:, 0].argmax())
    assert weights[top, 0] > 0.9999
    state = streamed(block, x)
    before = state.result()
    with pytest.raises(ValueError, match=r"^cannot forget: a softmax or squash would keep [^\n]*$"):
        state.forget(x[top : top + 1])
    assert state.count == 50
    assert torch.equal(state.result(), before)


def test_forgetting_little_by_little_is_refused_before_rounding_decides() -> None:
    block, x = make("softmax", "squash", dtype=torch.bfloat16), draw(50, dtype=torch.bfloat16)
    state = streamed(block, x)
    fresh = state.result()

    def turn_over(times: int) -> None:
        for _ in range(times):
            state.forget(x[:25])
            state.update(x[:25])

    with pytest.raises(ValueError, match=r"^cannot forget"):
        turn_over(50)
    assert state.count == 50
    assert error(state.result(), fresh.double()) < torch.finfo(torch.bfloat16).eps ** 0.5


def test_no_more_is_forgotten_than_is_held() -> None:
    block, x = make("none"), draw(5)
    state = streamed(block, x[:3])
    with pytest.raises(ValueError, match=r"^5 elements to forget, but only 3 are held$"):
        state.forget(x)
    state.forget(x[:3])
    assert not state.result().any()


def test_a_classifier_streams_its_logits() -> None:
    model = create_model("dumlp_pin_digits").eval()
    assert isinstance(model, PinClassifier)
    x = draw(64).float()
    with torch.no_grad():
        expected = model(x[None])[0]
    state = model.stream()
    for chunk in x.split(20):
        state.update(chunk)
    torch.testing.assert_close(state.result(), expected, rtol=1e-4, atol=1e-4)
    again = AggregationState.from_bytes(model, state.to_bytes())
    assert torch.equal(again.result(), state.result())
    feature = AggregationState.from_bytes(model.aggregate, state.to_bytes()).result()
    assert torch.equal(model.forward_head(feature[None])[0], state.result())


def test_a_model_of_stages_does_not_stream() -> None:
    model = create_model("dumlp_pin_mnist_l").eval()
    assert isinstance(model, PinClassifier)
    with pytest.raises(TypeError, match=r"^this model cannot stream: each of its 2 stages [^\n]*$"):
        model.stream()


def test_results_are_constants_that_gradients_flow_past() -> None:
    block, x = make("softmax", "none"), draw(9)
    result = streamed(block, x.requires_grad_()).result()
    assert not result.requires_grad
    head = torch.nn.Linear(block.out_features, 1).double()
    head(result).sum().backward()  # not of inference mode: a head can be trained on it
    assert head.weight.grad is not None


@pytest.mark.parametrize("kind", ["f4", "f8", ">f4", "f2", "i8", "u2", "fortran", "view"])
def test_arrays_of_any_kind(kind: str, tmp_path: Path) -> None:
    block, x = make("softmax", "none"), (10 * draw(100).abs()).round()
    array = np.asarray(x)
    if kind == "fortran":
        array = np.asfortranarray(array)
    elif kind != "view":
        array = array.astype(kind)
    path = tmp_path / "set.npy"
    np.save(path, array)
    mapped = np.load(path, mmap_mode="r")
    if kind == "view":
        array, mapped = array[::-1], mapped[::-1]
    expected = at_once(block, x)
    for chunks in ([array], [mapped], read_chunks(path, size=30), read_chunks(str(path))):
        state = block.stream()
        for chunk in chunks:
            state.update(chunk)
        assert state.count == 100
        assert_close(state.result(), expected)


def test_errors() -> None:
    block = make("softmax", "none")
    state = block.stream()
    for chunk in (draw(4)[:, :2], draw(4)[0], draw(4)[None], draw(4).tolist()):
        for method in (state.update, state.forget):
            with pytest.raises(ValueError, match=r"^a chunk is [^\n]*\(n, 3\), got shape [^\n]*$"):
                method(cast(Tensor, chunk))
    with pytest.raises(ValueError, match=r"^not the bytes of a state: [^\n]*$"):
        AggregationState.from_bytes(block, b"anything else")
    with pytest.raises(ValueError, match=r"^not the bytes of a state: [^\n]*$"):
        AggregationState.from_bytes(block, state.to_bytes()[:-1])


@pytest.mark.parametrize(
    "other",
    [
        make("softmax", "none", seed=1),
        make("softmax", "relu"),
        make("softmax", "none", dtype=torch.float32),
        make("softmax"),
    ],
)
def test_states_of_another_block_are_refused(other: AggregationBlock) -> None:
    block = make("softmax", "none")
    with pytest.raises(ValueError, match=r"^these bytes are of a state of another block[^\n]*$"):
        AggregationState.from_bytes(other, block.stream().to_bytes())
    with pytest.raises(ValueError, match=r"^cannot merge[^\n]*$"):
        other.stream().merge(block.stream())
    twin = copy.deepcopy(block)
    twin.stream().merge(block.stream())


@pytest.mark.parametrize("part", ["block", "norm", "head"])
def test_batch_statistics_cannot_stream(part: str) -> None:
    model = create_model("dumlp_pin_digits").eval()
    assert isinstance(model, PinClassifier)
    state = model.stream()
    norm = cast(MLP, model.aggregate.branches[0]).norms[0]
    {"block": model.aggregate, "norm": norm, "head": model.head}[part].train()
    for use in (model.stream, state.result, lambda: state.update(draw(2))):
        with pytest.raises(ValueError, match=r"^batch norm in training needs all [^\n]*$"):
            use()
