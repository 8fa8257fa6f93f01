"""Replay a newcomer's first hour from an empty home, with a clock: install, a sum, three lines, a verdict.

    python -m tests.docs.first_hour
    python -m tests.docs.first_hour --wheels

What is done is what the pages say, in their order: their commands, in one shell, and their Python. The checkout is a
clone, the home and the folder of each tutorial are empty, and no variable is set but for those of pip. With
``--wheels`` both packages are built, and there is no checkout: what README installs from it comes from the wheels, and
its commands that need it are left out. Hosts can only be emulated by root; elsewhere the blocks for that are left out,
and this is told. It fails if a kernel is compiled after the step that installs and compiles.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparse_mpi.cli.values import Parser
from sparse_mpi_bench.emulation import hosts

from .pages import ROOT, Block, Page

PAGES = ("README.md", "docs/tutorials/one-process.md", "docs/tutorials/three-lines.md", "docs/guides/advise.md")
MINUTES = 15
KEPT = re.compile(r"PIP_\w+|\w+_proxy|\w+_PROXY|SSL_CERT_\w+|REQUESTS_CA_BUNDLE")  # how pip reaches its index
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
EMULATED = r"bench network|compare\.json"
MARK = "@first-hour "
FROM_CHECKOUT = r"-e '\.(\[[\w,]+\])' -e \./bench"  # what README installs
NEEDS_CHECKOUT = r"^make "
CACHES = "*.nbi"  # Numba's indices, each written when a kernel was compiled
SHOWN = 60  # characters of a step, and lines of what failed


class Step(NamedTuple):
    """A block of a page, as lines for bash."""

    page: str
    title: str
    lines: str


def steps(folder: Path) -> Iterator[Step]:
    """Yield what the pages have one do, in ``folder``, which has the clone ``sparse_mpi``."""
    for name in PAGES:
        page = Page(name, (folder / "sparse_mpi" / name).read_text())
        place = folder / ("sparse_mpi" if name == "README.md" else Path(name).stem)
        place.mkdir(exist_ok=True)
        for block in page.files():
            (place / str(block.saved)).write_text(block.code)
        typed = [block.code for block in page.run if block.kind == "python"]
        if typed:
            (place / "typed.py").write_text("\n".join(typed))
            yield Step(name, "its Python", f"cd {shlex.quote(str(place))}\npython typed.py\n")
        for block in filter(is_replayed, page.blocks):
            yield Step(name, title(block), f"cd {shlex.quote(str(place))}\n{block.code}\n")


def is_replayed(block: Block) -> bool:
    """Tell if a block has commands for this hour: also those that nothing else runs, because of it."""
    due = block.run or Path(__file__).name in block.marks.get("not run", "")
    return block.kind == "shell" and block.saved is None and due and not block.slurm


def title(block: Block) -> str:
    first = block.code.strip().splitlines()[0].rstrip(" \\")
    return first if len(first) <= SHOWN else first[: SHOWN - 3] + "..."


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    kept |= {"PIP_CONFIG_FILE": str(settings)} if settings.exists() else {}
    return kept | {"HOME": str(home), "PATH": PATH, "LANG": "C.UTF-8"}


def from_wheels(folder: Path, todo: list[Step]) -> list[Step]:
    """Build both packages, take the checkout away but for README's files, and return the steps that do without it."""
    checkout, kept = folder / "sparse_mpi", ("constraints.txt", "example.py")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "wheels")]
    subprocess.run([*command, str(checkout), str(checkout / "bench")], check=True)
    for path in checkout.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    bench, package = sorted((folder / "wheels").glob("*.whl"), key=lambda wheel: "bench" not in wheel.name)
    return [
        step._replace(lines=re.sub(FROM_CHECKOUT, lambda found: f"'{package}{found[1]}' {bench}", step.lines))
        for step in todo
        if not re.search(NEEDS_CHECKOUT, step.lines, re.M)
    ]


def compiled_late(folder: Path, since: float) -> list[str]:
    """Return the kernels that were compiled after a time, by their caches."""
    return sorted(path.name for path in folder.rglob(CACHES) if path.stat().st_mtime > since)


def replay(folder: Path, wheels: bool) -> float:
    """Make what the steps need, run them in one shell, and return the seconds that they took.

    Raises:
        SystemExit: a step failed, or one after the first compiled a kernel.
    """
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder / "sparse_mpi")], check=True)
    (folder / "home").mkdir()
    todo = list(steps(folder))
    if wheels:
        todo = from_wheels(folder, todo)
    if lacks := hosts.missing():
        told = [step for step in todo if re.search(EMULATED, step.lines)]
        todo = [step for step in todo if step not in told]
        print(f"left out, for no hosts can be emulated here ({lacks[0]}): {'; '.join(step.title for step in told)}")
    script = "".join(f"echo '{MARK}{number}'\n{step.lines}" for number, step in enumerate(todo))
    compiled = folder / "compiled"
    script = script.replace(f"echo '{MARK}1'", f"touch {shlex.quote(str(compiled))}\necho '{MARK}1'")
    seconds = clocked(todo, script, environment(folder / "home"))
    if late := compiled_late(folder, compiled.stat().st_mtime):
        raise SystemExit(f"{len(late)} kernels were compiled after `doctor --compile`: {', '.join(late)}")
    print(f"{len(list(folder.rglob(CACHES)))} kernels in caches, none compiled after the first step")
    return seconds


def clocked(todo: list[Step], script: str, variables: dict[str, str]) -> float:
    """Run a script of all steps, print the clock as each ends, and return the seconds that they took.

    Raises:
        SystemExit: one of them failed.
    """
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None, "a pipe"
    start = last = time.monotonic()
    ended, said = -1, list[str]()
    try:
        for line in shell.stdout:
            if not line.startswith(MARK):
                said.append(line)
                continue
            if ended >= 0:
                last = tell(todo[ended], start, last)
            ended += 1
            said.clear()
        if status := shell.wait():
            print("".join(said[-SHOWN:]))
            raise SystemExit(f"{todo[ended].page}: this ended with status {status}:\n{todo[ended].lines}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)  # where this is told to end, with what it has begun
    return tell(todo[ended], start, last) - start


def tell(step: Step, start: float, last: float) -> float:
    """Print the clock at the end of a step that began at ``last``; return the time."""
    now = time.monotonic()
    minutes, seconds = divmod(round(now - start), 60)
    print(f"{minutes:>3}:{seconds:02}  {now - last:6.1f} s  {step.page}: {step.title}", flush=True)
    return now


def main() -> int:
    parser = Parser(description=__doc__)
    parser.add_argument("--wheels", action="store_true", help="install built wheels, and have no checkout")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing stays behind
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        seconds = replay(Path(folder), args.wheels)
    print(f"{seconds / 60:.1f} minutes, of {MINUTES}")
    return int(seconds > 60 * MINUTES)


if __name__ == "__main__":
    sys.exit(main())
