"""What papers and programs of sparse and low-rank allreduces report: the headlines that a model is held to.

Only numbers that were found in a text are here. For Ok-Topk's steps with VGG-16 and LSTM on 16 and 32 nodes of Piz
Daint none was found, as figures have them, nor for PowerSGD, SparDL and MiCRO.
"""

from __future__ import annotations

from typing import NamedTuple

from sparse_mpi.comm.network import Network
from sparse_mpi.predict.networks import NETWORKS


class Workload(NamedTuple):
    """What was trained."""

    model: str
    n: int  # elements of the gradient
    batch: int  # samples of a rank and step
    density: float | None = None  # of sparse sums
    factors: int | None = None  # rank of low-rank sums
    compute: float | None = None  # seconds of forward and backward pass, where told


class Headline(NamedTuple):
    """How many times as long a step took with other algorithms as with one, on a cluster."""

    algorithm: str  # a name in `ALGORITHMS`: the published program, not ours
    against: tuple[str, ...]  # names in `ALGORITHMS`
    ratios: tuple[float, float]  # least and most, over ``against``
    workloads: tuple[Workload, ...]  # where there are several, ratios are means over them
    ranks: int
    ranks_per_node: int
    network: Network | None  # a rank's share of its node's links; None where the source does not tell
    gpu: str  # empty where the source does not tell
    transport: str
    seconds: float | None  # of a step with ``algorithm``, where told
    source: str
    untold: str  # what a model needs and the source does not tell, or what does not fit together in it


STAGED = "MPI by mpi4py, from NumPy arrays: the host has a copy of every gradient"


def adtopk_step(first: float, last: float) -> float:
    """Return the seconds of a step: training took so many seconds until the end of epochs 1 and 80, of 195 steps."""
    return (last - first) / (79 * 195)


ADTOPK, OKTOPK, DENSE = adtopk_step(18.675, 1318.618), adtopk_step(28.471, 1786.431), adtopk_step(65.595, 4633.986)
ADTOPK_LOG = Headline(
    algorithm="adtopk",
    against=("dense",),
    ratios=(DENSE / ADTOPK, DENSE / ADTOPK),
    workloads=(Workload("VGG-16, CIFAR-100", 14_774_436, 32, density=0.01),),
    ranks=8,
    ranks_per_node=1,
    network=None,
    gpu="",
    transport=STAGED,
    seconds=ADTOPK,
    source="github.com/zqming-cs/ADTopk at cb520c7 and b74c26e, Ok-Topk/VGG/result/data/cifar100_vgg16, of 14 "
    "September: seconds of training on rank 0, without evaluation",
    untold="The link's rate: scripts name 8 nodes of one GPU and Open MPI's TCP. The GPU, the time to compute, and "
    "which script wrote the dense log.",
)
ACPSGD_MEAN = Headline(
    algorithm="acpsgd",
    against=("dense",),
    ratios=(4.06, 4.06),
    workloads=(
        Workload("ResNet-50", 25_557_032, 64, factors=4),
        Workload("ResNet-152", 60_192_808, 32, factors=4),
        Workload("BERT-base, pretraining", 110_106_428, 32, factors=32),
        Workload("BERT-large, pretraining", 336_226_108, 8, factors=32),
    ),
    ranks=32,
    ranks_per_node=4,
    network=Network.of(10 / 4, NETWORKS["10gbe"][0].alpha * 1e6),
    gpu="",
    transport="NCCL over TCP, 10 GbE",
    seconds=None,
    source="Zhang et al., ICDCS'23, abstract; github.com/lzhangbv/acpsgd at ec75a2a: batch.sh, perf.sh and envs.conf",
    untold="The GPU, and seconds of any model: the abstract has the mean of ratios alone, and does not say over which "
    "set-ups. Latency: ours for 10 GbE. envs.conf names two interfaces of 10 GbE a node.",
)
HEADLINES = (
    Headline(
        algorithm="oktopk",
        against=("dense", "topka", "topkdsa", "gtopk", "gaussiank"),
        ratios=(3.29, 12.95),
        workloads=(Workload("BERT, Wikipedia", 133_547_324, 8, density=0.01),),
        ranks=256,
        ranks_per_node=1,
        network=NETWORKS["piz-daint"][0],
        gpu="P100",
        transport=STAGED,
        seconds=None,
        source="Li and Hoefler, PPoPP'22, abstract; github.com/Shigangli/Ok-Topk at 9763dcc, BERT/bert/bert_oktopk.sh",
        untold="Which algorithm is the nearest and which the farthest, the seconds of a step, and the time to compute. "
        "Latency and rate are of host memory: CSCS's checks expect 5.73 us and 8.77 GB/s from GPU to GPU "
        "(reframe-hpc/reframe, osu_tests.py at 099e1c3).",
    ),
    ADTOPK_LOG,
    ADTOPK_LOG._replace(algorithm="oktopk", ratios=(DENSE / OKTOPK, DENSE / OKTOPK), seconds=OKTOPK),
    ADTOPK_LOG._replace(against=("oktopk",), ratios=(OKTOPK / ADTOPK, OKTOPK / ADTOPK)),
    ACPSGD_MEAN,
    ACPSGD_MEAN._replace(against=("powersgd",), ratios=(1.43, 1.43)),
    Headline(
        algorithm="gtopk",
        against=("topka", "dense"),
        ratios=(123.2 / 63.002, 123.2 / 12.6),
        workloads=(Workload("VGG-16, CIFAR-10", 14_728_266, 128, density=0.001, compute=0.139536),),
        ranks=32,
        ranks_per_node=1,
        network=Network(436e-6, 9e-9),
        gpu="",
        transport=STAGED,
        seconds=128 / 123.2,
        source="Shi et al., ICDCS'19; github.com/hclhkbu/gtopkssgd at 6f57343, scripts/icdcs2019/communication.py: "
        "images a second of a rank, parts of a step, and latency and seconds a byte of its 1 GbE from point to point",
        untold="The GPU, and why dense and gtopk send a tenth as fast as that link: a ring would take 1.1 s of "
        "the 10.2 that a dense step took, and gtopk's 1.2 MB should take 0.02 s of its 0.81.",
    ),
)
