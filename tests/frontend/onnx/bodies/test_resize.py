"""Resize in all its forms, against the cases of ONNX's own suite and ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from hetero_tvm.reference import run_reference
from tests.frontend.onnx.helpers import (
    add_weight,
    against_original,
    against_reference,
    operators,
    run_tvm,
    text_model,
)
from tests.selection import thorough


def _model(extents, values, opset=19, scales=True, **attributes) -> onnx.ModelProto:
    out = [None] * len(extents)
    inputs = ["x", "", "v", ""] if scales else ["x", "", "", "v"]
    node = helper.make_node("Resize", inputs, ["y"], name="/resize", **attributes)
    ends = [helper.make_tensor_value_info(n, 1, e) for n, e in (("x", extents), ("y", out))]
    weights = [numpy_helper.from_array(np.array(values, np.float32 if scales else np.int64), "v")]
    graph = helper.make_graph([node], "resize", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_nothing_to_resize(mode):
    """An image of one pixel has no corners to align; others stay as they are as well."""
    for extents in ([1, 1, 1, 1], [1, 2, 3, 4]):
        source = _model(
            extents, extents, scales=False, mode=mode, coordinate_transformation_mode="align_corners"
        )
        x = np.random.default_rng(0).standard_normal(extents, np.float32)
        np.testing.assert_array_equal(run_tvm(import_onnx(source), {"x": x})[0], x)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [[1, 1, 0.6, 0.6], [1, 1, 1.3, 2.7], [1, 1, 2, 3]])
def test_the_ratio_is_that_of_scales(mode, scales):
    from onnx.reference import ReferenceEvaluator

    source = _model([1, 2, 7, 9], scales, mode=mode)
    if mode != "cubic":
        against_original(source)
        return
    x = np.random.default_rng(0).standard_normal((1, 2, 7, 9), np.float32)
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})
    np.testing.assert_allclose(run_tvm(import_onnx(source), {"x": x})[0], expected, atol=1e-5)


@pytest.mark.parametrize("mode, antialias", [("linear", 0), *thorough([("cubic", 0), ("linear", 1)])])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_images_of_whole_numbers(mode, antialias, kind):
    """Within the one step by which the references differ from each other."""
    source = _model([1, 2, 7, 5], [1, 1, 0.6, 1.3], mode=mode, antialias=antialias)
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    least = np.iinfo(kind).min + 60  # so that cubic curves stay within 8 bits
    x = np.random.default_rng(0).integers(least, least + 130, (1, 2, 7, 5)).astype(kind)
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})
    (result,) = run_tvm(import_onnx(source), {"x": x})
    assert result.dtype == kind
    np.testing.assert_allclose(result.astype(int), expected.astype(int), atol=1)


@pytest.mark.parametrize("kind", ["uint8", *thorough(["int8"]), "int32"])
def test_cubic_curves_of_whole_numbers_are_rounded_and_held_in_their_type(kind):
    """They were cut off, and those that leave 8 bits came out at the other end."""
    real = _model([1, 2, 4, 4], [1, 1, 2.0, 2.0], mode="cubic")
    whole = onnx.ModelProto.FromString(real.SerializeToString())
    for value in (*whole.graph.input, *whole.graph.output):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    ends = np.iinfo(np.int8 if kind == "int32" else kind)
    x = np.random.default_rng(0).choice([ends.min, ends.max, 3], (1, 2, 4, 4)).astype(kind)
    (curve,) = ReferenceEvaluator(real).run(None, {"x": x.astype(np.float32)})
    expected = np.clip(np.rint(curve), np.iinfo(kind).min, np.iinfo(kind).max).astype(kind)
    np.testing.assert_array_equal(run_tvm(import_onnx(whole), {"x": x})[0], expected)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_nearest_is_a_gather(rounding, coordinates):
    model = _model(
        [1, 1, 6, 5],
        [1, 1, 4, 13],
        scales=False,
        mode="nearest",
        nearest_mode=rounding,
        coordinate_transformation_mode=coordinates,
    )
    assert operators(against_original(model)) == {"Gather": 2}


PLAIN = [
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
]


@pytest.mark.parametrize("attributes", PLAIN)
def test_plain_forms_stay_for_the_kernels_of_targets(attributes):
    assert operators(against_original(_model([1, 2, 4, 4], [1, 1, 2, 2], **attributes))) == {"Resize": 1}


@pytest.mark.parametrize("attributes", PLAIN)
@pytest.mark.parametrize("extent", [1, 7])
def test_rows_are_images_of_one_row(attributes, extent):
    source = _model([2, 3, extent], [1, 1, 2], **attributes)
    assert operators(against_original(source)) == {"Reshape": 2, "Resize": 1}
    assert "resize2d" in import_onnx(source).module.script(show_meta=False)


def test_corners_of_rows_are_aligned():
    for extents, scales in (([2, 3, 7], [1, 1, 2]), ([1, 1, 1], [1, 1, 3])):
        against_original(
            _model(extents, scales, mode="linear", coordinate_transformation_mode="align_corners")
        )


@pytest.mark.parametrize("coordinates", ["align_corners", "half_pixel"])
def test_weights_of_doubles_are_doubles(coordinates):
    source = _model(
        [1, 1, 3, 4], [1, 1, 7, 9], scales=False, mode="linear", coordinate_transformation_mode=coordinates
    )
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    model = import_onnx(source)
    x = np.random.default_rng(0).normal(size=(1, 1, 3, 4))
    expected = ReferenceEvaluator(source).run(None, {"x": x})[0]
    np.testing.assert_allclose(run_tvm(model, {"x": x})[0], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_axes_and_kept_ratios(policy):
    source = _model([1, 2, 4, 6], [7, 7], scales=False, axes=[2, 3], keep_aspect_ratio_policy=policy)
    against_original(source)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_places_outside_may_count_for_nothing(mode):
    against_original(_model([1, 1, 4, 4], [1, 1, 2, 1.5], mode=mode, exclude_outside=int(mode == "cubic")))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
def test_antialiasing_widens_what_takes_part(mode, exclude):
    source = _model([1, 1, 7, 9], [1, 1, 0.6, 0.3], mode=mode, antialias=1, exclude_outside=exclude)
    x = np.random.default_rng(0).standard_normal((1, 1, 7, 9), np.float32)
    # Sums of up to 14 x 18 products of order one.
    against_reference(source, {"x": x}, judge="onnxruntime", atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [[1, 1, 1.3, 1.5], [1, 1, 2, 1.2]])
def test_aligned_corners_of_broken_sizes_are_those_of_the_result(mode, scales):
    source = _model([1, 2, 7, 9], scales, mode=mode, coordinate_transformation_mode="align_corners")
    x = np.random.default_rng(0).standard_normal((1, 2, 7, 9), np.float32)
    (checked,) = run_reference(import_onnx(source), {"x": x}).float64
    expected = ort.InferenceSession(source.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(checked, expected, atol=1e-5)
    np.testing.assert_allclose(run_tvm(import_onnx(source), {"x": x})[0], expected, atol=1e-5)


def test_aligned_corners_of_an_axis_that_shrinks_to_a_broken_extent_are_refused():
    """ONNX's own tests and ONNX Runtime disagree there; extents that come out even are resized."""
    source = _model(
        [1, 2, 7, 9], [1, 1, 0.7, 0.4], mode="linear", coordinate_transformation_mode="align_corners"
    )
    with pytest.raises(UnsupportedOperatorError, match="broken extent"):
        import_onnx(source)
    even = _model(
        [1, 2, 8, 10], [1, 1, 0.5, 0.4], mode="linear", coordinate_transformation_mode="align_corners"
    )
    against_original(even)


