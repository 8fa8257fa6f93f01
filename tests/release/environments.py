"""Virtual environments that know nothing of this checkout, and what is run in them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

KEPT = ("HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")  # and all that pip reads
INSTALLING = 600.0


class Failed(RuntimeError):
    """A step that did not do what it should; the message says which, and what came of it."""


def find_python(version: str) -> Path | None:
    """Return the Python of a version such as ``"3.12"``: on the path, or among pyenv's; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    for file in filter(None, found):
        ask = [str(file), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        told = subprocess.run(ask, capture_output=True, text=True, timeout=60)
        if told.returncode == 0 and told.stdout.strip() == version:  # pyenv's shims may lead nowhere
            return Path(file)
    return None


class Environment:
    """A new virtual environment.

    Args:
        folder: where it is made.
        python: whose environment it is.
    """

    def __init__(self, folder: Path, python: Path | str) -> None:
        self.folder = folder
        self.work = folder / "work"  # an empty folder to run in, from which nothing of this checkout is found
        made = subprocess.run([str(python), "-m", "venv", str(folder)], capture_output=True, text=True, timeout=120)
        if made.returncode:
            raise Failed(f"no virtual environment of {Path(python).name}: {_last(made)}")
        self.work.mkdir()

    def install(self, *what: str) -> None:
        """Install from the index that pip is configured for.

        Raises:
            Failed: something cannot be installed.
        """
        self.run("-m", "pip", "install", "--disable-pip-version-check", "--quiet", *what, seconds=INSTALLING)

    def run(self, *arguments: str, seconds: float) -> str:
        """Run Python and return what it prints.

        Raises:
            Failed: it ends with another status than 0, or takes too long.
        """
        done = self.call("python", *arguments, seconds=seconds)
        if done.returncode:
            raise Failed(f"python {' '.join(arguments[:3])} ... ends with {done.returncode}: {_last(done)}")
        return done.stdout

    def call(self, program: str, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment to its end, whatever that is.

        Raises:
            Failed: it takes too long.
        """
        command = [str(self.folder / "bin" / program), *arguments]
        try:
            return subprocess.run(
                command, cwd=self.work, env=self._variables(), capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{program} {' '.join(arguments[:3])} ... takes more than {seconds:g} s") from None

    def _variables(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("PIP_")}
        return kept | {"PATH": os.pathsep.join([str(self.folder / "bin"), "/usr/bin", "/bin"])}


def _last(done: subprocess.CompletedProcess[str]) -> str:
    return " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
