"""What a page of Markdown shows that can be run: its blocks of code and commands, and what they are to print.

A block of Python is run, blocks of a page one after another with shared names. An indented block, or one fenced as
`sh`, has shell commands. A block fenced as `text` is what the last block before it that was run prints; `...` in it
stands for anything. A `diff` has Python on its new side. A paragraph may name a file: "Save it as `a.py`" is about the
block above, "Save this as `a.py`" about the one below; the file is written, and something on the page has to use it.

Comments of HTML, directly before a block or at the end of the paragraph before, say what differs, and why:

    <!-- not run: needs a GPU -->                 its options are still read by the program that is named
    <!-- not compared: the time of one machine -->
    <!-- within 10 %: rounding -->                numbers may differ by so much
    <!-- first:
    model = torch.nn.Linear(4, 2)                 Python that the text takes for granted
    -->
    <!-- nothing on this page is run: records -->       anywhere on the page
    <!-- run by make test-all: trains for a minute -->  anywhere on the page
    <!-- needs: pandas, polars -->                      anywhere on the page: its Python is left out without them
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
LANGUAGES = {"": "", "python": "python", "py": "python", "sh": "shell", "bash": "shell", "text": "text", "diff": "diff"}
MARKS = r"<!--\s*(not run|not compared|within|first)(?: (\d+) %)?:\s*(.*?)\s*-->"
OF_PAGES = r"<!--\s*(nothing on this page is run|run by make test-all|needs):\s*(.*?)\s*-->"
BOXES = r"\{(?:note|tip|warning|important|caution|hint|admonition|dropdown)\}"
SAVED = r"\b[Ss]ave (it|this) as `([\w./-]+)`"
RANKS = r"\b(?:mpiexec|mpirun|torchrun)\b|sparse[_-]mpi (?:run|bench network)\b"
SLURM = r"\b(?:srun|sbatch|salloc|squeue|scancel)\b"


@dataclass
class Block:
    """A block of code, of commands or of output."""

    kind: str  # python, shell, text, diff, or the language as it stands there
    code: str
    line: int  # of its first line, from 1
    marks: dict[str, str] = field(default_factory=dict)  # and the reason of each, or what it says
    saved: str | None = None  # the file it is written to
    output: Block | None = None  # what it prints

    @property
    def run(self) -> bool:
        return self.kind in ("python", "shell") and self.saved is None and "not run" not in self.marks

    @property
    def slurm(self) -> bool:
        return bool(re.search(SLURM, self.code))


class Page:
    """A page of the documentation.

    Attributes:
        blocks: all of them, in order.
        problems: what cannot be understood: the number of a line, and what to do about it.
        marks: what holds for the page, and the reason of each.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.blocks: list[Block] = []
        self.problems: list[tuple[int, str]] = []
        self.marks = dict(re.findall(OF_PAGES, text, re.DOTALL))
        self._read(text, 1)
        self._arrange()

    @property
    def run(self) -> list[Block]:
        return [block for block in self.blocks if block.run]

    def commands(self, slurm: bool = False) -> list[Block]:
        """Return the blocks of commands that are run, those that need a Slurm or all others."""
        return [block for block in self.run if block.kind == "shell" and block.slurm == slurm]

    @property
    def kinds(self) -> set[str]:
        """Return what there is to run: "python", "slurm", and as "jobs" or "shell" other commands, of ranks or not."""
        found = {"python"} & {block.kind for block in self.run} | ({"slurm"} if self.commands(slurm=True) else set())
        jobs = any(re.search(RANKS, block.code) for block in self.commands())
        return found | ({"jobs" if jobs else "shell"} if self.commands() else set())

    def files(self) -> list[Block]:
        return [block for block in self.blocks if block.saved]

    def at(self, line: int) -> str:
        return f"{self.name}:{line}"

    def _read(self, text: str, first: int) -> None:
        marks: dict[str, str] = {}
        saved: str | None = None
        for token in MarkdownIt("commonmark").parse(text):
            if token.type == "html_block":
                marks |= marks_of(token.content)
            elif token.type == "inline":
                saved, marks = self._saved(token), marks_of(token.content)
            elif token.type in ("fence", "code_block"):
                self._add(token, first, marks, saved)
                marks, saved = {}, None

    def _saved(self, paragraph: Token) -> str | None:
        """Return the file that the block below this paragraph is, and note the one that the block above is."""
        below = None
        for which, name in re.findall(SAVED, paragraph.content.replace("\n", " ")):
            if which == "this":
                below = name
            elif self.blocks:
                self.blocks[-1].saved = name
        return below

    def _add(self, token: Token, first: int, marks: dict[str, str], saved: str | None) -> None:
        """Add one block, or those inside of a box."""
        assert token.map is not None, "blocks have lines"
        fenced = token.type == "fence"
        line = first + token.map[0] + fenced
        language = token.info.split()[0] if token.info.split() else ""
        if fenced and re.fullmatch(BOXES, language):
            self._read(token.content, line)
        elif not (fenced and language.startswith("{")) or language.startswith("{code"):
            kind = LANGUAGES.get(language, language) if fenced else "shell"
            if "nothing on this page is run" in self.marks:
                marks = marks | {"not run": self.marks["nothing on this page is run"]}
            self.blocks.append(Block(kind, token.content, line, marks, saved))

    def _arrange(self) -> None:
        """Give each block its output, and find what is neither run nor says why."""
        last: Block | None = None
        for block in self.blocks:
            if "not run" in block.marks or "not compared" in block.marks or block.saved:
                continue
            if block.kind == "text":
                if last is None or last.output:
                    self._complain(block, "no block that is run prints this; write <!-- not compared: why --> above it")
                else:
                    last.output = block
            elif block.run:
                last = block
            elif block.kind != "diff":
                self._complain(
                    block,
                    f"a block of language {block.kind!r} cannot be run; fence it as python, sh, text or diff, or write "
                    "<!-- not run: why --> above it",
                )
        for block in self.files():
            if not any(Path(block.saved or "").stem in other.code for other in self.blocks if other is not block):
                self._complain(block, f"{block.saved} is saved, and nothing else on this page has it")

    def _complain(self, block: Block, problem: str) -> None:
        self.problems.append((block.line, problem))


def marks_of(text: str) -> dict[str, str]:
    """Return what the comments in ``text`` say about the block that follows."""
    return {kind: number or said for kind, number, said in re.findall(MARKS, text, re.DOTALL)}


@cache
def pages() -> dict[str, Page]:
    """Return all pages that have blocks, by their paths in the repository."""
    files = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "REPRODUCE.md",
        ROOT / "examples" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    texts = {file.relative_to(ROOT): file.read_text() for file in files}
    found = [Page(file.as_posix(), text) for file, text in texts.items() if "_build" not in file.parts]
    return {page.name: page for page in found if page.blocks}
