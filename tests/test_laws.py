"""The laws that every block and model obeys: see contract.py for who they are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dumlp_pin import SetBatch
from tests.contract import KINDS, SUBJECTS, Step, Subject, gradients

every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
every_kind = pytest.mark.parametrize("subject", KINDS, ids=lambda s: s.name)
a_few = settings(max_examples=6, deadline=None)

sizes_of_sets = st.lists(
    st.one_of(st.integers(0, 3), st.integers(4, 9), st.just(40)), min_size=1, max_size=4
).filter(any)
seeds = st.integers(0, 2**31)
garbage = st.sampled_from([0.0, 1e30, math.nan, math.inf, -math.inf])


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-9) -> None:
    """Float64 results that differ by the order of sums only."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def assert_same_step(actual: Step, expected: Step) -> None:
    """Equal gradients of the weights, batch norm statistics, and gradients of the input.

    Batch norm divides by deviations that may be tiny, layer after layer, which magnifies rounding;
    and some gradients are zero but for rounding. So a gradient is held against the largest of all.
    """
    largest = max([1.0, *(float(value.abs().max()) for value in expected[0].values())])
    for actual_part, expected_part in zip(actual[:2], expected[:2], strict=True):
        assert actual_part.keys() == expected_part.keys()
        for name, value in expected_part.items():
            assert value.isfinite().all(), name
            close(actual_part[name], value, 1e-6 * largest)
    close(actual[2], expected[2], 1e-6 * largest)


@every_subject
@given(sizes=sizes_of_sets, seed=seeds, fill=garbage)
@a_few
def test_three_forms_give_the_same_answer(
    subject: Subject, sizes: list[int], seed: int, fill: float
) -> None:
    module, sample = subject.build(seed), subject.draw(sizes, seed)
    packed = subject.per_set(module(**sample.packed()), sizes)
    masked = subject.per_set(module(**sample.masked(fill, extra=seed % 3)), sizes)
    for a, b in zip(packed, masked, strict=True):
        close(a, b)
        assert a.isfinite().all()
    one_size = subject.draw([sizes[0]] * 2, seed)
    if sizes[0]:
        dense = subject.per_set(module(**one_size.dense()), one_size.sizes)
        packed = subject.per_set(module(**one_size.packed()), one_size.sizes)
        for a, b in zip(dense, packed, strict=True):
            close(a, b)


@every_subject
@given(sizes=sizes_of_sets, seed=seeds)
@a_few
def test_the_order_of_elements_does_not_matter(
    subject: Subject, sizes: list[int], seed: int
) -> None:
    module, sample = subject.build(seed), subject.draw(sizes, seed)
    reordered, orders = sample.reordered(seed + 1)
    before = subject.per_set(module(**sample.packed()), sizes)
    after = subject.per_set(module(**reordered.packed()), sizes)
    for a, b, order in zip(before, after, orders, strict=True):
        close(a[order] if subject.per_element else a, b)


@every_subject
@given(sizes=sizes_of_sets, seed=seeds)
@a_few
def test_a_set_does_not_see_its_batch(subject: Subject, sizes: list[int], seed: int) -> None:
    module, sample = subject.build(seed), subject.draw(sizes, seed)
    together = subject.per_set(module(**sample.packed()), sizes)
    for b, size in enumerate(sizes):
        (alone,) = subject.per_set(module(**sample.only(b).packed()), [size])
        close(alone, together[b])


@every_subject
@given(sizes=sizes_of_sets, seed=seeds, fill=garbage)
@a_few
def test_training_is_the_same_padded_and_packed(
    subject: Subject, sizes: list[int], seed: int, fill: float
) -> None:
    module, sample = subject.build(seed), subject.draw(sizes, seed)
    masked_inputs = sample.masked(fill, extra=2)
    packed = gradients(subject, module, sample.packed(), sizes)
    masked = gradients(subject, module, masked_inputs, sizes)
    mask, of_padding = masked_inputs["mask"], masked[2]
    assert not of_padding[~mask].any()
    assert_same_step((masked[0], masked[1], of_padding[mask]), packed)


@every_subject
def test_training_dense_is_training_packed(subject: Subject) -> None:
    module, sample = subject.build(), subject.draw([7, 7, 7])
    packed = gradients(subject, module, sample.packed(), sample.sizes)
    dense = gradients(subject, module, sample.dense(), sample.sizes)
    assert_same_step((dense[0], dense[1], dense[2].flatten(0, 1)), packed)


