import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dumlp_pin import SetBatch

sizes_of_sets = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def sets_of(sizes: list[int]) -> list[torch.Tensor]:
    return [torch.randn(size, 3) for size in sizes]


@given(sizes_of_sets)
def test_a_list_comes_back(sizes: list[int]) -> None:
    sets = sets_of(sizes)
    batch = SetBatch.from_list(sets)
    assert len(batch) == len(sizes)
    assert batch.sizes.tolist() == sizes
    for before, after in zip(sets, batch.to_list(), strict=True):
        assert torch.equal(before, after)


@given(sizes_of_sets, st.integers(0, 3))
def test_padding_there_and_back(sizes: list[int], extra: int) -> None:
    batch = SetBatch.from_list(sets_of(sizes))
    x, mask = batch.to_padded(max(sizes) + extra)
    assert x.shape == (len(sizes), max(sizes) + extra, 3)
    assert mask.sum(1).tolist() == sizes
    assert not x[~mask].any()
    again = SetBatch.from_padded(x, mask)
    assert torch.equal(again.rows, batch.rows)
    assert torch.equal(again.offsets, batch.offsets)


def test_a_mask_may_have_holes() -> None:
    x = torch.arange(8.0).view(1, 4, 2)
    batch = SetBatch.from_padded(x, torch.tensor([[True, False, True, False]]))
    assert batch.rows.tolist() == [[0, 1], [4, 5]]


def test_set_index_names_the_set_of_each_row() -> None:
    assert SetBatch.from_list(sets_of([2, 0, 3])).set_index.tolist() == [0, 0, 2, 2, 2]


def test_gradients_flow_through_padding() -> None:
    batch = SetBatch.from_list(sets_of([2, 3]))
    rows = batch.rows.requires_grad_()
    x, _ = batch.with_rows(rows).to_padded()
    x.square().sum().backward()
    torch.testing.assert_close(rows.grad, 2 * rows.detach())


def test_to_changes_the_rows_type_and_nothing_else() -> None:
    batch = SetBatch.from_list(sets_of([2, 1])).to(torch.float64)
    assert batch.dtype == torch.float64
    assert batch.offsets.dtype == torch.int64
    assert batch.to("meta").device.type == "meta"


@pytest.mark.parametrize("workers", [0, 1])
def test_collates_in_a_data_loader(workers: int) -> None:
    samples = [(torch.full((size, 3), float(size)), size) for size in (1, 2, 3, 4)]
    loader = DataLoader(
        samples,  # type: ignore[arg-type]
        batch_size=2,
        collate_fn=SetBatch.collate,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
    )
    seen = [(sets.sizes.tolist(), labels.tolist()) for sets, labels in loader]
    assert seen == [([1, 2], [1, 2]), ([3, 4], [3, 4])]


@pytest.mark.gpu
def test_pins_its_memory() -> None:
    loader = DataLoader(
        sets_of([1, 2]),  # type: ignore[arg-type]
        batch_size=2,
        collate_fn=SetBatch.collate,
        pin_memory=True,
    )
    (batch,) = loader
    assert batch.rows.is_pinned()
    assert batch.offsets.is_pinned()
    assert batch.to("cuda", non_blocking=True).device.type == "cuda"


ROWS = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 2, 5], "offsets run from 0 to the number of rows, 4; got 0 to 5"),
        ([1, 4], "offsets run from 0 to the number of rows, 4; got 1 to 4"),
        ([0, 3, 2, 4], r"offsets never decrease, got \[0, 3, 2, 4\]"),
        ([], r"offsets of a SetBatch are \(B \+ 1,\), got shape \(0,\)"),
    ],
)
def test_offsets_that_do_not_fit(offsets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        SetBatch(ROWS, torch.tensor(offsets, dtype=torch.int64))


def test_wrong_types_and_shapes() -> None:
    with pytest.raises(TypeError, match=r"^offsets of a SetBatch are int64, got torch\.float32$"):
        SetBatch(ROWS, torch.tensor([0.0, 4.0]))
    with pytest.raises(ValueError, match=r"^rows of a SetBatch are \(T, F\), got shape \(4,\)$"):
        SetBatch(ROWS[:, 0], torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=r"^every set needs the same element shape"):
        SetBatch.from_list([torch.zeros(1, 3), torch.zeros(1, 4)])
    with pytest.raises(ValueError, match=r"^from_list needs at least one set"):
        SetBatch.from_list([])
    with pytest.raises(TypeError, match=r"^set 1 is no tensor but ndarray: torch\.as_tensor"):
        SetBatch.from_list([ROWS, ROWS.numpy()])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"^padded sets are \(B, N, F\), got shape \(4, 3\)$"):
        SetBatch.from_padded(ROWS)
    with pytest.raises(ValueError, match=r"^these sets have 4 rows, got 3$"):
        SetBatch(ROWS, torch.tensor([0, 4])).with_rows(ROWS[:3])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_validation_refuses_what_is_not_finite(bad: float) -> None:
    rows = ROWS.clone()
    rows[2, 1] = bad
    offsets = torch.tensor([0, 4])
    SetBatch(rows, offsets)  # the hot path does not look
    message = r"^1 of 4 elements have features that are not finite, the first is row 2$"
    with pytest.raises(ValueError, match=message):
        SetBatch(rows, offsets, validate=True)
