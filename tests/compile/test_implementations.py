"""Several implementations of one operator: the wrong are left out, the fastest is taken, and remembered."""

import dataclasses
import json

import numpy as np
import pytest
from tvm import IRModule, relax, te, tirx

import hetero_tvm
from hetero_tvm import build as build_command
from hetero_tvm.compile import implementations
from hetero_tvm.compile.build import BuiltModel
from hetero_tvm.compile.truth import EndToEnd
from hetero_tvm.errors import AccuracyError, ModelError, UsageError
from hetero_tvm.reference.unusual import takes_any_numbers
from hetero_tvm.targets.cpu.target import CpuTarget
from tests.frontend.kernels.helpers import description, layer_norm, operator, tensor
from tests.selection import thorough


def scaled(factor, terms=1):
    """A vector times a factor, added up in several terms."""
    x = te.placeholder((64, 32), name="x")
    y = te.compute((64, 32), lambda i, j: sum((x[i, j] * (factor / terms) for _ in range(terms)), 0.0), "y")
    return [x, y]


def transposed(factor):
    """The same by way of the transposed vector."""
    x = te.placeholder((64, 32), name="x")
    turned = te.compute((32, 64), lambda j, i: x[i, j] * factor, "turned")
    return [x, te.compute((64, 32), lambda i, j: turned[j, i], "y")]


@pytest.fixture
def clock(monkeypatch):
    """Times of implementations by name, in the place of a race."""
    times = {}

    def raced(first, second):
        names = [_name(call) for call in (first, second)]
        one, two = (times.get(name, 1.0) for name in names)
        return EndToEnd(one, two, two / one, two / one, two / one, 9, "tuned")

    monkeypatch.setattr(implementations, "_raced", raced)
    return times


def _name(call):
    """Name of the implementation that a call runs, found among what it has captured."""
    cells = [cell.cell_contents for cell in call.__closure__ or ()] + list(call.__defaults__ or ())
    named = [cell for cell in cells if isinstance(cell, str)]
    built = [cell.optimized.model.implementation for cell in cells if hasattr(cell, "optimized")]
    return (named or built or [implementations.VENDOR])[0]


def test_the_fastest_is_taken_and_a_later_build_remembers_it(clock, tmp_path):
    clock.update({"plain": 2.0, "turned": 1.0, "three terms": 1.5})
    ways = {"plain": scaled(3.0), "turned": transposed(3.0), "three terms": scaled(3.0, terms=3)}
    tuned = hetero_tvm.tune_op(ways, name="scaled", trials=3, logs=tmp_path, patience=0)
    found = {one.name: one for one in tuned.report.implementations}
    assert [name for name, one in found.items() if one.chosen] == ["turned"]
    assert found["plain"].default_seconds == 2.0 and found["turned"].default_seconds == 1.0
    assert tuned.report.trials == sum(one.trials for one in found.values()) <= 3
    x = np.random.default_rng().standard_normal((64, 32)).astype(np.float32)
    built = hetero_tvm.build_model(tuned, logs=tmp_path)
    np.testing.assert_allclose(built.run({"x": x})[0], 3 * x, rtol=1e-6)
    again = hetero_tvm.optimize_model(tuned_model(ways))
    assert again.model.implementation == "plain" and len(again.alternatives) == 2
    later = hetero_tvm.build_model(again, logs=tmp_path)
    assert later.optimized.model.implementation == "turned"
    unsearched = hetero_tvm.build_model(again, logs=tmp_path / "none")
    assert unsearched.optimized.model.implementation == "plain"


def tuned_model(ways):
    from hetero_tvm.frontend.functions.importer import import_function

    return import_function(ways, name="scaled")


def test_what_computes_something_else_never_wins(clock, tmp_path):
    clock.update({"right": 2.0, "wrong": 0.1})
    ways = {"right": scaled(3.0), "wrong": scaled(4.0)}
    tuned = hetero_tvm.tune_op(ways, trials=2, logs=tmp_path, patience=0)
    right, wrong = tuned.report.implementations
    assert right.chosen and not wrong.chosen
    assert wrong.note.startswith("left out: it computes something else") and wrong.default_seconds is None


def by_element(formula, dtype="float32"):
    """A formula of one element, over a matrix."""
    x = te.placeholder((64, 32), name="x", dtype=dtype)
    return [x, te.compute((64, 32), lambda i, j: formula(x[i, j]), "y")]


