"""Values of command lines about links."""

from __future__ import annotations

from sparse_mpi.cli import values
from sparse_mpi.predict import networks, rates

network = values.checked(networks.named, "10gbe", "network")
rate = values.checked(rates.parse, "100mbit", "rate")
any_rate = values.checked(rates.bits, "400gbit", "rate")
