"""Detectors keep the boxes that LiteRT keeps."""

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

from hetero_tvm.api import build_model, import_model, optimize_model  # noqa: E402
from hetero_tvm.errors import UnsupportedOperatorError  # noqa: E402
from hetero_tvm.frontend.tflite.load import read_program  # noqa: E402
from hetero_tvm.frontend.tflite.run import LitertFile  # noqa: E402
from hetero_tvm.frontend.tflite.translation import to_onnx  # noqa: E402
from tests.frontend.tflite.judge import assert_same  # noqa: E402
from tests.frontend.tflite.written import T, const, one  # noqa: E402

COUNT = 40


def corners(seed=0):
    random = np.random.default_rng(seed)
    low = random.uniform(0, 1, (COUNT, 2))
    return np.concatenate([low, low + random.uniform(0.1, 0.6, (COUNT, 2))], 1).astype(np.float32)


def scalar(value, dtype="float32"):
    return const(np.array(value, dtype))


@pytest.mark.parametrize("most", [6, 60])
@pytest.mark.parametrize("least", [-0.3, 5.0])
def test_suppression(most, least):
    bounds = [scalar(most, "int32"), scalar(0.4), scalar(least)]
    given = [const(corners()), T((COUNT,)), *bounds]
    kept, number = T((most,), "int32"), T((), "int32")
    assert_same(one("NON_MAX_SUPPRESSION_V4", given, [kept, number], "NonMaxSuppressionV4Options"))
    results = [kept, T((most,)), number]
    assert_same(one("NON_MAX_SUPPRESSION_V5", [*given, scalar(0.0)], results, "NonMaxSuppressionV5Options"))


def test_soft_suppression_is_refused():
    given = [const(corners()), T((COUNT,)), scalar(6, "int32"), scalar(0.4), scalar(0.0), scalar(0.5)]
    data = one(
        "NON_MAX_SUPPRESSION_V5",
        given,
        [T((6,), "int32"), T((6,)), T((), "int32")],
        "NonMaxSuppressionV5Options",
    )
    with pytest.raises(UnsupportedOperatorError, match="soft_nms_sigma"):
        to_onnx(read_program(data, "a test"))


def detector(most, each, regular, least, labels=4, classes=3):
    random = np.random.default_rng(1)
    anchors = np.concatenate([random.uniform(0, 1, (COUNT, 2)), random.uniform(0.1, 0.4, (COUNT, 2))], 1)
    room = most if regular else most * each
    scales = {"y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0}
    return one(
        "TFLite_Detection_PostProcess",
        [T((1, COUNT, 4)), T((1, COUNT, labels)), const(anchors.astype(np.float32))],
        [T((1, room, 4)), T((1, room)), T((1, room)), T((1,))],
        max_detections=most,
        max_classes_per_detection=each,
        detections_per_class=5,
        use_regular_nms=regular,
        nms_score_threshold=least,
        nms_iou_threshold=0.3,
        num_classes=classes,
        **scales,
    )


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("least", [0.0, 2.0])
def test_detections(each, least):
    """What stands behind the last box, where there are fewer than asked for, LiteRT leaves as it was."""
    assert_same(detector(4, each, False, least))


@pytest.mark.parametrize("least", [0.0, 1.5, 9.0])
def test_detections_by_class(least):
    assert_same(detector(10, 1, True, least))


@pytest.mark.thorough
@pytest.mark.parametrize("regular", [False, True])
def test_detector_runs(tmp_path, regular):
    path = tmp_path / "detector.tflite"
    path.write_bytes(detector(4, 1, regular, 0.0))
    built = build_model(optimize_model(import_model(path)), use_shipped=False)
    random = np.random.default_rng(3)
    given = [
        random.standard_normal(i.shape).astype(np.float32) for i in built.optimized.model.signature.inputs
    ]
    feed = {i.name: x for i, x in zip(built.optimized.model.signature.inputs, given, strict=True)}
    program = read_program(path.read_bytes(), "a test")
    file = LitertFile(path.read_bytes(), program, [x.shape for x in given], None, False)
    for ours, theirs in zip(built.run(feed), file.run(feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
