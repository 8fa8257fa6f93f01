"""Tables of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class Column(NamedTuple):
    title: str
    width: int  # in characters; negative where it is flush left
    value: str | Callable[[Any], Any]  # the name of a row's item or attribute, or a function of the row; None: a dash
    form: str = ""  # for `format`
    scale: float = 1

    def text(self, row: Any) -> str:
        if callable(self.value):
            value = self.value(row)
        else:
            value = row[self.value] if isinstance(row, Mapping) else getattr(row, self.value)
        return "-" if value is None else format(value if self.scale == 1 else self.scale * value, self.form)

    def pad(self, text: str) -> str:
        return f"{text:<{-self.width}}" if self.width < 0 else f"{text:>{self.width}}"


class Table:
    def __init__(self, *columns: Column) -> None:
        self.columns = columns

    @property
    def head(self) -> str:
        return " ".join(column.pad(column.title) for column in self.columns)

    def row(self, row: Any) -> str:
        return " ".join(column.pad(column.text(row)) for column in self.columns)

    def lines(self, rows: Iterable[Any]) -> list[str]:
        return [self.head, *map(self.row, rows)]
