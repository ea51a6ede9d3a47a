"""LiteRT runs files as they are, at the sizes that they take."""

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

from hetero_tvm.errors import ModelError, ShapeError  # noqa: E402
from hetero_tvm.frontend.tflite.load import read_program  # noqa: E402
from hetero_tvm.frontend.tflite.run import LitertFile, shapes_at  # noqa: E402
from tests.frontend.tflite.written import T, one  # noqa: E402

DATA = one("ADD", [T((2, 3), declared=(-1, 3)), T((2, 3), declared=(-1, 3))], [T((2, 3))], "AddOptions")


def original():
    program = read_program(DATA, "x")
    return LitertFile(DATA, program, [(2, 3)] * 2, None, False)


@pytest.mark.parametrize("rows", [2, 5])
def test_a_file_runs_at_the_sizes_of_its_inputs(rows):
    inputs = {name: np.full((rows, 3), value, "float32") for name, value in (("t0", 1), ("t1", 2))}
    (result,) = original().run(inputs, double=True)
    assert result.dtype == np.float64 and result.tolist() == [[3.0] * 3] * rows


def test_sizes_that_do_not_fit_are_told():
    program = read_program(DATA, "x")
    assert shapes_at(DATA, program, [(4, 3), (4, 3)])[2] == (4, 3)
    with pytest.raises(ShapeError, match="does not take these shapes"):
        shapes_at(DATA, program, [(4, 3), (5, 3)])
    with pytest.raises(ModelError, match="cannot run this file"):
        original().run({"t0": np.zeros((2, 3), "float32"), "t1": np.zeros((7, 3), "float32")})
