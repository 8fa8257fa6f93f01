"""The protocol of a transport: few members, named where they are missing; `sparse_mpi.testing` checks what they do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparse_mpi.comm import as_comm
from sparse_mpi.comm.base import MEMBERS


def test_what_lacks_members_is_told_which():
    kind = type("Theirs", (SimpleNamespace,), {})
    with pytest.raises(TypeError, match="got Theirs, which lacks allgatherv, split; derive it from"):
        as_comm(kind(**dict.fromkeys(set(MEMBERS) - {"split", "allgatherv"}, print)))
    complete = kind(**dict.fromkeys(MEMBERS, print))
    assert as_comm(complete) is complete
