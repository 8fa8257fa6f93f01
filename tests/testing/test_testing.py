"""What third parties write in files of their own passes the checks; of each wrong line they name the law it breaks."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from sparse_mpi import SELECTORS, ErrorFeedback, SparseAllreduce, World, testing
from sparse_mpi.algorithms import TopkA
from sparse_mpi.select import Exact
from sparse_mpi.testing import ConformanceError, Trials, checking_transports
from sparse_mpi.training.diloco import DiLoCo
from sparse_mpi.wire import WIRES, Coo

from ..launch import ROOT, launch, needs_mpi
from ..prefork import copied

THEIRS = {
    "Stripes": "tests/testing/theirs/algorithm.py",
    "Sorted": "tests/testing/theirs/selector.py",
    "Coarse": "tests/testing/theirs/wire.py",
    "Plain": "tests/testing/theirs/feedback.py",
    "Threads": "examples/threads_transport.py",
}
SOME = "constant", "ties", "one-rank-zero", "heavy-tailed", "nonfinite", "k=1", "k>n", "n<P", "layers"
FEW = Trials((3,), SOME, examples=2)  # the page docs/tutorials/own-algorithm.md makes all of them
ALONE = replace(FEW, ranks=(1,))
EVERY = pytest.param(Trials((1,), examples=5), marks=pytest.mark.full("of each case: the fast tier has the hardest"))
CHECKS = {
    "Stripes": lambda kind: testing.check_algorithm(kind(), FEW),
    "Sorted": lambda kind: testing.check_selector(kind(), ALONE),
    "Coarse": lambda kind: testing.check_wire(kind(), ALONE),
    "Plain": lambda kind: testing.check_feedback(kind(), FEW),
    "Threads": lambda kind: testing.check_transport(kind, replace(checking_transports.TALKS, ranks=(1, 3), examples=3)),
}
KINDS = {  # of what ranks compare by its repr
    "algorithm": TopkA,
    "selector": Exact,
    "wire": Coo,
    "feedback": ErrorFeedback,
    "outer_optimizer": torch.optim.SGD,
}
SENT = "return Reduction(total,"
CONSUMED = "super().consume(sent, total, ranks)"
PACKED = "return super().pack(coarse(vector), counts, regions)"
OVERTAKEN = "ARRIVED[-comm.size :] if comm.job.concurrent else range(comm.size)\n"
EARLY = "if not chosen.nnz:\n            return Reduction(chosen, chosen), state\n        #"
NUMBERS = "kept[vector.values != vector.values] = 1 << 4 * bits.itemsize"  # in place of NaN
WRONG = [  # in whose file, which line becomes which, the law, and what came
    ("Stripes", SENT, "return Reduction(take(total, slice(1, None)),", "law 2", "at 1 of 1000 elements"),
    ("Stripes", "range(comm.size)\n", OVERTAKEN, "independence of the order", "others on rank"),
    ("Stripes", "# Send every", EARLY, "the order of calls", "deadlock|called"),
    ("Stripes", "Bound(pairs,", "Bound(1,", r"bound\(\): bytes", "in step 0, rank"),
    ("Stripes", "state.step) %", "remembered(self)) %", "resumption", "others on rank"),
    ("Stripes", "Turn(state.step + 1)", "state.step + 1", "a result for any input", "AttributeError"),
    ("Stripes", "merge(decode(rows", "(decode(rows", "the form", "SparseVector"),
    ("Stripes", SENT, f"total.values[:1] += comm.rank\n        {SENT}", "law 1", "total on ranks"),
    ("Sorted", "x += add.astype(x.dtype)", "pass", "a selection that depends|add", ""),
    ("Sorted", "np.sort(first[x[first] != 0])", "first[x[first] != 0]", "the form", ""),
    ("Sorted", "[:k]", "[: k + 1]", "the band", "41"),
    ("Sorted", "-magnitudes", "np.random.random(len(x))", "a selection that depends", ""),
    ("Coarse", PACKED, f"{PACKED}._replace(vector=vector)", "the way there and back", "Sparse"),
    ("Coarse", "lossless: ClassVar[bool] = False", "", "the way there and back", ""),
    ("Coarse", "    return vector._", f"    {NUMBERS}\n    return vector._", "the way there and back", r"\["),
    ("Plain", CONSUMED, f"{CONSUMED}\n        self.residual[:3] = 0", "law 2", ""),
    ("Threads", "concatenate(parts), np", "concatenate(parts[::-1]), np", "all", "array"),
    ("Threads", "gathered.max(axis=0)", "gathered.min(axis=0)", "allreduce", "array"),
]


def loaded(name, folder, old="", new=""):
    """The class of that name in a copy of a third party's file, with one place of it changed."""
    text = (ROOT / THEIRS[name]).read_text()
    assert not old or old in text
    file = folder / "theirs.py"
    file.write_text(text.replace(old, new) if old else text)
    return runpy.run_path(str(file))[name]


@pytest.mark.parametrize("name", THEIRS)
def test_what_obeys_passes(name, tmp_path):
    CHECKS[name](loaded(name, tmp_path))