@pytest.mark.parametrize(
    ("right", "wrong", "dtype", "what"),
    [
        (
            lambda x: tirx.Select(x < 0.0, tirx.const(0.0, "float32"), x),
            lambda x: tirx.Select(x > 0.0, x, tirx.const(0.0, "float32")),
            "float32",
            "NaN",
        ),
        *thorough(
            [
                (lambda x: x * 1.0, lambda x: x * x / x, "float32", "zeros"),
                (
                    lambda x: tirx.truncdiv(x, tirx.const(3, "int32")),
                    lambda x: tirx.floordiv(x, tirx.const(3, "int32")),
                    "int32",
                    "negative integers",
                ),
            ]
        ),
    ],
)
def test_what_is_wrong_for_unusual_numbers_never_wins(clock, tmp_path, right, wrong, dtype, what):
    clock.update({"right": 2.0, "wrong": 0.1})
    ways = {"right": by_element(right, dtype), "wrong": by_element(wrong, dtype)}
    tuned = hetero_tvm.tune_op(ways, name="element", trials=1, logs=tmp_path, patience=0)
    kept, other = tuned.report.implementations
    assert kept.chosen and not other.chosen
    assert other.note.startswith(f"left out: it computes something else for {what}")


def test_numbers_that_are_indices_stay_in_range():
    table = te.placeholder((8,), name="table")
    rows = te.placeholder((16,), name="rows", dtype="int32")
    taken = te.compute((16,), lambda i: table[rows[i]], "taken")
    optimized = hetero_tvm.optimize_model(tuned_model([table, rows, taken]))
    assert not takes_any_numbers(optimized.module)
    assert takes_any_numbers(hetero_tvm.optimize_model(tuned_model(scaled(2.0))).module)


