"""Kernel descriptions become models whose numbers NumPy judges."""

import json

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.kernels.importer import import_description
from tests.frontend.kernels.helpers import description, draw, layer_norm, operator, single, tensor


def judged(model, **options):
    """The built model, after its check and one on inputs of ours."""
    built = build_model(optimize_model(model, **options))
    assert built.check().ok
    inputs = draw(model)
    for found, exact in zip(built.run(inputs), model.original.run(inputs, double=True), strict=True):
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5)
    return built


def test_a_file_is_a_model_like_any_other(tmp_path):
    path = tmp_path / "norm.json"
    path.write_text(json.dumps(layer_norm()))
    model = import_model(path)
    assert (model.name, str(model.signature)) == (
        "Fused_LayerNorm",
        "(x: float32[12, 64]) -> (y: float32[12, 64])",
    )
    judged(model)
    assert model.original.engine.startswith("NumPy")


def test_products_with_epilogues_are_one_kernel():
    a, b, bias = tensor("a", (16, 32)), tensor("b", (24, 32)), tensor("bias", (24,))
    product, sums = tensor("p", (16, 24)), tensor("s", (16, 24))
    data = description(
        [a, b, bias],
        [
            operator("MatMul", [a, b], product, transpose_b=True),
            operator("Add", [product, bias], sums),
            operator(
                "Gelu", [sums], tensor("y", (16, 24)), body="0.5 * s * (1 + erf(s / 1.4142135623730951))"
            ),
        ],
        [tensor("y", (16, 24)), sums],
    )
    built = judged(import_description(data))
    assert [spec.name for spec in built.optimized.model.signature.outputs] == ["y", "s"]


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_other_types(dtype):
    model = import_description(single("Add", [(5, 7), (7,)], (5, 7), dtype))
    built = build_model(optimize_model(model))
    inputs = draw(model)
    (found,) = built.run(inputs)
    (expected,) = model.original.run(inputs)
    assert found.dtype == expected.dtype == dtype
    np.testing.assert_array_equal(found, expected)


def test_what_is_unknown_or_wrong_is_listed():
    data = layer_norm()
    data["op_desc"][0]["name"] = "ReduceSums"
    data["op_desc"][3]["input_desc"] *= 2
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_description(data)
    assert caught.value.problems == (
        "$.op_desc[0].name: ReduceSums (did you mean ReduceSum or ReduceMin?)",
        "$.op_desc[3].input_desc: Square takes 1 inputs, not 2",
    )
    assert '"body"' in str(caught.value)
    for case, text in (
        (single("Add", [(3, 4), (5,)], (3, 4)), r"op_desc\[0\].Add"),
        (single("Exp", [(3, 4)], (4, 3)), r"\$.op_desc\[0\].output_desc\[0\]: Exp gives float32\[3, 4\]"),
        (single("Equal", [(3,), (3,)], (3,)), r"Equal gives bool\[3\], not float32\[3\]"),
        (single("Transpose", [(3, 4)], (4, 3), perm=[0, 0]), "is no order of 2 axes"),
        (single("MatMul", [(3, 4), (5, 6)], (3, 6)), r"op_desc\[0\].MatMul"),
    ):
        with pytest.raises(ModelError, match=text):
            import_description(case)
