"""Attributes of ONNX Runtime's operators: each is read, named as one without influence, or refused."""

import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import hetero_tvm.frontend.onnx
from hetero_tvm.api import import_model
from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.contrib.attributes import IGNORED, KNOWN
from hetero_tvm.frontend.onnx.contrib import EXPANSIONS

PASSED_ON = frozenset(
    {"auto_pad", "dilations", "kernel_shape", "pads", "strides", "ceil_mode", "storage_order"}
)
"""Attributes of windows, which the plain operator gets as they are."""
SCHEMAS = {(schema.domain, schema.name): set(schema.attributes) for schema in get_all_operator_schema()}


def sources():
    folder = Path(hetero_tvm.frontend.onnx.__file__).parent
    return "\n".join(path.read_text() for path in folder.rglob("*.py") if path.name != "attributes.py")


def test_every_operator_has_an_entry():
    ours = {key for key in EXPANSIONS if key[0].startswith("com.microsoft")}
    assert ours == set(KNOWN)


def test_known_attributes_are_those_of_the_schemas():
    unknown = {key: names - SCHEMAS[key] for key, names in KNOWN.items() if key in SCHEMAS}
    assert {key: names for key, names in unknown.items() if names} == {}


def test_known_attributes_are_read():
    text = sources()
    names = set().union(*KNOWN.values()) - PASSED_ON - IGNORED
    unread = {name for name in names if not re.search(rf"\b{name}\b", text)}
    # Names that are put together: of the letters of queries and keys, of layers, of parameters and sides.
    made = re.compile(
        r"[kv]_quant_type|[qk]_norm_epsilon|fc[123]_expert_weight_bits|activation_(alpha|beta|gamma)|trans(Batch)?[AB]"
    )
    assert {name for name in unread if not made.fullmatch(name)} == set()


def attention(**attributes):
    """GroupQueryAttention of one step without a past."""
    names = ["q", "k", "v", "", "", "lengths", "total"]
    attributes.update(num_heads=2, kv_num_heads=1)
    node = helper.make_node(
        "GroupQueryAttention", names, ["y", "", ""], "gqa", domain="com.microsoft", **attributes
    )
    floats = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, width])
        for name, width in (("q", 16), ("k", 8), ("v", 8))
    ]
    stored = [
        helper.make_tensor("lengths", TensorProto.INT32, [1], [2]),
        helper.make_tensor("total", TensorProto.INT32, [1], [3]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 16])
    graph = helper.make_graph([node], "g", floats, [y], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("name", "value"), [("k_quant_type", "PER_TENSOR"), ("kv_cache_bit_width", 8), ("of_tomorrow", 1.5)]
)
def test_an_attribute_that_nobody_reads_is_refused_by_name(name, value):
    with pytest.raises(UnsupportedOperatorError, match=rf"'gqa' \(GroupQueryAttention\).*{name}={value!r}"):
        import_model(attention(**{name: value}))


def test_the_usual_value_of_an_attribute_that_is_not_supported_is_no_hindrance():
    model = import_model(attention(k_quant_type="NONE", v_quant_type="NONE", kv_cache_bit_width=0))
    assert model.signature.outputs[0].shape == (1, 3, 16)
    assert np.dtype(model.signature.outputs[0].dtype) == np.float32
