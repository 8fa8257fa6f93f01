"""The scripts of the README, and those for data that is sparse already, whose answers are checked by themselves."""

from __future__ import annotations

import difflib
import gzip
import importlib.util
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from sparse_mpi_bench.analysis.keyed_volume import stored

from ..launch import launch, needs_mpi
from ..prefork import copied, torchrun

ROOT = Path(__file__).parents[2]


def code(name: str) -> list[str]:
    """The script without its first line, which says what it is, and without empty lines."""
    return [line for line in (ROOT / "examples" / name).read_text().splitlines()[1:] if line]


def changes() -> list[str]:
    diff = difflib.unified_diff(code("plain.py"), code("distributed.py"), n=0, lineterm="")
    return [line for line in diff if not line.startswith(("---", "+++", "@@"))]


def test_three_lines_differ_and_the_readme_shows_them():
    assert [line[0] for line in changes()] == ["+", "+", "+"]
    shown = re.search(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    assert [line for line in shown.splitlines() if line[:1] in "+-"] == changes()


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize(
    "script", ["distributed.py", pytest.param("local_steps.py", marks=pytest.mark.full("tests/training has its laws"))]
)
def test_ranks_end_with_one_model(script):
    done = launch(2, *copied(f"examples/{script}"))
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2 and len(set(lines)) == 1, done.stderr
    assert float(re.search(r"accuracy ([\d.]+)", lines[0])[1]) > 0.8


TRACKERS = {"tensorboard": "events.*", "wandb": "wandb/offline-run-*", "mlflow": "mlflow.db"}


@needs_mpi
@pytest.mark.jobs
@pytest.mark.full("a tracker is a line of the script")
@pytest.mark.parametrize("name", TRACKERS)
def test_trackers_have_the_reports(name, tmp_path):
    pytest.importorskip(name)
    done = launch(2, str(ROOT / "examples" / "trackers.py"), name, str(tmp_path))
    assert done.returncode == 0 and "MB in the last step" in done.stdout, done.stderr
    assert list(tmp_path.glob(TRACKERS[name])), list(tmp_path.rglob("*"))


# The package that an example needs besides torch, and what a step without the hook would send
FRAMEWORKS = {
    "torchrun": ("torch", 76_840),
    "muon": ("torch", 340_000),
    "accelerate": ("accelerate", 76_840),
    "lightning": ("lightning", 76_840),
    "hf_trainer": ("accelerate", 61_000),
}


ELSEWHERE = pytest.mark.full("tests/integrations trains with it, or the hook is that of the others")


@pytest.mark.jobs
@pytest.mark.parametrize(
    "framework",
    [name if name == "torchrun" else pytest.param(name, marks=ELSEWHERE) for name in FRAMEWORKS],
)
def test_frameworks_send_little_and_end_with_one_model(framework):
    package, dense = FRAMEWORKS[framework]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    offline = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = launch(None, *torchrun(2, f"examples/with_{framework}.py"), **offline)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"loss ([\d.]+) to ([\d.]+), (\d+) bytes", done.stdout)  # ranks may print on one line
    weights = re.findall(r"weights add up to ([-.\d]+)", done.stdout)
    assert len(losses) == len(weights) == 2 and len(set(weights)) == 1, done.stdout
    for first, last, sent in losses:
        assert float(last) < 0.8 * float(first) and 0 < int(sent) < dense / 20


def test_the_page_of_the_frameworks_shows_parts_of_the_examples():
    page = (ROOT / "docs" / "guides" / "frameworks.md").read_text()
    shown = re.findall(r"<!-- not run: a part of examples/with_(\w+).py.*\n```python\n((?:.*\n)*?)```", page)
    assert {name for name, _ in shown} == set(FRAMEWORKS) - {
        "torchrun"
    }  # DDP's hook, which docs/guides/pytorch.md shows
    for name, block in shown:
        missing = {line for line in block.splitlines() if line} - set(code(f"with_{name}.py"))
        assert not missing, (name, missing)


@pytest.mark.full("tests/training/test_doors.py has its laws")
@pytest.mark.jobs
def test_a_sharded_model_trains():
    done = launch(None, *torchrun(4, "examples/fsdp.py"))
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4, done.stderr
    for line in lines:
        loss, sent = re.fullmatch(r"loss ([\d.]+), ([\d,]+) bytes a step to the other replica", line).groups()
        assert float(loss) < 3.5 and 1000 < int(sent.replace(",", "")) < 20_000


