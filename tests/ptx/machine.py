"""Blocks of threads that run a kernel of PTX: warps in turns that a seed draws, of a warp the lanes that are behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np

from .instructions import execute, source, target
from .memory import Fault, Lanes, Missing, Space, sectors
from .text import Address, Instruction, Kernel

NOWHERE = 1 << 30
GAP = 128  # bytes between variables in shared memory
BLOCK = 32  # bits before the number of a block in a moment
SPECIAL = {"%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x"}
TURNS = 1 << 20  # of a launch, at most


@dataclass
class Counts:
    """What a launch took: of warps, not of threads."""

    kernel: Kernel
    sectors: int = 0  # of 32 bytes that an instruction of a warp touches in global memory
    read: set[int] = field(default_factory=set)  # sectors of global memory
    written: set[int] = field(default_factory=set)

    def moved(self) -> int:
        """Bytes of global memory that are read and written where caches keep all of it."""
        return 32 * (len(self.read) + len(self.written))


class Machine:
    """A launch of a kernel on ``blocks`` of ``threads``, of which ``resident`` are there at a time.

    ``arguments`` are bytes. Addresses of ``memory`` begin at ``base``.
    """

    def __init__(
        self,
        kernel: Kernel,
        memory: Space,
        base: int,
        arguments: list[bytes],
        blocks: int,
        threads: int,
        resident: int = 3,
        seed: int = 0,
        shared_bytes: int = 0,
    ) -> None:
        if threads % 32 or threads > (kernel.threads or threads) or len(arguments) != len(kernel.parameters):
            raise Fault(f"{kernel.name} takes {kernel.threads} threads and {list(kernel.parameters)}")
        self.kernel, self.random, self.counts = kernel, Random(seed), Counts(kernel)
        self.slots = min(resident, blocks)
        self.block_threads, self.size = threads, self.slots * threads
        self.pending = list(range(blocks))
        self.random.shuffle(self.pending)
        self.registers: dict[str, np.ndarray] = {}
        # Parameters have a space of their own, in which those of a structure may be read at any place.
        self.parameters, self.constants = np.frombuffer(b"".join(arguments), np.uint8), {}
        for name, argument in zip(kernel.parameters, arguments, strict=True):
            if len(argument) != kernel.parameters[name]:
                raise Fault(f"{name} of {kernel.name} has {kernel.parameters[name]} bytes, got {len(argument)}")
        ends = np.cumsum([0, *map(len, arguments)]).tolist()
        self.constants.update(zip(kernel.parameters, ends, strict=False))
        self.memory, self.base = memory, base
        self.shared, self.shared_size = self._lay_out("shared", self.slots, shared_bytes)
        self.local, self.local_size = self._lay_out("local", self.size)
        self.threads, self.moments = np.zeros(self.size, np.int64), np.zeros(self.size, np.int64)
        self.register("%ntid.x")[:], self.register("%nctaid.x")[:] = threads, blocks
        self.register("%tid.x")[:] = np.arange(self.size) % threads
        self.pc = np.zeros(self.size, np.int64)
        self.alive, self.waiting = np.zeros(self.size, bool), np.full(self.size, -1)
        self.held = np.zeros(self.size, bool)
        self.resting, self.turns, self.ahead = np.zeros(self.size // 32, np.int64), 0, (0, 0)
        self.code = [None if one.parts[0] in CONTROL else execute(one, self) for one in kernel.code]
        self.ends = set(kernel.labels.values())

    def _lay_out(self, space: str, copies: int, dynamic: int = 0) -> tuple[Space, int]:
        """Give the variables of a space their addresses, with gaps between them; a copy for each block or thread."""
        end, parts = GAP, []
        for name, variable in self.kernel.variables.items():
            if variable.space == space:
                size = variable.size or dynamic
                self.constants[name] = end
                parts.append((end, end + size))
                end += -(-size // GAP) * GAP + GAP
        cell = narrowest(self.kernel, space)
        inside = np.zeros((copies, end // cell), bool)
        for first, last in parts:
            inside[:, first // cell : last // cell] = True
        cells = inside.size
        return Space(np.zeros(cells * cell, np.uint8), cell, np.zeros(cells, bool), inside.ravel()), end

    # Operands

    def bits(self, name: str) -> int:
        registers = self.kernel.registers
        return 32 if name in SPECIAL else registers.get(name) or registers[name.rstrip("0123456789")]

    def register(self, name: str) -> np.ndarray:
        """The register of all threads ``(size,)``: whole numbers without a sign, or truth."""
        if name not in self.registers:
            bits = self.bits(name)
            self.registers[name] = np.zeros(self.size, bool if bits == 1 else f"u{bits // 8}")
        return self.registers[name]

    def constant(self, name: str) -> int | None:
        """The address of a parameter or of a variable; None for other names."""
        return self.constants.get(name)

    def place(self, address: Address, space: str, name: str) -> Callable[[np.ndarray, int], tuple[Space, np.ndarray]]:
        """Return a function that finds where in a space the threads' accesses go, and counts them."""
        base = source(address.base, "s64", self)
        if space == "global":

            def in_global(lanes: np.ndarray, width: int) -> tuple[Space, np.ndarray]:
                at = base(lanes) + (address.offset - self.base)
                self.counts.sectors += sectors(lanes >> 5, at)
                touched = np.unique(at >> 5).tolist()
                if name != "st":
                    self.counts.read.update(touched)
                if name != "ld":
                    self.counts.written.update(touched)
                return self.memory, at

            return in_global
        memory, size = {"shared": (self.shared, self.shared_size), "local": (self.local, self.local_size)}[space]

        def in_block(lanes: np.ndarray, width: int) -> tuple[Space, np.ndarray]:
            at = base(lanes) + address.offset
            if ((at < 0) | (at >= size)).any():
                raise Fault("leaves the memory of its block")
            if space == "local":
                return memory, at + lanes * size
            return memory, at + lanes // self.block_threads * size

        return in_block

    def lanes(self, lanes: np.ndarray) -> Lanes:
        return Lanes(self.threads[lanes], self.moments[lanes])

    def shuffled(self, lanes: np.ndarray) -> np.ndarray:
        """Lanes in the order in which atomics of theirs happen."""
        return lanes[np.argsort(np.random.default_rng(self.random.getrandbits(32)).random(len(lanes)))]

    def together(self, lanes: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """Check that all of the masks' lanes execute this, and return who does, of all threads."""
        active = np.zeros(self.size, bool)
        active[lanes] = True
        words = np.packbits(np.stack([active, self.alive]), axis=1, bitorder="little").view(np.uint32)
        here, there = words[0][lanes >> 5], words[1][lanes >> 5]
        if (wrong := masks >> (lanes & 31).astype(np.uint32) & 1 == 0).any():
            raise Fault(f"is not of its mask {masks[wrong][0]:#x}: {self.name_of(lanes[wrong][0])}")
        if (wrong := masks & there & ~here != 0).any():
            raise Missing(lanes[wrong])
        return active

    def name_of(self, lane: int) -> str:
        block, thread = divmod(int(self.threads[lane]) - 1, self.block_threads)
        return f"thread {thread} of block {block}"

    # Turns

    def run(self) -> Counts:
        """Run all blocks to their ends; raise `Fault` at the first thing that is wrong."""
        here = 0
        with np.errstate(all="ignore"):
            for slot in range(self.slots):
                self._begin(slot)
            while self.alive.any():
                try:
                    lanes, here = self._turn()
                    while not self._step(here, lanes):
                        here += 1
                except Missing as missing:
                    self.pc[lanes] = here
                    self._hold(here, lanes, missing.args[0])
                except Fault as error:
                    text = self.kernel.code[here].text
                    raise Fault(f"{self.kernel.name}: {error}\n    {here}: {text}") from error
        return self.counts

    def _hold(self, here: int, lanes: np.ndarray, incomplete: np.ndarray) -> None:
        """Let lanes wait for others of their warps, unless more of these are here by now."""
        arrived = self.alive & (self.waiting < 0) & (self.pc == here)
        more = arrived.reshape(-1, 32).sum(axis=1) > np.bincount(lanes >> 5, minlength=self.size // 32)
        self.held[incomplete] = True
        self.held &= ~(arrived & more.repeat(32))

    def _begin(self, slot: int) -> None:
        """Let the next block begin in the place of one that is done."""
        if not self.pending:
            return
        own = slice(slot * self.block_threads, (slot + 1) * self.block_threads)
        block = self.pending.pop()
        self.register("%ctaid.x")[own] = block
        self.threads[own] = block * self.block_threads + np.arange(self.block_threads) + 1
        self.moments[own] = block << BLOCK
        self.pc[own], self.alive[own] = 0, True
        self.shared.clear(slot * self.shared_size, (slot + 1) * self.shared_size)
        self.local.clear(own.start * self.local_size, own.stop * self.local_size)

    def _turn(self) -> tuple[np.ndarray, int]:
        """Draw who goes on, and from where: mostly all warps that are at the lowest place, else some at any."""
        self.turns += 1
        if self.turns > TURNS:
            raise Fault("does not end")
        ready = self.alive & (self.waiting < 0) & ~self.held
        lowest = np.where(ready, self.pc, NOWHERE).reshape(-1, 32).min(axis=1)
        able = lowest < NOWHERE
        if not able.any():
            raise Fault(f"lanes of a mask do not take part: {self.name_of(self.held.argmax())} waits for ever")
        awake = able & (self.resting <= self.turns)
        able = awake if awake.any() else able
        until, favoured = self.ahead
        if self.turns > until and self.random.random() < 1 / 32:
            self.ahead = until, favoured = self.turns + self.random.randrange(40), self.random.randrange(self.slots)
        if self.turns <= until:
            of_block = np.arange(len(able)) // (self.block_threads // 32) == favoured
            able = able & of_block if (able & of_block).any() else able
        places = lowest[able]
        here = int(places.min() if self.random.random() < 3 / 4 else self.random.choice(places))
        warps = able & (lowest == here)
        if self.random.random() < 1 / 16:
            some = np.random.default_rng(self.random.getrandbits(32)).random(len(warps)) < 1 / 2
            warps = warps & some if (warps & some).any() else warps
        return np.flatnonzero(ready & (self.pc == here) & warps.repeat(32)), here

    def _step(self, here: int, lanes: np.ndarray) -> bool:
        """Execute an instruction; return whether the turn ends."""
        one, run = self.kernel.code[here], self.code[here]
        if run is None:
            CONTROL[one.parts[0]](self, one, here, lanes)
            return True
        run(lanes)
        if here + 1 in self.ends or self.random.random() < 1 / 64:
            self.pc[lanes] = here + 1
            return True
        return False

    def _taken(self, one: Instruction, lanes: np.ndarray) -> np.ndarray:
        return lanes if one.guard is None else lanes[self.register(one.guard)[lanes] != one.unless]

    def _branch(self, one: Instruction, here: int, lanes: np.ndarray) -> None:
        self.pc[lanes] = here + 1
        self.pc[self._taken(one, lanes)] = self.kernel.labels[one.operands[0]]

    def _return(self, one: Instruction, here: int, lanes: np.ndarray) -> None:
        self.pc[lanes] = here + 1
        self.alive[self._taken(one, lanes)] = False
        self.held.reshape(-1, 32)[lanes >> 5] = False  # who has left is not waited for
        self._check_barrier(lanes)
        for slot in np.unique(lanes // self.block_threads).tolist():
            if not self.alive[slot * self.block_threads : (slot + 1) * self.block_threads].any():
                self._begin(slot)
            self._release(slot)

    def _rest(self, one: Instruction, here: int, lanes: np.ndarray) -> None:
        self.pc[lanes] = here + 1
        self.resting[lanes >> 5] = self.turns + 1 + self.random.randrange(16)

    def _wait(self, one: Instruction, here: int, lanes: np.ndarray) -> None:
        self.pc[lanes] = here + 1
        lanes = self._taken(one, lanes)
        if one.parts not in (("bar", "sync"), ("bar", "red", "or", "pred")) or "0" not in one.operands:
            raise Fault("does not know the barrier")
        self.waiting[lanes] = here
        self._check_barrier(lanes)
        for slot in np.unique(lanes // self.block_threads).tolist():
            self._release(slot)

    def _check_barrier(self, lanes: np.ndarray) -> None:
        """Check that no lane waits at a barrier while another one of its warp has left."""
        warps = np.unique(lanes >> 5)
        waits, left = (self.waiting >= 0).reshape(-1, 32)[warps], ~self.alive.reshape(-1, 32)[warps]
        if (wrong := waits.any(axis=1) & left.any(axis=1)).any():
            where = 32 * warps[wrong][0] + int(left[wrong][0].argmax())
            raise Fault(f"a barrier in divergent code: {self.name_of(where)} has left")

    def _release(self, slot: int) -> None:
        """Let the threads of a block go on if all of them have come to the barrier."""
        own = slot * self.block_threads + np.arange(self.block_threads)
        own = own[self.alive[own]]
        places = np.unique(self.waiting[own])
        if not len(places) or places[0] < 0:
            return
        if len(places) > 1:
            raise Fault("threads of a block wait at different barriers")
        one = self.kernel.code[places[0]]
        if one.parts[1] == "red":
            votes = source(one.operands[2], "pred", self)(own)
            target(one.operands[0], "pred", self)(
                own, np.broadcast_to(votes.any() != one.operands[2].startswith("!"), len(own))
            )
        self.waiting[own] = -1
        self.moments[own] += 1


CONTROL = {
    "bra": Machine._branch,
    "ret": Machine._return,
    "nanosleep": Machine._rest,
    "bar": Machine._wait,
}


def narrowest(kernel: Kernel, space: str) -> int:
    """Return the bytes of the narrowest access to a space."""
    kinds = [one.parts[-1] for one in kernel.code if one.parts[0] in ("ld", "st", "atom") and space in one.parts]
    return min([int(re.sub(r"\D", "", kind)) // 8 for kind in kinds], default=8)
