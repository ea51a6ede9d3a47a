import numpy as np

from hetero_tvm.host.tvm import structural_equal, te
from hetero_tvm.ops.base import from_json
from hetero_tvm.ops.tensor_program import TensorProgram


def program():
    """y[i, j] = x[i, j] * w[j] + 1, of odd extents and two dtypes."""
    x, w = te.placeholder((3, 5), "float32", "x"), te.placeholder((5,), "int32", "w")
    y = te.compute((3, 5), lambda i, j: x[i, j] * w[j].astype("float32") + 1.0, name="y")
    return TensorProgram.of(te.create_prim_func([x, w, y]), "scaled", 30)


def test_operands_are_the_parameters():
    op = program()
    assert [(o.shape, o.dtype) for o in op.inputs] == [((3, 5), "float32"), ((5,), "int32")]
    assert op.output.shape == (3, 5) and op.nbytes == 4 * (15 + 5 + 15)
    assert op.flops == 30 and op.label == "scaled"


def test_json_brings_the_same_function_back():
    op = program()
    again = from_json(op.to_json())
    assert again == op and hash(again) == hash(op)
    assert structural_equal(again.workload(), op.workload())


def test_reference_runs_the_function_in_its_own_dtypes():
    op = program()
    generator = np.random.default_rng(0)
    x, w = generator.standard_normal((3, 5)), generator.integers(-9, 9, 5)
    result = op.reference(x, w)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, x * w + 1, rtol=1e-5, atol=1e-6)
