"""The alpha-beta model, which gives the time that counted traffic takes on a network."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from sparse_mpi.comm import Traffic


@dataclass(frozen=True)
class Network:
    """A network, as the two numbers of the alpha-beta model.

    Args:
        alpha: seconds a message takes, whatever its length.
        beta: seconds a byte takes; the inverse of a rank's bandwidth.
    """

    alpha: float
    beta: float

    @staticmethod
    def of(gigabits: float, microseconds: float) -> Network:
        """Return the network of a data sheet: bandwidth of a rank in Gbit/s, latency of a message in microseconds.

        Raises:
            ValueError: the bandwidth is not positive or the latency is negative.
        """
        if not 0 < gigabits < inf or not 0 <= microseconds < inf:
            raise ValueError(f"a network needs gigabits > 0 and microseconds >= 0, got {gigabits} and {microseconds}")
        return Network(microseconds / 1e6, 8 / (gigabits * 1e9))

    def __str__(self) -> str:
        rate = f"{1e-9 / self.beta:.3g} GB/s" if self.beta else "bandwidth without limit"
        return f"{self.alpha * 1e6:.3g} us a message, {rate}"

    def seconds(self, traffic: Traffic) -> float:
        """Return the seconds that the traffic of one rank takes.

        Each message costs alpha, and each byte beta. Of the payload only the direction that carries more counts;
        control is added.
        """
        return self.alpha * traffic.messages + self.beta * (max(traffic.sent, traffic.received) + traffic.control)