@every_subject
def test_a_set_of_one_element_works(subject: Subject) -> None:
    module, sample = subject.build(), subject.draw([1])
    for form in (sample.packed(), sample.masked(), sample.dense()):
        (output,) = subject.per_set(module(**form), [1])
        assert output.isfinite().all()
        gradients(subject, module, form, [1])  # trains alone, too


@every_subject
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_precisions(subject: Subject, dtype: torch.dtype) -> None:
    """A lower precision keeps the type, in all forms, and errs like rounding.

    Every layer rounds once and may double the error of the one before in these networks; 2^5
    roundings cover the deepest.
    """
    sizes = [5, 40]
    reference = subject.build()
    module, sample = subject.build(dtype=dtype), subject.draw(sizes)
    low = subject.draw(sizes, dtype=dtype)
    expected = torch.cat(
        [out.flatten() for out in subject.per_set(reference(**sample.packed()), sizes)]
    )
    for form in (low.packed(), low.masked(math.nan)):
        outputs = subject.per_set(module(**form), sizes)
        assert outputs[0].dtype == dtype
        actual = torch.cat([out.flatten() for out in outputs]).double()
        error = (actual - expected).norm() / expected.norm()
        assert error < 32 * torch.finfo(dtype).eps


@every_kind
@pytest.mark.parametrize("form", ["dense", "packed"])  # the test below traces masks
def test_compiles_in_one_graph(subject: Subject, form: str) -> None:
    """`fullgraph` fails on anything that waits for the device or leaves the graph."""
    torch.compiler.reset()  # every subject starts with an empty cache of graphs
    module, sample = subject.build(), subject.draw([7, 7])
    inputs = getattr(sample, form)()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        subject.per_set(compiled(**inputs), [7, 7]),
        subject.per_set(module(**inputs), [7, 7]),
        strict=True,
    ):
        close(a, b)


@every_kind
@pytest.mark.parametrize("form", ["masked", "packed"])
def test_exports_with_any_number_and_size_of_sets(subject: Subject, form: str) -> None:
    module = subject.build()
    sample, other = subject.draw([7, 3]), subject.draw([4, 1, 0, 9])
    inputs = getattr(sample, form)()
    any_size = torch.export.Dim.DYNAMIC
    axes = {
        name: [{0: any_size}, {0: any_size}]
        if isinstance(value, SetBatch)
        else {0: any_size, 1: any_size}
        if name in ("x", "mask")
        else {0: any_size}
        for name, value in inputs.items()
    }
    program = torch.export.export(module, (), inputs, dynamic_shapes=axes)
    inputs = getattr(other, form)()
    for a, b in zip(
        subject.per_set(program.module()(**inputs), other.sizes),
        subject.per_set(module(**inputs), other.sizes),
        strict=True,
    ):
        close(a, b)


@every_subject
def test_wrong_inputs_are_one_line_errors(subject: Subject) -> None:
    module, sample = subject.build(), subject.draw([4, 4])
    dense, masked = sample.dense(), sample.masked()
    with pytest.raises(ValueError, match=r"^expected .*got[^\n]*$"):
        module(**dense | {"x": dense["x"][:, :, :1]})
    with pytest.raises(ValueError, match=r"^a mask for sets of shape[^\n]*$"):
        module(**masked | {"mask": masked["mask"][:, :3]})
    with pytest.raises(TypeError, match=r"^a mask is bool[^\n]*$"):
        module(**masked | {"mask": masked["mask"].float()})
    with pytest.raises(TypeError, match=r"^a SetBatch knows its sizes[^\n]*$"):
        module(**sample.packed() | {"mask": masked["mask"]})


@every_subject
def test_weights_survive_a_round_trip(subject: Subject, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    module, sample = subject.build(seed=1), subject.draw([3, 5])
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    restored = subject.build(seed=2)
    restored.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    for a, b in zip(
        subject.per_set(restored(**sample.packed()), [3, 5]),
        subject.per_set(module(**sample.packed()), [3, 5]),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_every_public_block_is_under_the_laws() -> None:
    checked = {type(subject.make()) for subject in SUBJECTS}
    import dumlp_pin

    public = {getattr(dumlp_pin, name) for name in dumlp_pin.__all__}
    blocks = {x for x in public if isinstance(x, type) and issubclass(x, nn.Module)}
    assert blocks <= checked
