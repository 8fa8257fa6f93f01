"""Which tests can reach a changed file, through what they import or name.

    make test CHANGED=1              what differs from the branch that this one follows, or from the last commit
    make test CHANGED=v0.4.0         what differs from a commit
    python -m tests.changed 1        prints the changed files and these tests, and runs nothing

A file *reaches* what it imports at any depth, and the modules and paths of this repository that stand in its strings,
as in the command of a job. A changed file that nobody reaches and that is no page is taken to concern everything.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import sparse_mpi

ROOT = Path(__file__).parents[1]
BASES = ("", "bench/", "train/")  # folders that imports begin in
NAME = re.compile(r"\w+(?:\.\w+)*")
IMPORT = re.compile(r"from ([\w.]+) import ([\w, ]+)")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*")
# Folders of tests that read what they look at: every Python file, every page
PAGES = r"\.md$|^(docs|examples)/"
READERS = {"tests/house/": r"\.py$|\.md$", "tests/docs/": PAGES}
# Everything depends on these without a word
EVERYTHING = r"^(Makefile|(bench/)?setup\.cfg|pyproject\.toml|constraints\.txt|\.ci/.*|tests/[^/]+|tests/fakes/.*)$"


def git(*words: str) -> list[str]:
    """Return the lines that git prints. Raises SystemExit: git fails; says why."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"CHANGED asks git what differs: git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def changed(since: str) -> list[str]:
    """Return the paths that differ from the commit ``since``; "1" is where this branch left its upstream, or HEAD."""
    if since == "1":
        upstream = git("for-each-ref", "--format=%(upstream)", *git("rev-parse", "--symbolic-full-name", "HEAD"))
        since = git("merge-base", "HEAD", upstream[0])[0] if any(upstream) else "HEAD"
    return sorted({*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")})


class Files:
    """The files of a checkout, and which of them each file reaches in one step."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = sorted(paths)
        self.modules = {
            path.removeprefix(base).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
            for base in BASES
            for path in self.paths
            if path.startswith(base) and path.endswith(".py")
        }
        self.under = {path: [path] for path in self.paths}  # a file or a folder, and the files there
        for path in self.paths:
            for folder in map(str, [*Path(path).parents][:-1]):
                self.under.setdefault(folder, []).append(path)

    def module(self, name: str) -> str | None:
        """Return the file of a module, or of the one that a name in full is of."""
        first, _, rest = name.partition(".")
        if first == "sparse_mpi" and rest.partition(".")[0] in sparse_mpi.LAZY:
            name = f"sparse_mpi.{sparse_mpi.LAZY[rest.partition('.')[0]]}"
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return self.modules.get(name)

    def named(self, text: str, path: str) -> Iterator[str | None]:
        """Yield the files of the modules and paths that stand in a string of a file."""
        if not path.startswith("tests/"):  # names in errors are advice
            yield self.modules.get(text) if "." in text else None
            return
        for source, names in IMPORT.findall(text):
            yield from (self.module(f"{source}.{name.strip()}") for name in names.split(","))
        yield from (self.module(word) for word in NAME.findall(text) if "." in word)
        for word in PATH.findall(text):
            if word == "sparse_mpi":
                yield "sparse_mpi/__main__.py" if word == text or "-m sparse_mpi" in text else None
            elif "/" in word or word == text != "tests":
                yield from self.under.get(word, ())

    @cache  # noqa: B019  there is one object
    def reached(self, path: str) -> frozenset[str]:
        """Return the files that a file imports or names, the data beside it, and the conftest.py of its folders."""
        if not path.endswith(".py") or path == "sparse_mpi/__init__.py":  # whose names are imported when they are used
            return frozenset()
        folders = [*map(str, Path(path).parents)][:-1]
        found: set[str | None] = {f"{folder}/conftest.py" for folder in folders} & {*self.paths}
        if folders:
            beside = (other for other in self.under[folders[0]] if other.rpartition("/")[0] == folders[0])
            found |= {other for other in beside if not other.endswith((".py", ".md"))}
        tree = ast.parse((ROOT / path).read_text())
        docstrings = set()
        for node in tree.body if re.fullmatch(r"tests/\w+\.py", path) else ast.walk(tree):  # a changed one: EVERYTHING
            if isinstance(node, ast.Expr):
                docstrings.add(node.value)
            elif isinstance(node, ast.Import):
                found |= {self.module(alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                package = path.split("/")[: -node.level] if node.level else []
                source = ".".join([*package, *filter(None, [node.module])])
                found |= {self.module(f"{source}.{alias.name}") for alias in node.names}
            elif isinstance(node, ast.Attribute) and (name := ast.unparse(node)).startswith("sparse_mpi."):
                found.add(self.module(name))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                found.update(self.named(node.value, path))
        return frozenset(filter(None, found))

    def below(self, path: str) -> set[str]:
        """Return a file and all that it reaches."""
        found, waiting = {path}, [path]
        while waiting:
            new = self.reached(waiting.pop()) - found
            found |= new
            waiting += new
        return found


def concerned(paths: Iterable[str], files: Files) -> list[str]:
    """Return the files of tests that can reach one of the changed ``paths``."""
    tests, paths = [path for path in files.paths if re.match(r"tests/.*/test_\w+\.py$", path)], set(paths)
    below = {test: files.below(test) for test in tests}
    nobodys = {path for path in paths if not re.search(PAGES, path)}.difference(*below.values())
    if nobodys or any(re.search(EVERYTHING, path) for path in paths):
        return tests
    readers = tuple(folder for folder, what in READERS.items() if any(re.search(what, path) for path in paths))
    return [test for test in tests if test.startswith(readers) or below[test] & paths]


@cache
def concerned_since(since: str) -> list[str]:
    """Return the files of tests that can reach what has changed since a commit."""
    return concerned(changed(since), Files({*git("ls-files"), *git("ls-files", "--others", "--exclude-standard")}))


if __name__ == "__main__":
    for title, what in (("changed:", changed), ("tests that can reach it:", concerned_since)):
        print(title, *(what(sys.argv[1]) or ["none"]), sep="\n    ")
