"""Operators that move values move them where LiteRT does."""

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

from tests.frontend.tflite.judge import assert_same  # noqa: E402
from tests.frontend.tflite.written import Call, T, const, file, one  # noqa: E402

X = (2, 3, 4, 5)
Q8 = {"dtype": "int8", "scale": (0.05,), "zero": (3,)}


def ints(*values):
    return const(np.array(values, "int32"))


@pytest.mark.parametrize("kind", [{}, Q8])
def test_padding_of_images_behind_a_convolution(kind):
    """The image is kept channels first there."""
    pool = {"Padding": 0, "StrideH": 1, "StrideW": 1, "FilterHeight": 2, "FilterWidth": 2}
    calls = [Call("MAX_POOL_2D", (0,), (1,), "Pool2DOptions", pool), Call("PAD", (1, 2), (3,))]
    pads = const(np.array([[0, 0], [1, 2], [0, 1], [0, 2]], "int32"))
    assert_same(file([T(X, **kind), T(X, **kind), pads, T((2, 6, 5, 7), **kind)], calls, [0], [3]))


@pytest.mark.exhaustive
def test_shapes():
    assert_same(one("RESHAPE", [T(X), ints(6, -1)], [T((6, 20))]))
    assert_same(one("TRANSPOSE", [T(X), ints(2, 0, 3, 1)], [T((4, 2, 5, 3))]))
    assert_same(one("EXPAND_DIMS", [T(X), ints(1)], [T((2, 1, 3, 4, 5))]))
    assert_same(one("TILE", [T((2, 3)), ints(2, 3)], [T((4, 9))]))
    assert_same(one("BROADCAST_TO", [T((3, 1)), ints(2, 3, 4)], [T((2, 3, 4))]))


@pytest.mark.exhaustive
def test_parts():
    assert_same(one("SLICE", [T(X), ints(0, 1, 0, 2), ints(2, 2, -1, 3)], [T((2, 2, 4, 3))]))
    assert_same(one("SPLIT", [ints(3), T((2, 3, 4, 6))], [T((2, 3, 4, 2))] * 3, "SplitOptions", NumSplits=3))
    sizes = [ints(1, 2), const(np.int32(1))]
    assert_same(
        one("SPLIT_V", [T(X), *sizes], [T((2, 1, 4, 5)), T((2, 2, 4, 5))], "SplitVOptions", NumSplits=2)
    )
    assert_same(one("UNPACK", [T((2, 3, 4))], [T((2, 4))] * 3, "UnpackOptions", Num=3, Axis=1))
    fields = {"BeginMask": 1, "EndMask": 2, "ShrinkAxisMask": 4}
    operands = [T((4, 5, 6)), ints(1, 1, -2), ints(3, 2, 9), ints(2, 2, 1)]
    assert_same(one("STRIDED_SLICE", operands, [T((2, 2))], "StridedSliceOptions", **fields))
    backwards = [T((4, 5)), ints(-1, 3), ints(0, 0), ints(-1, -2)]
    assert_same(one("STRIDED_SLICE", backwards, [T((4, 2))], "StridedSliceOptions", EndMask=1))


@pytest.mark.exhaustive
def test_joining():
    parts = [T((2, 3, 4)), T((2, 1, 4))]
    assert_same(one("CONCATENATION", parts, [T((2, 4, 4))], "ConcatenationOptions", Axis=-2))
    assert_same(one("PACK", [T((2, 3)), T((2, 3))], [T((2, 2, 3))], "PackOptions", ValuesCount=2, Axis=1))


@pytest.mark.exhaustive
def test_indices():
    rows = ints(2, 0, 1)
    assert_same(one("GATHER", [T(X), rows], [T((2, 3, 4, 3))], "GatherOptions", Axis=3))
    assert_same(one("GATHER_ND", [T(X), const(np.array([[0, 1], [1, 2]], "int32"))], [T((2, 4, 5))]))
    assert_same(one("EMBEDDING_LOOKUP", [rows, T((4, 6))], [T((3, 6))]))
    assert_same(one("REVERSE_V2", [T(X), ints(2)], [T(X)]))
    places = [T((3,), "int32"), const(np.int32(4)), const(np.float32(2)), const(np.float32(-1))]
    assert_same(one("ONE_HOT", places, [T((3, 4))], "OneHotOptions", Axis=-1), low=0, high=4)
    assert_same(one("TOPK_V2", [T((3, 7)), const(np.int32(3))], [T((3, 3)), T((3, 3), "int32")]))
    update = [T((4, 5)), T((2, 3)), T((2,), "int32")]
    assert_same(one("DYNAMIC_UPDATE_SLICE", update, [T((4, 5))]), low=-1, high=5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", [0, 1])
def test_mirrors(mode):
    pads = const(np.array([[1, 2], [2, 0]], "int32"))
    assert_same(one("MIRROR_PAD", [T((4, 5)), pads], [T((7, 7))], "MirrorPadOptions", Mode=mode))


@pytest.mark.parametrize(
    ("begin", "end", "steps", "masks", "shape"),
    [
        ([0, 1], [0, 4], [1, 2], {"EllipsisMask": 1}, (4, 6, 2)),
        ([0, 1, 0], [0, 3, 2], [1, 1, 1], {"NewAxisMask": 1}, (1, 2, 2, 5)),
        (
            [-1, 0, 9, -2],
            [0, 0, 9, 0],
            [1, 1, 1, -1],
            {"ShrinkAxisMask": 1, "EllipsisMask": 2, "NewAxisMask": 4, "EndMask": 8},
            (6, 1, 4),
        ),
    ],
)
def test_slices_that_leave_axes_out_or_add_some(begin, end, steps, masks, shape):
    bounds = [ints(*part) for part in (begin, end, steps)]
    assert_same(one("STRIDED_SLICE", [T((4, 6, 5)), *bounds], [T(shape)], "StridedSliceOptions", **masks))


def test_rows_by_batch_and_rows_turned_in_part():
    fields = {"Axis": 1, "BatchDims": 1}
    data = one("GATHER", [T((2, 5, 4)), ints([4, 0], [1, 1])], [T((2, 2, 4))], "GatherOptions", **fields)
    assert_same(data)
    for shape, time, batch in (((3, 5), 1, 0), ((2, 5, 3, 2), 1, 2)):
        fields = {"SeqDim": time, "BatchDim": batch}
        operands = [T(shape), ints(2, 5, 1)]
        assert_same(one("REVERSE_SEQUENCE", operands, [T(shape)], "ReverseSequenceOptions", **fields))
