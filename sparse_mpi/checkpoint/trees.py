"""Nested states as files: a tree of dicts, lists, tuples, numbers, strings and NumPy arrays in one ``.npz``.

Arrays are members of the archive, the tree around them is JSON; nothing is ever executed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sparse_mpi.arrays import as_arrays

TREE = "tree"  # the member that holds the JSON
PLAIN = (bool, int, float, str, type(None))


def dump_tree(tree: object, file: BinaryIO) -> None:
    """Write ``tree`` to an open file, torch tensors as arrays; TypeError if it holds anything else."""
    members: dict[str, Any] = {}
    text = json.dumps(_encode(as_arrays(tree), members, "state"))
    members[TREE] = np.frombuffer(text.encode(), np.uint8)
    np.savez(file, **members)


def load_tree(path: Path) -> Any:
    """Return the tree that `dump_tree` wrote, equal to the bit, types included; ValueError if it holds none."""
    try:
        with np.load(path, allow_pickle=False) as members:
            return _decode(json.loads(members[TREE].tobytes()), members)
    except Exception as problem:  # whatever zipfile, NumPy and json make of damaged bytes
        raise ValueError(f"{path} must be a tree of arrays, but {problem}") from None


def _encode(node: object, arrays: dict[str, np.ndarray], where: str) -> object:
    """Return ``node``, named ``where``, as JSON, its arrays in ``arrays``; other types become an object of one key."""
    if type(node) in PLAIN:
        return node
    if isinstance(node, (np.ndarray, np.generic)) and not node.dtype.hasobject:
        name = f"array{len(arrays)}"
        arrays[name] = np.asarray(node)
        return {"array" if isinstance(node, np.ndarray) else "scalar": name}
    if type(node) is list:
        return [_encode(each, arrays, f"{where}[{number}]") for number, each in enumerate(node)]
    if type(node) is tuple:
        return {"tuple": _encode(list(node), arrays, where)}
    if type(node) is dict:
        pairs = [[key, _encode(value, arrays, f"{where}[{key!r}]")] for key, value in node.items()]
        if all(type(key) in (str, int) for key in node):
            return {"dict": pairs}
    raise TypeError(
        f"{where} must be made of dicts with names or integers as keys, lists, tuples, numbers, strings and NumPy "
        f"arrays, got {type(node).__name__}; convert it, for example with to_host or float"
    )


def _decode(node: Any, arrays: Any) -> Any:
    if isinstance(node, list):
        return [_decode(each, arrays) for each in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "dict":
        return {key: _decode(value, arrays) for key, value in content}
    if kind == "tuple":
        return tuple(_decode(content, arrays))
    array = arrays[content]
    if kind not in ("array", "scalar") or content == TREE or (kind == "scalar" and array.ndim):
        raise ValueError(f"{kind} {content} is none")
    return array[()] if kind == "scalar" else array
