"""Checks of order, names, versions and operators: one error lists everything."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import add_weight, operators, text_model


def test_newer_opset_than_known_is_refused():
    source = text_model("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    source.opset_import[0].version = 999
    with pytest.raises(ModelError, match="uses ONNX opset 999"):
        import_onnx(source)


def test_a_file_without_opset_or_with_several_is_refused():
    source = text_model("g (float[2,3] x) => (float[2,3] y) { y = Softmax(x) }")
    source.opset_import.append(helper.make_opsetid("ai.onnx", 11))
    with pytest.raises(ModelError, match=r"several versions of an opset(.|\n)*ai.onnx: 11, 17"):
        import_onnx(source)
    del source.opset_import[:]
    with pytest.raises(ModelError, match="names no opset"):
        import_onnx(source)


@pytest.mark.parametrize("scale", [np.inf, np.nan])
def test_scales_that_are_no_numbers_are_refused(scale):
    source = text_model(
        "g (float[2] x) => (float[2] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
        "first",
        "second",
    )
    add_weight(add_weight(source, "s", np.array(scale, "float32")), "z", np.array(0, "uint8"))
    with pytest.raises(ModelError, match=r"infinite or NaN(.|\n)*'first'(.|\n)*'second'") as refused:
        import_onnx(source)
    assert "nodes_to_exclude" in refused.value.hint


def test_a_scale_of_a_quantised_operator_is_a_number_as_well():
    source = text_model(
        "g (uint8[2] x) => (uint8[2] y) { y = com.microsoft.QLinearAdd(x, s, z, x, far, z, s, z) }", "sum"
    )
    source.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for name, value in (("s", np.float32(0.1)), ("far", np.float32(np.inf)), ("z", np.uint8(0))):
        add_weight(source, name, np.array(value))
    with pytest.raises(ModelError, match=r"infinite or NaN(.|\n)*'sum' \(QLinearAdd\)"):
        import_onnx(source)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TensorProto.INT4, "int4"),
        (TensorProto.STRING, "string"),
        (TensorProto.FLOAT8E5M2, "float8e5m2"),
        (TensorProto.FLOAT8E5M2FNUZ, "float8e5m2fnuz"),
    ],
)
def test_constants_of_types_without_arrays_are_no_results(kind, name):
    source = text_model("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    values = ["a", "b"] if name == "string" else [1, 2]
    source.graph.initializer.append(helper.make_tensor("w", kind, [2], values))
    source.graph.output.append(helper.make_tensor_value_info("w", kind, [2]))
    with pytest.raises(UnsupportedOperatorError, match=f"result 'w' is {name}"):
        import_onnx(source)


def _with_function(opset: int, *nodes: onnx.NodeProto) -> onnx.ModelProto:
    source = text_model("g (float[3,4] x) => (float[3,4] y) { y = own.F (x) }", extra=', "own": 1')
    opsets = [helper.make_opsetid("", opset)]
    source.functions.append(helper.make_function("own", "F", ["x"], ["y"], list(nodes), opsets))
    return source


def test_functions_of_another_opset_are_refused_by_name():
    source = _with_function(11, helper.make_node("Softmax", ["x"], ["y"], axis=1))
    told = r"of ONNX opset 17(.|\n)*function own:F is of opset 11 \(Softmax\)(.|\n)*convert_version=True"
    with pytest.raises(ModelError, match=told):
        import_onnx(source)


def test_functions_of_another_opset_whose_operators_are_the_same_import():
    model = import_onnx(_with_function(18, helper.make_node("Exp", ["x"], ["y"])))
    assert operators(model) == {"Exp": 1}


def test_unused_nodes_and_weights_disappear():
    source = text_model("g (float[2] x) => (float[2] y) { a = Exp(x) b = Sin(x) c = Add(b, w) y = Tanh(a) }")
    add_weight(source, "w", np.ones(2, np.float32))
    model = import_onnx(source)
    assert operators(model) == {"Exp": 1, "Tanh": 1}
    assert model.weight_bytes == 0


def test_nodes_may_come_in_any_order():
    source = text_model("g (float[2] x) => (float[2] y) { a = Exp(x) b = Sin(a) y = Tanh(b) }")
    nodes = [source.graph.node[i] for i in (2, 0, 1)]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del source.graph.node[:]
    source.graph.node.extend(copies)
    assert [n.op_type for n in import_onnx(source).onnx_model.graph.node] == ["Exp", "Sin", "Tanh"]


def test_all_unsupported_operators_are_listed_with_counts_and_names():
    source = text_model(
        "g (float[2] x) => (float[2] y) "
        "{ a = acme.Magic(x) b = acme.Magic(a) c = Fancy(b) d = Det(c) y = Exp(d) }",
        "/one",
        "/two",
        "",
        "/det",
        extra=', "acme": 1',
    )
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_onnx(source)
    assert caught.value.problems == (
        "acme::Magic: 2 nodes (/one, /two)",
        "Det: 1 node (/det)",
        "Fancy: 1 node (Fancy_c)",
    )
    assert "3 operators that have no importer" in str(caught.value)


def test_onnx_operators_without_converter_are_listed():
    source = text_model("g (float[2,2] x) => (int32[2,2] y) { y = Multinomial <sample_size = 2> (x) }")
    with pytest.raises(UnsupportedOperatorError, match=r"Multinomial: 1 node \(Multinomial_y\)"):
        import_onnx(source)


def test_unsupported_operators_on_constants_do_not_matter():
    source = text_model("g (float[2] x) => (float[2] y) { d = Det(w) y = Mul(x, d) }")
    add_weight(source, "w", np.eye(2, dtype=np.float32))
    assert import_onnx(source).signature.outputs[0].shape == (2,)


def test_cycles_are_named():
    source = text_model("g (float[2] x) => (float[2] y) { a = Add(x, c) b = Exp(a) c = Tanh(b) y = Exp(x) }")
    with pytest.raises(ModelError, match="has a cycle") as caught:
        import_onnx(source)
    assert "'Add_a' (Add)" in str(caught.value)


def test_missing_and_doubled_tensors_are_all_named():
    source = text_model("g (float[2] x) => (float[2] y, float[2] z) { a = Add(x, k) a = Exp(m) y = Tanh(a) }")
    with pytest.raises(ModelError, match="graph is broken") as caught:
        import_onnx(source)
    text = str(caught.value)
    assert "reads tensor 'k', which nothing makes" in text and "reads tensor 'm'" in text
    assert "tensor 'a' has two origins" in text
    assert "nothing makes the graph output 'z'" in text


def test_versions_and_empty_graphs():
    source = text_model("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    source.ir_version = 1
    with pytest.raises(ModelError, match="IR version is 1"):
        import_onnx(source)
    with pytest.raises(ModelError):
        import_onnx(onnx.ModelProto())
    no_output = helper.make_model(helper.make_graph([], "g", [], []))
    with pytest.raises(ModelError, match="no outputs"):
        import_onnx(no_output)


@pytest.mark.parametrize("step", [2**31 - 1, 2**31, 2**32, 2**40])
@pytest.mark.parametrize("constant", [True, False])
def test_slices_of_wide_steps(step, constant):
    """ONNX's own propagation of values reads foreign memory, or never ends."""
    steps = f"p = Constant<value_ints=[{step}]>()"
    if not constant:
        steps = f"h = Constant<value_ints=[{step}]>() o = Constant<value_ints=[1]>() p = Mul(h, o)"
    source = text_model(f"""
        g (float[8] x) => (float[n] y) {{
            s = Constant<value_ints=[1]>() e = Constant<value_ints=[8]>() a = Constant<value_ints=[0]>()
            {steps} y = Slice(x, s, e, a, p)
        }}""")
    assert import_onnx(source).signature.outputs[0].shape == (1,)


