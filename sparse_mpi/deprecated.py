"""Second names of arguments, and former names of modules and members, which cause a warning with today's name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def takes_alias(alias: str, argument: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets a function take its keyword ``argument`` by a second name too, ``alias``.

    The decorated function raises TypeError where both are given.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def translated(*args: Any, **kwargs: Any) -> R:
            if alias in kwargs:
                if argument in kwargs:
                    raise TypeError(
                        f"{function.__qualname__}() takes {argument} or {alias}, not both, "
                        f"got {argument}={kwargs[argument]!r} and {alias}={kwargs[alias]!r}"
                    )
                kwargs[argument] = kwargs.pop(alias)
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
