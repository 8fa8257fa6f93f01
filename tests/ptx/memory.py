"""Memory that is watched: what is read before it was written, or from outside, and who is in a race with whom."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NOBODY, SEVERAL = 0, -1  # for the number of a thread
ANYWHERE = -1 << 32  # the moment of threads of several blocks
WEAK_READ, STRONG_READ, WEAK_WRITE, STRONG_WRITE = range(4)
# Accesses that are a race with each kind; strong ones, of atomics and volatile, are none among themselves
RACES = {
    WEAK_READ: (WEAK_WRITE, STRONG_WRITE),
    STRONG_READ: (WEAK_WRITE,),
    WEAK_WRITE: (WEAK_READ, STRONG_READ, WEAK_WRITE, STRONG_WRITE),
    STRONG_WRITE: (WEAK_READ, WEAK_WRITE),
}
VERBS = "read", "read strongly", "wrote", "wrote strongly"


class Fault(AssertionError):
    """A kernel did what it must not do, or what this does not know."""


class Missing(Fault):
    """Some lanes are to execute an instruction with others that are not there yet."""


class Lanes(NamedTuple):
    """Threads that execute an instruction together: ``(lanes,)`` each."""

    threads: np.ndarray  # their numbers in the grid from 1 on, int64
    moments: np.ndarray  # block << 32 | barriers passed; of one block they are in order


class Space:
    """Bytes, in cells as small as the narrowest access; vectors of NumPy for the threads of an instruction."""

    def __init__(self, data: np.ndarray, cell: int, defined: np.ndarray, inside: np.ndarray) -> None:
        self.data, self.cell, self.defined, self.inside = data, cell, defined, inside
        cells = len(defined)
        self.who = np.zeros((4, cells), np.int64)  # of each kind of access
        self.when = np.zeros((4, cells), np.int64)

    def clear(self, first: int, end: int) -> None:
        """Make bytes undefined and untouched, for the next block."""
        own = slice(first // self.cell, end // self.cell)
        self.defined[own], self.who[:, own] = False, NOBODY

    def load(self, at: np.ndarray, kind: np.dtype, count: int, lanes: Lanes, strong: bool) -> list[np.ndarray]:
        """Read ``count`` neighbouring numbers a thread at the bytes ``at``."""
        cells, each = self.touched(at, count * kind.itemsize, lanes, strong)
        if not (defined := self.defined[cells]).all():
            raise Fault(f"reads what nobody has written: {self.first(~defined, cells, each.threads)}")
        first, values = at // kind.itemsize, self.data.view(kind)
        return [values[first + i] for i in range(count)]

    def store(self, at: np.ndarray, values: list[np.ndarray], lanes: Lanes, strong: bool) -> None:
        """Write neighbouring numbers of each thread at the bytes ``at``."""
        kind = values[0].dtype
        cells, _ = self.touched(at, len(values) * kind.itemsize, lanes, strong, write=True)
        self.defined[cells] = True
        first, memory = at // kind.itemsize, self.data.view(kind)
        for i, value in enumerate(values):
            memory[first + i] = value

    def atomic(self, at: np.ndarray, values: np.ndarray, name: str, lanes: Lanes) -> np.ndarray:
        """Add or "or" a number of each thread, one after the other; return what each found there."""
        cells, each = self.touched(at, values.itemsize, lanes, strong=True, write=True)
        if not (defined := self.defined[cells]).all():
            raise Fault(f"adds to what nobody has written: {self.first(~defined, cells, each.threads)}")
        order = np.argsort(at, kind="stable")
        place, values = at[order] // values.itemsize, values[order]
        heads = np.flatnonzero(np.diff(place, prepend=place[0] ^ -1))
        memory, found = self.data.view(values.dtype), np.empty_like(values)
        if name == "add":
            before = np.cumsum(values, dtype=values.dtype) - values
            found[order] = memory[place] + before - np.repeat(before[heads], np.diff(heads, append=len(place)))
        elif name == "or":
            for i, one in enumerate(place):
                found[order[i]] = memory[one]
                memory[one] |= values[i]
            return found
        else:
            raise Fault(f"does not know the atomic {name}")
        np.add.at(memory, place, values)
        return found

    def touched(
        self, at: np.ndarray, width: int, lanes: Lanes, strong: bool, write: bool = False
    ) -> tuple[np.ndarray, Lanes]:
        """Check an access, and return the cells of all threads, one after the other, with their threads."""
        if (wrong := at % width != 0).any():
            raise Fault(f"an address is no multiple of {width}: {self.first(wrong, at, lanes.threads, 1)}")
        each, cells = width // self.cell, at // self.cell
        outside = (cells < 0) | (cells >= len(self.inside))
        if each > 1:
            lanes = Lanes(lanes.threads.repeat(each), lanes.moments.repeat(each))
            cells, outside = (cells[:, None] + np.arange(each)).ravel(), outside.repeat(each)
        if outside.any() or not self.inside[cells].all():
            outside |= ~self.inside[np.where(outside, 0, cells)]
            raise Fault(f"{'writes' if write else 'reads'} out of bounds: {self.first(outside, cells, lanes.threads)}")
        self.ordered(2 * write + strong, cells, lanes)
        return cells, lanes

    def ordered(self, kind: int, cells: np.ndarray, lanes: Lanes) -> None:
        """Check that barriers lie between these accesses and others of other threads, and remember them."""
        threads, moments = lanes
        for other in RACES[kind]:
            who, when = self.who[other, cells], self.when[other, cells]
            race = (who != NOBODY) & (who != threads) & ~before(when, moments)
            if race.any():
                last = who[race][0]
                name = f"thread {last - 1}" if last > 0 else "others"
                where = self.first(race, cells, threads)
                raise Fault(f"a race: {name} {VERBS[other]} what this {VERBS[kind]}, {where}")
        who, when = self.who[kind, cells], self.when[kind, cells]
        alone = (who == NOBODY) | (who == threads) | before(when, moments)
        self.who[kind, cells] = last = np.where(alone, threads, SEVERAL)
        self.when[kind, cells] = moments = np.where(alone | (when >> 32 == moments >> 32), moments, ANYWHERE)
        # Threads of this very instruction that touch one cell
        if (several := self.who[kind, cells] != last).any():
            if kind == WEAK_WRITE:
                raise Fault(f"a race: threads write at once, {self.first(several, cells, threads)}")
            self.who[kind, cells[several]] = SEVERAL
            apart = self.when[kind, cells] != moments
            self.when[kind, cells[apart]] = ANYWHERE

    def first(self, wrong: np.ndarray, cells: np.ndarray, threads: np.ndarray, cell: int = 0) -> str:
        return f"thread {threads[wrong][0] - 1} at byte {cells[wrong][0] * (cell or self.cell):#x}"


def before(when: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Whether a barrier of the same block lies between."""
    return (when < moments) & (when >> 32 == moments >> 32)


def sectors(warps: np.ndarray, at: np.ndarray) -> int:
    """Count the sectors of 32 bytes that each warp touches in an access, in all."""
    return len(np.unique((warps << 40) + (at >> 5)))
