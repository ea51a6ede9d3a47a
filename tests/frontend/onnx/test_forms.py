"""Forms of operators that TVM's converters ignore: right, or refused."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import add_weight, against_original, run_tvm, text_model


def reference(source: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(source).run(None, inputs)


def test_batch_normalization_in_training_mode_takes_the_statistics_of_the_batch():
    operator = "BatchNormalization<training_mode = 1, momentum = 0.75, epsilon = 0.001>"
    source = text_model(
        "g (float[2,3,4] x) => (float[2,3,4] y, float[3] m, float[3] v) "
        f"<float[3] s = {{1, 2, 3}}, float[3] b = {{0, 1, 2}}> {{ y, m, v = {operator}(x, s, b, b, s) }}"
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 4), np.float32) * 3
    for ours, theirs in zip(run_tvm(import_onnx(source), {"x": x}), reference(source, {"x": x}), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_old_batch_normalization_in_training_mode_is_refused():
    source = text_model(
        "g (float[2,3] x) => (float[2,3] y, float[3] m) "
        "<float[3] s = {1, 2, 3}> { y, m, v, a, b = BatchNormalization(x, s, s, s, s) }",
        "/norm",
        opset=9,
    )
    with pytest.raises(UnsupportedOperatorError, match=r"'/norm' \(BatchNormalization\) has training mode"):
        import_onnx(source)


def test_dropout_in_training_mode_is_refused():
    source = text_model("g (float[4] x) => (float[4] y) { y = Dropout(x, r, t) }", "/drop")
    add_weight(source, "r", np.array(0.5, np.float32))
    add_weight(source, "t", np.array(True))
    with pytest.raises(UnsupportedOperatorError, match=r"'/drop' \(Dropout\) has training_mode=1"):
        import_onnx(source)
    later = text_model("g (float[4] x, bool t) => (float[4] y) <float r = {0.5}> { y = Dropout(x, r, t) }")
    with pytest.raises(UnsupportedOperatorError, match="known at run time only"):
        import_onnx(later)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_hardmax_before_opset_13_flattens(axis):
    source = text_model(
        f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = Hardmax<axis = {axis}>(x) }}", opset=11
    )
    against_original(source)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode):
    operator = f'DepthToSpace<blocksize = 2, mode = "{mode}">'
    against_original(text_model(f"g (float[1,8,2,3] x) => (float[1,2,4,6] y) {{ y = {operator}(x) }}"))


def test_space_to_depth_with_channels_first():
    opset = onnx.defs.onnx_opset_version()
    operator = 'SpaceToDepth<blocksize = 2, mode = "CRD">'
    source = text_model(f"g (float[1,2,4,6] x) => (float[1,8,2,3] y) {{ y = {operator}(x) }}", opset=opset)
    if "mode" not in onnx.defs.get_schema("SpaceToDepth", opset, "").attributes:
        pytest.skip("the installed onnx knows one order only")
    x = np.arange(48, dtype=np.float32).reshape(1, 2, 4, 6)
    np.testing.assert_array_equal(run_tvm(import_onnx(source), {"x": x})[0], reference(source, {"x": x})[0])


def test_the_largest_value_of_a_region_is_refused():
    source = text_model(
        "g (float[1,1,8,8] x, float[2,4] r) => (float[2,1,2,2] y) <int64[2] i = {0, 0}> "
        '{ y = RoiAlign<mode = "max", output_height = 2, output_width = 2>(x, r, i) }',
        "/roi",
    )
    with pytest.raises(UnsupportedOperatorError, match=r"'/roi' \(RoiAlign\) has mode=max"):
        import_onnx(source)


def test_positions_from_the_end_of_a_sequence_are_refused():
    source = text_model(
        "g (float[2] x, float[2] z) => (float[2] y) <int64 p = {-1}, int64 q = {0}> "
        "{ s = SequenceConstruct(x, z) t = SequenceErase(s, p) y = SequenceAt(t, q) }"
    )
    with pytest.raises(UnsupportedOperatorError, match="SequenceErase.*position -1"):
        import_onnx(source)


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4", "FLOAT4E2M1"])
def test_numbers_without_kernels_are_refused(kind):
    number = getattr(TensorProto, kind)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    nodes = [helper.make_node("Cast", ["x"], ["a"], to=number), helper.make_node("Cast", ["a"], ["y"], to=1)]
    source = helper.make_model(
        helper.make_graph(nodes, "narrow", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 23)],
        ir_version=11,
    )
    with pytest.raises(UnsupportedOperatorError, match=f"tensor 'a' is {kind.lower()}"):
        import_onnx(source)


def test_forms_inside_branches_are_refused():
    source = text_model(
        "g (float[2,3] x, bool c) => (float[2,3] y) <float[3] s = {1, 2, 3}> { y = If(c) < "
        "then_branch = t () => (float[2,3] a) "
        "{ a, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s) }, "
        "else_branch = e () => (float[2,3] b) { b = Exp(x) } > }"
    )
    with pytest.raises(UnsupportedOperatorError, match="BatchNormalization"):
        import_onnx(source)
