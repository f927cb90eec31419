"""Pictures of sets: what they show is what the tensors say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure

from dumlp_pin import create_model
from dumlp_pin.data import pixel_set
from dumlp_pin.figures.anomalies import ODD, WRONG, draw_anomalies
from dumlp_pin.figures.attention import attention_of, draw_attention
from dumlp_pin.figures.parts import PALETTE, draw_parts
from dumlp_pin.figures.retrieval import QUERY, RIGHT, draw_retrieval, nearest_sets
from dumlp_pin.figures.retrieval import WRONG as WRONG_CLASS
from dumlp_pin.figures.tsne import draw_tsne


def titled(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(): axes for axes in figure.axes if axes.get_title()}


def colours(axes: Axes) -> np.ndarray:
    """Of the points of a cloud (N, 3), from the lowest to the one on top."""
    return np.asarray(axes.collections[0].get_facecolor())[:, :3]


def test_attention_names_how_many_elements_each_column_rests_on(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    points = torch.rand(50, 6)
    even, one = torch.full((50,), 1 / 50), torch.eye(50)[7]
    draw_attention(tmp_path / "a.png", points, torch.stack((even, one), 1))
    panels = titled(drawn[0])
    assert list(panels) == ["1", "50"]  # the most concentrated first
    (dots,) = panels["1"].collections
    assert isinstance(dots, PathCollection)
    red = colours(panels["1"])
    assert red[-1, 0] - red[-1, 1] > 0.3
    assert (np.ptp(red[:-1], axis=1) < 0.1).all()
    assert dots.get_sizes()[-1] > 2 * dots.get_sizes()[0]


def test_attention_on_a_digit_reddens_its_pixels(tmp_path: Path, drawn: list[Figure]) -> None:
    image = torch.zeros(1, 4, 5, dtype=torch.uint8)
    weights = torch.zeros(20, 1)
    weights[2 * 5 + 3] = 1.0  # row 2, column 3
    draw_attention(tmp_path / "a.png", pixel_set(image)[0], weights, rows=4)
    shown = np.asarray(titled(drawn[0])["1"].get_images()[0].get_array())
    assert shown.shape == (4, 5, 3)
    assert np.argwhere(shown[..., 1] < 0.5).tolist() == [[2, 3]]


def test_attention_is_what_the_last_softmax_multiplies_by() -> None:
    model = create_model("dumlp_pin_modelnet40").eval()
    x = torch.randn(2, 30, 6)
    weights = attention_of(model, {"x": x})
    torch.testing.assert_close(weights.sum(1), torch.ones(2, 32))
    y = weights.mT @ model.aggregate.branches[1](x)
    torch.testing.assert_close(y.flatten(1), model.forward_features(x))
    plain = create_model("dumlp_pin_modelnet40", activations=("relu", None))
    with pytest.raises(ValueError, match=r"^no aggregation of this model has a softmax"):
        attention_of(plain, {"x": x})


def test_what_is_found_of_another_class_is_red(tmp_path: Path, drawn: list[Figure]) -> None:
    sets = [[torch.rand(20, 3) for _ in range(3)] for _ in range(2)]
    labels = torch.tensor([[0, 0, 1], [1, 1, 1]])
    draw_retrieval(tmp_path / "r.png", sets, labels, ["night_stand", "bed"])
    titles = [axes.title for axes in drawn[0].axes]
    assert [t.get_text() for t in titles] == ["night stand", "night stand", "bed", *["bed"] * 3]
    inks = [QUERY, RIGHT, WRONG_CLASS, QUERY, RIGHT, RIGHT]
    for title, ink in zip(titles, inks, strict=True):
        np.testing.assert_allclose(to_rgb(title.get_color()), ink, atol=1e-6)


def test_a_query_does_not_find_itself() -> None:
    features = torch.randn(2000, 4)
    queries = torch.arange(2000)
    found = nearest_sets(features, queries, count=3)
    assert not (found == queries[:, None]).any()
    distances = (features[found] - features[:, None]).norm(dim=-1)
    assert (distances.diff() >= 0).all()
    nearest = torch.cdist(features, features).fill_diagonal_(torch.inf).amin(1)
    torch.testing.assert_close(distances[:, 0], nearest)


def test_parts_stand_side_by_side_and_foreign_ones_are_black(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    shapes = [torch.rand(40, 3), torch.rand(30, 3)]
    true = [torch.arange(40) % 2, torch.zeros(30, dtype=torch.long)]
    predicted = [torch.zeros(40, dtype=torch.long), torch.full((30,), -1)]
    draw_parts(tmp_path / "p.png", shapes, true, predicted, ["mug", "cap"])
    assert len(drawn[0].axes) == 4
    # The nearest point has its colour unpaled.
    first, second = PALETTE[:2].numpy()
    darkest = [axes_colours[-1] for axes_colours in map(colours, drawn[0].axes)]
    assert min(abs(darkest[0] - first).max(), abs(darkest[0] - second).max()) < 1e-5
    np.testing.assert_allclose(darkest[1], first, atol=1e-5)
    np.testing.assert_allclose(darkest[3], 0, atol=1e-5)
    texts = [text.get_text() for text in drawn[0].texts]
    assert texts[:2] == ["mug", "cap"]
    assert texts.count("predicted") == 2


def test_the_odd_one_and_a_wrong_guess_are_framed(tmp_path: Path, drawn: list[Figure]) -> None:
    images = torch.randint(0, 255, (2, 3, 3, 49, 40), dtype=torch.uint8)
    chances = torch.tensor([[0.2, 0.7, 0.1], [0.6, 0.3, 0.1]])
    draw_anomalies(tmp_path / "a.png", images, torch.tensor([1, 2]), chances, ["hats", "beards"])
    pictures, bars = drawn[0].axes[::2], drawn[0].axes[1::2]
    frames = [
        axes.spines["left"].get_edgecolor() if axes.spines["left"].get_visible() else None
        for axes in pictures
    ]
    blue, red = to_rgba(ODD), to_rgba(WRONG)
    assert frames == [None, blue, None, red, None, blue]
    widths = [axes.patches[0].get_width() for axes in bars]  # type: ignore[attr-defined]
    np.testing.assert_allclose(widths, chances.flatten(), rtol=1e-6)
    np.testing.assert_array_equal(
        pictures[4].get_images()[0].get_array(), images[1, 1].permute(1, 2, 0)
    )


@pytest.mark.parametrize("classes", [3, 12])
def test_classes_are_told_apart_by_colour_or_by_name(
    classes: int, tmp_path: Path, drawn: list[Figure]
) -> None:
    labels = torch.arange(60) % classes
    features = torch.nn.functional.one_hot(labels, classes) + 0.01 * torch.randn(60, classes)
    names = [f"class_{index}" for index in range(classes)]
    draw_tsne(tmp_path / "t.png", features, labels, names)
    (axes,) = drawn[0].axes
    sizes = [np.shape(dots.get_offsets())[0] for dots in axes.collections]
    assert sizes == [60 // classes] * classes
    legend = axes.get_legend()
    if classes == 3:
        assert legend is not None
        assert [t.get_text() for t in legend.get_texts()] == names
    else:
        assert legend is None
        assert [t.get_text() for t in axes.texts] == [name.replace("_", " ") for name in names]
