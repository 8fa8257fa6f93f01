"""Accept the spellings of release 0.1 for one more release, with a warning that says what to write instead."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
NOTHING: Mapping[str, str] = {}


def accepts_former(
    *positional: str, renamed: Mapping[str, str] = NOTHING, aliases: Mapping[str, str] = NOTHING
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that translates former calls of a function into calls of its present signature.

    Args:
        positional: today's names of the keyword-only arguments that could be given by position, in their former order.
        renamed: today's name of each argument that has a new one. The former name causes a DeprecationWarning.
        aliases: likewise, for second names that stay: without a warning.

    The decorated function raises TypeError where an argument is given twice, whatever the spellings.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")
        parameters = signature(function).parameters.values()
        allowed = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)

        @wraps(function)
        def translated(*args: Any, **kwargs: Any) -> R:
            # Name the arguments that were given by position; a call with too many is Python's to refuse.
            if allowed < len(args) <= allowed + len(positional):
                named = dict(zip(positional, args[allowed:], strict=False))
                args = args[:allowed]
                for argument in named:
                    if argument in kwargs:
                        raise TypeError(f"{name}() got {argument} twice, by position and as {argument}=")
                spelled = ", ".join(f"{argument}=..." for argument in named)
                _warn(f"{name}() takes these arguments by keyword only: write {spelled}")
                kwargs |= named
            # Rename arguments that were given by another name.
            for other, argument in [*renamed.items(), *aliases.items()]:
                if other not in kwargs:
                    continue
                if argument in kwargs:
                    raise TypeError(
                        f"{name}() takes {argument} or {other}, not both, "
                        f"got {argument}={kwargs[argument]!r} and {other}={kwargs[other]!r}"
                    )
                if other in renamed:
                    _warn(f"{name}({other}=...) is deprecated: write {argument}=...")
                kwargs[argument] = kwargs.pop(other)
            return function(*args, **kwargs)

        return translated

    return decorate


def warn_renamed(former: str, name: str) -> None:
    """Warn the user of a deprecated attribute, whose accessor calls this, that it is called ``name`` today."""
    _warn(f"{former} is deprecated: write {name}", 4)


class _FormerModule(ModuleType):
    """A module under its former name: whose names come, with a warning, from the module of today."""

    def __init__(self, name: str, today: str) -> None:
        super().__init__(name, f"Former name of `{today}`, deprecated.")
        self.__dict__["_today"] = today
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        today = self.__dict__["_today"]
        if name.startswith("__"):
            raise AttributeError(f"module {today!r} has no attribute {name!r}")
        _warn(f"{self.__name__} is deprecated: write {today}", 3)
        return getattr(import_module(today), name)


def register_former_modules(package: str, renamed: Mapping[str, str]) -> None:
    """Let the modules of ``package`` be imported by their former names, the keys of ``renamed``, too."""
    for former, today in renamed.items():
        sys.modules[f"{package}.{former}"] = _FormerModule(f"{package}.{former}", f"{package}.{today}")


def _warn(text: str, stacklevel: int = 3) -> None:
    """Warn the caller of the function that called this one, or one further up."""
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
