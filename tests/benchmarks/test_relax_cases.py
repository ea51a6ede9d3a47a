"""The lists of the operator benchmarks: complete, and measured as a whole."""

import json
from pathlib import Path

import onnx
import pytest

import benchmarks.further_operator_cases  # noqa: F401  more of FILES
import benchmarks.model_operator_cases  # noqa: F401  more of FILES
import benchmarks.more_operator_cases  # noqa: F401  more of FILES
from benchmarks.operator_cases import CASES as FILES
from benchmarks.operator_cases import build
from benchmarks.relax_cases import CASES, NO_CASE, Inputs
from hetero_tvm.host.tvm import relax, tvm
from tests.targets.cuda.relax_operators import NO_KERNEL

RACES = {"scatter add"}
"""Cases in which ONNX Runtime adds to one row from two threads, and at times loses additions."""
NOT_INFERRED = {"mean and deviation"}
"""Cases of functions whose shapes ONNX does not infer: its checker wants them."""
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def test_every_operator_of_relax_has_a_case_or_a_reason():
    known = {name.removeprefix("relax.") for name in tvm.ir.Op.list_op_names() if name.startswith("relax.")}
    lists = (CASES, NO_CASE, NO_KERNEL)
    assert known == set().union(*lists) and len(known) == sum(map(len, lists))


@pytest.mark.thorough
def test_every_case_makes_an_expression_and_has_a_row():
    rows = json.loads((RESULTS / "zen5-relax-operators.json").read_text())["rows"]
    for name, case in CASES.items():
        inputs, builder = Inputs(), relax.BlockBuilder()
        result = case.make(inputs)
        with builder.function("main", inputs.variables):
            with builder.dataflow():
                output = builder.emit_output(result)
            builder.emit_func_output(output)
        assert f"relax.{name}" in _operators(builder.get()["main"]), name
        assert rows[name]["ratio"] > 0, name


def _operators(function) -> set[str]:
    return {
        binding.value.op.name
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(getattr(binding.value, "op", None), tvm.ir.Op)
    }


@pytest.mark.thorough
def test_every_file_is_valid():
    for name in FILES:
        model = build(name).model()
        inferred = all(value.type.tensor_type.HasField("shape") for value in model.graph.output)
        assert inferred or name in NOT_INFERRED
        if inferred:
            onnx.checker.check_model(model, full_check=True)


def test_measured_files_are_right_and_in_the_list():
    rows = json.loads((RESULTS / "zen4-operators.json").read_text())["rows"]
    assert {row["case"] for row in rows} <= set(FILES) and len(rows) == len({row["case"] for row in rows})
    for row in rows:
        assert row["difference"] <= 2e-4 or row["case"] in RACES, row["case"]
        assert row["ratio"] > 0, row["case"]