def difference(swapped=False, direct=True):
    """``x - y`` as a Relax module of one kernel, or of two; ``y - x`` where the operands are swapped."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((8, 4), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        a, b = (y, x) if swapped else (x, y)
        if direct:
            result = builder.emit_te(
                lambda a, b: te.compute((8, 4), lambda i, j: a[i, j] - b[i, j], "apart"), a, b
            )
        else:
            turned = builder.emit_te(lambda b: te.compute((8, 4), lambda i, j: -b[i, j], "turned"), b)
            result = builder.emit_te(
                lambda a, b: te.compute((8, 4), lambda i, j: a[i, j] + b[i, j], "added"), a, turned
            )
        builder.emit_func_output(result)
    module = builder.get()
    assert isinstance(module, IRModule)
    return module


@pytest.mark.thorough
def test_a_record_says_nothing_of_other_operands_of_the_same_kernels(clock, tmp_path):
    clock.update({"one": 2.0, "two": 1.0})
    tuned = hetero_tvm.tune_op(
        {"one": difference(), "two": difference(direct=False)},
        name="apart",
        trials=2,
        logs=tmp_path,
        patience=0,
    )
    assert [way.chosen for way in tuned.report.implementations] == [False, True]
    ways = {"one": difference(), "two": difference(swapped=True, direct=False)}
    later = hetero_tvm.build_model(hetero_tvm.optimize_model(tuned_model(ways)), logs=tmp_path)
    assert later.optimized.model.implementation == "one"


@pytest.mark.thorough
def test_equal_kernels_with_other_operands_are_left_out(clock, tmp_path):
    ways = {"one": difference(), "other": difference(swapped=True)}
    tuned = hetero_tvm.tune_op(ways, name="apart", trials=1, logs=tmp_path, patience=0)
    assert tuned.report.implementations[1].note.startswith("left out: it computes something else")


@pytest.mark.thorough
def test_what_is_wrong_on_later_calls_only_never_wins(monkeypatch, clock, tmp_path):
    clock.update({"right": 2.0, "late": 0.1})
    checked, check = [], BuiltModel.check

    def late(self, **given):
        checked.append(self.optimized.model.implementation)
        if checked.count("late") > 1 and "inputs" not in given and checked[-1] == "late":
            raise AccuracyError("wrong", problems=["output 0: far off"])
        return check(self, **given)

    monkeypatch.setattr(implementations, "_alike", lambda built, inputs, rows: dict(built))
    monkeypatch.setattr(BuiltModel, "check", late)
    ways = {"right": scaled(3.0), "late": transposed(3.0)}
    right, other = hetero_tvm.tune_op(ways, trials=1, logs=tmp_path, patience=0).report.implementations
    assert right.chosen and other.default_seconds is None
    assert other.note == "left out: it computes something else after some calls (output 0: far off)"


@pytest.mark.thorough
def test_damaged_choices_are_passed_over_and_told(clock, tmp_path):
    clock.update({"plain": 2.0, "turned": 1.0})
    ways = {"plain": scaled(3.0), "turned": transposed(3.0)}
    hetero_tvm.tune_op(ways, name="scaled", trials=2, logs=tmp_path, patience=0)
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_text().splitlines()
    (choice,) = [line for line in map(json.loads, lines) if line["space"] == "implementations"]
    for damaged in (7, None, ["turned"], "gone"):
        last = json.dumps({**choice, "point": {"implementation": damaged}})
        file.write_text("\n".join([*lines, last, ""]))
        with pytest.warns(
            UserWarning, match="is no choice among 'plain', 'turned'; 'turned' is built"
        ) as told:
            built = hetero_tvm.build_model(hetero_tvm.optimize_model(tuned_model(ways)), logs=tmp_path)
        assert built.optimized.model.implementation == "turned" and len(told) == 1, damaged


@pytest.mark.thorough
def test_what_is_far_slower_gets_no_trials(clock, tmp_path):
    clock.update({"fast": 1.0, "slow": 100.0})
    tuned = hetero_tvm.tune_op(
        {"fast": scaled(3.0), "slow": transposed(3.0)}, trials=4, logs=tmp_path, patience=0
    )
    fast, slow = tuned.report.implementations
    assert fast.chosen and slow.trials == 0 and slow.note == "not tuned: far slower by default"


def test_without_trials_the_record_decides(tmp_path):
    tuned = hetero_tvm.tune_op({"plain": scaled(3.0), "turned": transposed(3.0)}, trials=0, logs=tmp_path)
    assert [one.note for one in tuned.report.implementations] == ["not timed: nothing is searched"] * 2
    assert tuned.report.implementations[0].chosen


@pytest.mark.parametrize("reverse", [False, True])
def test_other_shapes_are_no_implementation(reverse):
    x = te.placeholder((64, 31), name="x")
    other = [x, te.compute((64, 31), lambda i, j: tirx.exp(x[i, j]), "y")]
    ways = {"one": scaled(3.0), "other": other}
    with pytest.raises(ModelError, match="no implementations of one operator") as caught:
        hetero_tvm.tune_op(dict(reversed(ways.items())) if reverse else ways)
    assert len(caught.value.problems) == 4 and any("[64, 31]" in line for line in caught.value.problems)


def test_reserved_and_missing_names_are_refused():
    with pytest.raises(UsageError, match="'generic' is the kernels without any fusion"):
        hetero_tvm.tune_op({"generic": scaled(3.0)})
    with pytest.raises(UsageError, match="one at least"):
        hetero_tvm.tune_op({})
    with pytest.raises(UsageError, match="'inner' is a dictionary of several"):
        hetero_tvm.tune_op({"one": scaled(3.0), "inner": {"two": scaled(3.0)}})


def test_functions_that_no_library_has_are_refused():
    """TVM's compiler in this process, which is the judge, ended the process."""
    extern = by_element(lambda x: tirx.call_extern("float32", "no_such_function", x))
    with pytest.raises(ModelError) as caught:
        hetero_tvm.tune_op({"one": by_element(tirx.exp), "extern": extern}, name="element")
    assert list(caught.value.problems) == ["it calls no_such_function, which no library of this process has"]
    known = by_element(lambda x: tirx.call_pure_extern("float32", "expf", x))
    assert hetero_tvm.optimize_model(tuned_model({"one": known})).model.implementation == "one"


def two_ways():
    """LayerNorm by its ten operators, by bodies, and by the mean of squares; the last is wrong."""
    made = layer_norm(12, 64)
    x, y = tensor("x", (12, 64), name="x"), tensor("y", (12, 64))
    moments = [
        operator("ReduceSum", [x], tensor("total", (12, 1)), axis=[1], keep_dims=True),
        operator("Centre", [x, tensor("total", (12, 1), name="s")], tensor("c", (12, 64)), "x - s / 64"),
        operator("Square", [tensor("c", (12, 64))], tensor("q", (12, 64))),
        operator("ReduceSum", [tensor("q", (12, 64))], tensor("v", (12, 1)), axis=[1], keep_dims=True),
        operator(
            "Scale",
            [tensor("c", (12, 64), name="c"), tensor("v", (12, 1), name="v")],
            y,
            "c / sqrt(v / 64 + 1e-5)",
        ),
    ]
    total, squares = tensor("total", (12, 1), name="s"), tensor("squares", (12, 1), name="q")
    of_squares = [
        operator("ReduceSum", [x], total, axis=[1], keep_dims=True),
        operator("Square", [x], tensor("xx", (12, 64))),
        operator("ReduceSum", [tensor("xx", (12, 64))], squares, axis=[1], keep_dims=True),
        operator("Scale", [x, total, squares], y, "(x - s / 64) / sqrt(q / 64 - (s / 64) * (s / 64) + 1e-5)"),
    ]
    wrong = [operator("Double", [x], y, "x + x")]
    made["implementations"] = [
        {"name": "by bodies", "op_desc": moments},
        {"name": "by squares", "op_desc": of_squares},
        {"name": "doubled", "op_desc": wrong},
    ]
    return made


