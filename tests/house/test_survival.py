"""What the MPI standard does not have yet, calls about ranks that have failed, is in one module."""

from __future__ import annotations

import ast

import pytest

from .test_layers import LIBRARY, PROGRAMS

HOME = "sparse_mpi.comm.elastic.ulfm"
CALLS = {"Revoke", "Is_revoked", "Get_failed", "Ack_failed", "Agree", "Iagree", "Shrink", "Ishrink"}
ERRORS = {"ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED"}


def about_failures(source: str) -> set[str]:
    """The names of such calls and errors in ``source``: as members, or as strings, for getattr."""
    nodes = list(ast.walk(ast.parse(source)))
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    found |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return found & (CALLS | ERRORS)


def test_calls_about_failures_are_in_one_module():
    found = {name: about_failures(file.read_text()) for name, file in (LIBRARY | PROGRAMS).items()}
    assert [name for name in found if found[name]] == [HOME], found


@pytest.mark.parametrize(
    "source", ["comm.Shrink()", "MPI.Comm.Get_failed(comm)", "getattr(comm, 'Iagree')()", "error == MPI.ERR_REVOKED"]
)
def test_they_are_seen(source):
    assert about_failures(source)