def test_windows_beyond_32_bits():
    for attribute in ("strides", "dilations", "kernel_shape"):
        kernel = "" if attribute == "kernel_shape" else "kernel_shape=[1,1], "
        source = text_model(f"""
            g (float[1,1,8,8] x) => (float[1,1,h,w] y) {{
                y = MaxPool<{kernel}{attribute}=[{2**31},1]>(x)
            }}""")
        with pytest.raises(ModelError) as caught:
            import_onnx(source)
        assert "Check failed" not in str(caught.value)


def test_writes_into_nothing_are_refused():
    for operator, depth in (("ScatterElements", 4), ("ScatterND", 1)):
        for rows in (0, 2):
            source = text_model(f"""
                g (float[0,4] x, int64[{rows},{depth}] i, float[{rows},4] u)
                    => (float[0,4] y) {{ y = {operator}(x, i, u) }}""")
            if rows:
                with pytest.raises(ModelError, match="writes elements of 'x', which has none"):
                    import_onnx(source)
            else:
                assert import_onnx(source).signature.outputs[0].shape == (0, 4)


@pytest.mark.parametrize("opset", [18, 21])
def test_group_norm_of_no_images(opset):
    scale = ",".join(["1.0"] * (2 if opset < 21 else 4))
    source = text_model(
        f"""g (float[0,4,3] x) => (float[0,4,3] y) {{
            s = Constant<value_floats=[{scale}]>() y = GroupNormalization<num_groups=2>(x, s, s)
        }}""",
        opset=opset,
    )
    assert import_onnx(source).signature.outputs[0].shape == (0, 4, 3)