@pytest.mark.thorough
def test_a_description_of_several_implementations(clock, tmp_path, capsys):
    from hetero_tvm import tune as tune_command

    clock.update({"as described": 2.0, "by squares": 1.0, "generic": 3.0, implementations.VENDOR: 4.0})
    source, out = tmp_path / "norm.json", tmp_path / "out" / "norm.so"
    source.write_text(json.dumps(two_ways()))
    given = [
        str(source),
        "--out",
        str(out),
        "--json",
        "--no-shipped-records",
        "--logs",
        str(tmp_path / "logs"),
    ]
    assert tune_command.main([*given, "--trials", "4", "--patience", "0"]) == 0
    captured = capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(captured.out)["search"]["implementations"]}
    assert [name for name, row in rows.items() if row["chosen"]] == ["by squares"]
    assert rows["by bodies"]["note"] == "the same kernels as 'as described'"
    assert rows["doubled"]["note"].startswith("left out")
    assert rows["onnxruntime"]["default_seconds"] == pytest.approx(4.0)
    assert "by squares" in captured.err and "Implementations" in (out.parent / "norm.report.html").read_text()
    assert json.loads((out.parent / "norm.kernel.json").read_text())["implementation"] == "by squares"
    assert build_command.main(given) == 0
    assert json.loads((out.parent / "norm.kernel.json").read_text())["implementation"] == "by squares"


def test_faults_of_every_implementation_are_told_with_their_paths():
    from hetero_tvm.frontend.kernels.description import parse_description

    made = two_ways()
    made["implementations"][2]["name"] = "by bodies"
    made["implementations"][2]["op_desc"][0]["input_desc"][0][0]["tensor_name"] = "z"
    made["op_desc"][0]["output_desc"][0]["shape"] = [12, 2]
    with pytest.raises(ModelError) as caught:
        parse_description(made)
    text = "\n".join(caught.value.problems)
    assert "$.implementations[2].name: 'by bodies' is taken by $.implementations[0]" in text
    assert "$.implementations[2].op_desc[0].input_desc[0][0].tensor_name: nothing before it gives 'z'" in text
    assert "$.op_desc[2].input_desc[1][0]" in text or "$.op_desc[1]" in text


def test_unknown_operators_of_all_implementations_are_told_at_once():
    from hetero_tvm.errors import UnsupportedOperatorError
    from hetero_tvm.frontend.kernels.importer import import_description

    x, y = tensor("x", (4,)), tensor("y", (4,))
    made = description([x], [operator("Nothing", [x], y)], [y])
    made["implementations"] = [{"name": "other", "op_desc": [operator("Never", [x], y)]}]
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_description(made)
    assert [line.partition(":")[0] for line in caught.value.problems] == [
        "$.op_desc[0].name",
        "$.implementations[0].op_desc[0].name",
    ]


def test_a_target_that_is_not_here_gets_the_first(tmp_path):
    tuned = hetero_tvm.tune_op(
        {"plain": scaled(3.0), "turned": transposed(3.0)}, target="npu:edge", trials=2, logs=tmp_path
    )
    plain, turned = tuned.report.implementations
    assert plain.chosen and plain.note == "not timed: its target measures by a clock of its own"
    assert turned.note == plain.note


def test_an_interrupted_search_keeps_the_fastest_of_those_that_were_searched(clock, monkeypatch, tmp_path):
    clock.update({"plain": 2.0, "turned": 1.0})
    tuned = hetero_tvm.tune_op({"plain": scaled(3.0)}, trials=0, logs=tmp_path)
    asked = []

    class Stopped:
        def tune(self, model, options, folders, on_event):
            asked.append(model.model.implementation)
            return dataclasses.replace(tuned.report, stopped="interrupted")

    monkeypatch.setattr(CpuTarget, "tuner", lambda self, rpc=None: Stopped())
    found = hetero_tvm.tune_op(
        {"plain": scaled(3.0), "turned": transposed(3.0)}, trials=8, logs=tmp_path / "logs"
    )
    assert asked == ["plain"] and found.report.interrupted
    assert [one.chosen for one in found.report.implementations] == [True, False]
    assert not (tmp_path / "logs").exists()