SPARSE = {
    "pagerank.py": "largest difference from one process",
    "kmers.py": "as counted by",
    "words.py": "as counted by",
    "histograms.py": "as grown by",
    "word2vec.py": "largest difference from one process",
    "graphs.py": "largest difference from one process",
    "assembly.py": "as assembled by",
}

OTHERS = pytest.mark.full("as of the first example: only what the ranks add up differs")
SAVED = set(SPARSE) - {"word2vec.py", "graphs.py", "assembly.py"}  # what their ranks add up is written by --save

SONNET = """Shall I compare thee to a summer's day? Thou art more lovely and more temperate: rough winds do shake the
darling buds of May, and summer's lease hath all too short a date; sometime too hot the eye of heaven shines, and often
is his gold complexion dimm'd; and every fair from fair sometime declines, by chance, or nature's changing course,
untrimm'd; but thy eternal summer shall not fade. """


def data_of(name: str, folder: Path) -> list[str]:
    """Options with which a script takes little data."""
    if name == "pagerank.py":
        file, draw = folder / "available", random.Random(1)
        lines = []
        for number in range(300):
            wanted = ", ".join(f"p{draw.randrange(300)} (>= 1)" for _ in range(draw.randrange(5)))
            lines.append(f"Package: p{number}\nVersion: 1\nDepends: {wanted} | absent\n")
        file.write_text("\n".join(lines))
        return ["--available", str(file)]
    if name == "kmers.py":
        draw = random.Random(1)
        for each in ("reads_1", "reads_2", "longreads"):
            reads = ["".join(draw.choices("ACGTN", (50, 50, 50, 50, 1), k=draw.randrange(10, 90))) for _ in range(20)]
            text = "".join(f"@r\n{read}\n+\n{'I' * len(read)}\n" for read in reads * 2)
            (folder / f"{each}.fq.gz").write_bytes(gzip.compress(text.encode()))
        return ["--reads", str(folder), "-k", "11"]
    if name == "histograms.py":
        return ["--trees", "3"]
    if name == "graphs.py":
        return ["--steps", "20", "--larger", "1"]
    if name == "word2vec.py":
        for number in range(2):
            (folder / f"play_{number}_gut.txt").write_text(SONNET * 8)
        return ["--texts", str(folder), "--steps", "30", "--batch", "32", "--width", "8", "--near", "summer", "absent"]
    return []


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("name", ["pagerank.py", *(pytest.param(name, marks=OTHERS) for name in [*SPARSE][1:])])
def test_sparse_data_has_the_answer_of_one_process(name, tmp_path):
    figure, saved = tmp_path / "figure.png", tmp_path / "a" / "b"
    output = ["--plot", str(figure), *(["--save", str(saved)] if name in SAVED else [])]
    options = [*data_of(name, tmp_path), *output] if name != "assembly.py" else []
    done = launch(3, *copied(f"examples/{name}", *options))
    assert done.returncode == 0 and SPARSE[name] in done.stdout, done.stderr
    assert not options or figure.stat().st_size > 5000
    for rank in range(3 if name in SAVED else 0):  # as `bench sparse --data` takes it
        keys, values = stored(saved, rank, 3)
        assert len(keys) > 0 and values.min() > 0


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("k", [45, pytest.param(63, marks=OTHERS), pytest.param(32, marks=OTHERS)])
def test_long_kmers_are_those_of_a_counter(k, tmp_path):
    options = [*data_of("kmers.py", tmp_path)[:2], "-k", str(k)]
    reads = [read for file in tmp_path.glob("*.gz") for read in gzip.open(file, "rt").read().splitlines()[1::4]]
    found = Counter(read[at : at + k] for read in reads for at in range(len(read) - k + 1))
    known = [count for kmer, count in found.items() if "N" not in kmer]
    done = launch(3, *copied("examples/kmers.py", *options))
    assert done.returncode == 0, done.stderr
    assert len(known) > 50 and f"{len(known):,} distinct {k}-mers, {sum(known):,} in all" in done.stdout
