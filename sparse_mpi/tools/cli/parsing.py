"""The parser of every command line: what is wrong is said in one line, once, and the exit status is 2."""

from __future__ import annotations

import sys
import time
from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
    _SubParsersAction,
)
from collections.abc import Sequence
from shlex import quote
from typing import Any, NoReturn

from sparse_mpi.checks import meant
from sparse_mpi.comm.runtime import PATIENCE, first_to_say, told_rank

STATUS = 2  # of a process whose command line is wrong
SHOWN = 2  # values of an example


class Refused(SystemExit):
    """Raised for a command line that is wrong, with the line that says so; the exit status is 2.

    `Parser.refuse` prints the line of one that is raised after parsing.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = STATUS


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
