"""The algorithms. `ALGORITHMS` names them; CONTRIBUTING.md says how to add one."""

from __future__ import annotations

from sparse_mpi.algorithms.acpsgd import ACPSGD
from sparse_mpi.algorithms.adtopk import ADTopk
from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction, Traits
from sparse_mpi.algorithms.dense import Dense
from sparse_mpi.algorithms.dense_bf16 import DenseBF16
from sparse_mpi.algorithms.elect import Elect
from sparse_mpi.algorithms.gaussiank import GaussianK
from sparse_mpi.algorithms.gtopk import GTopk
from sparse_mpi.algorithms.micro import MiCRO
from sparse_mpi.algorithms.oktopk import OkTopk
from sparse_mpi.algorithms.powersgd import PowerSGD
from sparse_mpi.algorithms.quota import Quota
from sparse_mpi.algorithms.spardl import SparDL
from sparse_mpi.algorithms.topka import TopkA
from sparse_mpi.algorithms.topkdsa import TopkDSA
from sparse_mpi.algorithms.two_level import TwoLevel
from sparse_mpi.checks import Registry

ALGORITHMS = Registry(
    "algorithm",
    {
        "dense": Dense,
        "dense-bf16": DenseBF16,
        "topka": TopkA,
        "topkdsa": TopkDSA,
        "gtopk": GTopk,
        "oktopk": OkTopk,
        "oktopk-2level": TwoLevel,
        "quota": Quota,
        "spardl": SparDL,
        "micro": MiCRO,
        "gaussiank": GaussianK,
        "adtopk": ADTopk,
        "elect": Elect,
        "powersgd": PowerSGD,
        "acpsgd": ACPSGD,
    },
)

__all__ = [
    "ACPSGD",
    "ALGORITHMS",
    "ADTopk",
    "Algorithm",
    "Bound",
    "Dense",
    "DenseBF16",
    "Elect",
    "GTopk",
    "GaussianK",
    "MiCRO",
    "OkTopk",
    "PowerSGD",
    "Quota",
    "Reduction",
    "SparDL",
    "TopkA",
    "TopkDSA",
    "Traits",
    "TwoLevel",
]
