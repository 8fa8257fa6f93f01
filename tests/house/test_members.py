"""Protocols stay small: what an implementer must write, and a reader must know."""

from __future__ import annotations

import pytest

from sparse_mpi.comm.base import MEMBERS, Comm

MOST = {Comm: 15}


@pytest.mark.parametrize("protocol", MOST, ids=lambda protocol: protocol.__name__)
def test_a_protocol_has_few_members(protocol):
    members = sorted(name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_"))
    assert len(members) <= MOST[protocol], f"{protocol.__name__} has {len(members)}: {', '.join(members)}"


def test_the_members_that_a_transport_must_have_are_those_of_comm():
    assert len(MEMBERS) == 15 and all(hasattr(Comm, name) for name in MEMBERS)
