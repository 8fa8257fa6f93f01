"""Values in four and in two bits: what arrives of them, and how far off it is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sparse_mpi.wire import WIRES

from .test_wire_packed import rounded

LOW = ["packed+int4", "packed+int2"]


def off(name, values):
    values = values.astype(np.float32)
    return np.linalg.norm(rounded(name, values) - values) / np.linalg.norm(values)


@pytest.mark.parametrize(
    ("name", "largest", "all_of_them"), [("packed+int4", 0.035, 0.17), ("packed+int2", 0.07, 0.355)]
)
def test_errors_are_those_that_the_docstrings_tell(name, largest, all_of_them):
    """Of a selection of 1.6 % of normal values, and of normal values."""
    x = np.random.default_rng(0).standard_normal(1_000_000)
    selected = x[np.abs(x) >= np.quantile(np.abs(x), 1 - 0.016)]
    assert 0.9 * largest < off(name, selected) < largest
    assert 0.9 * all_of_them < off(name, x[:50_000]) < all_of_them


def test_four_bits_are_unbiased():
    """The mean error of many values is as small as chance makes it, of each size between two levels."""
    rng = np.random.default_rng(3)
    values = rng.uniform(1, 2, 200_000).astype(np.float32) * rng.choice([-1, 1], 200_000).astype(np.float32)
    values[::64], values[1::64] = 1, 2  # the smallest and the largest of every block
    error = (np.abs(rounded("packed+int4", values)) - np.abs(values)).astype(np.float64) * 7
    assert np.abs(error).max() < 1.05
    for fraction in np.array_split(np.argsort(np.abs(values) * 7 % 1), 10):
        assert abs(error[fraction].mean()) < 4.5 * 0.5 / np.sqrt(len(fraction))
    assert rounded("packed+int4", values).tobytes() == rounded("packed+int4", values).tobytes()


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_equal_magnitudes_arrive_as_they_are(name, kind):
    """Of one value, too, and of the largest one of half precision."""
    for magnitude in (0.25, 3.0, 65504.0 if kind == np.float16 else 3.3895313892515355e38):
        for signs in ([1], [-1], [1, -1, -1], np.where(np.arange(300) % 3, 1, -1)):
            values = np.array(signs, kind) * kind(magnitude)
            assert rounded(name, values).tolist() == values.tolist()


def test_two_magnitudes_are_told_apart_whatever_the_others_in_the_message():
    """Each block of 128 has its own; zeros and NaN stay among values of any one size."""
    values = np.tile(np.array([1, -3, 3, -1], np.float32), 64)
    values[128:] *= 1e-6
    np.testing.assert_allclose(rounded("packed+int2", values), values, rtol=1 / 128)
    with_zeros = np.array([0, 2, -2, 0, np.nan, 2, np.inf, -0.0], np.float32)
    found = rounded("packed+int2", with_zeros)
    np.testing.assert_allclose(found, [0, 2, -2, 0, np.nan, 2, np.nan, 0], rtol=2**-15)
    assert not np.signbit(found[found == 0]).any()


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("outlier", [1e3, 1e8, 3e38])
def test_one_large_value_does_not_grow(name, outlier):
    """And takes no more from the others than they are."""
    values = np.append(np.full(100, 1e-3, np.float32), np.float32(outlier))
    found = rounded(name, values)
    assert found[-1] == pytest.approx(outlier, rel=2**-14) and (np.abs(found[:-1]) <= outlier / 7 + 1).all()


@pytest.mark.parametrize(("name", "bits"), [("packed+int4", 4), ("packed+int2", 2)])
def test_bytes_of_a_few_entries(name, bits):
    """Whole bytes of codes and a scale, on top of what indices and the number of entries take."""
    for count in range(10):
        regions, counts = np.array([[0, 1000]]), np.array([count])
        found, exact = (WIRES[each].lengths_of(counts, regions, 1000, np.float32)[0] for each in (name, "packed"))
        assert found == exact - 4 * count + -(-count * bits // 8) + 4 * (count > 0)
