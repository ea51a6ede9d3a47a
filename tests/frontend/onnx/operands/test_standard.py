"""Operands of ONNX's own operators that do not fit: refused, where ONNX's inference of shapes passes them."""

import numpy as np
import pytest
from onnx import helper

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_onnx

F = helper.np_dtype_to_tensor_dtype(np.dtype("float32"))
STATES = ((4, 2, 3), (1, 20, 3), (1, 20, 5), (1, 40), None, (1, 2, 5))
ATTENTION = ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4), (3, 5))


def imported(kind, shapes, opset=24, **attributes):
    """Import a node over operands of these shapes, of which None is left out."""
    names = [f"x{n}" if shape is not None else "" for n, shape in enumerate(shapes)]
    inputs = [
        helper.make_tensor_value_info(name, F, shape)
        for name, shape in zip(names, shapes, strict=True)
        if name
    ]
    output = helper.make_tensor_value_info("y", F, None)
    node = helper.make_node(kind, names, ["y"], name="one", **attributes)
    graph = helper.make_graph([node], "g", inputs, [output])
    return import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


@pytest.mark.parametrize(
    "kind, shapes, attributes",
    [
        ("Conv", ((1, 4, 5, 5), (8, 4, 3, 3), (1,)), {}),
        ("ConvTranspose", ((1, 4, 5, 5), (4, 8, 3, 3), (1,)), {}),
        ("ConvTranspose", ((1, 4, 5, 5), (4, 8, 3, 3), (8,)), {"group": 2}),
        ("InstanceNormalization", ((2, 3, 8), (1,), (3,)), {}),
        ("LayerNormalization", ((2, 3, 1), (8,), (8,)), {}),
        ("RMSNormalization", ((2, 3, 1), (8,)), {}),
        ("LSTM", (*STATES[:5], (2, 5)), {"hidden_size": 5}),
        ("LSTM", (*STATES[:5], (1, 1, 5)), {"hidden_size": 5}),
        ("LSTM", (*STATES[:3], (40,)), {"hidden_size": 5}),
        ("GRU", ((4, 2, 3), (1, 15, 3), (1, 15, 5), (1, 30), None, (2, 1, 5)), {"hidden_size": 5}),
        ("Attention", (ATTENTION[0], (1, 2, 5, 4), *ATTENTION[2:]), {}),
        ("Attention", (*ATTENTION[:2], (2, 1, 5, 4), ATTENTION[3]), {}),
        ("Attention", ((2, 2, 1, 4), *ATTENTION[1:]), {}),
        ("NonMaxSuppression", ((1, 7, 4), (1, 2, 6)), {}),
        ("NonMaxSuppression", ((1, 6, 5), (1, 2, 6)), {}),
        ("RotaryEmbedding", ((2, 2, 3, 4), (2, 3, 1), (2, 3, 1)), {}),
    ],
)
def test_operands_that_would_spread_are_refused(kind, shapes, attributes):
    with pytest.raises(ModelError, match=rf"'one' \({kind}\)"):
        imported(kind, shapes, **attributes)


@pytest.mark.parametrize(
    "kind, shapes, attributes",
    [
        ("Conv", ((1, 4, 5, 5), (8, 4, 3, 3), (8,)), {}),
        ("ConvTranspose", ((1, 4, 5, 5), (4, 4, 3, 3), (8,)), {"group": 2}),
        ("LayerNormalization", ((2, 3, 8), (1,), (8,)), {}),
        ("LSTM", STATES, {"hidden_size": 5}),
        ("LSTM", ((2, 4, 3), *STATES[1:5], (2, 1, 5)), {"hidden_size": 5, "layout": 1}),
        ("Attention", ATTENTION, {}),
        ("Attention", (*ATTENTION[:3], (2, 1, 3, 5)), {}),
        ("RotaryEmbedding", ((2, 2, 3, 4), (2, 3, 2), (2, 3, 2)), {}),
    ],
)
def test_operands_that_fit(kind, shapes, attributes):
    imported(kind, shapes, **attributes)
