"""Networks by name, or by bandwidth and latency."""

from __future__ import annotations

from sparse_mpi.collectives.network import Network

NETWORKS = {
    "1gbe": (Network.of(1, 30), "Gigabit Ethernet, TCP"),
    "10gbe": (Network.of(10, 15), "10 Gigabit Ethernet, TCP"),
    "100gb": (Network.of(100, 2), "100 Gbit/s with RDMA: InfiniBand EDR or RoCE"),
    # OSU micro-benchmarks on Piz Daint (Cray XC50, Aries, Cray MPT 7.7.2) as CSCS published them in the cookbook of the
    # container engine Sarus: 8 bytes in 1.09 us, 4 MiB in 431.85 us one way. Li and Hoefler measured Ok-Topk on Piz
    # Daint; their paper has neither figure.
    "piz-daint": (Network(1.09e-6, (431.85e-6 - 1.09e-6) / (1 << 22)), "Piz Daint, Cray Aries"),
}
CHOICES = f"{', '.join(NETWORKS)}, or GBIT/MICROSECONDS such as 25/5"


def named(text: str) -> tuple[Network, str]:
    """Return the network that one of `CHOICES` stands for, and its description. Raises ValueError: it is none."""
    if text in NETWORKS:
        return NETWORKS[text]
    try:
        gigabits, microseconds = map(float, text.split("/"))
    except ValueError:
        raise ValueError(f"network must be {CHOICES}, got {text!r}") from None
    return Network.of(gigabits, microseconds), text
