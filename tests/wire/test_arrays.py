"""NumPy and torch in and out without copies. Device arrays: `test_device_arrays` too, and for real `test_gpu`."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest
import torch

from sparse_mpi import arrays

from ..fakes.fake_array import to_torch
from ..fakes.fake_device import TORCH_STREAM, ForeignStream


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_enter_shares_memory(dtype):
    x = np.zeros((3, 4), dtype)
    assert np.shares_memory(arrays.enter(x), x) and arrays.enter(x).shape == (12,)
    t = torch.zeros(3, 4, dtype=getattr(torch, dtype), requires_grad=True)
    arrays.enter(t)[5] = 1
    assert t[1, 1] == 1


@pytest.mark.parametrize("x", [np.ones(3, np.float16), np.ones(3, ml_dtypes.bfloat16), torch.ones(3).bfloat16()])
def test_half_precision_is_widened(x):
    arrays.check(x, "x")
    wide = arrays.widened(arrays.enter(x))
    assert wide.dtype == arrays.wide_type(arrays.enter(x)) == np.float32 and (wide == 1).all()


def test_leave_goes_back_without_a_copy():
    a = np.zeros(3, np.float32)
    out = arrays.leave(a, torch.zeros(1))
    out[1] = 5
    assert a[1] == 5 and arrays.leave(a, np.zeros(1)) is a


@pytest.mark.parametrize("caller", [torch.zeros(1), np.zeros(1)], ids=["torch", "numpy"])
def test_what_is_read_only_leaves_as_a_writable_copy(caller, recwarn):
    torch.set_warn_always(True)  # not only once in a process
    a = np.zeros(3, np.float32)
    a.flags.writeable = False
    try:
        out = arrays.leave(a, caller)
    finally:
        torch.set_warn_always(False)
    out[1] = 5
    assert not recwarn.list and a.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0], "gradient must be a NumPy or CuPy array or a torch tensor, got list"),
        (torch.zeros(2, dtype=torch.int64), "dtype float32, float64, float16, bfloat16, got int64"),
        (np.zeros(2, complex), "got complex128"),
        (torch.zeros(2, device="meta"), "must be on the CPU or a CUDA device, got meta"),
    ],
)
def test_check_names_what_came(x, message):
    with pytest.raises(TypeError, match=message):
        arrays.check(x, "gradient")


@pytest.mark.parametrize("version", [14, 13])
def test_torchs_stream_is_wrapped_once(device, monkeypatch, version):
    """CuPy 14 warns of ExternalStream each time, and knows another way."""
    cuda = sys.modules["cupy"].cuda
    if version < 14:
        monkeypatch.setattr(cuda, "Stream", lambda *, non_blocking: None)
        monkeypatch.setattr(cuda, "ExternalStream", ForeignStream, raising=False)
    x = to_torch(sys.modules["cupy"].zeros(3))
    for _ in range(3):
        with arrays.on_stream_of(x):
            assert device.stack[-1].ptr == TORCH_STREAM
        assert device.stack[-1].ptr == 0
    assert device.wrapped == [TORCH_STREAM] * (version == 14)
