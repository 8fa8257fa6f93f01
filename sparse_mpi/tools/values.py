"""Command lines, of ``python -m sparse_mpi`` and of programs outside: the parser, and converters of values.

What is wrong is said in one line, once, and the exit status is 2. A converter is a ``type=`` of `argparse` that knows
what it expects, and an example.
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    ArgumentTypeError,
    Namespace,
    RawDescriptionHelpFormatter,
    _SubParsersAction,
)
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Generic, NoReturn, TypeVar

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.checks import meant
from sparse_mpi.comm.runtime import PATIENCE, first_to_say, told_rank
from sparse_mpi.network import networks
from sparse_mpi.reduction.arguments import spelled
from sparse_mpi.tools.analysis.gradients import KINDS
from sparse_mpi.tools.chaos import drawing
from sparse_mpi.tools.emulation import schedule

STATUS = 2  # of a process whose command line is wrong
SHOWN = 2  # values of an example


class Refused(SystemExit):
    """Raised for a command line that is wrong, with the line that says so; the exit status is 2.

    `Parser.refuse` prints the line of one that is raised after parsing.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = STATUS


@contextmanager
def refusing(before: str, after: str = "") -> Iterator[None]:
    """Raise Refused for a ValueError within the ``with`` block: what it says, between ``before`` and ``after``."""
    try:
        yield
    except ValueError as error:
        raise Refused(f"{before}{error}{after}") from None


class Formatter(RawDescriptionHelpFormatter):
    """Descriptions as they are written, and the default of every option whose help does not tell it."""

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        if action.nargs == 0 or not action.option_strings or action.required or "default" in text:
            return text
        return f"{text} (default: {_shown(action.default).replace('%', '%%') or 'none'})".strip()


class Parser(ArgumentParser):
    """An `ArgumentParser` whose errors are one line: the option, what it must be, what came, and an example."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", Formatter)
        super().__init__(*args, **options)
        self.exit_on_error = False  # but raise ArgumentError, to which an example can be added

    def error(self, message: str) -> NoReturn:
        """Print one line, and end with status 2.

        Other ranks let the first one speak before: mpiexec ends them with it, so that the line is there once. They
        speak where the first one has nothing to say, as of a file that its host alone has.
        """
        if told_rank():
            time.sleep(PATIENCE)
        line = f"{self.prog}: error: {' '.join(message.split())}"
        if first_to_say(line):
            print(line, file=sys.stderr, flush=True)
        raise Refused(message)

    def refuse(self, refused: Refused, argv: Sequence[str] | None) -> NoReturn:
        """Print the line of what was found wrong after parsing, as the parser of the command in ``argv`` would."""
        self._of_command(argv).error(str(refused))

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the options as attributes, or end with a line about the first that is wrong or unknown."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self._of_command(args)
            parser.error(f"unknown argument {unknown[0]!r}; {parser._advice(unknown[0])}")
        return found

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Return the options as attributes, and what is unknown, or end with a line about the first that is wrong."""
        try:
            return super().parse_known_args(args, namespace)
        except ArgumentError as error:
            self.error(f"{error}{self._remedy(error)}")

    def _check_value(self, action: Action, value: Any) -> None:
        """Raise ArgumentError, with the nearest choice as an example, unless the value is one of the choices."""
        if action.choices is not None and value not in action.choices:
            names = list(map(str, action.choices))
            advice = meant(value, names) or f"; for example {_given(action, names[0])}"
            raise ArgumentError(action, f"must be one of {', '.join(names)}, got {quote(str(value))}{advice}")

    def _remedy(self, error: ArgumentError) -> str:
        """Return an example for the option that the error is about, or what else to do."""
        if "not allowed with" in error.message:
            return "; leave out one of them"
        name = error.argument_name or ""
        action = self._option_string_actions.get(name.rpartition("/")[2])
        action = action or next((one for one in self._actions if name and name in (one.metavar, one.dest)), None)
        if action is None or any(remedy in error.message for remedy in ("for example", "did you mean")):
            return ""
        return f"; for example {_given(action, example(action))}"

    def _advice(self, unknown: str) -> str:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        return meant(unknown.partition("=")[0], known).removeprefix("; ") or f"{self.prog} --help shows all options"

    def _of_command(self, argv: Sequence[str] | None) -> Parser:
        """Return the parser of the command that the words name."""
        parser = self
        for word in sys.argv[1:] if argv is None else argv:
            kinds = next((one for one in parser._actions if isinstance(one, _SubParsersAction)), None)
            if kinds is None:
                break
            parser = kinds.choices.get(word, parser)
        return parser


def example(action: Action) -> str:
    """Return a good value of an option: its default, one of its choices, or what its converter tells."""
    if action.default is not SUPPRESS and (shown := _shown(action.default, SHOWN)):
        return shown
    if action.choices is not None:
        return str(next(iter(action.choices)))
    return getattr(action.type, "example", "") or action.metavar or ""  # type: ignore[return-value]


