"""Tensors of well-known models, by name and shape, without building the model: ``models.json``.

There ``"h.0-11": {...}`` stands for h.0 to h.11, and a name without .weight or .bias for both, the bias as long as the
weight's first dimension.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files

from sparse_mpi.sparse import Layout

Named = tuple[str, tuple[int, ...]]  # a tensor's name and shape
Tensors = tuple[Named, ...]  # tensors in the order of the flat gradient
Entries = dict[str, "Entries | list[int]"]  # blocks of tensors, and shapes


def _tensors(entries: Entries, before: str = "") -> Iterator[Named]:
    for key, entry in entries.items():
        for name in _names(before + key):
            if isinstance(entry, dict):
                yield from _tensors(entry, f"{name}.")
            elif name.endswith((".weight", ".bias")):
                yield name, tuple(entry)
            else:
                yield f"{name}.weight", tuple(entry)
                yield f"{name}.bias", tuple(entry[:1])


def _names(key: str) -> list[str]:
    if not (numbered := re.fullmatch(r"(.*\.)(\d+)-(\d+)", key)):
        return [key]
    return [f"{numbered[1]}{number}" for number in range(int(numbered[2]), int(numbered[3]) + 1)]


MODELS: dict[str, Tensors] = {
    name: tuple(_tensors(model["tensors"]))
    for name, model in json.loads(files("sparse_mpi.predict").joinpath("models.json").read_text()).items()
}


def layout(model: str) -> Layout:
    return Layout.of([shape for _, shape in MODELS[model]])
