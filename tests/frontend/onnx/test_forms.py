"""Forms of operators that TVM's converters ignore: right, or refused."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.errors import LibraryError, ModelError, UnsupportedOperatorError
from hetero_tvm.frontend import import_model, import_onnx
from tests.frontend.onnx.helpers import (
    add_weight,
    against_original,
    run_onnxruntime,
    run_tvm,
    text_model,
)
from tests.selection import thorough


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


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_masks_of_old_dropouts_have_the_type_of_the_data(dtype):
    """The converter makes them boolean."""
    source = text_model(
        f"g ({dtype}[4] x) => ({dtype}[4] y, {dtype}[4] m) {{ y, m = Dropout<ratio = 0.3>(x) }}", opset=9
    )
    x = np.arange(4).astype({"float": "float32", "double": "float64"}.get(dtype, dtype))
    y, mask = run_tvm(import_onnx(source), {"x": x})
    assert y.dtype == mask.dtype == x.dtype
    np.testing.assert_array_equal((y, mask), (x, np.ones_like(x)))


@pytest.mark.parametrize("extents", ["5", *thorough(["2,3", "2,3,4"]), "2,3,4,5,2"])
def test_axes_beyond_the_rank_are_dropped(extents):
    """As in ONNX Runtime; twice, for the second has no shape before the first is settled."""
    norms = "m = MeanVarianceNormalization(x) n = Add(m, x) y = MeanVarianceNormalization(n)"
    against_original(text_model(f"g (float[{extents}] x) => (float[{extents}] y) {{ {norms} }}"))


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
    import_onnx(later)  # refused when it runs (see test_elements.py)


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


@pytest.mark.parametrize("pads", ["[2, 0, 0, 0]", "[0, 0, 0, 2]"])
def test_windows_of_pads_alone_are_refused(pads):
    source = text_model(
        "g (float[1,1,4,4] x) => (float[1,1,N,M] y) "
        f"{{ y = AveragePool<kernel_shape = [2, 2], pads = {pads}>(x) }}",
        "/pool",
    )
    with pytest.raises(UnsupportedOperatorError, match="'/pool'.*in the pads alone"):
        import_onnx(source)


@pytest.mark.parametrize("shape", [(2, 3), (5,), (4, 1), (1, 2, 4)])
def test_a_summand_that_fits_no_product_is_refused(shape):
    source = text_model("g (float[2,3] x) => (float[2,4] y) { y = Gemm(x, w, c) }", "/gemm")
    add_weight(source, "w", np.ones((3, 4), np.float32))
    add_weight(source, "c", np.ones(shape, np.float32))
    with pytest.raises(ModelError, match="'/gemm'|shapes or types contradict"):
        import_onnx(source)


@pytest.mark.parametrize(
    ("opset", "options"),
    [
        (10, "sampling_ratio = 2"),
        pytest.param(16, "sampling_ratio = 0", marks=pytest.mark.thorough),
        pytest.param(16, "sampling_ratio = 3, spatial_scale = 0.5", marks=pytest.mark.thorough),
    ],
)
def test_the_largest_value_of_a_region_is_the_largest_weighted_corner(opset, options):
    """ONNX does not interpolate for it; boxes lie across the border, within a pixel, or have no side."""
    source = text_model(
        "g (float[2,2,5,7] x, float[5,4] r) => (float[5,2,2,3] y) <int64[5] i = {0, 1, 1, 0, 1}> "
        f'{{ y = RoiAlign<mode = "max", output_height = 2, output_width = 3, {options}>(x, r, i) }}',
        opset=opset,
    )
    boxes = [[0.5, 1.2, 5.3, 4.4], [-3, -2, 2, 2], [3, 3, 3.2, 3.1], [4, 4, 30, 30], [5, 2, 1, 1]]
    inputs = {
        "x": np.random.default_rng(0).standard_normal((2, 2, 5, 7)).astype(np.float32),
        "r": np.array(boxes, np.float32),
    }
    import onnxruntime

    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    built = build_model(optimize_model(import_onnx(source)), use_shipped=False)
    np.testing.assert_allclose(built.run(inputs)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [(2, 3, 1, 5), (2, 3, 4, 1), (2, 3, 2, 1, 4)])
def test_a_single_pixel_between_aligned_corners_is_refused(size):
    """No two implementations put it at the same place."""
    spatial = len(size) - 2
    text = (
        f"g (float[2,{spatial},{spatial + 1}] x) => (float[N] y) "
        f"{{ y = AffineGrid <align_corners = %d> (x, size) }}"
    )
    model = text_model(text % 1, "/grid", opset=20)
    add_weight(model, "size", np.array(size))
    with pytest.raises(UnsupportedOperatorError, match="'/grid'.*single pixel"):
        import_onnx(model)


@pytest.mark.parametrize("place", [-2, -1, 0, 2])
def test_positions_of_a_sequence_count_from_both_ends(place):
    source = text_model(
        f"g (float[1] x, float[1] y, float[1] z) => (float[4] r) <int64 p = {{{place}}}, int64 q = {{-2}}> "
        "{ s = SequenceConstruct(x, y) t = SequenceInsert(s, z, p) u = SequenceErase(t, q) "
        "v = ConcatFromSequence<axis = 0>(t) w = ConcatFromSequence<axis = 0>(u) r = Concat<axis = 0>(v, w) }"
    )
    given = {name: np.full(1, n, np.float32) for n, name in enumerate("xyz")}
    elements = [0, 1]
    elements.insert(place, 2)  # before the last for -1, as ONNX Runtime
    np.testing.assert_array_equal(
        run_tvm(import_onnx(source), given)[0], [*elements, elements[0], elements[2]]
    )
    np.testing.assert_array_equal(run_onnxruntime(source, given)[0], [*elements, elements[0], elements[2]])


@pytest.mark.parametrize("parts", [1, 3])
def test_tensors_and_number_of_a_sequence(parts):
    source = text_model(
        f"g (float[3] x) => (float[k] r, int64 n, float[3] c) "
        f"<int64 p = {{-1}}, int64 w = {{{4 - parts}}}> "
        "{ s = SplitToSequence<axis = 0>(x, w) r = SequenceAt(s, p) n = SequenceLength(s) "
        "c = ConcatFromSequence<axis = 0>(s) }"
    )
    given = {"x": np.arange(3, dtype=np.float32)}
    for found in (run_tvm(import_onnx(source), given), run_onnxruntime(source, given)):
        np.testing.assert_array_equal(found[0], [0, 1, 2] if parts == 1 else [2])
        assert int(found[1]) == parts
        np.testing.assert_array_equal(found[2], [0, 1, 2])


def test_a_position_beyond_a_sequence_is_refused():
    source = text_model(
        "g (float[1] x, float[1] z) => (float[3] r) <int64 p = {-3}> "
        "{ s = SequenceConstruct(x, x) t = SequenceInsert(s, z, p) r = ConcatFromSequence<axis = 0>(t) }",
        "c",
        "/insert",
    )
    with pytest.raises(ModelError, match="'/insert'.*position -3 lies outside a sequence of 2"):
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


@pytest.mark.parametrize("opset", [6, 7])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 3), (2, 3, 4, 5), (1, 3, 2, 2, 3)])
def test_slopes_of_channels(opset, shape):
    """Until opset 6 a slope is of channels, later of the last axis."""
    dims = ", ".join(map(str, shape))
    source = text_model(
        f"g (float[{dims}] x, float[3] s) => (float[{dims}] y) {{ y = PRelu(x, s) }}", opset=opset, ir=3
    )
    if opset == 7 and shape[-1] != 3:
        return  # nothing to broadcast
    x, s = (
        np.random.default_rng(0).standard_normal(shape).astype("float32"),
        np.array([0.1, -2, 3], np.float32),
    )
    along = s if opset == 7 else s.reshape(-1, *(1 for _ in shape[2:]))
    (result,) = run_tvm(import_onnx(source), {"x": x, "s": s})
    np.testing.assert_allclose(result, np.where(x < 0, x * along, x), rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("opset", [9, *thorough([17]), 22])
def test_rows_divided_by_their_norm(p, axis, opset):
    source = text_model(
        f"g (float[3,4] x) => (float[3,4] y) {{ y = LpNormalization<p={p}, axis={axis}>(x) }}", opset=opset
    )
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    x[1], x[:, 2] = 0, 0  # a norm of zero leaves zeros
    import onnxruntime

    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    (y,) = run_tvm(import_onnx(source), {"x": x})
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-7)


def test_a_split_may_have_parts_without_elements():
    source = text_model(
        "g (float[2,5] x) => (float[2,2] a, float[2,3] b) <int64[4] s = {0, 2, 0, 3}> "
        "{ n, a, m, c = Split<axis=-1>(x, s)\n b = Concat<axis=1>(n, c, m) }"
    )
    against_original(source)


@pytest.mark.thorough
@pytest.mark.parametrize("opset", [pytest.param(10, marks=pytest.mark.thorough), 16])
@pytest.mark.parametrize("scale", [pytest.param(1.0, marks=pytest.mark.thorough), 0.25])
def test_boxes_are_scaled_before_they_are_moved(opset, scale):
    operator = f"RoiAlign<output_height=2, output_width=3, sampling_ratio=2, spatial_scale={scale}>"
    source = text_model(
        f"g (float[2,3,6,7] x, float[2,4] r, int64[2] b) => (float[2,3,2,3] y) {{ y = {operator}(x, r, b) }}",
        opset=opset,
    )
    inputs = {
        "x": np.random.default_rng(0).standard_normal((2, 3, 6, 7)).astype(np.float32),
        "r": np.array([[1, 2, 5, 6], [0.5, 3, 17, 15]], np.float32),
        "b": np.array([1, 0]),
    }
    import onnxruntime

    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    (y,) = run_tvm(import_onnx(source), inputs)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_boxes_without_extent_and_far_away():
    """Without a sampling ratio, an empty box has no samples and gives 0; one of NaN is an error."""
    source = text_model(
        "g (float[1,1,6,6] x, float[3,4] r) => (float[3,1,2,2] y) <int64[3] i = {0, 0, 0}> "
        "{ y = RoiAlign<output_height=2, output_width=2, sampling_ratio=0>(x, r, i) }",
        opset=16,
    )
    inputs = {
        "x": np.random.default_rng(0).standard_normal((1, 1, 6, 6)).astype(np.float32),
        "r": np.array([[2, 2, 2, 2], [5, 5, 0, 0], [0, 1, 4, 5]], np.float32),
    }
    import onnxruntime

    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    built = build_model(optimize_model(import_onnx(source)), use_shipped=False)
    np.testing.assert_allclose(built.run(inputs)[0], expected, rtol=1e-5, atol=1e-6)
    for far in (np.nan, np.inf, 1e6):
        inputs["r"][2, 2] = far
        with pytest.raises(LibraryError, match="boxes must be finite, and within 4096 pixels"):
            built.run(inputs)


@pytest.mark.parametrize("axes", ["", "<axes=[1, 2]>"])
@pytest.mark.parametrize("opset", [9, *thorough([13]), 18])
def test_mean_and_variance_far_from_zero(axes, opset):
    source = text_model(
        f"g (float[2,3,4,5] x) => (float[2,3,4,5] y) {{ y = MeanVarianceNormalization{axes}(x) }}",
        opset=opset,
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)) + 300
    x[:, 1] = 2  # no variance: zeros
    over = (0, 2, 3) if not axes else (1, 2)
    x32 = x.astype(np.float32)
    wide = x32.astype(np.float64)
    expected = (wide - wide.mean(over, keepdims=True)) / (wide.std(over, keepdims=True) + 1e-9)
    (y,) = run_tvm(import_onnx(source), {"x": x32})
    # One rounding of a mean of 300 is 3e-5 of a deviation of 1.
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("size", [1, 2, *thorough([3]), 4])
@pytest.mark.parametrize("dims", ["2,5", "2,5,3", "2,5,3,4"])
def test_neighbouring_channels(size, dims):
    operator = f"LRN<size={size}, alpha=0.5, beta=0.6, bias=1.5>"
    source = text_model(f"g (float[{dims},2] x) => (float[{dims},2] y) {{ y = {operator}(x) }}")
    x = np.random.default_rng(0).standard_normal((*map(int, dims.split(",")), 2)).astype(np.float32)
    squares = np.square(x.astype(np.float64))
    total = np.zeros_like(squares)
    for c in range(5):
        total[:, c] = squares[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(1)
    (y,) = run_tvm(import_onnx(source), {"x": x})
    np.testing.assert_allclose(y, x / (1.5 + 0.5 / size * total) ** 0.6, rtol=2e-6)


@pytest.mark.parametrize("dtype, kind", [("", np.int32), ("dtype=1, ", np.float32), ("dtype=7, ", np.int64)])
@pytest.mark.parametrize("k", [0, 1, -2])
def test_a_unit_matrix_of_another_type(dtype, kind, k):
    name = {np.int32: "int32", np.float32: "float", np.int64: "int64"}[kind]
    source = text_model(f"g (int32[3,4] x) => ({name}[3,4] y) {{ y = EyeLike<{dtype}k={k}>(x) }}")
    (y,) = run_tvm(import_onnx(source), {"x": np.zeros((3, 4), np.int32)})
    assert y.dtype == kind
    np.testing.assert_array_equal(y, np.eye(3, 4, k))


@pytest.mark.parametrize("pads", [*thorough([""]), ", pads=[1, 0, 0, 1]"])
def test_windows_that_end_outside_are_whole(pads):
    operator = f"LpPool<kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1{pads}>"
    source = text_model(f"g (float[1,2,6,8] x) => (float[1,2,h,w] y) {{ y = {operator}(x) }}", opset=18)
    against_original(source)


@pytest.mark.parametrize("mode", ["", 'auto_pad="SAME_UPPER", ', 'auto_pad="SAME_LOWER", '])
@pytest.mark.parametrize("extents", ["7, 9", "8, 10", "9, 11"])
def test_a_transposed_convolution_that_states_its_result(mode, extents):
    operator = f"ConvTranspose<{mode}strides=[2, 2], output_shape=[{extents}]>"
    source = text_model(f"g (float[1,2,4,5] x) => (float[1,3,{extents}] y) {{ y = {operator}(x, w) }}")
    add_weight(source, "w", np.random.default_rng(0).standard_normal((2, 3, 3, 3)).astype(np.float32))
    against_original(source)


@pytest.mark.parametrize("scale, shift", [("1", "1"), ("3,1", ""), ("4", "3,4"), ("2,1,1", "1")])
def test_a_layer_norm_whose_scale_is_of_other_extents(scale, shift):
    inputs, operands = f"float[2,3,4] x, float[{scale}] s", "x, s"
    if shift:
        inputs, operands = f"{inputs}, float[{shift}] b", f"{operands}, b"
    text = f"g ({inputs}) => (float[2,3,4] y) {{ y = LayerNormalization<axis = 1>({operands}) }}"
    source = text_model(text)
    rng = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in source.graph.input}
    given = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    (y,) = run_tvm(import_onnx(source), given)
    np.testing.assert_allclose(y, reference(source, given)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("bias", ["", ", b"])
def test_a_layer_norm_of_float64(axis, bias):
    source = text_model(
        f"g (double[2,3,4] x, double[4] s, double[4] b) => (double[2,3,4] y) "
        f"{{ y = LayerNormalization<axis={axis}, epsilon=0.01>(x, s{bias}) }}"
    )
    generator = np.random.default_rng(0)
    x, scale, shift = (generator.standard_normal(shape) for shape in ((2, 3, 4), 4, 4))
    over = tuple(range(axis % 3, 3))
    expected = (x - x.mean(over, keepdims=True)) / np.sqrt(x.var(over, keepdims=True) + 0.01) * scale
    (y,) = run_tvm(import_onnx(source), {"x": x, "s": scale, "b": shift})
    # epsilon is an attribute of float32
    np.testing.assert_allclose(y, expected + (shift if bias else 0), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare", "ReduceSum"])
@pytest.mark.parametrize("axes", ["", ", a"])
def test_reductions_over_no_axis_keep_their_function(operator, axes):
    source = text_model(
        f"g (float[2,3] x) => (float[2,3] y) {{ y = {operator}<noop_with_empty_axes=1>(x{axes}) }}", opset=18
    )
    if axes:
        add_weight(source, "a", np.zeros(0, np.int64))
    against_original(source)


@pytest.mark.parametrize("axis", [2, -3])
def test_a_cumulative_sum_along_no_axis_is_refused(axis):
    source = text_model("g (float[2,3] x) => (float[2,3] y) { y = CumSum(x, a) }")
    with pytest.raises(UnsupportedOperatorError, match=f"axis {axis} of a tensor with 2 dimensions"):
        import_onnx(add_weight(source, "a", np.array(axis, np.int64)))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", ["0, -1, 0, 2", "1, -2, 0, 1", "0, 2, -1, -1"])
def test_operands_are_cut_before_they_are_padded(mode, pads):
    source = text_model(
        f'g (float[3, 4] x) => (float[a, b] y) <int64[4] p = {{{pads}}}>{{ y = Pad<mode = "{mode}">(x, p) }}',
        opset=19,
    )
    against_original(source)


def test_reflections_reach_no_further_than_the_operand():
    source = text_model(
        'g (float[3, 4] x) => (float[a, b] y) <int64[4] p = {0, 4, 0, 0}> { y = Pad<mode = "reflect">(x, p) }'
    )
    with pytest.raises(UnsupportedOperatorError, match="4 reflections of an axis with 4 elements"):
        import_onnx(source)


def test_a_scale_of_nothing():
    source = text_model("""
        g (float[2, 3] x) => (uint8[2, 3] q, float[2, 3] y)
        <float[3] s = {0, 0.5, 0.25}, uint8[3] z = {3, 4, 5}>
        { q = QuantizeLinear<axis = 1>(x, s, z) y = DequantizeLinear<axis = 1>(q, s, z) }""")
    optimized = optimize_model(import_onnx(source))
    given = {"x": np.float32([[1, 2, 3], [-1, -2, -0.3]])}
    quantised, back = build_model(optimized, use_shipped=False).run(given)
    np.testing.assert_array_equal(quantised, [[255, 8, 17], [0, 0, 4]])
    np.testing.assert_array_equal(back, [[0, 2, 3], [0, -2, -0.25]])


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("float", 'int64[4] p = {-4, 0, 3, 0}>{ y = Pad<mode = "edge">(x, p) }', "its other pads cut off"),
        ("int64", "int64 a = {0}, int64 b = {5}, int64 s = {0}>{ y = Range(a, b, s) }", "in steps of 0"),
        ("float", "float a = {0}, float b = {1e30}, float s = {1}>{ y = Range(a, b, s) }", "too large"),
        (
            "int32",
            "int32 a = {-9}, int32 b = {2147483647}, int32 s = {9}>{ y = Range(a, b, s) }",
            "too large",
        ),
        ("float", "int64 s = {0}, int64 l = {2}>{ z = Unsqueeze(x, s) y = STFT(z, l, , l) }", "a signal of"),
        ("float", "float[4] c = {1, 1, 1, 1}>{ y = GroupNormalization<num_groups = 4>(x, c, c) }", "of 6"),
    ],
    ids=["pads", "no step", "no end", "distance", "signal", "groups"],
)
def test_contradictions_in_constants_are_told(kind, body, message):
    source = text_model(f"g (float[4, 6] x) => ({kind}[n, m] y) <{body}", opset=18)
    source.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match=message):
        import_onnx(source)


def test_diagonals_beyond_any_element():
    source = text_model(
        "g (float[3, 4] x) => (float[3, 4] y, float[3, 4] z) <int64 a = {-9223372036854775808}, "
        "int64 b = {9223372036854775807}> { y = Trilu<upper = 0>(x, a) z = Trilu<upper = 0>(x, b) }"
    )
    x = np.ones((3, 4), np.float32)
    built = build_model(optimize_model(import_model(source, shapes={"x": (3, 4)})), use_shipped=False)
    below, all_of_it = built.run({"x": x})
    assert not below.any() and all_of_it.all()


@pytest.mark.parametrize("step", [2**63 - 1, -(2**63), 1 - 2**63, 2**41])
def test_steps_of_slices_beyond_any_element(step):
    first, last = (0, 5) if step > 0 else (4, -(2**63))
    source = text_model(f"""
        g (float[5,6] x) => (float[1,6] y)
          <int64[1] first = {{{first}}}, int64[1] last = {{{last}}}, int64[1] axis = {{-2}}> {{
            y = Slice(x, first, last, axis, step) }}""")
    add_weight(source, "step", np.array([step]))
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    np.testing.assert_array_equal(run_tvm(import_onnx(source), {"x": x})[0], x[first : first + 1])