@pytest.mark.parametrize("sizes", [[1, 1, 6], [1, 2, 4, 1], [1, 2, 1, 3, 5]])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_aligned_corners_of_one_pixel(mode, sizes):
    given = [*sizes[:2], *([4] * (len(sizes) - 2))]
    source = _model(given, sizes, scales=False, mode=mode, coordinate_transformation_mode="align_corners")
    against_original(source)


@pytest.mark.parametrize("opset", [11, 12])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_empty_scales_beside_sizes(opset, mode):
    source = _model([1, 2, 5, 7], [1, 2, 11, 3], opset, scales=False, mode=mode)
    source.graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.float32), "none"))
    source.graph.node[0].input[1:3] = ["none", "none"]
    against_original(source)


def test_outside_of_nearest_neighbours_is_refused():
    """ONNX Runtime refuses it, and only its evaluator gives 0."""
    taken = {"exclude_outside": 1, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}
    with pytest.raises(UnsupportedOperatorError, match="exclude_outside"):
        import_onnx(_model([1, 1, 3, 6], [1, 1, 6, 7], scales=False, **taken))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("operator, opset", [("Resize", 10), ("Upsample", 9)])
def test_before_opset_11_an_image_that_keeps_its_extents_stays(mode, operator, opset):
    model = _model([1, 2, 3, 2], [1, 1, 1.25, 1.4], opset, mode=mode)
    model.graph.node[0].op_type = operator
    model.graph.node[0].input[1:] = ["v"]
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 2), np.float32)
    np.testing.assert_array_equal(run_tvm(import_onnx(model), {"x": x})[0], x)


