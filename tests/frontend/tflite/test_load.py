"""Files are read as they were written, and broken ones are refused."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tflite")

from hetero_tvm.errors import ModelError  # noqa: E402
from hetero_tvm.frontend.tflite.load import read_bytes, read_program  # noqa: E402
from tests.frontend.tflite.written import T, const, one  # noqa: E402

FILE = Path(__file__).parent / "files" / "gates.int8.tflite"


def test_a_file_is_read_as_it_was_written():
    w = const(np.arange(-3, 3, dtype="int8").reshape(2, 3), scale=(0.5, 0.25), axis=0)
    data = one(
        "FULLY_CONNECTED", [T((4, 3), declared=(-1, 3)), w, None], [T((4, 2))], "FullyConnectedOptions"
    )
    program = read_program(data, "x")
    graph = program.graphs[0]
    assert (program.inputs, program.outputs) == (("t0",), ("t2",))
    assert graph.operators[0].kind == "FULLY_CONNECTED" and graph.operators[0].inputs == (0, 1, -1)
    assert graph.tensors[0].declared == (-1, 3) and graph.tensors[0].shape == (4, 3)
    np.testing.assert_array_equal(graph.tensors[1].data, np.arange(-3, 3).reshape(2, 3))
    assert graph.tensors[1].scale.tolist() == [0.5, 0.25] and graph.tensors[1].zero.tolist() == [0, 0]
    assert graph.tensors[0].quantization is None and graph.tensors[1].quantization[0] == "int8"


def test_ends_have_the_names_of_the_signature():
    program = read_program(FILE.read_bytes(), "x")
    assert program.inputs == ("keras_tensor_26",) and program.outputs == ("output_0",)


@pytest.mark.parametrize("cut", [9, 40, 500, 2000, 6000])
def test_truncated_files_are_refused(cut):
    with pytest.raises(ModelError, match="broken"):
        read_program(FILE.read_bytes()[:cut], "cut.tflite")


def test_damaged_files_are_read_or_refused():
    data, random = FILE.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        bad = bytearray(data)
        for place in random.integers(0, len(data), 12):
            bad[place] = random.integers(256)
        try:
            read_program(bytes(bad), "bad.tflite")
        except ModelError:
            pass


def test_files_of_another_kind(tmp_path):
    with pytest.raises(ModelError, match="no model file"):
        read_bytes(tmp_path / "none.tflite")
    with pytest.raises(ModelError, match="folder|directory"):
        read_bytes(tmp_path)
    other = tmp_path / "x.tflite"
    other.write_bytes(b"not a model at all")
    with pytest.raises(ModelError, match="not a TensorFlow Lite file"):
        read_bytes(other)
