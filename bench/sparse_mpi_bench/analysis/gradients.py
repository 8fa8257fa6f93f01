"""Gradients for measurements of traffic: made up by a rule, or recorded in training (`train/gradients.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np

SHARE = 0.1  # fraction of the common entries, beside pulls that cancel
COMMON = 0.5  # share of the variance that ranks have in common where they are correlated
LAYERS = 16
ROW, WORDS = 64, 128  # entries of a row of an embedding, and words in the batch of a rank


class Gradients(Protocol):
    """A source of the gradients that each rank has in each step."""

    size: int  # n
    shared: bool  # True: `at` gives views of one buffer rather than arrays of their own
    title: str

    def at(self, step: int, rank: int) -> np.ndarray:
        """Return the gradient ``(n,)`` float32 of a rank in a step; it must not be written to."""


class Independent:
    """Independent standard normal entries: each step and rank has a piece, at a random place, of one long vector."""

    shared = True
    title = "independent normal entries"

    def __init__(self, size: int, seed: int = 0, ranks: int = 1) -> None:
        self.size, self.ranks = size, ranks
        self._seed = seed
        once = np.random.default_rng([seed, size]).standard_normal(size, np.float32)
        self._twice = np.concatenate([once, once])

    def at(self, step: int, rank: int) -> np.ndarray:
        start = int(np.random.default_rng([self._seed, step, rank]).integers(self.size))
        return self._twice[start : start + self.size]


class Correlated(Independent):
    """Normal entries with half of their variance shared by all ranks, as from batches of the same data."""

    shared = False
    title = f"normal entries, {COMMON:.0%} of their variance common to all ranks"

    def at(self, step: int, rank: int) -> np.ndarray:
        mixed = np.float32(np.sqrt(1 - COMMON)) * super().at(step, rank + 1)
        mixed += np.float32(np.sqrt(COMMON)) * super().at(step, 0)
        return mixed


class LayerSkewed(Independent):
    """Normal entries in 16 ever longer layers, each half as large as the one before: selected ones are in front."""

    shared = False
    title = f"normal entries in {LAYERS} layers, each half as large as the one before"

    def __init__(self, size: int, seed: int = 0, ranks: int = 1) -> None:
        super().__init__(size, seed, ranks)
        ends = np.linspace(0, 1, LAYERS + 1) ** 2 * size
        self._scale = np.repeat(np.float32(0.5) ** np.arange(LAYERS), np.diff(ends.astype(int))).astype(np.float32)

    def at(self, step: int, rank: int) -> np.ndarray:
        return super().at(step, rank) * self._scale


class EmbeddingLike(Independent):
    """Rows of 64 entries, not zero where a rank's batch of words looks them up, which are drawn by Zipf's law."""

    shared = False
    title = f"rows of {ROW} entries, not zero where {WORDS} words drawn by Zipf's law look them up"

    def __init__(self, size: int, seed: int = 0, ranks: int = 1) -> None:
        super().__init__(size, seed, ranks)
        frequencies = 1 / (1 + np.arange(-(-size // ROW)))
        self._order = np.random.default_rng([seed, size, 1]).permutation(len(frequencies))
        self._frequencies = frequencies / frequencies.sum()

    def at(self, step: int, rank: int) -> np.ndarray:
        words = np.random.default_rng([self._seed, step, rank, 1]).multinomial(WORDS, self._frequencies)
        scale = np.sqrt(words, dtype=np.float32)[self._order]
        return super().at(step, rank) * np.repeat(scale, ROW)[: self.size]


class Disjoint(Independent):
    shared = False
    title = "normal entries in a part of the vector that is each rank's own"

    def at(self, step: int, rank: int) -> np.ndarray:
        own = rank % self.ranks
        part = slice(own * self.size // self.ranks, (own + 1) * self.size // self.ranks)
        gradient = np.zeros(self.size, np.float32)
        gradient[part] = super().at(step, rank)[part]
        return gradient


class Opposed(Independent):
    """Pulls that stay, of opposite sign on even and odd ranks, and entries a tenth as large that all ranks share."""

    shared = False
    title = f"pulls that cancel between even and odd ranks, and what they share, {SHARE:g} as large"

    def at(self, step: int, rank: int) -> np.ndarray:
        return np.float32((-1) ** rank) * super().at(0, 0) + np.float32(SHARE) * super().at(step, 1)


KINDS = {
    "independent": Independent,
    "correlated": Correlated,
    "layer-skewed": LayerSkewed,
    "embedding-like": EmbeddingLike,
    "disjoint": Disjoint,
    "opposed": Opposed,
}


class Recorded:
    """Gradients that `write` recorded; further ones are taken from them. Raises ValueError: the file has none."""

    shared = True

    def __init__(self, file: str | Path) -> None:
        try:
            with np.load(file) as arrays:
                self._steps = [arrays[name] for name in sorted(arrays.files) if name.startswith("step_")]
                self.about: dict[str, Any] = json.loads(str(arrays["about"]))
            said = "{program} {data}".format(**self.about), ", ".join(map(str, self.about["steps"]))
        except (ValueError, KeyError, OSError, BadZipFile) as error:
            raise ValueError(f"{file} must be an .npz that train/gradients.py wrote: {error}") from None
        if not self._steps:
            raise ValueError(f"{file} must have at least one step's gradients, got none; record with --record-steps")
        self.ranks, self.size = self._steps[0].shape
        self.title = f"{said[0]}, {self.ranks} ranks, steps {said[1]}; further ranks bring those of other steps"

    def at(self, step: int, rank: int) -> np.ndarray:
        return self._steps[(step + rank // self.ranks) % len(self._steps)][rank % self.ranks]


def write(file: str | Path, steps: dict[int, np.ndarray], about: dict[str, Any]) -> None:
    arrays = {f"step_{number:08d}": gradients for number, gradients in steps.items()}
    np.savez(file, about=np.array(json.dumps(about | {"steps": list(steps)})), **arrays)  # type: ignore[arg-type]


def make(kind: str, size: int | None, seed: int = 0, ranks: int = 1) -> Gradients:
    """Return gradients of a kind of `KINDS`, or of a file. Raises ValueError: a wrong kind, file or ``size``."""
    if kind in KINDS:
        if size is None or size < 1:
            raise ValueError(f"n must be at least 1, got {size}")
        return KINDS[kind](size, seed, ranks)
    if not Path(kind).is_file():
        raise ValueError(f"gradients must be {', '.join(KINDS)} or a file of train/gradients.py, got {kind!r}")
    recorded = Recorded(kind)
    if size not in (None, recorded.size):
        raise ValueError(f"n must be left out or be that of {kind}, {recorded.size}, got {size}")
    return recorded
