"""Values come to the places where LiteRT puts them."""

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

from tests.frontend.tflite.judge import assert_same  # noqa: E402
from tests.frontend.tflite.written import T, const, one  # noqa: E402


def ints(*values):
    return const(np.array(values, "int32"))


@pytest.mark.parametrize("kind", ["SUM", "PROD", "MAX", "MIN"])
def test_segments(kind):
    places = ints(2, 0, -1, 2, 5, 0)
    given = [T((6, 3)), places, const(np.array(7, "int32"))]
    assert_same(one(f"UNSORTED_SEGMENT_{kind}", given, [T((7, 3))], f"UnsortedSegment{kind.title()}Options"))


def test_sorted_segments():
    assert_same(one("SEGMENT_SUM", [T((5, 2)), ints(0, 0, 1, 1, 2)], [T((3, 2))]))


def test_diagonals():
    assert_same(one("MATRIX_DIAG", [T((2, 4))], [T((2, 4, 4))]))
    assert_same(one("MATRIX_SET_DIAG", [T((2, 3, 5)), T((2, 3))], [T((2, 3, 5))]))
    assert_same(one("MATRIX_SET_DIAG", [T((2, 5, 3)), T((2, 3))], [T((2, 5, 3))]))


def test_sparse_rows():
    zero = const(np.array(-1, "float32"))
    pairs = const(np.array([[0, 1], [2, 3]], "int32"))
    assert_same(one("SPARSE_TO_DENSE", [pairs, ints(3, 4), T((2,)), zero], [T((3, 4))]))
    assert_same(one("SPARSE_TO_DENSE", [ints(1, 3), ints(5), const(np.float32([2, 4])), zero], [T((5,))]))
