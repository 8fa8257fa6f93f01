"""The house: which file may import which, what loads when, how long a file is, what gets packaged."""

from __future__ import annotations

import ast
import re
import sys
from fnmatch import fnmatchcase
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "sparse_mpi"
MOST_LINES = 340  # of code: without comments, docstrings and blank lines
SHAPELESS = {"utils", "util", "helpers", "helper", "common", "misc"}

# From the ground up, a line a folder (or a file in the package's root): a file imports from the lines above its own,
# and from its own folder as long as nothing there goes in circles.
LAYERS = """
    arrays  checks
    kernels
    states
    sparse
    rows
    wire  select  feedback
    comm
    algorithms  checkpoint  monitor
    reduction  collectives
    testing
    fault_tolerance
    training
    optim  ddp  fsdp
    integrations
    contrib
    cli
    predict
    planning
    __main__
"""
# The folders of what the training programs share; the programs themselves import from all of them.
SHARED = "sparse_train"
TRAIN_LAYERS = """
    packages
    ranks  data  models
    options
    tasks
    records
    trainer
"""

# Who may import what else besides the standard library and NumPy, and whether only inside functions
INSIDE, ANYWHERE = "inside functions", "anywhere"
OUTSIDE = {
    "typing_extensions": {"arrays": ANYWHERE},  # for type checkers, which have its types of their own
    "mpi4py": {
        "comm.mpi": INSIDE,
        "comm.conversion": INSIDE,
        "cli.doctor": INSIDE,
        "cli.doctor.*": INSIDE,
    },
    "torch": {
        "arrays": INSIDE,
        "cli.doctor.*": INSIDE,
        "comm.streams": INSIDE,
        "comm.process_group": ANYWHERE,
        "comm.device_group": ANYWHERE,
        "monitor.observe": INSIDE,
        "training.*": ANYWHERE,
        "optim": ANYWHERE,
        "ddp": ANYWHERE,
        "fsdp": ANYWHERE,
        "integrations.*": ANYWHERE,
    },
    "transformers": {"integrations.hf": ANYWHERE},
    "lightning": {"integrations.lightning": ANYWHERE},
    "cupy": {
        "arrays": INSIDE,
        "comm.nccl": INSIDE,
        "comm.job.nccl_watchdog": INSIDE,
        "comm.streams": INSIDE,
        "cli.doctor.*": INSIDE,
        "kernels.cuda": ANYWHERE,
        "kernels.cuda.*": ANYWHERE,
    },
    "cupyx": {"arrays": INSIDE},
    "argcomplete": {"__main__": INSIDE},
    "numba": {"kernels.cpu.*": ANYWHERE},
    "llvmlite": {"kernels.cpu.lanes": ANYWHERE},
    "psutil": {"cli.launch.*": ANYWHERE, "comm.job.process_liveness": INSIDE},
}


class Import(NamedTuple):
    """One imported module, in full, and where."""

    target: str
    line: int
    inside: bool  # a function


def name_of(file: Path, base: Path) -> str:
    """The module's name as seen from ``base``: ``sparse_mpi/select/__init__.py`` is ``sparse_mpi.select``."""
    parts = file.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


LIBRARY = {name_of(file, ROOT): file for file in sorted((ROOT / PACKAGE).rglob("*.py"))}
PROGRAMS = {name_of(file, ROOT / "train"): file for file in sorted((ROOT / "train").rglob("*.py"))}
SOURCES = sorted(f for part in (PACKAGE, "train", "tests") for f in (ROOT / part).rglob("*.py"))


