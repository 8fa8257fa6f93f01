"""Segments of more than 64 KiB on links of a host (BIG TCP over IPv4, Linux 6.3), which `ip` cannot ask for everywhere.

``python -m sparse_mpi_bench.emulation.offload BYTES LINK...`` runs on the host, because a process is on one.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

NEW_LINK, REQUEST_AND_ANSWER = 16, 1 | 4  # constants of netlink
GSO_IPV4, GRO_IPV4 = 63, 64  # attributes of a link: the bytes that TCP hands over at most, and gets


def allow(link: str, size: int) -> None:
    """Let TCP hand ``size`` bytes at once to a link of this host. Raises OSError: no link, or too old a kernel."""
    for kind in (GSO_IPV4, GRO_IPV4):
        body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, socket.if_nametoindex(link), 0, 0)
        body += struct.pack("=HHI", 8, kind, size)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.send(struct.pack("=IHHII", 16 + len(body), NEW_LINK, REQUEST_AND_ANSWER, 1, 0) + body)
            (error,) = struct.unpack_from("=i", kernel.recv(4096), 16)
        if error:
            raise OSError(-error, f"{link}: {os.strerror(-error)}")


if __name__ == "__main__":
    for each in sys.argv[2:]:
        allow(each, int(sys.argv[1]))
