"""No command: installations of before name this module in their entry points until ./bench is installed again."""

from __future__ import annotations


def add_parser(commands: object) -> None:
    """Declare nothing."""
