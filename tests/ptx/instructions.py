"""From an instruction of PTX to a function that executes it for lanes; one that is not known stops with its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from . import arithmetic
from .arithmetic import TYPES, canonical
from .memory import Fault
from .text import Instruction, width_of

if TYPE_CHECKING:
    from .machine import Machine

Run = Callable[[np.ndarray], None]
IDLE = {"membar"}  # threads see each other's accesses in the order in which they are executed


def execute(one: Instruction, machine: Machine) -> Run:
    """Return a function that executes an instruction for the lanes it is given."""
    try:
        run = decoded(one, machine)
    except (KeyError, IndexError, ValueError) as error:
        raise Fault(f"does not know the instruction: {one.text}") from error
    if one.guard is None:
        return run
    guard, unless = machine.register(one.guard), one.unless

    def guarded(lanes: np.ndarray) -> None:
        if len(lanes := lanes[guard[lanes] != unless]):
            run(lanes)

    return guarded


def decoded(one: Instruction, machine: Machine) -> Run:
    name, *rest = one.parts
    if name in ("ld", "st", "atom"):
        return access(one, machine)
    if name in IDLE:
        return lambda lanes: None
    if name in ("shfl", "vote"):
        return exchange(one, machine)
    kind = rest[-1]
    form = ".".join((name, *rest[:-1]))
    operands = one.operands
    if name == "mov" and any(isinstance(part, tuple) for part in operands):
        return packed(operands, machine)
    if name == "cvt":
        return converted(rest[:-2], *rest[-2:], operands, machine)
    function, kinds = meaning(form, kind, len(operands))
    return computing(function, kinds, operands, machine)


def meaning(form: str, kind: str, count: int) -> tuple[Callable, list[str]]:
    """Return what an instruction computes, and the types of its result and of its sources."""
    same, dtype = [kind] * count, TYPES[kind]
    if form in ("mov", "cvta.to.global"):
        return lambda x: x, same
    if form.startswith("setp."):
        return arithmetic.compared(form.removeprefix("setp."), dtype), ["pred", *same[1:]]
    if form == "selp":
        return lambda a, b, chosen: np.where(chosen, a, b), [*same[:3], "pred"]
    if (form, kind) == ("rcp.approx.ftz", "f64"):
        return arithmetic.reciprocal, same
    if dtype.kind == "f":
        if form == "fma.rn" and kind != "f64":
            raise KeyError(form)
        if form in arithmetic.UNROUNDED:
            return arithmetic.UNROUNDED[form], same
        rounded = arithmetic.FLOAT[form]
        return lambda *sources: canonical(rounded(*sources)), same
    if form == "mul.wide":
        wide = f"{kind[0]}{2 * width_of(kind)}"
        return lambda a, b: np.multiply(a, b, dtype=TYPES[wide]), [wide, kind, kind]
    if form in ("shl", "shr"):
        shift = arithmetic.shifted_left if form == "shl" else arithmetic.shifted_right
        return shift, [kind, kind, "u32"]
    if form == "bfi":
        return arithmetic.inserted, [kind, kind, kind, "u32", "u32"]
    if form in ("brev", "prmt"):
        return (arithmetic.reversed_bits if form == "brev" else arithmetic.permuted), same
    if form in arithmetic.COUNTS:
        return arithmetic.COUNTS[form], ["u32", kind]
    if kind == "pred" and form == "not":
        return np.logical_not, same
    return (arithmetic.BITS if kind[0] in "bp" else arithmetic.INTEGER)[form], same


def computing(function: Callable, kinds: list[str], operands: tuple, machine: Machine) -> Run:
    into = target(operands[0], kinds[0], machine)
    sources = [source(text, kind, machine) for text, kind in zip(operands[1:], kinds[1:], strict=True)]

    def run(lanes: np.ndarray) -> None:
        into(lanes, function(*(given(lanes) for given in sources)))

    return run


def converted(how: list[str], to: str, of: str, operands: tuple, machine: Machine) -> Run:
    rounding, kind = "".join(how), TYPES[to]
    floating = (TYPES[of].kind == "f") + 2 * (kind.kind == "f")
    if floating in (0, 2) or (floating == 3 and rounding in ("", "rn") and to != of):
        if rounding not in ("", "rn"):
            raise KeyError(rounding)
        return computing(lambda x: arithmetic.converted(x, kind), [to, of], operands, machine)
    rounded = arithmetic.ROUNDINGS[rounding.removesuffix("i")]
    if floating == 3:
        return computing(lambda x: canonical(rounded(x)), [to, of], operands, machine)
    return computing(lambda x: arithmetic.whole(x, kind, rounded), [to, of], operands, machine)


def packed(operands: tuple, machine: Machine) -> Run:
    """``mov`` of several registers into one, the first one lowest, or of one into several."""
    into, given = operands
    if isinstance(given, tuple):
        kind = f"b{machine.bits(into) // len(given)}"
        views = machine.register(into).view(TYPES[kind]).reshape(-1, len(given))
        sources = [source(part, kind, machine) for part in given]

        def run(lanes: np.ndarray) -> None:
            for i, value in enumerate([one(lanes) for one in sources]):
                views[lanes, i] = value

        return run
    kind = f"b{machine.bits(given) // len(into)}"
    parts = machine.register(given).view(TYPES[kind]).reshape(-1, len(into))
    targets = [target(part, kind, machine) for part in into]

    def run_apart(lanes: np.ndarray) -> None:
        for i, put in enumerate(targets):
            put(lanes, parts[lanes, i])

    return run_apart


def source(text: str, kind: str, machine: Machine) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that reads an operand as a type: of a register the lowest bits, or a constant."""
    dtype = TYPES[kind]
    if (constant := machine.constant(text)) is None:
        if text[0] == "%":
            register = machine.register(text)
            view = register if kind == "pred" else register.view(dtype)[:: register.itemsize // dtype.itemsize]
            return lambda lanes: view[lanes]
        if float_bits := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", text):
            constant = int(float_bits[1], 16)
        else:
            constant = int(text, 0)
    if kind == "pred":
        value = np.bool_(constant)
    else:
        value = np.array([constant & (1 << width_of(kind)) - 1], f"u{dtype.itemsize}").view(dtype)
    return lambda lanes: np.broadcast_to(value, len(lanes))


def target(text: str, kind: str, machine: Machine) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return a function that writes a register; a wider one than the type gets its sign or zeros."""
    register, dtype = machine.register(text), TYPES[kind]
    if kind != "pred":
        register = register.view(dtype if dtype.itemsize == register.itemsize else f"{dtype.kind}{register.itemsize}")

    def put(lanes: np.ndarray, values: np.ndarray) -> None:
        register[lanes] = values

    return put


def access(one: Instruction, machine: Machine) -> Run:
    """Return a load, a store, or an atomic."""
    name, *rest, kind = one.parts
    if rest == ["param"]:
        base, offset = source(one.operands[1].base, "s64", machine), one.operands[1].offset
        into, each = target(one.operands[0], kind, machine), np.arange(TYPES[kind].itemsize)

        def pass_on(lanes: np.ndarray) -> None:
            places = (base(lanes) + offset)[:, None] + each
            if ((places < 0) | (places >= len(machine.parameters))).any():
                raise Fault(f"reads beyond the parameters: {one.text}")
            into(lanes, machine.parameters[places].view(TYPES[kind])[:, 0])

        return pass_on
    volatile = name == "atom" or "volatile" in rest
    space, *many = [part for part in rest if part != "volatile"]
    place = machine.place(one.operands[name != "st"], space, name)
    if name == "atom":
        into, given = target(one.operands[0], kind, machine), source(one.operands[2], kind, machine)

        def add(lanes: np.ndarray) -> None:
            lanes = machine.shuffled(lanes)
            memory, at = place(lanes, TYPES[kind].itemsize)
            into(lanes, memory.atomic(at, given(lanes), many[0], machine.lanes(lanes)))

        return add
    other = one.operands[name == "st"]
    registers = other if isinstance(other, tuple) else (other,)
    if (many or ["v1"]) != [f"v{len(registers)}"]:
        raise KeyError(one.text)
    width = len(registers) * TYPES[kind].itemsize
    if name == "ld":
        targets = [target(register, kind, machine) for register in registers]

        def load(lanes: np.ndarray) -> None:
            memory, at = place(lanes, width)
            values = memory.load(at, TYPES[kind], len(targets), machine.lanes(lanes), volatile)
            for put, value in zip(targets, values, strict=True):
                put(lanes, value)

        return load
    sources = [source(register, kind, machine) for register in registers]

    def store(lanes: np.ndarray) -> None:
        memory, at = place(lanes, width)
        memory.store(at, [given(lanes) for given in sources], machine.lanes(lanes), volatile)

    return store


def exchange(one: Instruction, machine: Machine) -> Run:
    """Return a shuffle or a vote, of lanes that all take part."""
    name, sync, how, kind = one.parts
    if sync != "sync" or kind != "b32" or name + how not in ("voteballot", "shflup", "shfldown", "shflbfly", "shflidx"):
        raise KeyError(one.text)
    into, mask = target(one.operands[0], kind, machine), source(one.operands[-1], kind, machine)
    if name == "vote":
        mine = source(one.operands[1], "pred", machine)

        def vote(lanes: np.ndarray) -> None:
            machine.together(lanes, mask(lanes))
            votes = np.zeros(machine.size, bool)
            votes[lanes] = mine(lanes)
            into(lanes, np.packbits(votes, bitorder="little").view(np.uint32)[lanes >> 5])

        return vote
    found = target(one.operands[1], "pred", machine) if len(one.operands) == 6 else None
    given, by, limits = (source(text, kind, machine) for text in one.operands[-4:-1])

    def shuffle(lanes: np.ndarray) -> None:
        active = machine.together(lanes, mask(lanes))
        lane, step, limit = lanes & 31, by(lanes).astype(np.int64) & 31, limits(lanes).astype(np.int64)
        segment = limit >> 8 & 31
        last = lane & segment | limit & 31 & ~segment
        other = {"up": lane - step, "down": lane + step, "bfly": lane ^ step}.get(how, lane & segment | step & ~segment)
        inside = other >= last if how == "up" else other <= last
        other = (lanes & ~31) + np.where(inside, other, lane)
        if not active[other].all():
            raise Fault(f"takes from a lane that does not take part: {machine.name_of(lanes[~active[other]][0])}")
        values = np.zeros(machine.size, np.uint32)
        values[lanes] = given(lanes)
        into(lanes, values[other])
        if found is not None:
            found(lanes, inside)

    return shuffle