@pytest.mark.parametrize(("name", "old", "new", "law", "got"), WRONG)
def test_what_is_wrong_is_named(name, old, new, law, got, tmp_path):
    with pytest.raises(ConformanceError) as raised:
        CHECKS[name](loaded(name, tmp_path, old, new))
    assert re.match(law, raised.value.law), raised.value
    said = str(raised.value)
    assert re.search(rf"(?s) is broken by .*\n  again: check_\w+\(.*\n  expected: .*\n  got: .*({got})", said), said


def test_the_trial_of_an_error_can_be_made_again(tmp_path):
    """Alone, by the call that the error shows."""
    wrong = loaded("Stripes", tmp_path, "Bound(pairs,", "Bound(1,")
    with pytest.raises(ConformanceError) as first:
        testing.check_algorithm(wrong(), Trials(range(3, 5), ("ties", "layers")))
    call = re.search(r"again: (.*)", str(first.value))[1]
    assert call.startswith("check_algorithm(Stripes(selector=Exact()), Trials(ranks=(3,), cases=('ties',), dtypes=(")
    with pytest.raises(ConformanceError, match=re.escape(call)):
        eval(call, vars(testing) | {"Stripes": wrong, "Exact": SELECTORS["exact"]})


@pytest.mark.parametrize("tool", ["fixed seeds", pytest.param("hypothesis", marks=pytest.mark.full("shrinks long"))])
def test_drawn_trials_find_what_named_ones_do_not(tool, tmp_path, monkeypatch):
    """Hypothesis shrinks it: to one rank, and the shortest vector."""
    if tool == "fixed seeds":
        monkeypatch.setattr(testing.trials, "find_spec", lambda name: None)
    lost = f"if len(acc) > 20:\n            total.values[:] = 0\n        {SENT}"
    wrong = loaded("Stripes", tmp_path, SENT, lost)
    with pytest.raises(ConformanceError, match=r"law 2 \(nothing is lost\) is broken by Stripes") as raised:
        testing.check_algorithm(wrong(), Trials((1, 2), cases=(), examples=20))
    simplest = r"ranks=\(1,\), cases=\(Case\(make='constant', n=21, k=1,"
    assert tool == "fixed seeds" or re.search(simplest, str(raised.value))


@pytest.mark.parametrize(
    "trials", [ALONE, pytest.param(EVERY, marks=pytest.mark.full("more trials"))], ids=["some", "every"]
)
@pytest.mark.parametrize("name", [*SELECTORS, *WIRES])
def test_our_selectors_and_wires(name, trials):
    testing.check_wire(WIRES[name], trials) if name in WIRES else testing.check_selector(SELECTORS[name](), trials)


@pytest.mark.against_world
def test_our_transports(ranks):
    testing.check_transport(lambda size: ranks, replace(checking_transports.TALKS, ranks=(ranks.size,), examples=5))


@pytest.mark.parametrize("culprits", [(0, 1, 2), (1,)], ids=["all", "one"])
@pytest.mark.parametrize("argument", KINDS)
def test_a_repr_that_says_no_hyperparameters_is_refused_on_all_ranks(argument, culprits):
    """Ranks compare it: one with an address would be another on every rank of a job, whose memory is not shared."""
    unclear = type("Unclear", (KINDS[argument],), {"__repr__": object.__repr__})
    net = torch.nn.Linear(2, 2)
    arguments = [list(net.parameters()), 0.1] if argument == "outer_optimizer" else []

    def body(comm):
        given = (unclear if comm.rank in culprits else KINDS[argument])(*arguments)
        with pytest.raises(TypeError if comm.rank in culprits else ValueError) as raised:
            if argument == "outer_optimizer":
                DiLoCo(net, torch.optim.SGD(net.parameters(), lr=0.1), given, 2, comm=comm)
            SparseAllreduce(99, comm=comm, **{"algorithm": "topka", argument: given})
        return str(raised.value)

    for said in World(3).run(body):
        assert f"{argument} must have a repr that says its hyperparameters" in said and "@dataclass" in said
    if hasattr(testing, f"check_{argument}"):
        with pytest.raises(TypeError, match="must have a repr that says its hyperparameters"):
            getattr(testing, f"check_{argument}")(unclear())


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong on a rank"])
def test_ranks_of_mpiexec_run_the_checks_of_the_guide(wrong, tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/guides/transport.md").read_text(), re.DOTALL)[1]
    code = code.replace("Trials(ranks=[Ranks()]", "Trials(ranks=[Ranks()], cases=('ties', 'layers')")
    fails = "run(self, fn):\n        assert as_comm().rank != 1"
    (tmp_path / "test_ranks.py").write_text(code.replace("run(self, fn):", fails) if wrong else code)
    done = launch(3, *copied("-m", "pytest", "-q", "--color=no", str(tmp_path)), SPARSE_MPI_WATCH="1")
    if wrong:
        assert done.returncode and "1 failed" in done.stdout
    else:
        assert (done.returncode, done.stdout.count("1 passed")) == (0, 3), done.stdout + done.stderr


def test_neither_pytest_nor_hypothesis_is_needed():
    program = (
        "import sys; sys.modules |= dict.fromkeys(('pytest', 'hypothesis'))\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'hypothesis' else find(name, *rest)\n"
        "from sparse_mpi import testing\n"
        "from sparse_mpi.algorithms import TopkA\n"
        "testing.check_algorithm(TopkA(), testing.Trials((2,), ('ties',), examples=2))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, cwd=ROOT)
