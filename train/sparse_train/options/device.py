"""The options that say on which device, and in which precision, a model computes."""

from __future__ import annotations

from argparse import ArgumentParser

from sparse_mpi.comm import conversion

TRANSPORTS = ("auto", *conversion.TRANSPORTS)
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("float32", "bf16")


def extend(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument_group("device").add_argument
    text = (
        "compute, select and merge there: a GPU for each rank of a node in turn, or the one that the scheduler left "
        "visible; auto takes GPUs where all ranks have one, and CuPy (default: auto)"
    )
    add("--device", choices=DEVICES, default="auto", help=text)
    text = (
        "what carries reductions of GPUs; auto takes NCCL where MPI takes no device pointers and each of several ranks "
        "has its own GPU (default: auto)"
    )
    add("--transport", choices=TRANSPORTS, default="auto", help=text)
    text = "of the forward and backward passes; bf16 keeps weights and gradients in float32 (default: float32)"
    add("--precision", choices=PRECISIONS, default="float32", help=text)
    text = (
        "choose kernels of cuDNN, cuBLAS and torch that give the same bits each time, where there are any; slower. "
        "Without it runs on GPUs differ, and so does one that is resumed; on CPUs they do not"
    )
    add("--deterministic", action="store_true", help=text)
