"""No hyperparameter takes what it cannot mean: of any algorithm, selector, feedback rule or message format."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SELECTORS
from sparse_mpi.algorithms.hybrid import Fused
from sparse_mpi.checks import check_choice, check_instance, check_switch, check_whole
from sparse_mpi.feedback import FEEDBACKS
from sparse_mpi.wire import BitPacked

KINDS = {kind for registry in (ALGORITHMS, SELECTORS, FEEDBACKS) for kind in registry.values()}
FIELDS = [(kind, field) for kind in sorted(KINDS, key=lambda k: k.__name__) for field in fields(kind) if field.init]
FIELDS.append((BitPacked, fields(BitPacked)[0]))
FIELDS += [(Fused, field) for field in fields(Fused) if field.name != "tensors"]
WRONG = (math.nan, np.float32(np.nan), math.inf, -math.inf, -1, -0.5, "yes", "", True, None, [], object, {"a": 1})
OTHERS = {"tensors": (0,), "share": 0.5, "algorithm": ALGORITHMS["dense"]()}  # of `Fused`


def means(annotation: str, value: Any) -> bool:
    """Whether ``value`` has the type of the field, so that it may be a good one: True of a switch, None of ...|None."""
    return (value is None and "None" in annotation) or (value is True and annotation == "bool")


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda x: getattr(x, "__name__", None) or x.name)
def test_what_a_field_cannot_mean_is_refused_by_its_name(kind, field):
    others = OTHERS if kind is Fused else {}
    if field.default is not MISSING:
        kind(**others | {field.name: field.default})
    for value in WRONG:
        if not means(str(field.type), value):
            with pytest.raises((TypeError, ValueError), match=f"^{field.name} must "):
                kind(**others | {field.name: value})
    if field.type == "int":
        with pytest.raises(TypeError, match=f"^{field.name} must be a whole number"):
            kind(**{field.name: 2.5})


OUT_OF_BOUNDS = {
    "oktopk": {"period": 0, "trigger": 0.5, "radix": 1},
    "spardl": {"prune": "nothing", "slack": 0.5, "block": 0, "selection": "x", "residual": "x"},
    "micro": {"slack": 1, "block": 0},
    "elect": {"votes": 0},
    "dgc": {"corrections": -1, "seed": -1},
    "random": {"seed": 2**64},
    "redsync": {"halvings": 0},
    "sidco-exp": {"first_ratio": 1.0},
    "sidco-gp": {"period": 0},
}
ALSO = [("elect", "votes", 1.5), ("random", "seed", 0.5)]
BEYOND = [*ALSO, *((name, option, value) for name, wrong in OUT_OF_BOUNDS.items() for option, value in wrong.items())]


@pytest.mark.parametrize(("name", "option", "value"), BEYOND)
def test_what_is_just_out_of_bounds_is_refused_too(name, option, value):
    with pytest.raises((TypeError, ValueError), match=f"^{option} must be .*got {value!r}"):
        (ALGORITHMS | SELECTORS)[name](**{option: value})


def test_numbers_of_numpy_are_numbers():
    assert ALGORITHMS["oktopk"](period=np.int64(8), trigger=np.float32(2)).period == 8
    check_switch("x", np.True_)


def test_errors_say_what_was_expected_what_came_and_what_to_do():
    with pytest.raises(ValueError, match=r"^x must be in \[0, 3\] steps, got 4; fewer will do$"):
        check_whole("x", 4, 0, "steps", "fewer will do", most=3)
    with pytest.raises(TypeError, match=r"^x must be a whole number, at least 0 steps, got 1\.5$"):
        check_whole("x", 1.5, 0, "steps")
    with pytest.raises(TypeError, match="^x must be True or False, got 'no'$"):
        check_switch("x", "no")
    with pytest.raises(ValueError, match="^x must be one of a, b, got 'c'$"):
        check_choice("x", "c", ("a", "b"))
    with pytest.raises(TypeError, match="^x must be an instance of BitPacked, got .*BitPacked"):
        check_instance("x", BitPacked, BitPacked)
