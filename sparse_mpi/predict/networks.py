"""Networks by name, by bandwidth and latency, or from a file that `predict fit` wrote."""

from __future__ import annotations

import json
from pathlib import Path

from sparse_mpi.comm.network import Network

NETWORKS = {
    "1gbe": (Network.of(1, 30), "Gigabit Ethernet, TCP"),
    "10gbe": (Network.of(10, 15), "10 Gigabit Ethernet, TCP"),
    "100gb": (Network.of(100, 2), "100 Gbit/s with RDMA: InfiniBand EDR or RoCE"),
    # OSU micro-benchmarks on Piz Daint (Cray XC50, Aries, Cray MPT 7.7.2) as CSCS published them in the cookbook of the
    # container engine Sarus: 8 bytes in 1.09 us, 4 MiB in 431.85 us one way. Li and Hoefler measured Ok-Topk on Piz
    # Daint; their paper has neither figure.
    "piz-daint": (Network(1.09e-6, (431.85e-6 - 1.09e-6) / (1 << 22)), "Piz Daint, Cray Aries"),
}
CHOICES = f"{', '.join(NETWORKS)}, GBIT/MICROSECONDS such as 25/5, or a file of predict fit"


def named(text: str) -> tuple[Network, str]:
    """Return the network that ``text``, one of `CHOICES`, stands for, and its description.

    Raises:
        ValueError: ``text`` is none of these.
    """
    if text in NETWORKS:
        return NETWORKS[text]
    try:
        gigabits, microseconds = map(float, text.split("/"))
    except ValueError:
        return _of_file(text)
    return Network.of(gigabits, microseconds), text


def _of_file(text: str) -> tuple[Network, str]:
    """Read a network from a file of `predict fit`."""
    try:
        fitted = json.loads(Path(text).read_text())
        return Network(float(fitted["alpha"]), float(fitted["beta"])), f"fitted, {Path(text).name}"
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"network must be {CHOICES}, got {text!r}") from None