@pytest.mark.parametrize("operator, opset", [("Resize", 10), ("Upsample", 9)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resizing_before_opset_11_stretches_from_the_corner(operator, opset, mode):
    source = text_model(
        f'g (float[1,1,3,4] x) => (float[A,B,C,D] y) {{ y = {operator}<mode="{mode}">(x, s) }}', opset=opset
    )
    against_original(add_weight(source, "s", np.array([1, 1, 2, 3], np.float32)))


@pytest.mark.parametrize("scales", [[1, 1, 0.6, 0.7], [1, 1, 0.4, 1.9]])
def test_shrinking_before_opset_11_takes_the_upper_of_two_neighbours(scales):
    source = text_model("g (float[1,1,7,9] x) => (float[A,B,C,D] y) { y = Resize(x, s) }", opset=10)
    against_original(add_weight(source, "s", np.array(scales, np.float32)))


def test_resizing_in_the_middle_before_opset_11_stretches_from_the_corner():
    """ONNX's converter gives its result another name."""
    source = text_model(
        'g (float[1,2,3,4] x) => (float[A,B,C,D] y) { u = Upsample<mode="linear">(x, s) y = Neg(u) }', opset=9
    )
    against_original(add_weight(source, "s", np.array([1, 1, 2, 3], np.float32)))


def test_upsample_with_scales_as_an_attribute():
    source = text_model(
        "g (float[1,1,3,4] x) => (float[A,B,C,D] y) { y = "
        'Upsample<mode="linear", scales=[1.0,1.0,2.0,2.0]>(x) }',
        opset=7,
    )
    model, x = import_onnx(source), np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    (y,) = run_tvm(model, {"x": x})
    np.testing.assert_allclose(y[0, 0, 0], [0, 0.5, 1, 1.5, 2, 2.5, 3, 3])
    np.testing.assert_allclose(y[0, 0, :, 0], [0, 2, 4, 6, 8, 8])


def test_a_resize_that_changes_nothing_is_written_out_too():
    against_original(_model([2, 3, 4, 5], [1.0, 1.0], axes=[2, 3], mode="linear"))
    against_original(_model([3, 4], [1.0, 1.0], mode="linear"))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_what_has_no_weight_is_not_read(mode):
    """Rows of three at coordinates -1/3, 0, 1/3, ...: a row of NaN reaches its neighbours, and no others."""
    source = _model([1, 1, 9, 2], [27], scales=False, axes=[2], mode=mode)
    x = np.random.default_rng(0).normal(size=(1, 1, 9, 2)).astype(np.float32)
    clean = run_tvm(import_onnx(source), {"x": x})[0]
    x[0, 0, 4] = np.nan
    (y,) = run_tvm(import_onnx(source), {"x": x})
    reach = 1 if mode == "linear" else 2
    at = (np.arange(27) + 0.5) / 3 - 0.5
    near = (np.abs(at - 4) < reach - 1e-6) & ~((np.abs(at - np.round(at)) < 1e-6) & (np.abs(at - 4) > 1e-6))
    assert (np.isnan(y[0, 0, :, 0]) == near).all()
    np.testing.assert_array_equal(y[0, 0, ~near], clean[0, 0, ~near])


@pytest.mark.thorough
@pytest.mark.parametrize("length", [9, 90])
def test_antialiasing_reads_its_neighbours_only(length):
    """Of few neighbours as a sum, of many as a product: a row of NaN reaches 1 of 3 results, or 2."""
    source = _model([1, 1, length, 2], [3], scales=False, axes=[2], mode="linear", antialias=1)
    x = np.random.default_rng(0).normal(size=(1, 1, length, 2)).astype(np.float32)
    clean = run_tvm(import_onnx(source), {"x": x})[0]
    x[0, 0, 0] = np.nan
    x[0, 0, -1] = -np.inf
    (y,) = run_tvm(import_onnx(source), {"x": x})
    assert np.isnan(y[0, 0, 0]).all() and (y[0, 0, 2] == -np.inf).all()
    np.testing.assert_allclose(y[0, 0, 1], clean[0, 0, 1], rtol=1e-5)


@pytest.mark.parametrize("extent, scale", [(50, 1.3), (50, 0.7), (10, 2.3)])
def test_sizes_are_products_of_float32(extent, scale):
    """ONNX's inference multiplies in float64, and writes one element less into files."""
    source = _model([1, 1, extent, extent], [1, 1, scale, scale], mode="linear")
    x = np.random.default_rng(0).standard_normal((1, 1, extent, extent), np.float32)
    session = ort.InferenceSession(source.SerializeToString(), _silent())
    (expected,) = session.run(None, {"x": x})
    assert expected.shape[-1] == round(extent * scale)
    (y,) = run_tvm(import_onnx(onnx.shape_inference.infer_shapes(source)), {"x": x})
    # A place near 50 is rounded by 2e-6, and neighbours differ by up to 5.
    np.testing.assert_allclose(y, expected, atol=2e-5)


def _silent() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # its own sizes are not those that the file states
    return options


@pytest.mark.parametrize(
    "length, scale, nearest",
    [(20, 1.3, "round_prefer_floor"), (20, 0.3, "round_prefer_ceil"), (16, 5.7, None)],
)
def test_the_middle_of_two_elements_is_where_onnx_runtime_sees_it(length, scale, nearest):
    options = {} if nearest is None else {"nearest_mode": nearest}
    model = import_onnx(_model([1, 1, length, 1], [1, 1, scale, 1], mode="nearest", **options))
    x = np.arange(length, dtype=np.float32).reshape(1, 1, -1, 1)
    source = _model([1, 1, length, 1], [1, 1, scale, 1], mode="nearest", **options)
    (wanted,) = ort.InferenceSession(source.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(run_tvm(model, {"x": x})[0], wanted)
