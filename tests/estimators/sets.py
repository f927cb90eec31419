"""Small problems of sets, drawn afresh."""

from __future__ import annotations

import numpy as np

Sets = list[np.ndarray]


def rings_and_blobs(count: int, seed: int = 0) -> tuple[Sets, np.ndarray]:
    """Points around a circle (1), or around its centre (0), somewhere; 10 to 40 a set."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    sets = []
    for label in labels:
        size = random.integers(10, 40)
        angle = random.uniform(0, 2 * np.pi, size)
        radius = 1 + 0.1 * random.normal(size=size) if label else random.normal(size=size)
        points = np.stack((radius * np.cos(angle), radius * np.sin(angle)), 1)
        sets.append(points + random.normal(size=2))
    return sets, labels


def odd_ones(count: int, seed: int = 0) -> tuple[Sets, np.ndarray]:
    """Six points that stand close, but for one; labels are its position."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 6
    sets = []
    for label in labels:
        points = random.normal(size=2) + random.normal(scale=0.1, size=(6, 2))
        points[label] += 1
        sets.append(points)
    return sets, labels
