"""What the interpreter watches and counts, each by a program that does it and one that does not."""

from __future__ import annotations

import numpy as np
import pytest

from .memory import Fault
from .programs import run

pytestmark = pytest.mark.full("what the interpreter of tests/ptx/test_kernels.py watches")
TELL = "st.global.u32 [%l3], %r5;"
SHARED = ".shared .align 4 .b8 s[256]; ---"
OWN = "shl.b32 %r6, %r0, 2; cvt.u64.u32 %l6, %r6; mov.u64 %l7, s; add.s64 %l7, %l7, %l6;"  # %l7: its word of s
NEXT = "add.u32 %r7, %r0, 1; and.b32 %r7, %r7, 63; mul.wide.u32 %l8, %r7, 4; mov.u64 %l9, s; add.s64 %l8, %l9, %l8;"
EVEN = "and.b32 %r8, %r0, 1; setp.eq.s32 %p1, %r8, 0;"
FAULTS = {
    "a race: thread .* wrote what this read": SHARED
    + f"{OWN} {NEXT} st.shared.u32 [%l7], %r0; ld.shared.u32 %r5, [%l8]; {TELL}",
    "a race: .* read what this wrote": SHARED
    + f"{OWN} {NEXT} st.shared.u32 [%l7], %r0; bar.sync 0; ld.shared.u32 %r5, [%l8]; st.shared.u32 [%l7], %r5;",
    "a race: threads write at once": "st.global.u32 [%l1], %r0;",
    "a race: .* wrote strongly what this read": "atom.global.add.u32 %r5, [%l1], 1; ld.global.u32 %r6, [%l1];",
    "a race: .* wrote what this wrote strongly": (
        "setp.eq.s32 %p1, %r0, 0; @%p1 st.global.u32 [%l1], %r0; atom.global.add.u32 %r5, [%l1], 1;"
    ),
    "reads what nobody has written": "ld.global.u32 %r5, [%l3];",
    "reads what nobody has written: thread 0": SHARED + f"{OWN} ld.shared.u32 %r5, [%l7]; {TELL}",
    "adds to what nobody has written": "atom.global.add.u32 %r5, [%l3], 1;",
    "reads out of bounds": "ld.global.u32 %r5, [%l2+4];",
    "reads out of bounds: thread 0 ": "ld.global.u32 %r5, [%l2+-4];",
    "writes out of bounds": "st.global.u32 [%l3+4], %r0;",
    "writes out of bounds: thread 63": SHARED + f"{OWN} st.shared.u32 [%l7+4], %r0;",
    "no multiple of 8": "ld.global.u64 %l5, [%l2];",
    "no multiple of 16": "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%l2];",
    "a barrier in divergent code": f"{EVEN} @%p1 bra $half; bar.sync 0; $half:",
    "wait at different barriers": (
        "setp.lt.s32 %p1, %r0, 32; @%p1 bra $half; bar.sync 0; bra $end; $half: bar.sync 0; $end:"
    ),
    "lanes of a mask do not take part": (
        f"{EVEN} @%p1 bra $half; shfl.sync.bfly.b32 %r5|%p2, %r0, 1, 31, -1; $half: bar.sync 0;"
    ),
    "takes from a lane that does not take part: thread 1": (
        f"{EVEN} @%p1 bra $half; shfl.sync.bfly.b32 %r5|%p2, %r0, 1, 31, -1; $half:"
    ),
    "is not of its mask 0x1": "vote.sync.ballot.b32 %r5, %p1, 1;",
    "takes from a lane that does not take part: thread 0": (
        f"{EVEN} @!%p1 bra $half; shfl.sync.idx.b32 %r5|%p2, %r0, 1, 31, 0x55555555; $half:"
    ),
    "does not end": "$again: bra $again;",
}
SOUND = {
    "behind a barrier": SHARED
    + f"{OWN} {NEXT} st.shared.u32 [%l7], %r0; bar.sync 0; ld.shared.u32 %r5, [%l8]; bar.sync 0;"
    f"st.shared.u32 [%l7], %r5; {TELL}",
    "atomics alone": "atom.global.add.u32 %r5, [%l0], 1; ld.volatile.global.u32 %r6, [%l0];",
    "a barrier for all": "bar.sync 0;",
    "lanes that come later, from behind": (
        f"bra $start; $back: vote.sync.ballot.b32 %r5, %p1, -1; bar.sync 0; {TELL} bra $end;"
        f"$start: {EVEN} @%p1 bra $back; add.u32 %r6, %r6, 1; bra $back; $end:"
    ),
    "some lanes have left": f"{EVEN} @%p1 bra $half; ret; $half: vote.sync.ballot.b32 %r5, %p1, -1; {TELL}",
    "half of the lanes": f"{EVEN} @!%p1 bra $half; shfl.sync.idx.b32 %r5|%p2, %r0, 2, 31, 0x55555555; $half:",
}


def arrays(count=64):
    return np.arange(count, dtype=np.uint32), np.zeros(count, np.uint32)


@pytest.mark.parametrize("match", FAULTS)
def test_a_fault_is_found(match, monkeypatch):
    monkeypatch.setattr("tests.ptx.machine.TURNS", 1000)
    with pytest.raises(Fault, match=match):
        run(FAULTS[match], *arrays(), threads=64, written="written" not in match)


@pytest.mark.parametrize("body", SOUND.values(), ids=SOUND)
def test_what_is_sound_runs(body):
    run(body, *arrays(), threads=64)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_in_a_race_too(seed):
    """Each in its own turn: in one order or the other, a barrier of a block is none of another."""
    body = "setp.eq.s32 %p1, %r0, 0; bar.sync 0; @%p1 st.global.u32 [%l1], %r1; bar.sync 0;"
    with pytest.raises(Fault, match="a race"):
        run(body, *arrays(), blocks=2, seed=seed)


def test_blocks_that_wait_for_each_other_both_go_on():
    """Block 0 for block 1, and then the other way."""
    body = """
    setp.eq.s32 %p1, %r1, 0; @%p1 bra $zero;
    st.volatile.global.u32 [%l1], 1;
    $wait: ld.volatile.global.u32 %r5, [%l1+4]; setp.eq.s32 %p2, %r5, 0; @%p2 bra $wait; bra $end;
    $zero: ld.volatile.global.u32 %r5, [%l1]; setp.eq.s32 %p2, %r5, 0; @%p2 bra $zero;
    st.volatile.global.u32 [%l1+4], 1;
    $end:"""
    given, found = arrays()
    run(body, given, found, blocks=2)
    assert found[:2].tolist() == [1, 1]
