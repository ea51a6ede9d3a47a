"""Models in float64."""

import numpy as np
import onnx

from hetero_tvm.reference import to_double
from tests.frontend.onnx.helpers import text_model


def test_all_floats_become_double():
    source = text_model("""
        g (float16[2] h, int64[2] i) => (float[2] y) {
            f = Cast<to = 1>(h) j = Cast<to = 1>(i) s = Shape(i)
            z = ConstantOfShape(s)
            o = ConstantOfShape<value = float[1] {0.1}>(s)
            c = Constant<value_float = 0.5>()
            a = Add(f, j) b = Add(a, z) d = Mul(b, o) y = Mul(d, c)
        }""")
    model = to_double(source)
    from onnx.reference import ReferenceEvaluator

    y = ReferenceEvaluator(model).run(None, {"h": np.array([0.5, 1.5]), "i": np.array([1, 2])})[0]
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, np.array([1.5, 3.5]) * np.float32(0.1) * 0.5, rtol=1e-15)
    assert source.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_bits_are_those_of_the_type_in_the_file():
    source = text_model(
        """g (float[2] x) => (float[2] y) {
            b = BitCast<to = 6>(x) o = Constant<value = int32[1] {1}>() c = BitwiseXor(b, o)
            y = BitCast<to = 1>(c)
        }""",
        opset=26,
    )
    x = np.array([0.5, -3.25], np.float32)
    from onnx.reference import ReferenceEvaluator

    y = ReferenceEvaluator(to_double(source)).run(None, {"x": x.astype(np.float64)})[0]
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, (x.view(np.int32) ^ 1).view(np.float32))
