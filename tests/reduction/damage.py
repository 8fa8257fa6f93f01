"""Damage states systematically: drop each key, and replace each value by one of another type or shape."""

from __future__ import annotations

import copy
from functools import reduce
from operator import getitem

import numpy as np

from sparse_mpi import World
from sparse_mpi.reduction.form import FORM

OTHERS = (None, np.zeros((3, 2)), "damaged")
GONE = object()
REFUSED = (TypeError, ValueError)


def paths(tree, at=()):
    """Yield the path of every node of a tree but its root; of its form, whose parts are texts, the first and last."""
    if at:
        yield at
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    alike = len(tree) - 1 if at == (FORM,) else 1
    for key, value in [*parts][::alike]:
        yield from paths(value, (*at, key))


def leaf_at(tree, path):
    return reduce(getitem, path, tree)


def bumped(leaf):
    """Yield another value of the same kind for a number, an array or a tensor."""
    if isinstance(leaf, (int, float)):
        yield leaf + 1
    elif hasattr(leaf, "dtype") and leaf.shape and leaf.shape[0]:
        other = copy.deepcopy(leaf)
        other[0] += 1
        yield other


def damages(state):
    """Yield the name of the key that is damaged, and the damage: a path with what comes there, or `GONE`."""
    yield "state", ((), {})
    for path in paths(state):
        named = str(next(key for key in reversed(path) if isinstance(key, str)))
        yield from ((named, (path, other)) for other in (*OTHERS, *bumped(leaf_at(state, path))))
        yield named, (path, GONE)


def damaged(state, damage):
    path, other = damage
    if not path:
        return other
    tree = copy.deepcopy(state)
    return _replaced(tree, path, other)


def _replaced(tree, path, other):
    key, *rest = path
    if rest:
        value = _replaced(tree[key], rest, other)
    elif other is GONE:
        if isinstance(tree, dict):
            return {name: value for name, value in tree.items() if name != key}
        return type(tree)(value for number, value in enumerate(tree) if number != key)
    else:
        value = other
    if isinstance(tree, tuple):
        return (*tree[:key], value, *tree[key + 1 :])
    tree[key] = value
    return tree


def outcomes(states, make, go_on, load="load_state_dict"):
    """Load states, each on its rank, and go on if that works; return what was raised on each rank, None if nothing."""

    def run(comm):
        made, state = make(comm), states[comm.rank]
        try:
            getattr(made, load)(*([[state], 2] if load == "take_over" else [state]))
        except REFUSED as error:
            return error
        go_on(made, comm.rank)
        return None

    return World(2).run(run)


def check_all(states, make, go_on, loads=("load_state_dict",), deep=99):
    """Assert that each damage, of one rank's state or both, is refused with its name on both, or loads on both.

    Damage goes as ``deep`` as this many keys. Each damage meets all ``loads``, by turns of one rank and of both.
    """
    for number, (named, damage) in enumerate(damages(states[1])):
        if len(damage[0]) > deep:
            continue
        bad = [damaged(state, damage) for state in states]
        for turn, which in enumerate(((states[0], bad[1]), bad)):
            problems = outcomes(which, make, go_on, loads[(number + turn) % len(loads)])
            told = [None if problem is None else str(problem) for problem in problems]
            assert told == [None, None] or all(told), (damage, told)
            assert told == [None, None] or all(named in text or FORM in text for text in told), (damage, told)
