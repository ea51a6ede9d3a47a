"""Kernel descriptions are checked: every fault is told with its JSON path."""

import copy
import json

import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.kernels.description import parse_description, read_description
from tests.frontend.kernels.helpers import layer_norm, single, tensor


def test_what_is_read():
    found = parse_description(layer_norm())
    assert (found.name, len(found.operators)) == ("Fused_LayerNorm", 9)
    first = found.operators[0]
    assert (first.kind, first.attributes, first.path) == (
        "ReduceSum",
        {"axis": [-1], "keep_dims": True},
        "$.op_desc[0]",
    )
    constant = found.operators[1].inputs[1]
    assert constant.value.shape == (1,) and constant.value.dtype == "float32"


def test_inputs_may_be_listed_without_a_list_of_their_own():
    data = layer_norm()
    data["input_desc"] = [one for (one,) in data["input_desc"]]
    assert [t.name for t in parse_description(data).inputs] == ["x"]


def broken(change):
    data = copy.deepcopy(layer_norm())
    change(data)
    return data


FAULTS = {
    "$.op_desc: [] should be non-empty": lambda d: d.update(op_desc=[]),
    "$: 'output_desc' is a required property": lambda d: d.pop("output_desc"),
    "$.op_desc[3].output_desc[0].data_type: 'float33' is not one of": lambda d: d["op_desc"][3][
        "output_desc"
    ][0].update(data_type="float33"),
    "$.output_desc[0].shape[1]: 0 is less than the minimum": lambda d: d["output_desc"][0].update(
        shape=[12, 0]
    ),
    "$.op_desc[0].input_desc[0][0].shape[1]: -1 is less than the minimum": lambda d: d["op_desc"][0][
        "input_desc"
    ][0][0].update(shape=[12, -1]),
    "$.input_desc[0][0].shape: '12x64' is not of type 'array'": lambda d: d["input_desc"][0][0].update(
        shape="12x64"
    ),
    "$.input_desc[0]: 7 is not": lambda d: d["input_desc"].__setitem__(0, 7),
    "$.op_desc[2].input_desc[1][0].tensor_name: nothing before it gives 'gone'": lambda d: d["op_desc"][2][
        "input_desc"
    ][1][0].update(tensor_name="gone"),
    "$.op_desc[4].output_desc[0].tensor_name: 'x' is defined at $.input_desc[0][0]": lambda d: d["op_desc"][
        4
    ]["output_desc"][0].update(tensor_name="x"),
    "$.output_desc[0]: 'y' is float32[3] here and float32[12, 64] at": lambda d: d["output_desc"][0].update(
        shape=[3]
    ),
    "$.op_desc[1].input_desc[1][0].value: ": lambda d: d["op_desc"][1]["input_desc"][1][0].update(
        value=[1, 2, 3]
    ),
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_are_told_with_their_paths(text):
    with pytest.raises(ModelError) as caught:
        parse_description(broken(FAULTS[text]))
    assert any(problem.startswith(text) for problem in caught.value.problems), caught.value


def test_all_faults_are_told_at_once():
    data = broken(lambda d: [d["op_desc"][i]["output_desc"][0].update(shape=["a"]) for i in (0, 3)])
    with pytest.raises(ModelError) as caught:
        parse_description(data)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"op": NaN}', "7", "null", '"text"', "\xff", "[]", '{"op": 1e400}']
)
def test_files_that_are_no_descriptions(tmp_path, text):
    path = tmp_path / "kernel.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError):
        read_description(path)
    with pytest.raises(ModelError, match="There is no model file"):
        read_description(tmp_path / "missing.json")


def test_large_shapes_cost_nothing_until_they_are_built(tmp_path):
    path = tmp_path / "kernel.json"
    shape = [2_000_000_000, 2_000_000_000]
    path.write_text(json.dumps(single("Exp", [shape], shape)))
    assert read_description(path).inputs[0].shape == tuple(shape)
    assert tensor("x", shape)["shape"] == shape