def imports(name: str, file: Path, modules: dict[str, Path]) -> list[Import]:
    """Everything ``file`` imports, in functions too; ``from package import module`` counts as the module."""
    found = []

    def visit(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(Import(alias.name, child.lineno, inside) for alias in child.names)
            elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith("import_module") and child.args:
                target = child.args[0].value if isinstance(child.args[0], ast.Constant) else ""
                found.extend([Import(target, child.lineno, inside)] if target in modules else [])
                visit(child, inside)
            elif isinstance(child, ast.ImportFrom):
                source = absolute(name, file, child)
                for alias in child.names:
                    module = f"{source}.{alias.name}"
                    found.append(Import(module if module in modules else source, child.lineno, inside))
            else:
                function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                visit(child, inside or function)

    visit(tree_of(file), False)
    return found


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


def absolute(name: str, file: Path, node: ast.ImportFrom) -> str:
    """Where an import statement looks, relative ones resolved."""
    if node.level == 0:
        return node.module or ""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


def layer(name: str, table: str = LAYERS) -> int:
    """The line of ``table`` that a module's folder is on."""
    for number, row in enumerate(table.strip().splitlines()):
        if room(name) in row.split():
            return number
    raise LookupError(f"{name} is on no layer; give its folder a line in LAYERS of {Path(__file__).name}")


def room(name: str) -> str:
    return name.removeprefix(f"{PACKAGE}.").removeprefix(f"{SHARED}.").split(".")[0]


def lines_of_code(file: Path) -> int:
    """The lines of a file without comments and blank ones and, if these are too many, without docstrings."""
    text = file.read_text()
    code = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in ast.walk(tree_of(file)) if len(code) > MOST_LINES else ():  # to parse takes long
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def shown(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imported_by(modules: dict[str, Path]) -> list[tuple[str, Import, str]]:
    """Every import of these modules: in which, what, and how an error names the place."""
    every = [(name, found) for name, file in modules.items() for found in imports(name, file, modules)]
    return [(name, found, f"{shown(modules[name])}:{found.line} imports {found.target}") for name, found in every]


def test_a_file_imports_only_from_lower_layers_and_its_own_folder():
    for name, imported, where in imported_by(LIBRARY):
        if imported.target.split(".")[0] != PACKAGE or name == PACKAGE:
            continue
        assert imported.target in LIBRARY, f"{where}, which is no file of the library"
        assert imported.target != PACKAGE, f"{where}; name the file that has what you need"
        same = room(imported.target) == room(name)
        assert same or layer(imported.target) < layer(name), f"{where}, which is not below it"


def test_a_file_of_the_programs_imports_only_from_lower_layers_and_its_own_folder():
    for name, imported, where in imported_by(PROGRAMS):
        if name.startswith(f"{SHARED}.") and imported.target in PROGRAMS and room(imported.target) != room(name):
            assert layer(imported.target, TRAIN_LAYERS) < layer(name, TRAIN_LAYERS), f"{where}, which is not below it"


def test_the_programs_import_nothing_private_of_the_library():
    """What they share with the command line is in `sparse_mpi.cli.values`."""
    for name, file in PROGRAMS.items():
        for imported in imports(name, file, LIBRARY):
            where = f"{shown(file)}:{imported.line} imports {imported.target}"
            assert not imported.target.startswith(f"{PACKAGE}.cli.doctor"), where
            assert "._" not in imported.target, where


def test_the_house_has_few_rooms():
    """A newcomer who opens the package, or reads this table, sees the whole of it at once."""
    modules = [name for name in LIBRARY if name.count(".") == 1 and LIBRARY[name].name != "__init__.py"]
    modules = [name for name in modules if name != f"{PACKAGE}.__main__"]
    assert len(modules) + len(["__init__", "__main__"]) <= 10, modules
    assert len(LAYERS.strip().splitlines()) <= 20


def test_a_file_imports_other_packages_only_where_they_belong():
    for name, imported, where in imported_by(LIBRARY):
        package = imported.target.split(".")[0]
        if package in sys.stdlib_module_names or package in ("numpy", PACKAGE):
            continue
        short, rules = name.removeprefix(f"{PACKAGE}."), OUTSIDE.get(package, {})
        allowed = next((how for who, how in rules.items() if fnmatchcase(short, who)), None)
        assert allowed is not None, f"{where}; OUTSIDE of {Path(__file__).name} says who may"
        assert allowed == ANYWHERE or imported.inside, f"{where} at its top; do it inside the function"


@pytest.mark.parametrize("modules", [LIBRARY, PROGRAMS], ids=["sparse_mpi", "train"])
def test_no_import_goes_in_circles(modules):
    """The package itself is left out: it imports everything below it, and nobody imports it (see above)."""
    graph = {
        name: {i.target for i in imports(name, file, modules) if i.target in modules} - {PACKAGE}
        for name, file in modules.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_a_file_is_short_and_named_for_what_it_holds():
    for file in SOURCES:
        lines = lines_of_code(file)
        assert lines <= MOST_LINES, f"{shown(file)} has {lines} lines of code; at most {MOST_LINES}: cut it at a seam"
        assert file.stem.lower() not in SHAPELESS, f"{shown(file)} should be named for what it holds"


def test_a_misplaced_import_would_be_seen(tmp_path):
    file = tmp_path / "dense.py"
    file.write_text("def f():\n    from mpi4py import MPI\nfrom ..reduction import x\nfrom sparse_mpi import wire\n")
    found = imports("sparse_mpi.algorithms.dense", file, LIBRARY)
    assert found == [
        Import("mpi4py", 2, True),
        Import("sparse_mpi.reduction", 3, False),
        Import("sparse_mpi.wire", 4, False),
    ]
    assert layer("sparse_mpi.wire") < layer("sparse_mpi.algorithms.dense") < layer("sparse_mpi.reduction")
    assert layer("sparse_mpi.algorithms.a_new_one") == layer("sparse_mpi.algorithms.oktopk")
    with pytest.raises(LookupError, match=re.escape("sparse_mpi.elsewhere is on no layer")):
        layer("sparse_mpi.elsewhere")
