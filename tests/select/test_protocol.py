"""What every selector does with something to add, and what a wrapper passes on."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from sparse_mpi import SELECTORS
from sparse_mpi.select.base import Selector, Wrapper
from sparse_mpi.sparse import Layout

N, K = 20_000, 200


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("wrap", [lambda selector: selector, Wrapper], ids=["plain", "wrapped"])
@pytest.mark.parametrize("name", SELECTORS)
def test_add_is_added_in_place_before_anything_is_selected(name, wrap, half):
    selector = wrap(SELECTORS[name]())
    rng = np.random.default_rng(3)
    x, state = rng.standard_normal(N).astype(np.float32), selector.init(Layout.of(N), K)
    y, other = x.copy(), state
    for _ in range(4):
        add = rng.standard_normal(N).astype(np.float16 if half else np.float32)
        before = add.tobytes()
        y += add
        selected, state = selector.select(x, K, state, add)
        expected, other = selector.select(y, K, other)
        assert x.tobytes() == y.tobytes() and add.tobytes() == before
        assert selected.indices.tobytes() == expected.indices.tobytes()
        assert selected.values.tobytes() == expected.values.tobytes()
        assert repr(asdict(state)) == repr(asdict(other))
        x[selected.indices] = y[selected.indices] = 0


def test_a_wrapper_passes_on_every_member():
    assert public(Selector) <= public(Wrapper)


@pytest.mark.parametrize("name", SELECTORS)
def test_a_wrapper_declares_what_the_selector_does(name):
    selector, layout = SELECTORS[name](), Layout.of([(20, 30), (30,)])
    wrapped, state = Wrapper(selector), selector.init(layout, 10)
    assert repr(wrapped) == repr(selector)
    for member in ("band", "shared", "patterned"):
        assert getattr(wrapped, member) == getattr(selector, member)
    assert wrapped.floor(layout) == selector.floor(layout)
    assert (
        wrapped.pattern(10, state) == selector.pattern(10, state)
        and bool(wrapped.pattern(10, state)) == wrapped.patterned
    )
    assert wrapped.longest(layout, 10) == selector.longest(layout, 10)
