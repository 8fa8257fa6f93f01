"""Command lines, of ``python -m sparse_mpi`` and of programs outside: the parser, and converters of values.

What is wrong is said in one line, once, and the exit status is 2. A converter is a ``type=`` of `argparse` that knows
what it expects, and an example.
"""

from __future__ import annotations

import math
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
)
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Generic, NoReturn, TypeVar

from sparse_mpi.checks import meant
from sparse_mpi.comm.job.launcher import PATIENCE, first_to_say
from sparse_mpi.comm.runtime import told_rank

T = TypeVar("T")
STATUS = 2  # of a process whose command line is wrong
SHOWN = 2  # values of an example
FIGURES = (".png", ".svg", ".pdf")


class Refused(SystemExit):
    """Raised for a command line that is wrong, with the line that says so; the exit status is 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = STATUS


@contextmanager
def refusing(before: str, after: str = "") -> Iterator[None]:
    """Raise Refused for a ValueError within the ``with`` block: its text, between ``before`` and ``after``."""
    try:
        yield
    except ValueError as error:
        raise Refused(f"{before}{error}{after}") from None


class Group:
    def __init__(self, group: Any, declared: dict[str, Action]) -> None:
        self._group, self._declared = group, declared

    def __getattr__(self, name: str) -> Any:  # all that argparse asks of its own groups
        return getattr(self._group, name)

    def add_argument(self, *names: str, **options: Any) -> Action:
        """Declare an option: an unknown choice gets the nearest one, and the help has the default."""
        return _declare(self._group.add_argument, self._declared, names, options)

    def add_mutually_exclusive_group(self, required: bool = False) -> Group:
        return Group(self._group.add_mutually_exclusive_group(required=required), self._declared)


class Parser(ArgumentParser):
    """An `ArgumentParser` whose errors are one line: the option, the expected value, the given one, and an example."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.declared: dict[str, Action] = {}  # options and arguments by their spellings
        self.commands: dict[str, Parser] = {}
        self._named: str | None = None  # what stands for the command
        options |= {"exit_on_error": False}  # but raise ArgumentError, which gets an example
        super().__init__(*args, **{"formatter_class": RawDescriptionHelpFormatter, **options})

    def add_argument(self, *names: str, **options: Any) -> Action:
        return _declare(super().add_argument, self.declared, names, options)

    def add_argument_group(self, *args: Any, **options: Any) -> Any:
        return Group(super().add_argument_group(*args, **options), self.declared)

    def add_mutually_exclusive_group(self, required: bool = False) -> Any:
        return Group(super().add_mutually_exclusive_group(required=required), self.declared)

    def add_subparsers(self, **options: Any) -> Any:
        made = super().add_subparsers(**options)
        self.commands, self._named = made.choices, made.metavar  # type: ignore[assignment]
        return made

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
        """Print the line of an error found after parsing, as the parser of the command in ``argv`` would."""
        self._of_command(argv).error(str(refused))

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the options as attributes, or end with a line about the first that is wrong or unknown."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self._of_command(args)
            parser.error(f"unknown argument {unknown[0]!r}{parser._advice(unknown[0])}")
        return found

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Return the options as attributes, and unknown words, or end with a line about the first that is wrong."""
        try:
            return super().parse_known_args(args, namespace)
        except ArgumentError as error:
            words = sys.argv[1:] if args is None else args
            command = next((word for word in words if not word.startswith("-")), "")
            if command not in self.commands and error.argument_name == self._named is not None:
                self.error(f"argument {error.argument_name}: {_unknown(command, self.commands)}")
            self.error(f"{error}{self._remedy(error)}")

    def _remedy(self, error: ArgumentError) -> str:
        if "not allowed with" in error.message:
            return "; leave out one of them"
        action = self.declared.get((error.argument_name or "").rpartition("/")[2])
        if action is None or any(remedy in error.message for remedy in ("for example", "did you mean")):
            return ""
        value = example(action)
        return f"; for example {f'{action.option_strings[-1]} {value}'.rstrip() if action.option_strings else value}"

    def _advice(self, unknown: str) -> str:
        options = [name for name in self.declared if name.startswith("--")]
        return meant(unknown.partition("=")[0], options) or f"; {self.prog} --help shows all options"

    def _of_command(self, argv: Sequence[str] | None) -> Parser:
        parser = self
        for word in sys.argv[1:] if argv is None else argv:
            parser = parser.commands.get(word, parser)
        return parser


def _declare(
    add: Callable[..., Action], declared: dict[str, Action], names: Sequence[str], options: dict[str, Any]
) -> Action:
    action = add(*names, **_with_default(names, _with_choices(options)))
    declared |= dict.fromkeys([*action.option_strings, str(action.metavar or action.dest)], action)
    return action


def example(action: Action) -> str:
    """Return a good value of an option: its default, or the example of its converter."""
    if action.default is not SUPPRESS and (shown := _shown(action.default, SHOWN)):
        return shown
    return getattr(action.type, "example", "") or str(action.metavar or "")


def _shown(value: object, most: int | None = None) -> str:
    """Return a default as a command line spells it, "" if there is none; of several values ``most`` at most."""
    if isinstance(value, (list, tuple)):
        return " ".join(_shown(each) for each in value[:most])
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None or isinstance(value, Namespace) else str(value)


def _with_default(names: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    text = options.get("help") or ""
    takes_no_value = "action" in options or options.get("nargs") == 0 or not names[0].startswith("-")
    if takes_no_value or options.get("required") or text == SUPPRESS or "default" in text:
        return options
    default = _shown(options.get("default")).replace("%", "%%") or "none"
    return options | {"help": f"{text} (default: {default})".strip()}


def _with_choices(options: dict[str, Any]) -> dict[str, Any]:
    options = dict(options)
    choices = options.pop("choices", None)
    if choices is None:
        return options
    return {"metavar": f"{{{','.join(map(str, choices))}}}"} | options | {"type": one_of(choices, options.get("type"))}


@dataclass(frozen=True)
class Value(Generic[T]):
    """A converter."""

    read: Callable[[str], T]  # of a text; raises ValueError for a wrong one, or ArgumentTypeError with the reason
    expected: str  # follows "must be"
    example: str

    def __call__(self, text: str) -> T:
        try:
            return self.read(text)
        except ValueError:
            raise ArgumentTypeError(f"must be {self.expected}, got {quote(text)}") from None


def one_of(choices: Collection[T], kind: Callable[[str], T] | None = None) -> Value[T]:
    by_text = {str(choice): choice for choice in choices}

    def read(text: str) -> T:
        value = by_text.get(text) if kind is None else kind(text)
        if value is None or value not in choices:
            raise ArgumentTypeError(_unknown(text, by_text))
        return value

    return Value(read, f"one of {', '.join(by_text)}", next(iter(by_text)))


def _unknown(text: str, names: Collection[str]) -> str:
    return f"must be one of {', '.join(names)}, got {quote(text)}{meant(text, names) or f'; for example {[*names][0]}'}"


def where(kind: Callable[[str], T], allowed: Callable[[T], object], expected: str, example: str) -> Value[T]:
    def read(text: str) -> T:
        value = kind(text)
        if not text or not allowed(value):
            raise ValueError
        return value

    return Value(read, expected, example)


def integer(least: int, most: float = math.inf) -> Value[int]:
    expected = f"an integer {f'>= {least}' if most == math.inf else f'from {least} to {most}'}"
    return where(int, lambda value: least <= value <= most, expected, str(max(least, 2)))


number = where(float, lambda value: 0 <= value < math.inf, "a number >= 0", "0.5")
positive = where(float, lambda value: 0 < value < math.inf, "a number > 0", "0.5")
finite = where(float, math.isfinite, "a number", "0.9")
share = where(float, lambda value: 0 < value <= 1, "in (0, 1]", "0.01")
part = where(float, lambda value: 0 < value < 1, "in (0, 1)", "0.9")
text = where(str, str.strip, "a text that is not empty", "word")


def file(example: str) -> Value[Path]:
    return where(Path, Path.is_file, "a file that is there", example)


def folder(example: str) -> Value[Path]:
    return where(Path, Path.is_dir, "a folder that is there", example)


def new_file(example: str, suffixes: Sequence[str] = ()) -> Value[Path]:
    def allowed(path: Path) -> bool:
        return path.parent.is_dir() and not path.is_dir() and (not suffixes or path.suffix in suffixes)

    kind = f"a file that ends in {', '.join(suffixes)}" if suffixes else "a file"
    return where(Path, allowed, f"{kind}, in a folder that is there", example)


def new_folder(example: str) -> Value[Path]:
    def can_be_made(folder: Path) -> bool:
        return all(place.is_dir() for place in (folder, *folder.parents) if place.exists())

    return where(Path, can_be_made, "a folder that is there or can be made", example)


def file_or(names: Sequence[str], expected: str, example: str) -> Value[str]:
    return where(str, lambda given: given in names or Path(given).is_file(), expected, example)


record = new_file("record.json")
figure = new_file("figure.png", FIGURES)
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


def _spelled(text: str) -> object:
    from sparse_mpi.reduction.arguments import spelled  # which loads all algorithms

    return spelled(text)


algorithm = checked(_spelled, "oktopk:wire=packed", "algorithm")
