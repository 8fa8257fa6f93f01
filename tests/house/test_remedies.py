"""What errors advise exists: arguments, functions, commands and variables that their texts name."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi import LeakyFeedback
from sparse_mpi.__main__ import COMMANDS
from sparse_mpi.cli.extensions import commands
from sparse_mpi.comm import NullComm
from sparse_mpi.optim import DistributedOptimizer

from .test_layers import LIBRARY, ROOT, tree_of

# Arguments of others' functions that texts name
OTHERS = {
    *("set_to_none", "sparse", "device", "weights_only", "find_unused_parameters", "params"),  # torch
    *("deepspeed", "fsdp", "mesh", "dtype", "copy"),  # the Trainer, FSDP2, NumPy
}
ARGUMENT = re.compile(r"\b([a-z][a-z_]{2,})=")
CALLED = re.compile(r"\b((?:[a-z_]+\.)*[A-Za-z_]+)\(")
COMMAND = re.compile(r"python -m sparse_mpi ([a-z]+)")
REMEDY = re.compile(r"\b([a-z_]+)=('[a-z-]+'|[0-9.]+|None|True|False)")
ELSEWHERE = (
    torch,
    torch.Tensor,
    torch.nn,
    torch.nn.Module,
    torch.nn.utils,
    torch.distributed,
    torch.optim.Optimizer,
    np,
    np.ndarray,
    builtins,
    DistributedDataParallel,
)
VARIABLE = re.compile(r"\b(SPARSE_MPI_[A-Z_]+)")


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of all that is given to an exception or a check, and of constants in capitals."""
    for node in ast.walk(tree):
        name = getattr(getattr(node, "func", None), "id", getattr(getattr(node, "func", None), "attr", ""))
        is_error = isinstance(node, ast.Call) and (name.endswith("Error") or name.startswith("check_"))
        capital = (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
        )
        if is_error or capital:
            parts = [p.value for p in ast.walk(node) if isinstance(p, ast.Constant) and isinstance(p.value, str)]
            yield node.lineno, " ".join(parts)


@cache
def known() -> tuple[set[str], set[str]]:
    """All arguments and fields, and all functions and classes, of the library and its programs."""
    arguments, functions = set(OTHERS), set()
    files = [*LIBRARY.values(), *(ROOT / "train").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    for file in files:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                functions.add(node.name)
            if isinstance(node, ast.FunctionDef):
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                arguments |= {argument.arg for argument in every}
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                arguments.add(node.target.id)
    return arguments, functions


def test_what_errors_name_exists():
    arguments, functions = known()
    named = {*COMMANDS, *commands()}
    variables = {name for file in LIBRARY.values() for name in VARIABLE.findall(file.read_text().replace('"', ""))}
    for file in LIBRARY.values():
        for line, text in texts(tree_of(file)):
            place = f"{file}:{line}"
            assert set(ARGUMENT.findall(text)) <= arguments, place
            others = {name.rpartition(".")[2] for name in CALLED.findall(text)} - functions
            missing = [name for name in others if not any(hasattr(place, name) for place in ELSEWHERE)]
            assert not missing or "mpi" in str(file) or file.name == "find.py", (place, missing)
            assert set(COMMAND.findall(text)) <= named, place
            assert set(VARIABLE.findall(text)) <= variables, place


NET = torch.nn.Linear(4, 3)
PARAMETERS = list(NET.parameters())
HALVES = [{"params": [NET.weight], "momentum": 0.9}, {"params": [NET.bias], "momentum": 0.5}]
SGD, ADAM = partial(torch.optim.SGD, PARAMETERS, lr=0.1), partial(torch.optim.Adam, PARAMETERS)
ADAMW = partial(torch.optim.AdamW, PARAMETERS)
# Of optimizers: what makes one, and arguments with which it is refused
REFUSED = [
    (partial(SGD, momentum=0.9, dampening=0.1), {"momentum": "global"}),
    (partial(torch.optim.SGD, HALVES, lr=0.1), {"momentum": "matched"}),
    (partial(SGD, momentum=0.9), {"momentum": "corrected", "feedback": LeakyFeedback(0.9)}),
    (partial(SGD, momentum=0.9), {"momentum": "local", "feedback": "gmc"}),
    (partial(SGD, momentum=0.9), {"momentum": "global", "feedback": "dgc"}),
    (partial(ADAM, amsgrad=True), {"momentum": "arrival"}),
    (partial(ADAM, weight_decay=0.1), {"momentum": "second-moment"}),
    (partial(torch.optim.RMSprop, PARAMETERS, momentum=0.9), {"momentum": "second-moment"}),
    (partial(torch.optim.Adagrad, PARAMETERS), {"momentum": "arrival"}),
    (ADAMW, {"momentum": "second-moment", "algorithm": "oktopk"}),
]


@pytest.mark.parametrize("module", ["sparse_mpi", "sparse_mpi.contrib"])
def test_a_class_that_was_removed_says_what_takes_its_place(module):
    with pytest.raises(ImportError, match=r"SparseReduceScatter was removed in 0\.5\.0: .* sparse_mpi\.reduce_scatter"):
        exec(f"from {module} import SparseReduceScatter")


@pytest.mark.parametrize(("make", "options"), REFUSED, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_a_remedy_gets_past_its_error(make, options):
    """What stands behind "use", "leave out" and "give" is applied to the call that was refused."""
    with pytest.raises((TypeError, ValueError)) as refused:
        DistributedOptimizer(make(), comm=NullComm(), **options)
    said = str(refused.value)
    advised = {name: ast.literal_eval(value) for name, value in REMEDY.findall(said.partition("; ")[2])}
    assert advised, said
    DistributedOptimizer(make(), comm=NullComm(), **options | advised)
