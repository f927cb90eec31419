from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from dumlp_pin.kernels import runs


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FEW", 8)


def runs_of(sizes: list[int], most: int) -> list[list[int]]:
    return [sizes[first:last] for first, last in runs.runs(sizes, most)]


def test_runs_hold_every_set_once_and_no_more_than_fits() -> None:
    for sizes in itertools.product([0, 1, 4, 9], repeat=4):
        parts = runs_of(list(sizes), most=8)
        assert [*itertools.chain(*parts)] == list(sizes)
        assert all(sum(part) <= 8 or len(part) == 1 for part in parts)


def together(sizes: list[int]) -> Iterator[tuple[list[int], torch.Tensor]]:
    rows = torch.arange(sum(sizes), dtype=torch.float32)[:, None]
    for sets, (factor,) in runs.side_by_side(["none"], [rows], sizes):
        yield torch.arange(len(sizes))[sets].tolist(), factor[..., 0]


def test_sets_side_by_side_have_their_own_elements() -> None:
    sizes = [3, 0, 40, 4, 41, 1, 3]
    own = torch.arange(sum(sizes)).split(sizes)
    seen = []
    for sets, factor in together(sizes):
        seen += sets
        for b, row in zip(sets, factor, strict=True):
            assert row[: sizes[b]].tolist() == own[b].tolist()
            assert not row[sizes[b] :].any()
    assert sorted(seen) == [0, 2, 3, 4, 5, 6]


def test_little_is_padding() -> None:
    sizes = torch.randint(1, 500, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = [factor.numel() for _, factor in together(sizes)]
    assert sum(groups) < 1.35 * sum(sizes)
    assert len(groups) < 30
