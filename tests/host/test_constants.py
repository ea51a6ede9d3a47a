"""Relax constants over mapped arrays."""

import numpy as np
import pytest

from hetero_tvm.host import mapped
from hetero_tvm.host.constants import array_of, constant, tensor_of
from hetero_tvm.host.tvm import relax
from tests.selection import thorough


@pytest.mark.parametrize("dtype", ["float32", *thorough(["float64"]), "float16", "int64", "int8", "bool"])
def test_constants_are_what_relax_makes_of_them(dtype):
    array = np.random.default_rng(0).integers(0, 2, (1 << 10, 1 << 11)).astype(dtype)
    ours, theirs = constant(array), relax.const(array)
    assert str(ours.ty) == str(theirs.ty)
    np.testing.assert_array_equal(ours.value.numpy(), theirs.value.numpy())
    np.testing.assert_array_equal(array_of(ours.value), theirs.value.numpy())
    assert tensor_of(array).dtype == dtype  # what is a tensor already keeps its type


def test_large_constants_share_the_memory_of_the_file():
    array = mapped.mapped(np.arange(1 << 19, dtype=np.float32))
    value = constant(array)
    assert value.value.data_ptr() == array.ctypes.data
    view = array_of(value.value)
    assert view.ctypes.data == array.ctypes.data and not view.flags.writeable
    again = constant(view.reshape(1 << 9, 1 << 10))
    assert again.value.data_ptr() == array.ctypes.data
    del array, value
    assert array_of(again.value)[-1, -1] == (1 << 19) - 1


def test_small_constants_are_copies():
    array = np.ones((4, 4), np.float32)
    value = constant(array)
    array[:] = 2
    assert array_of(value.value).max() == 1
