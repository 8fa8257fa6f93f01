"""Checks of users' own algorithms, selectors, message formats, feedback rules and transports.

    sparse_mpi.testing.check_algorithm(MyAlgorithm())

Each check makes many `Trials`, and raises a `ConformanceError` that names the broken law, and how to repeat the trial.
Checks need no test framework, and use hypothesis if installed.
"""

from sparse_mpi.testing.cases import CASES, Case
from sparse_mpi.testing.checking_algorithms import check_algorithm
from sparse_mpi.testing.checking_feedback import check_feedback
from sparse_mpi.testing.checking_selectors import check_selector
from sparse_mpi.testing.checking_transports import check_transport
from sparse_mpi.testing.checking_wires import check_wire
from sparse_mpi.testing.trials import ConformanceError, Trials

__all__ = [
    "CASES",
    "Case",
    "ConformanceError",
    "Trials",
    "check_algorithm",
    "check_feedback",
    "check_selector",
    "check_transport",
    "check_wire",
]
