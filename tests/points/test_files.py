from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumlp_pin.data.checks import DataError
from dumlp_pin.points.columns import CHUNK
from dumlp_pin.points.files import READERS, draw, read_points
from tests.points.clouds import ALL, BARE_CLOUDS, CLOUD, CLOUDS, MESHES, POINTS, written


def test_every_format_that_is_read_is_tested() -> None:
    assert {kind.split()[0] for kind in ALL} == set(READERS)


@pytest.mark.parametrize("kind", CLOUDS)
def test_a_cloud_is_what_its_file_says(kind: str, tmp_path: Path) -> None:
    np.testing.assert_allclose(read_points(written(kind, tmp_path)), CLOUD, atol=1e-8)


@pytest.mark.parametrize("kind", BARE_CLOUDS)
def test_a_cloud_without_normals_has_three_columns(kind: str, tmp_path: Path) -> None:
    np.testing.assert_allclose(read_points(written(kind, tmp_path)), POINTS, atol=1e-9)


@pytest.mark.parametrize("kind", MESHES)
def test_points_of_a_mesh_lie_on_its_surface_by_area(kind: str, tmp_path: Path) -> None:
    points = read_points(written(kind, tmp_path), count=4000)
    size = np.array([1.0, 2.0, 4.0])
    on_side = np.isclose(points[:, :3], 0, atol=1e-6) | np.isclose(points[:, :3], size, atol=1e-6)
    assert on_side.any(1).all()
    # Of the box's 28 units of area, two are 2 x 4, two 1 x 4 and two 1 x 2.
    shares = on_side.mean(0)
    np.testing.assert_allclose(shares, np.array([16, 8, 4]) / 28, atol=0.03)
    # Normals point out of the side that a point is on.
    outward = np.where(points[:, :3] > size / 2, 1, -1) * on_side
    np.testing.assert_allclose(points[:, 3:], outward, atol=1e-6)
    assert len(read_points(written(kind, tmp_path))) == 2048


@pytest.mark.parametrize("kind", ALL)
def test_points_are_drawn_and_a_seed_repeats_them(kind: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    one, again, other = (read_points(path, 15, seed) for seed in (1, 1, 2))
    assert len(one) == 15
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_six_columns_are_normals_only_where_they_have_unit_length(tmp_path: Path) -> None:
    path = tmp_path / "coloured.npy"
    np.save(path, np.concatenate((POINTS, np.full((40, 3), 0.2)), 1))
    assert read_points(path).shape == (40, 3)
    np.save(path, np.concatenate((POINTS, 1.05 * CLOUD[:, 3:]), 1).astype(np.float32))
    np.testing.assert_allclose(read_points(path), CLOUD, atol=1e-6)


def test_any_row_is_as_likely_as_another_wherever_it_stands() -> None:
    counts = np.zeros(30)
    for seed in range(400):
        chunks = (np.arange(start, start + 10.0)[:, None] for start in (0, 10, 20))
        drawn = draw(chunks, 6, np.random.default_rng(seed))[:, 0].astype(int)
        assert (np.diff(drawn) > 0).all()
        counts[drawn] += 1
    # 80 of each are expected, with a standard deviation of 8.
    assert counts.sum() == 2400
    assert counts.min() > 48
    assert counts.max() < 112


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    rows = 2 * CHUNK + 3
    points = np.arange(3.0 * rows).reshape(rows, 3)
    np.save(tmp_path / "large.npy", points.astype(np.float32))
    (tmp_path / "large.xyz").write_text("\n".join(f"{x:.0f} {y:.0f} {z:.0f}" for x, y, z in points))
    for name in ("large.npy", "large.xyz"):
        np.testing.assert_array_equal(read_points(tmp_path / name), points)
        drawn = read_points(tmp_path / name, 100)
        assert (np.diff(drawn[:, 0]) > 0).all()
        assert drawn[-1, 0] > points[CHUNK, 0]


# What a person meets.


def test_errors_name_the_file_and_what_is_wrong(tmp_path: Path) -> None:
    def fails(name: str, content: str | bytes, message: str) -> None:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(DataError, match=message) as error:
            read_points(path)
        assert str(error.value).startswith(str(path))

    fails("shape.glb", "", r"expected a file of points, \.off \.obj .* got \.glb")
    fails("shape", "", "got no suffix")
    fails("a.xyz", "", "holds no points")
    fails("a.xyz", "1 2\n3 4\n", "expected 3 columns or more, got 2")
    fails("a.xyz", "1 2 nan\n", "holds NaN, infinite or enormous numbers")
    fails("a.xyz", "1 2 1e39\n", "holds NaN, infinite or enormous numbers")
    fails("a.xyz", "1 2 3\n4 5\n", "broken .xyz file")
    fails("a.xyz", "x" * 70_000, "is no text, it has a line of 65,536 characters")
    fails("a.csv", "east,north,up\n1,2,3\n", "expected numbers, or columns x, y and z, got 'east")
    fails("a.off", "OFF\n3 1 0\n0 0 0\n", "3 vertices and 1 faces announced, 1 lines follow")
    fails("a.off", "PLY\n", "the first line is not OFF")
    fails("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 7\n", "name vertices 0..7, there are 3")
    fails("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n", "its faces have no area")
    fails("a.obj", "v 1 2\n", "a vertex has fewer than three coordinates")
    fails("a.obj", "nothing\n", "holds no points")
    fails("a.stl", b"\0" * 90, "neither text nor of the length")
    fails("a.stl", "solid\nvertex 1 2 3\n", "the text is cut off")
    fails("a.ply", "plain", "is no PLY file")
    fails("a.ply", "ply\nformat ascii 1.0\nelement vertex\n", "broken PLY header at b'element")
    fails("a.pcd", "FIELDS x y z\n", "is no PCD file, its header has no DATA")
    fails("a.pcd", "#\n" * 40_000 + "DATA ascii\n", "is no PCD file, its header has no DATA")
    fails("a.npz", b"PK", "broken .npz file")
    fails("a.parquet", b"PAR1", "broken .parquet file")
    fails("a.las", b"LASF", "is no LAS file|broken .las file")
    np.save(tmp_path / "a.npy", np.array([["x", "y", "z"]]))
    fails("a.npy", (tmp_path / "a.npy").read_bytes(), "expected numbers of shape .* got <U1")
    np.savez(tmp_path / "a.npz", first=POINTS, second=POINTS)
    fails("a.npz", (tmp_path / "a.npz").read_bytes(), "called points, found first, second")
    with pytest.raises(ValueError, match="count is 0, expected at least 1"):
        read_points(tmp_path / "a.npy", 0)
    with pytest.raises(FileNotFoundError):
        read_points(tmp_path / "nowhere.off")
    with (tmp_path / "large.obj").open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(DataError, match=r"a mesh of 2.0 GB; meshes are read whole, up to 1 GB"):
        read_points(tmp_path / "large.obj")


@pytest.mark.parametrize("kind", ALL)
def test_a_damaged_file_is_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    whole = path.read_bytes()
    random = np.random.default_rng(len(whole))
    messages = []
    for _ in range(40):
        damaged = bytearray(whole[: random.integers(len(whole) + 1)])
        for place in random.integers(max(len(damaged), 1), size=random.integers(3)):
            damaged[place : place + 1] = bytes([random.integers(256)])
        path.write_bytes(damaged)
        try:
            assert np.isfinite(read_points(path)).all()
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert all(str(path) in message and "\n" not in message for message in messages)
