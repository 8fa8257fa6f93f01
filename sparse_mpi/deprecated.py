"""Second names of arguments, and former names of modules and members, which cause a warning with today's name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from importlib import import_module
from inspect import getattr_static, signature
from itertools import count
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar

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


# Former members of a base class. Each class that has the one of today gets the former one beside it, and the other way
# round: both are of that very class, so that ``super()`` finds either.


class Former(NamedTuple):
    """A former member: the one of today that stands for it, what to write, and how to read it from that."""

    today: str
    write: str
    read: Callable[[Any], Any] = lambda member: member


def former_traits(renamed: Mapping[str, str]) -> dict[str, Former]:
    """Return former members by name, which are traits today."""
    return {name: Former("traits", f"traits.{trait}", attrgetter(trait)) for name, trait in renamed.items()}


class _Reader:
    """A former member of the instances of a class, not of the class: a dataclass would take it for a default."""

    def __init__(self, home: type, name: str, former: Former) -> None:
        self.home, self.name, self.former = home, name, former

    def __get__(self, instance: object, kind: type) -> Any:
        if instance is None:
            raise AttributeError(f"type object {kind.__name__!r} has no attribute {self.name!r}")
        _warn(f"{self.name} is deprecated: write {self.former.write}")
        return self.read(instance)

    def read(self, instance: object) -> Any:
        member = getattr(self.home, self.former.today)
        return self.former.read(member.__get__(instance) if hasattr(member, "__get__") else member)


def read_former(instance: object, name: str) -> Any:
    """Return a member by its former name, without a warning."""
    found = getattr_static(type(instance), name)
    return found.read(instance) if isinstance(found, _Reader) else getattr(instance, name)


def accept_former_members(
    kind: Any, former: Mapping[str, Former], changed: Mapping[str, tuple[str, Callable[[Any], Any]]]
) -> None:
    """Give a class that is being made all ``former`` members, and with a warning those of today that it lacks.

    Members that have ``changed`` are made of those that lack an argument, which is given with the function to do so.
    """
    own, above, texts = dict(vars(kind)), kind.__mro__[1:], []
    made: dict[str, Any] = {}
    traits: dict[str, str] = {}  # and former names

    def make(today: str, name: str = "") -> None:
        before = own.get(today, lambda self, *values: getattr(super(kind, self), today)(*values))
        made[today] = changed[today][1](before) if today in changed else lambda self, *v: getattr(self, name)(*v)

    for today, (argument, _) in changed.items():
        if today in own and argument not in signature(own[today]).parameters:
            texts.append(f"{kind.__name__}.{today} must take {argument}")
            make(today)
    current = own.keys() - made.keys()
    for name, (today, write, _) in former.items():
        inherited = next((vars(base)[name] for base in above if name in vars(base)), None)
        if inherited is not None and not isinstance(inherited, _Reader):
            continue  # a member of its own, as a hyperparameter that is called momentum
        if name in own and today not in current:
            texts.append(f"{kind.__name__}.{name} is deprecated: write {write}")
            make(today, name)
            traits |= {write.partition(".")[2]: name} if today == "traits" else {}
        elif name not in own and (today in current or inherited is None):
            home = kind if today in current else next(base for base in above if today in vars(base))
            setattr(kind, name, _Reader(home, name, former[name]))
    if "traits" in made:
        made["traits"] = property(
            lambda self: replace(super(kind, self).traits, **{trait: getattr(self, traits[trait]) for trait in traits})
        )
    if texts:
        # To the author: behind `__init_subclass__` and the metaclass
        author = next(n for n in count(3) if sys._getframe(n).f_globals["__name__"] not in ("abc", "typing"))
        _warn("; ".join(texts), author + 1)
    for today, member in made.items():
        setattr(kind, today, member)