def _given(action: Action, value: str) -> str:
    return f"{action.option_strings[-1]} {value}".rstrip() if action.option_strings else value


def _shown(value: object, most: int | None = None) -> str:
    """Return a default as a command line spells it, "" if there is none; of several values at most so many."""
    if isinstance(value, (list, tuple)):
        return " ".join(_shown(each) for each in value[:most])
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None or isinstance(value, Namespace) else str(value)


T = TypeVar("T")
SPELLINGS = f"{', '.join(ALGORITHMS)}, with options if need be, as in oktopk:wire=packed:radix=32"
FIGURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Value(Generic[T]):
    """A converter.

    Attributes:
        read: makes the value of its text. Raises ValueError for a wrong one, or ArgumentTypeError that says what is
            wrong with it.
        expected: what it must be, to follow "must be".
        example: the text of a good one.
    """

    read: Callable[[str], T]
    expected: str
    example: str

    def __call__(self, text: str) -> T:
        """Convert; raise ArgumentTypeError for a wrong text."""
        try:
            return self.read(text)
        except ValueError:
            raise ArgumentTypeError(f"must be {self.expected}, got {shlex.quote(text)}") from None


def where(kind: Callable[[str], T], allowed: Callable[[T], object], expected: str, example: str) -> Value[T]:
    """Return a converter to those values of a ``kind`` that are ``allowed``."""

    def read(text: str) -> T:
        value = kind(text)
        if not text or not allowed(value):
            raise ValueError
        return value

    return Value(read, expected, example)


def integer(least: int, most: float = math.inf) -> Value[int]:
    """Return a converter to integers from ``least`` to ``most``."""
    expected = f"an integer {f'>= {least}' if most == math.inf else f'from {least} to {most}'}"
    return where(int, lambda value: least <= value <= most, expected, str(max(least, 2)))


number = where(float, lambda value: 0 <= value < math.inf, "a number >= 0", "0.5")
positive = where(float, lambda value: 0 < value < math.inf, "a number > 0", "0.5")
finite = where(float, math.isfinite, "a number", "0.9")
share = where(float, lambda value: 0 < value <= 1, "in (0, 1]", "0.01")
part = where(float, lambda value: 0 < value < 1, "in (0, 1)", "0.9")
text = where(str, str.strip, "a text that is not empty", "word")


def file(example: str) -> Value[Path]:
    """Return a converter to the path of a file that is there."""
    return where(Path, Path.is_file, "a file that is there", example)


def folder(example: str) -> Value[Path]:
    """Return a converter to the path of a folder that is there."""
    return where(Path, Path.is_dir, "a folder that is there", example)


def new_file(example: str, suffixes: Sequence[str] = ()) -> Value[Path]:
    """Return a converter to the path of a file that can be written: its folder is there, and the suffix is known."""

    def allowed(path: Path) -> bool:
        return path.parent.is_dir() and not path.is_dir() and (not suffixes or path.suffix in suffixes)

    kind = f"a file that ends in {', '.join(suffixes)}" if suffixes else "a file"
    return where(Path, allowed, f"{kind}, in a folder that is there", example)


def new_folder(example: str) -> Value[Path]:
    """Return a converter to the path of a folder that is there or can be made."""

    def can_be_made(folder: Path) -> bool:
        return all(place.is_dir() for place in (folder, *folder.parents) if place.exists())

    return where(Path, can_be_made, "a folder that is there or can be made", example)


def file_or(names: Sequence[str], expected: str, example: str) -> Value[str]:
    """Return a converter to the name of a file that is there, or one of other ``names``."""
    return where(str, lambda given: given in names or Path(given).is_file(), expected, example)


record = new_file("record.json")
figure = new_file("figure.png", FIGURES)
gradients = file_or(list(KINDS), f"{', '.join(KINDS)}, or a file of train/gradients.py", "independent")
output = file_or(["-"], "a file that is there, or -", "job.txt")


def checked(check: Callable[[str], object], example: str, subject: str = "") -> Value[str]:
    """Return a converter to the texts that ``check`` takes; a line has what its ValueError says of the subject."""

    def read(text: str) -> str:
        try:
            check(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error).removeprefix(f"{subject} ")) from None
        return text

    return Value(read, "", example)


algorithm = checked(spelled, "oktopk:wire=packed", "algorithm")
network = checked(networks.named, "10gbe", "network")
every = checked(lambda given: [schedule.length(each) for each in given.split(",")], "30s", "every")
latency = checked(schedule.delay, "50us", "latency")
turns = checked(lambda given: [schedule.link(each) for each in given.split(",")], "1gbit,50mbit", "rate")
rate = checked(schedule.parse, "100mbit", "rate")
any_rate = checked(schedule.bits, "400gbit", "rate")
chaos = checked(drawing.parse, "mtti=60,seed=1", "chaos")
