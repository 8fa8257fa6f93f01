"""The text of PTX: what a module declares, and the instructions of its kernels."""

from __future__ import annotations

import re
from typing import NamedTuple


class Address(NamedTuple):
    """``[base+offset]``; the base is a register, a parameter or a variable."""

    base: str
    offset: int


class Instruction(NamedTuple):
    text: str
    parts: tuple[str, ...]  # the opcode and its modifiers, without what follows `%` or `[`
    operands: tuple[str | Address | tuple[str, ...], ...]
    guard: str | None  # the predicate without which a lane leaves it out
    unless: bool  # the guard is negated


class Variable(NamedTuple):
    space: str  # "shared", "local" or "global"
    size: int  # bytes; 0 for shared memory whose size the launch tells


class Kernel(NamedTuple):
    name: str
    threads: int | None  # of a block, at most
    parameters: dict[str, int]  # name: bytes
    registers: dict[str, int]  # prefix of names, or a name: bits, 1 for predicates
    variables: dict[str, Variable]
    code: tuple[Instruction, ...]
    labels: dict[str, int]  # name: the instruction that follows


DECLARED = re.compile(
    r"(?:\.(?:extern|visible)\s+)*\.(shared|local|global)\s+\.align\s+\d+\s+\.[busf](\d+)\s+([\w$]+)"
    r"(\[(\d*)\])?"
)
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\{", re.DOTALL)
SCOPE = re.compile(r"\{(\s*\.reg(?:[^{}]|\{[^{}]*\})*)\}")
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s|]+")


def width_of(kind: str) -> int:
    """Return the bits of a type such as ``u32``."""
    return 1 if kind == "pred" else int(kind[1:])


def module(text: str) -> dict[str, Kernel]:
    """Read a module; its kernels by their names."""
    text = re.sub(r"//[^\n]*", "", text)
    kernels, rest, shared = {}, text, {}
    for entry in ENTRY.finditer(text):
        end = closing(text, entry.end())
        kernels[entry[1]] = (entry, text[entry.end() : end])
        rest = rest.replace(text[entry.start() : end], "")
    for statement in rest.split(";"):
        declare(statement.strip(), shared)
    return {name: kernel(name, *found, shared) for name, found in kernels.items()}


def closing(text: str, at: int) -> int:
    """Return where the bracket closes that opens before ``at``."""
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def declare(statement: str, variables: dict[str, Variable]) -> bool:
    """Add the variable that a statement declares; say whether it declares one."""
    found = DECLARED.search(statement)
    if found is None:
        return False
    space, bits, name, array, count = found.groups()
    variables[name] = Variable(space, int(bits) // 8 * (int(count or 0) if array else 1))
    return True


def kernel(name: str, entry: re.Match, body: str, variables: dict[str, Variable]) -> Kernel:
    parameters = {}
    declared = r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?"
    for kind, parameter, count in re.findall(declared, entry[2]):
        parameters[parameter] = width_of(kind) // 8 * int(count or 1)
    most = re.search(r"\.maxntid\s+(\d+)", entry[3])
    registers, code, labels, known = {}, [], {}, dict(variables)
    for statement in SCOPE.sub(renamed, body[:-1]).split(";"):
        while label := re.match(r"\s*([\w$]+):", statement):
            labels[label[1]] = len(code)
            statement = statement[label.end() :]
        statement = statement.strip()
        if statement.startswith(".reg"):
            _, kind, *names = statement.split(maxsplit=2)
            for own in names[0].split(","):
                registers[own.split("<")[0].strip()] = width_of(kind[1:])
        elif statement.startswith("."):
            assert declare(statement, known) or statement.startswith(".pragma"), statement
        elif statement:
            code.append(instruction(" ".join(statement.split())))
    used = " ".join(one.text for one in code)
    own = {name: variable for name, variable in known.items() if re.search(rf"(?<![\w$]){re.escape(name)}\b", used)}
    return Kernel(name, most and int(most[1]), parameters, registers, own, tuple(code), labels)


def renamed(scope: re.Match) -> str:
    """Give the registers of an inner scope names of their own."""
    names = "|".join(re.findall(r"\.reg\s+\.\w+\s+(%\w+)", scope[1]))
    return re.sub(rf"({names})\b", rf"\1_{scope.start()}", scope[1])


def instruction(text: str) -> Instruction:
    guard = re.match(r"@(!?)(%\w+)\s+", text)
    plain = text[guard.end() :] if guard else text
    name, _, rest = plain.partition(" ")
    operands = tuple(map(operand, OPERAND.findall(rest)))
    return Instruction(text, tuple(name.split(".")), operands, guard and guard[2], bool(guard and guard[1]))


def operand(text: str) -> str | Address | tuple[str, ...]:
    if text[0] == "{":
        return tuple(part.strip() for part in text[1:-1].split(","))
    if text[0] == "[":
        base, _, offset = text[1:-1].replace(" ", "").partition("+")
        return Address(base, int(offset or 0))
    return text
