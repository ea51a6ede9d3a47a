"""What translations ask of an operator: shapes, types, attributes."""

import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

from hetero_tvm.frontend.nodes import (  # noqa: E402
    Nodes,  # noqa: E402
    Untranslatable,
    onnx_type,
)
from hetero_tvm.frontend.stablehlo.load import bindings, read_program  # noqa: E402
from hetero_tvm.frontend.stablehlo.op import Op  # noqa: E402


def test_shapes_types_and_attributes():
    shape = jax.ShapeDtypeStruct((2, 3), "bfloat16")
    module = read_program(jax.export.export(jax.jit(lambda x: x.T))(shape))
    with module.context:
        raw = module.body.operations[0].regions[0].blocks[0].operations[0]
        op = Op(raw, ["x"], Nodes(), bindings()[1], lambda index, given: given, {})
        assert (op.name, op.shape(), op.dtype(), op.result) == (
            "stablehlo.transpose",
            (2, 3),
            "bfloat16",
            (3, 2),
        )
        assert op.ints("permutation") == [1, 0] and op.ints("absent", [7]) == [7]
        with pytest.raises(Untranslatable, match="no absent"):
            op.ints("absent")
    assert onnx_type("bfloat16") == 16 and onnx_type("float32") == 1
