"""The stages of ``gpu-check``: their commands, needs and estimated times."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sparse_mpi.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[2]  # of a checkout, whose tests and programs some stages need
LIBRARY = ("-m", "sparse_mpi")
DEVICE = ("--device", "gpu")
MARGIN = 2.0  # times its estimate that a stage may take: on one H100 they took 0.3 to 1.3
FEW = ("dense", "topka", "oktopk", "elect")  # algorithms that are compared on the largest model
WAYS = ("dense", "dense:no-overlap", "elect", "elect:no-overlap")  # of which training steps are timed
TOOLKITS = ("$CUDA_HOME/bin", "/usr/local/cuda/bin")  # folders of CUDA's tools that need not be on the path
CARRIED = ROOT / ".gpu"  # unpacked result of `runs.gpu_check.carry`: an NCCL, and an MPI that takes device pointers
MPS = "nvidia-cuda-mps-control"  # starts and ends the server by which processes compute on one GPU side by side
UNDER_MPS = f'{MPS} -d && "$@"; status=$?; echo quit | {MPS}; exit $status'
MODULES = {"scikit-learn": "sklearn"}  # of packages that are imported by another name


class Stage(NamedTuple):
    """One thing to be shown."""

    name: str
    estimate: float  # seconds
    basis: str  # the terms of the estimate
    command: tuple[str, ...]
    needs: str = ""  # a reason not to try it; "" if there is none
    mpi: bool = False  # it has nothing to show without an MPI

    @property
    def limit(self) -> float:
        return MARGIN * self.estimate

    @property
    def shown(self) -> str:
        """Return the command as one line, without paths of this machine."""
        return " ".join(self.words).replace(sys.executable, "python").replace(f"{ROOT}/", "")

    @property
    def words(self) -> tuple[str, ...]:
        """Return the command with its program."""
        return (sys.executable, *self.command) if self.command[0] == "-m" else self.command


def stages(out: Path, pretend: bool) -> list[Stage]:
    """Return the stages, in their order; their results go to the folder ``out``."""
    checkout = "" if (ROOT / "tests").is_dir() else "needs the checkout, with its tests and programs"
    fakes, without = (("-m", "tests.fakes"), checkout) if pretend else ((), "")
    flat = ("--n", "20000") if pretend else ()
    fewer = ("--algorithms", *FEW) if pretend else ()  # where other stages have all

    def record(name: str) -> tuple[str, str]:
        return "--json", str(out / f"{name}.json")

    def ranks(number: int, *program: str) -> tuple[str, ...]:
        return (*LIBRARY, "run", "-n", str(number), *fakes, *program)

    warm = (*fakes, "-m", "runs.gpu_check.warm")
    doctor = (*fakes, *LIBRARY, "doctor")
    sizes = ("--n", "100000") if pretend else ("--n", "14728266", "133500000")
    kernels = (
        "bench",
        "kernels",
        *DEVICE,
        "--formats",
        "packed",
        *sizes,
        "--density",
        "0.01",
        "--rounds",
        "6",
        "--seconds",
        "10",
    )
    found = [
        Stage("warm", 60, "imports 10, NVRTC and CuPy 14, Numba 30, steps of small vectors 6", warm, without),
        Stage("doctor", 30, "imports 10, a child that sends 1 MB 10, a step 10", doctor, without, mpi=True),
        *_tests(checkout, pretend),
        Stage(
            "select",
            35,
            "imports 10, two sizes 20, drawing 5",
            (*fakes, *LIBRARY, *kernels, *record("select")),
            without,
        ),
    ]
    share = ("-m", "runs.gpu_check.share", *(("--n", "20000", "--steps", "2") if pretend else ()), *record("share"))
    found.append(Stage("share", 60, "imports 10, four algorithms three times 50", (*fakes, *share), without))
    # Times of steps, on ranks that share a GPU if there are fewer.
    steps = ("--steps", "2", "--warmup", "1") if pretend else ("--steps", "10")
    for number, seconds in ((1, 20), (2, 20), (4, 25)):
        name, basis = f"allreduce-{number}", f"imports of all ranks {seconds - 10}, 13 steps of each algorithm 10"
        command = (*LIBRARY, "bench", "steps", *DEVICE, *flat, *fewer, *steps, *record(name))
        found.append(Stage(name, seconds, basis, ranks(number, *command), without, mpi=True))
    command = (sys.executable, *ranks(4, *LIBRARY, "bench", "steps", *DEVICE, *flat, *steps, *record("mps-4")))
    served = without or ("" if shutil.which(MPS) else f"needs {MPS}, which comes with the driver")
    basis = "the server 5, imports of all ranks 15, 13 steps of each algorithm 10"
    found.append(Stage("mps-4", 30, basis, ("sh", "-c", UNDER_MPS, "sh", *command), served, mpi=True))
    found += _between_gpus(checkout, pretend, record("pointers"))
    # Results against the CPU's, with both laws.
    every = tuple(ALGORITHMS)
    more = FEW if pretend else every  # pretended models are the same vector
    for model, algorithms, seconds in (("vgg16", every, 30), ("resnet50", more, 30), ("bert-base", FEW, 90)):
        basis = f"imports 10, two steps of each algorithm on the CPU and the GPU {seconds - 10}"
        command = (*LIBRARY, "bench", "steps", *DEVICE, "--check", *(flat or ("--model", model)))
        command += ("--steps", "1", "--warmup", "0", "--algorithms", *algorithms)
        command += record(f"agree-{model}")
        found.append(Stage(f"agree-{model}", seconds, basis, ranks(2, *command), without, mpi=True))
    # Training, and again from a checkpoint, with every algorithm, and other models with one.
    train = ("-m", "tests.train.every_algorithm")
    images, words = ("scikit-learn",), ("tokenizers", "transformers")
    for model, algorithms, seconds, packages in (
        ("vgg", every, 40, images),
        ("resnet", FEW[-1:], 20, images),
        ("bert", FEW[-1:], 30, words),
    ):
        needs = checkout or _missing(*packages)
        basis = f"imports 10, two trainings of 4 steps with each algorithm {seconds - 10}"
        options = (str(out / model), ",".join(algorithms), model, "--device", "cuda", "--deterministic")
        found.append(Stage(f"train-{model}", seconds, basis, ranks(2, *train, *options), needs, mpi=True))
    least = ("--warm-up", "1", "--steps", "1", "--rounds", "1") if pretend else ("--warm-up", "3", "--steps", "5")
    program = (str(ROOT / "train" / "pace.py"), "vgg", "--ways", *WAYS, *least, "--out", str(out / "pace"))
    options = ("--", "--device", "cuda", *(("--tiny",) if pretend else ()))
    command = ranks(2 if pretend else 4, *program, *record("pace"), *options)
    basis = "imports of 4 ranks 20, images and a model for each of 8 turns 30, 64 steps 15"
    found.append(Stage("pace", 65, basis, command, checkout or _missing("scikit-learn"), mpi=True))
    program = (str(ROOT / "train" / "vgg.py"), "--tiny", "--max-steps", "6", "--device", "cuda", "--no-progress")
    picture = ("--timeline", str(out / "timeline.png"), "--out", str(out / "timeline"))
    command = ranks(1, *program, *picture)
    needs = checkout or _missing("scikit-learn", "matplotlib")
    found.append(Stage("timeline", 15, "imports 10, 6 steps and a picture 5", command, needs, mpi=True))
    return found


def _between_gpus(checkout: str, pretend: bool, record: tuple[str, ...]) -> list[Stage]:
    """Return the stages of arrays that go from GPU to GPU: over NCCL, torch's NCCL, and an MPI by device pointers.

    Several ranks share one GPU, which takes an NCCL of 2.30; that and the MPI are carried along.
    """
    fakes = ("-m", "tests.fakes") if pretend else ()
    nccl, mpi = CARRIED / "libnccl.so.2", CARRIED / "ompi"
    missing = "needs {}: python -m runs.gpu_check.carry, where there is a network; then unpack it as .gpu/README says"
    without_nccl = checkout or ("" if pretend or nccl.exists() else missing.format(nccl.relative_to(ROOT)))
    without_mpi = checkout or ("" if pretend or mpi.exists() else missing.format(mpi.relative_to(ROOT)))
    shared = () if pretend else ("env", f"LD_PRELOAD={nccl}", "NCCL_MULTI_RANK_GPU_ENABLE=1")
    job = ("tests.comm.nccl_job",)
    found = []
    for ranks in (2, 4):
        command = (*shared, sys.executable, *LIBRARY, "run", "-n", str(ranks), *fakes, "-m", *job)
        basis = f"imports and NCCL {10 + 5 * ranks}, every call and algorithm twice 30"
        found.append(Stage(f"nccl-{ranks}", 40 + 5 * ranks, basis, command, without_nccl, mpi=True))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *fakes, "-m")
    command = (*shared, sys.executable, *torchrun, "tests.comm.torch_nccl_job")
    basis = "imports and NCCL 20, every algorithm twice and three doors of training 40"
    found.append(Stage("torch-nccl", 60, basis, command, without_nccl))
    size = ("--n", "20000", "--algorithms", *FEW) if pretend else ("--model", "vgg16")
    steps = ("bench", "steps", *DEVICE, "--check", *size)
    words = (*fakes, *LIBRARY, *steps, "--steps", "5", "--warmup", "2", *record)
    carried = {
        "OPAL_PREFIX": mpi,
        "LD_LIBRARY_PATH": mpi / "lib",
        "MPI4PY_LIBMPI": mpi / "lib" / "libmpi.so.40",
        "SPARSE_MPI_CUDA_AWARE": 1,
    }
    start = ("env", *(f"{name}={value}" for name, value in carried.items()), str(mpi / "bin" / "mpiexec"))
    command = (*start, "--oversubscribe", "-n", "2", sys.executable, *words)
    command = (*LIBRARY, "run", "-n", "2", *words) if pretend else command
    basis = "imports 10, two steps of each algorithm on the CPU and the GPU 20, seven in turns 10"
    found.append(Stage("pointers", 40, basis, command, without_mpi, mpi=pretend))
    return found


def _find_sanitizer() -> str | None:
    """Return the path of compute-sanitizer, of the toolkit on the path or else of one of `TOOLKITS`; None without."""
    folders = [os.environ.get("PATH", os.defpath), *map(os.path.expandvars, TOOLKITS)]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def _missing(*packages: str) -> str:
    """Return the reason not to try a stage that needs these packages; "" if all are installed."""
    missing = [name for name in packages if find_spec(MODULES.get(name, name)) is None]
    return f"needs {' and '.join(missing)}: pip install {' '.join(missing)}" if missing else ""


def _tests(checkout: str, pretend: bool) -> list[Stage]:
    """Return the stages of tests: on the device, and its kernels under each tool of compute-sanitizer."""
    tests = ("-m", "tests.gpu")
    marked = ("tests/kernels/test_half_cuda.py",) if pretend else ()
    found = [
        Stage(
            "tests",
            150,
            "imports 10, 1,000 tests of kernels at 0.1 s 100, tests of streams and NCCL 40",
            (*tests, *marked),
            checkout,
        )
    ]
    sanitizer = _find_sanitizer()
    missing = checkout or (
        "" if sanitizer else f"compute-sanitizer is neither on the path nor in {' or '.join(TOOLKITS)}"
    )
    half, kernels = "tests/kernels/test_half_cuda.py", "tests/kernels/test_kernels.py"
    basis = "imports 15, tests of {} at 10 to 50 times their 2 s {}"
    for tool, seconds, files in (
        ("memcheck", 90, (half, kernels)),
        ("racecheck", 90, (kernels,)),
        ("synccheck", 60, (kernels,)),
    ):
        words = ("--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9", sys.executable, *tests)
        selected = ("--no-pools", "-m", "gpu", *files)
        stated = basis.format("kernels and half precision" if half in files else "kernels", seconds - 15)
        found.append(Stage(tool, seconds, stated, (sanitizer or "compute-sanitizer", *words, *selected), missing))
    return found
