"""Arrays in and out of a library: any alignment, stride and type; results belong to the caller."""

import numpy as np
import pytest

from hetero_tvm.errors import InputError
from hetero_tvm.runtime import load
from hetero_tvm.runtime.arrays import InputSlot, fetched, named_indices, numpy_dtype
from hetero_tvm.runtime.signature import TensorSpec
from tests.runtime.conftest import ROWS, WIDTH, expected, sample


@pytest.fixture(scope="module")
def net(mlp):
    return load(mlp)


def place(values, offset):
    """A copy of ``values`` that starts ``offset`` bytes after a multiple of 64."""
    raw = np.empty(values.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    array = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


def read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    "arrange",
    [
        *(lambda x, offset=offset: place(x, offset) for offset in (0, 1, 4, 16, 48)),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1][::-1].copy()[::-1][::-1],
        np.asfortranarray,
        lambda x: np.ascontiguousarray(x.T).T,
        read_only,
        lambda x: np.broadcast_to(x[:1], x.shape),
    ],
)
def test_any_alignment_and_stride(net, wide, arrange):
    x = arrange(sample())
    np.testing.assert_allclose(net(x), expected(np.array(x)), rtol=1e-4, atol=1e-4)
    large = arrange(np.random.default_rng(2).standard_normal((64, 256)).astype("float32"))
    np.testing.assert_array_equal(load(wide)(large), np.array(large) + np.float32(1))


def test_inputs_are_lent_at_the_alignment_that_kernels_want(net):
    spec = TensorSpec("x", (64, 256), "float32")
    x = np.random.default_rng(5).standard_normal((64, 256)).astype("float32")
    for offset, alignment, lent in (
        (0, 64, True),
        (16, 64, False),
        (16, 16, True),
        (48, 16, True),
        (4, 16, False),
    ):
        array, slot = place(x, offset), InputSlot(net._runtime, spec, alignment)
        tensor = slot.tensor(array)
        assert (tensor.data_ptr() == array.ctypes.data) == lent, (offset, alignment)
        np.testing.assert_array_equal(np.from_dlpack(tensor), x)


def test_other_array_types(net):
    x = sample()

    class HasArray:
        def __array__(self, dtype=None, copy=None):
            return x

    class HasDLPack:
        def __dlpack__(self, **options):
            return x.__dlpack__(**options)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    for given in (HasArray(), HasDLPack(), x.tolist(), np.ma.array(x).data):
        np.testing.assert_array_equal(net(given), net(x))


def test_lists_convert_when_their_values_survive(many):
    net = load(many)
    x = [[1] * WIDTH] * ROWS
    ids = [[2.0] * WIDTH] * ROWS
    assert (net(x, ids)[0] == 3).all()
    with pytest.raises(InputError, match="do not fit into int64"):
        net(x, [[0.5] * WIDTH] * ROWS)
    with pytest.raises(InputError, match="do not fit into float32"):
        net([[1e300] * WIDTH] * ROWS, ids)
    with pytest.raises(InputError, match="do not fit into float32"):
        net([[2**24 + 1] * WIDTH] * ROWS, ids)
    with pytest.raises(InputError, match="token_ids"):
        net(x, [["a"] * WIDTH] * ROWS)


def test_results_belong_to_the_caller(many, net):
    """Neither later calls nor the caller's own writing change anything but that array."""
    library = load(many)
    x, ids = sample(), np.zeros((ROWS, WIDTH), "int64")
    first = library(x, ids)
    copies = [np.array(array) for array in first]
    second = library(-x, ids + 1)
    for array, copy in zip(first, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    for array in second:
        assert array.flags.writeable
        array[...] = 0
    np.testing.assert_array_equal(library(x, ids)[2], np.arange(3))
    kept = [net(sample(seed)) for seed in range(8)]
    for seed, result in enumerate(kept):
        np.testing.assert_allclose(result, expected(sample(seed)), rtol=1e-4, atol=1e-4)


def test_inputs_are_not_changed(wide):
    x = place(np.random.default_rng(3).standard_normal((64, 256)).astype("float32"), 0)
    before = x.copy()
    load(wide)(x)[...] = 7
    np.testing.assert_array_equal(x, before)


def test_indices_outside_of_a_range_are_named_where_an_input_holds_them():
    specs = [
        TensorSpec("x", (2,), "float32"),
        TensorSpec("ids", (1, 3), "int64"),
        TensorSpec("n", (2,), "uint8"),
    ]
    given = [np.full(2, 9, np.float32), np.array([[0, -5, 7]]), np.array([1, 2], np.uint8)]
    told = "lookup: an index lies outside [-4, 4)"
    assert named_indices(told, specs, given) == f"{told}: input ids holds -5 at [0, 1]"
    given[1][...] = 3  # what is at fault is computed
    assert named_indices(told, specs, given) == told
    assert named_indices("x is outside 1..4", specs, given) == "x is outside 1..4"


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16"])
def test_values_of_tensors_of_any_type(dtype):
    """NumPy's DLPack knows no bfloat16, which results of convolutions may have."""
    tvm = pytest.importorskip("tvm")
    array = np.arange(6).reshape(2, 3).astype(numpy_dtype(dtype))
    found = fetched(tvm.runtime.tensor(array))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
