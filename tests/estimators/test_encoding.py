from __future__ import annotations

import json

import numpy as np
import pytest

from dumlp_pin.estimators.encoding import FARTHEST, QUANTILES, ElementEncoder
from dumlp_pin.tables import ColumnSets


def column_sets(sizes: list[int], **columns: object) -> ColumnSets:
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    return ColumnSets(arrays, np.cumsum([0, *sizes]), np.arange(len(sizes)))


def words(*values: str | None) -> np.ndarray:
    return np.array(values, dtype=object)


NUMBERS = column_sets([2, 1], price=[1.0, 2.0, 6.0], weight=[5.0, np.nan, 7.0])


def test_numbers_are_standardised_and_gaps_are_the_mean_and_said_to_be_gaps() -> None:
    rows = ElementEncoder.fitted(NUMBERS).encode(NUMBERS).rows.numpy()
    price, weight, missing, size = rows.T
    assert (price.mean(), price.std()) == (pytest.approx(0, abs=1e-6), pytest.approx(1))
    np.testing.assert_array_equal(weight, [-1, 0, 1])
    np.testing.assert_array_equal(missing, [0, 1, 0])
    np.testing.assert_allclose(size, [1, 1, -1], rtol=1e-6)  # of the sets, on a log scale


def test_ranks_tell_values_apart_beside_one_far_from_all() -> None:
    values = np.append(np.arange(1000.0), 1e9)
    sets = column_sets([1] * 1001, price=values)
    standard, rank = ElementEncoder.fitted(sets).encode(sets).rows.numpy().T
    assert np.ptp(standard[:1000]) < 1e-4
    step = 2 * FARTHEST / (QUANTILES - 1)  # the last, up to the far value, is lost
    even = np.linspace(-FARTHEST, FARTHEST, 1000)
    np.testing.assert_allclose(rank[:1000], even, atol=1.01 * step)
    np.testing.assert_allclose(rank[:960], even[:960], atol=0.01)
    assert rank.std() == pytest.approx(1, abs=0.01)


def test_ranks_end_where_those_of_fit_end_and_ties_share_theirs() -> None:
    values = np.repeat([0.0, 0.0, 0.0, 8.0], 250)
    encoder = ElementEncoder.fitted(column_sets([1] * 1000, price=values))
    sets = column_sets([5], price=[-50.0, 0.0, 8.0, 50.0, np.nan])
    below, tie, largest, above, missing = encoder.encode(sets).rows[:, 1].tolist()
    assert below == tie == pytest.approx(-FARTHEST / 4, abs=0.06)
    assert largest == above == pytest.approx(0.75 * FARTHEST, abs=0.06)
    assert missing == 0


def test_few_sets_get_no_ranks_and_neither_does_what_is_constant() -> None:
    few = column_sets([1] * 999, price=np.arange(999.0))
    same = column_sets([1] * 1000, price=np.full(1000, 0.3))
    assert ElementEncoder.fitted(few).width == ElementEncoder.fitted(same).width == 1


def test_a_gap_where_fit_saw_none_is_the_mean() -> None:
    encoder = ElementEncoder.fitted(column_sets([2], price=[1.0, 3.0]))
    rows = encoder.encode(column_sets([2], price=[np.nan, 3.0])).rows
    assert rows.tolist() == [[0], [1]]


def test_the_size_of_sets_is_no_feature_where_all_are_of_one() -> None:
    sets = column_sets([2, 2], price=[1.0, 2.0, 3.0, 4.0])
    assert ElementEncoder.fitted(sets).width == 1


def test_a_constant_number_is_zero_and_not_noise() -> None:
    sets = column_sets([3], price=[0.1 + 0.2, 0.3, 0.3])
    assert ElementEncoder.fitted(sets).encode(sets).rows.abs().max() < 1e-12


def test_words_that_fit_has_not_seen_are_no_word() -> None:
    encoder = ElementEncoder.fitted(column_sets([3], kind=words("b", "a", None)))
    rows = encoder.encode(column_sets([4], kind=words("a", "b", "new", None))).rows
    assert rows.tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]


def test_columns_of_another_kind_than_in_fit_are_noticed() -> None:
    of_numbers = ElementEncoder.fitted(column_sets([2], value=[1.0, 2.0]))
    of_words = ElementEncoder.fitted(column_sets([2], value=words("a", "b")))
    with pytest.raises(TypeError, match="'value' held numbers in fit, and now 'many'"):
        of_numbers.encode(column_sets([1], value=words("many")))
    with pytest.raises(TypeError, match="'value' held words in fit, and now numbers"):
        of_words.encode(column_sets([1], value=[3.0]))
    with pytest.raises(KeyError, match="no column 'value'; did you mean 'values'"):
        of_words.encode(column_sets([1], values=words("a")))
    # A column without any value is of either kind.
    gaps = (
        of_words.encode(column_sets([1], value=[np.nan])),
        of_numbers.encode(column_sets([1], value=words(None))),
    )
    assert [one.rows.tolist() for one in gaps] == [[[0, 0]], [[0]]]


def test_names_are_not_taken_for_categories() -> None:
    names = column_sets([1001], name=words(*map(str, range(1001))))
    with pytest.raises(ValueError, match="'name' has 1001 different words, which is more than"):
        ElementEncoder.fitted(names)


def test_infinity_is_refused_wherever_it_comes() -> None:
    with pytest.raises(ValueError, match="'price' is infinite in 1 of 2 rows"):
        ElementEncoder.fitted(column_sets([2], price=[1.0, np.inf]))
    encoder = ElementEncoder.fitted(NUMBERS)
    with pytest.raises(ValueError, match="'weight' is infinite in 2 of 2 rows"):
        encoder.encode(column_sets([2], price=[1.0, 2.0], weight=[np.inf, -np.inf]))


def test_json_keeps_all_of_it() -> None:
    sets = column_sets([2, 1], price=[1.0, np.nan, 3.0], kind=words("b", None, "a"))
    encoder = ElementEncoder.fitted(sets)
    again = ElementEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert (again.width, again.kinds) == (encoder.width, {"price": "number", "kind": "word"})
    assert again.encode(sets).rows.equal(encoder.encode(sets).rows)
    many = column_sets([1, 2] * 500, price=np.arange(1500.0) ** 2)
    ranked = ElementEncoder.fitted(many)
    again = ElementEncoder.from_json(json.loads(json.dumps(ranked.to_json())))
    assert again.encode(many).rows.equal(ranked.encode(many).rows)


def test_bools_are_read_from_files_as_bools() -> None:
    sets = column_sets([2], on=words("true", None))
    assert ElementEncoder.fitted(sets).kinds == {"on": "flag"}
