"""Programs are translated whole, or refused with all causes."""

from pathlib import Path

import pytest

pytest.importorskip("tflite")

from hetero_tvm.errors import ModelError, UnsupportedOperatorError  # noqa: E402
from hetero_tvm.frontend.tflite.load import read_program  # noqa: E402
from hetero_tvm.frontend.tflite.translation import to_onnx  # noqa: E402
from tests.frontend.tflite.judge import assert_same  # noqa: E402
from tests.frontend.tflite.written import Call, T, file, one  # noqa: E402

FILES = Path(__file__).parent / "files"


def test_all_faults_are_told_at_once():
    calls = [Call("BITCAST", (0,), (1,)), Call("ABS", (1,), (2,)), Call("WHERE", (2,), (3,))]
    data = file([T((4,)) for _ in range(4)], calls, [0], [3])
    with pytest.raises(UnsupportedOperatorError) as caught:
        to_onnx(read_program(data, "x"))
    first, second = caught.value.problems
    assert first == "BITCAST at 't1': no translation"
    assert second.startswith("WHERE at 't3': the size of its result is known only when it has run")


def test_results_that_nothing_computes_are_told():
    data = file([T((4,)) for _ in range(3)], [Call("ABS", (0,), (1,))], [0], [1, 2])
    with pytest.raises(UnsupportedOperatorError) as caught:
        to_onnx(read_program(data, "x"))
    assert caught.value.problems == ("nothing computes 't2'",)


def test_axes_of_a_scalar_are_told():
    from tests.frontend.tflite.written import const

    data = file([T(()), const([0]), T(())], [Call("SUM", (0, 1), (2,))], [0], [2])
    with pytest.raises(UnsupportedOperatorError, match="SUM at 't2'"):
        to_onnx(read_program(data, "x"))


def test_ends_that_are_no_numbers():
    from dataclasses import replace

    program = read_program(one("ABS", [T((4,))], [T((4,))]), "x")
    graph = program.graphs[0]
    odd = replace(graph, tensors=(replace(graph.tensors[0], dtype="string"), *graph.tensors[1:]))
    with pytest.raises(ModelError, match="are no numbers"):
        to_onnx(replace(program, graphs=(odd,)))


def test_an_input_that_is_also_a_result():
    assert_same(file([T((4,)), T((4,))], [Call("ABS", (0,), (1,))], [0], [1, 0]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["gates.int8", "words", "gru"])
def test_whole_files(name):
    """A network with gates, words with a row of convolutions, a GRU written as a loop."""
    pytest.importorskip("ai_edge_litert")
    assert_same((FILES / f"{name}.tflite").read_bytes(), low=0, high=50)


@pytest.mark.exhaustive
def test_steps_of_a_deep_file_add_up_slowly():
    """Every operator of this U-Net is within one step of LiteRT's; ten of them in turn, within five."""
    pytest.importorskip("ai_edge_litert")
    assert_same((FILES / "unet.int8.tflite").read_bytes(), steps=5)
