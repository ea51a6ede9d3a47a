import numpy as np
import pytest

from hetero_tvm.host.tvm import te, tirx, tvm
from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.te_workload import (
    OP_ATTR,
    activation,
    at_flat,
    broadcast_index,
    image,
    image_as,
    plain_activation,
    wide,
)
from tests.ops.test_activations import EXACT
from tests.plain import PLAIN


def run(compute, *arrays):
    """The result of a tensor expression of placeholders like ``arrays``."""
    inputs = [te.placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(arrays)]
    result = compute(*inputs)
    function = te.create_prim_func([*inputs, result]).with_attr("global_symbol", "main")
    out = tvm.runtime.tensor(np.zeros([int(e) for e in result.shape], str(result.dtype)))
    library = tvm.compile(tvm.IRModule({"main": function}), target=PLAIN)
    library["main"](*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


@pytest.mark.parametrize("write", [activation, plain_activation])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_against_scipy(write, name):
    x = np.linspace(-12, 12, 97, dtype=np.float32)
    found = run(lambda a: te.compute(a.shape, lambda i: write(name, a(i))), x)
    np.testing.assert_allclose(found, EXACT[name](x.astype(np.float64)), rtol=0, atol=2e-6)


def test_flat_places_are_row_major():
    x = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
    found = run(lambda a: te.compute((5, 6), lambda i, j: at_flat(a, 5 * j + i)), x)
    np.testing.assert_array_equal(found, x.reshape(6, 5).T)


def test_broadcast_operands_are_read_where_numpy_reads_them():
    x = np.arange(3, dtype=np.float32).reshape(3, 1)

    def spread(a):
        return te.compute((2, 3, 4), lambda *i: a[broadcast_index((3, 1), i)])

    np.testing.assert_array_equal(run(spread, x), np.broadcast_to(x, (2, 3, 4)))


def test_values_are_widened_once():
    x = np.array([1.5, -2.0], np.float16)
    assert run(lambda a: te.compute(a.shape, lambda i: wide(a[i])), x).dtype == np.float32
    value = tirx.const(1.0, "float32")
    assert wide(value) is value


def test_images_in_blocks_and_back():
    x = np.random.default_rng(0).standard_normal((1, 5, 2, 3)).astype(np.float32)
    packed = run(lambda a: image_as(a, "NCHW4c+1,0,0,2"), x)
    assert packed.shape == (1, 2, 3, 5, 4) and np.count_nonzero(packed) == x.size
    assert packed[0, 1, 1 + 1, 2, 0] == x[0, 4, 1, 2]
    np.testing.assert_array_equal(run(lambda a: image(a, "NCHW4c+1,0,0,2", x.shape), packed), x)


def test_functions_carry_their_contract_and_are_left_alone_by_fusion():
    op = Matmul((2,), 3, 4)
    function = op.workload()
    assert str(function.attrs[OP_ATTR]) == op.to_json()
    assert int(function.attrs["op_pattern"]) == 8 and function.attrs["tirx.noalias"]
    assert "global_symbol" not in function.attrs
    assert [tuple(map(int, b.shape)) for b in function.params] == [(2, 4), (4, 3), (2, 3)]
