"""The picture of the architecture shows every folder, and every call goes down in it."""

from __future__ import annotations

from .architecture import BOXES, LEFT_OUT, PROGRAM, _below, calls
from .test_layers import LAYERS


def test_every_folder_has_a_box():
    assert set(BOXES) - {PROGRAM} == set(LAYERS.split()) - set(LEFT_OUT)


def test_calls_go_down_and_none_implies_another():
    found = calls()
    for caller, of in found.items():
        assert all(BOXES[caller].row < BOXES[callee].row for callee in of), caller
        below = {callee: _below(found, callee) for callee in of}
        assert caller == PROGRAM or not any(callee in below[other] for callee in of for other in of), caller
    assert _below(found, "reduction") >= {"algorithms", "comm", "wire", "select", "sparse", "kernels", "arrays"}
