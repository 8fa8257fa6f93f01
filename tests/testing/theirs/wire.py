"""Pairs whose values keep the higher half of their bits."""

from dataclasses import dataclass
from typing import ClassVar

from sparse_mpi.wire import Coo


@dataclass(frozen=True)
class Coarse(Coo):
    lossless: ClassVar[bool] = False

    def pack(self, vector, counts, regions):
        return super().pack(coarse(vector), counts, regions)

    def pack_sum(self, vector, region):
        return super().pack_sum(coarse(vector), region)

    def pack_rows(self, vector, pattern):
        return super().pack_rows(coarse(vector), pattern)


def coarse(vector):
    bits = vector.values.view(f"i{vector.values.itemsize}")
    kept = bits >> 4 * bits.itemsize << 4 * bits.itemsize
    return vector._replace(values=kept.view(vector.values.dtype))
