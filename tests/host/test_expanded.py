"""Arrays that follow from fewer numbers."""

import gc

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.expanded import expanded, origin_of, remember

RNG = np.random.default_rng(0)


def example(inner):
    matrix = RNG.standard_normal((36, 9)) * (RNG.random((36, 9)) < 0.7)
    return matrix, RNG.standard_normal((3, 9, inner)).astype(np.float32)


def test_rows_are_sums_of_terms():
    matrix, plain = example(5000)
    found = expanded(matrix, plain)
    np.testing.assert_allclose(found, np.einsum("rt,oti->ori", matrix, plain), rtol=1e-6, atol=1e-6)
    assert found.reshape(3, 36, 50, 100).origin is found.origin
    assert np.array_equal(found.origin.plain, plain)


def test_a_constant_has_an_origin_as_long_as_it_lives():
    array = expanded(*example(5000))
    value = constant(np.ascontiguousarray(array)).value
    remember(value, array)
    assert np.array_equal(origin_of(value).plain, array.origin.plain)
    address = value.data_ptr()
    del array, value
    gc.collect()
    for _ in range(3):  # another array may come to lie where it was
        other = constant(np.zeros((3, 36, 5000), np.float32)).value
        assert origin_of(other) is None
        if other.data_ptr() == address:
            break


def test_small_arrays_are_stored_as_they_are():
    array = expanded(*example(10))
    value = constant(np.ascontiguousarray(array)).value
    remember(value, array)
    assert origin_of(value) is None
