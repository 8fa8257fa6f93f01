"""The description for an index, where links of README.md lead into the repository; all else is in setup.cfg."""

import re
from pathlib import Path

from setuptools import setup

SOURCE = "https://github.com/sparse-mpi/sparse_mpi/blob/main/"
FIGURES = "https://raw.githubusercontent.com/sparse-mpi/sparse_mpi/main/"
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


def absolute(page: str) -> str:
    """Return a page of the repository's root with absolute links."""
    return LINK.sub(lambda link: f"{link[1]}{link[2]}({FIGURES if link[1] else SOURCE}{link[3]})", page)


if __name__ == "__main__":
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(long_description=absolute(readme), license_expression="MIT")
