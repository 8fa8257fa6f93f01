"""What a wrapper passes on; `sparse_mpi.testing` checks what every selector does."""

from __future__ import annotations

import pytest

from sparse_mpi import SELECTORS
from sparse_mpi.select.base import Selector, Wrapper
from sparse_mpi.sparse import Layout


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


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
