"""The parser of command lines, and converters of values.

An error is one line, printed once, and exit status 2. A converter is a ``type=`` of `argparse` that knows expected
values and an example.
"""

from __future__ import annotations

import math
import re
import sys
import time
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Generic, NoReturn, TypeVar, cast

from sparse_mpi.checks import meant
from sparse_mpi.comm.job.launcher import PATIENCE, first_to_say
from sparse_mpi.comm.runtime import told_rank

T = TypeVar("T")
FIGURES = (".png", ".svg", ".pdf")
WORDS = "words"  # the attribute for words behind a --, of parsers with a default for it
CHOICE = re.compile(r"(argument .*): invalid choice: (.*) \(choose from (.*)\)", re.DOTALL)  # argparse's own message
REMEDIES = ("for example", "did you mean", "was removed in")


class Refused(SystemExit):
    """Raised for a wrong command line, with a line about the error; exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 2


@contextmanager
def refusing(before: str, after: str = "") -> Iterator[None]:
    """Raise Refused for a ValueError within the block: its text, between ``before`` and ``after``."""
    try:
        yield
    except ValueError as error:
        raise Refused(f"{before}{error}{after}") from None


class Store(Action):
    """Stores a value, as argparse's own action does; the help shows the default."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        text = self.help or ""
        if self.option_strings and not self.required and text != SUPPRESS and "default" not in text:
            default = _shown(self.default).replace("%", "%%") or "none"
            self.help = f"{text} (default: {default})".strip()

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: object, option: str | None = None) -> None:
        setattr(namespace, self.dest, values)


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)


class _HelpAll(Action):
    def __call__(self, parser: ArgumentParser, *ignored: object) -> None:
        cast(Parser, parser).print_all_help()
        parser.exit()


class Parser(ArgumentParser):
    """An `ArgumentParser` with errors of one line: the option, the expected value, the given one, and an example."""

    def __init__(self, *args: Any, most_used: Sequence[str] = (), **options: Any) -> None:
        """Make a parser; ``--help`` shows only the options ``most_used``, if any, and ``--help-all`` all."""
        super().__init__(*args, **{"formatter_class": RawDescriptionHelpFormatter, **options})
        self.register("action", None, Store)
        self._shown = {"-h", "--help-all", *most_used} if most_used else set()
        if most_used:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all options, and exit")

    def print_all_help(self) -> None:
        shown, self._shown = self._shown, set()
        self.print_help()
        self._shown = shown

    def format_help(self) -> str:
        texts = {action: action.help for action in self._actions}
        try:
            for action in self._actions:
                if self._shown and self._shown.isdisjoint(action.option_strings or [*self._shown]):
                    action.help = SUPPRESS
            return super().format_help()
        finally:
            for action, text in texts.items():
                action.help = text

    def error(self, message: str) -> NoReturn:
        """Print one line, and end with status 2.

        Other ranks wait for the first, because mpiexec ends them with it. They print the line if the first has no
        error, as for a file on its host only.
        """
        if told_rank():
            time.sleep(PATIENCE)
        if found := CHOICE.fullmatch(message):
            given, names = found[2].strip("'"), [name.strip("'") for name in found[3].split(", ")]
            remedy = meant(given, names) or f"; for example {names[0]}"
            message = f"{found[1]}: must be one of {', '.join(names)}, got {quote(given)}{remedy}"
        line = f"{self.prog}: error: {' '.join(message.split())}"
        if first_to_say(line):
            print(line, file=sys.stderr, flush=True)
        raise Refused(message)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Return the options as attributes, or end with a line about the first wrong one.

        A parser without ``--help``, which looks at some options first, returns unknown words too.
        """
        given = list(sys.argv[1:] if args is None else args)
        behind = given.index("--") if WORDS in self._defaults and "--" in given else len(given)
        found, unknown = super().parse_known_args(given[:behind], namespace)
        if given[behind:]:
            setattr(found, WORDS, given[behind + 1 :])
        if unknown and self.add_help:
            options = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            own = "; a script's own stand behind --" if WORDS in self._defaults else ""
            every = f"{own}; {self.prog} {'--help-all' if self._shown else '--help'} shows all options"
            self.error(f"unknown argument {unknown[0]!r}{meant(unknown[0].partition('=')[0], options) or every}")
        return found, unknown


@dataclass(frozen=True)
class Value(Generic[T]):
    """A converter."""

    read: Callable[[str], T]  # of a text; raises ValueError for a wrong one, or ArgumentTypeError with the reason
    expected: str  # follows "must be"
    example: str

    def __call__(self, text: str) -> T:
        try:
            return self.read(text)
        except ArgumentTypeError as error:
            wrong = str(error)
        except ValueError:
            wrong = f"must be {self.expected}, got {quote(text)}"
        remedy = "" if any(remedy in wrong for remedy in REMEDIES) else f"; for example {self.example}"
        raise ArgumentTypeError(f"{wrong}{remedy}")


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


file = partial(where, Path, Path.is_file, "a file that is there")
folder = partial(where, Path, Path.is_dir, "a folder that is there")


def new_file(example: str, suffixes: Sequence[str] = ()) -> Value[Path]:
    def allowed(path: Path) -> bool:
        return path.parent.is_dir() and not path.is_dir() and (not suffixes or path.suffix in suffixes)

    kind = f"a file that ends in {', '.join(suffixes)}" if suffixes else "a file"
    return where(Path, allowed, f"{kind}, in a folder that is there", example)


def new_folder(example: str) -> Value[Path]:
    def can_be_made(folder: Path) -> bool:
        return all(place.is_dir() for place in (folder, *folder.parents) if place.exists())

    return where(Path, can_be_made, "a folder that is there or can be made", example)


record = new_file("record.json")
figure = new_file("figure.png", FIGURES)


def checked(check: Callable[[str], object], example: str, subject: str = "") -> Value[str]:
    """Return a converter to the texts that ``check`` takes; errors have its words behind the subject."""

    def read(text: str) -> str:
        try:
            check(text)
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(str(error).removeprefix(f"{subject} ")) from None
        return text

    return Value(read, "", example)


def _spelled(text: str) -> object:
    from sparse_mpi.reduction.arguments import spelled  # which loads all algorithms

    return spelled(text)


algorithm = checked(_spelled, "oktopk:wire=packed", "algorithm")
