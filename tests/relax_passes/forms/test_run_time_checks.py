"""Hostile indices and divisors end in an error that names the node, never in foreign memory or a trap."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.errors import LibraryError
from hetero_tvm.frontend import import_model
from hetero_tvm.host.tvm import relax
from hetero_tvm.reference import sample_inputs
from hetero_tvm.relax_passes.forms.run_time_checks import GatherAsKernel
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir, is_check
from tests.frontend.onnx.helpers import text_model
from tests.relax_passes.graphs import bindings, op
from tests.relax_passes.rewrite import Rewrite, any_function, bind

# A process of its own runs the library: without the check it would die, or write over what pytest needs.
_RUN = """
import json, sys
import numpy as np
import hetero_tvm
from hetero_tvm.errors import LibraryError

net = hetero_tvm.load(sys.argv[1])
for line in sys.stdin:
    inputs = {name: np.array(values, dtype) for name, (dtype, values) in json.loads(line).items()}
    try:
        print(json.dumps(net(**inputs).tolist()), flush=True)
    except LibraryError as error:
        print(json.dumps(str(error)), flush=True)
"""

X = np.arange(12, dtype=np.float32).reshape(4, 3)
LARGE = (4, -5, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63))


def answers(folder, text, calls, node="victim", target="cpu"):
    """Results or messages of an exported library, one for each call."""
    library = build_model(optimize_model(import_model(text_model(text, node)), target)).export(folder)
    lines = [
        json.dumps({name: (str(a.dtype), a.tolist()) for name, a in call.items()}) + "\n" for call in calls
    ]
    run = subprocess.run(
        [sys.executable, "-c", _RUN, str(library)], input="".join(lines), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def gather(x, i):
    return x[i]


def gather_elements(x, i):
    return np.take_along_axis(x, np.where(i < 0, i + 4, i), 0)


def scatter_elements(x, i, u):
    x = x.copy()
    np.put_along_axis(x, np.where(i < 0, i + 4, i), u, 0)
    return x


def gather_nd(x, i):
    return x[i[:, 0]]


def scatter_nd(x, i, u):
    x = x.copy()
    x[i[:, 0]] = u
    return x


OPERATORS = {
    "scalar gather": ("Gather(x, i)", (), (3,), None, gather),
    "gather": ("Gather(x, i)", (2,), (2, 3), None, gather),
    "gather_nd": ("GatherND(x, i)", (2, 1), (2, 3), None, gather_nd),
    "gather_elements": ("GatherElements<axis = 0>(x, i)", (2, 3), (2, 3), None, gather_elements),
    "scatter_elements": ("ScatterElements<axis = 0>(x, i, u)", (2, 3), (4, 3), (2, 3), scatter_elements),
    "scatter_nd": ("ScatterND(x, i, u)", (2, 1), (4, 3), (2, 3), scatter_nd),
}


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("name", OPERATORS)
def test_indices(name, dtype, tmp_path):
    operator, shape, result, updates, numpy = OPERATORS[name]
    if "_nd" in name and dtype == "int32":
        pytest.skip("ONNX has int64 alone here")

    def tensor(of, extents, called):
        return f"{of}[{', '.join(map(str, extents))}] {called}" if extents else f"{of} {called}"

    given = [tensor("float", X.shape, "x"), tensor(dtype, shape, "i")]
    given += [tensor("float", updates, "u")] if updates else []
    text = f"g ({', '.join(given)}) => ({tensor('float', result, 'y')}) {{ y = {operator} }}"
    inside = [3, -4, -1, 1]
    beyond = [value for value in LARGE if np.iinfo(dtype).min <= value <= np.iinfo(dtype).max]
    calls = []
    for value in [*inside, *beyond, *inside]:
        call = {"x": X, "i": np.zeros(shape, dtype)}
        call["i"][...] = 2
        call["i"].flat[-1] = value
        if updates:
            call["u"] = -np.ones(updates, np.float32)
        calls.append(call)
    seen = answers(tmp_path, text, calls)
    assert len(seen) == len(calls)
    for call, value, answer in zip(calls, [*inside, *beyond, *inside], seen, strict=True):
        if value in beyond:
            assert "victim: an index lies outside [-4, 4)" in answer
        else:
            np.testing.assert_array_equal(np.array(answer, np.float32), numpy(*call.values()))


ONE_OF_EACH = """g (float[1, 3] row, int64[1] i, float[3, 1] column, int64 j, float[5, 2] steps,
        int64[2] lengths,
        float[2, 1, 4, 4] images, float[1, 4] boxes, int64[1] image, float[1, 5] rois) =>
        (float[1, 3] a, float[3] b, float[5, 2] c, float[1, 1, 2, 2] d, float[1, 1, 2, 2] e) {
        a = Gather(row, i)
        b = Gather<axis = 1>(column, j)
        c = ReverseSequence<time_axis = 0, batch_axis = 1>(steps, lengths)
        d = RoiAlign<output_height = 2, output_width = 2>(images, boxes, image)
        e = MaxRoiPool<pooled_shape = [2, 2]>(images, rois) }"""


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["cpu", pytest.param("npu", marks=pytest.mark.exhaustive)])
def test_what_leads_somewhere_is_checked(target):
    """Indices into one row, which a kernel that wraps need not read; lengths; numbers of images."""
    model = text_model(ONE_OF_EACH)
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    built = build_model(optimize_model(import_model(model), target), use_shipped=False)
    box = np.array([[0, 0, 3, 3]], np.float32)
    good = {
        "row": X[:1],
        "i": np.array([-1]),
        "column": X[:1].T.copy(),
        "j": np.array(0),
        "steps": np.arange(10, dtype=np.float32).reshape(5, 2),
        "lengths": np.array([5, 0]),
        "images": np.random.default_rng(0).standard_normal((2, 1, 4, 4)).astype(np.float32),
        "boxes": box,
        "image": np.array([1]),
        "rois": np.concatenate([[[1]], box], 1).astype(np.float32),
    }
    del model.graph.node[4:], model.graph.output[4:]  # ONNX's own evaluator has no MaxRoiPool
    for ours, wanted in zip(built.run(good), ReferenceEvaluator(model).run(None, good), strict=False):
        np.testing.assert_allclose(ours, wanted, rtol=1e-2 if target == "npu" else 1e-5, atol=1e-5)
    wrong = [("i", value, "node_a: an index lies outside [-1, 1)") for value in (1, -2, 2**40)]
    wrong += [("j", value, "node_b: an index lies outside [-1, 1)") for value in (1, -2)]
    wrong += [("lengths", value, "node_c: lengths must lie in [0, 5]") for value in (6, -1, 2**63 - 1)]
    wrong += [("image", value, "node_d/RoiAlign") for value in (2, 10**9)]
    wrong += [("rois", value, "node_e: an index lies outside [-2, 2)") for value in (2, 1e30, np.nan)]
    for name, value, message in wrong:
        bad = good[name].copy()
        bad.flat[0] = value
        with pytest.raises(LibraryError, match=re.escape(message)):
            built.run(good | {name: bad})


@pytest.mark.thorough
def test_each_axis_of_an_index_has_its_own_range(tmp_path):
    text = "g (float[4, 3] x, int64[3, 2] i) => (float[3] y) { y = GatherND(x, i) }"
    inside, first, second = [[3, 2], [-4, -3], [0, 1]], [[3, 2], [4, 0], [0, 0]], [[3, 2], [0, 3], [0, 0]]
    calls = [{"x": X, "i": np.array(i)} for i in (inside, first, second)]
    good, *wrong = answers(tmp_path, text, calls)
    assert good == [11.0, 0.0, 1.0]
    assert all("outside [-4, 4) along axis 0, [-3, 3) along axis 1" in message for message in wrong)


@pytest.mark.thorough
def test_the_host_of_an_npu_checks_before_its_regions_look_up(tmp_path):
    text = """g (float[512, 64] x, int64[64] i, float[64, 64] w) => (float[64, 64] y) {
        a = Gather(x, i)
        y = MatMul(a, w) }"""
    table, w = np.arange(512 * 64, dtype=np.float32).reshape(512, 64) % 7, np.eye(64, dtype=np.float32)
    calls = [{"x": table, "i": np.full(64, i), "w": w} for i in (511, -512, 512, -513, 2**40)]
    last, first, *wrong = answers(tmp_path, text, calls, target="npu")
    assert last[0] == table[511].tolist() and first[63] == table[0].tolist()
    assert all("victim: an index lies outside [-512, 512)" in message for message in wrong)


@pytest.mark.thorough
def test_indices_that_are_computed(tmp_path):
    text = """g (float[4, 3] x, int64[2] a, int64[2] b) => (float[2, 3] y) {
        i = Mul(a, b)
        y = Gather(x, i) }"""
    calls = [{"x": X, "a": np.array([1, a]), "b": np.array([3, 2])} for a in (1, 2)]
    good, wrong = answers(tmp_path, text, calls, "product")
    assert good == X[[3, 2]].tolist()
    assert "an index lies outside [-4, 4)" in wrong


def test_one_check_for_all_that_use_an_index():
    text = """g (float[4, 3] x, float[4, 2] z, int64[2] i) => (float[2, 3] y, float[2, 2] w) {
        y = Gather(x, i)
        w = Gather(z, i) }"""
    module = optimize_model(import_model(text_model(text))).module
    called = [b.value.args[0] for b in bindings(module) if is_call_tir(b.value)]
    assert sum(is_check(module[function]) for function in called) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
@pytest.mark.parametrize("operator", ["Div", "Mod", "Mod<fmod = 1>"])
def test_integer_division(operator, dtype, tmp_path):
    text = f"g ({dtype}[4] a, {dtype}[4] b) => ({dtype}[4] y) {{ y = {operator}(a, b) }}"
    limits = np.iinfo(dtype)
    signed = limits.min < 0
    a = np.array([limits.min, limits.max, 7, 6], dtype)
    b = np.array([limits.max, -1 if signed else 1, -2 if signed else 2, 3], dtype)
    least = np.array([-1 if signed else 1, 1, 1, 1], dtype)
    zero = np.array([1, 1, 0, 1], dtype)
    calls = [{"a": a, "b": divisors} for divisors in (b, least, zero, b)]
    usual, wrapped, by_zero, again = answers(tmp_path, text, calls)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert usual == again == [x % y if operator == "Mod" else _toward_zero(x, y, operator) for x, y in pairs]
    assert wrapped == (a.tolist() if operator == "Div" else [0] * 4)
    if operator == "Div":
        assert "victim: division by zero" in by_zero
    else:  # a remainder of a division by zero is 0, on every target
        assert by_zero == [0] * 4


def _toward_zero(x, y, operator):
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return quotient if operator == "Div" else x - quotient * y


def test_sampled_inputs_pass_the_checks():
    text = """g (float[4, 3] x, int64[9, 2] i, int64[9] j, int64[50] a, int64[50] b, float[2, 50] s,
        int64[50] n)
        => (float[9] y, float[9, 3] z, int64[50] w, float[2, 50] r) {
        r = ReverseSequence(s, n)
        y = GatherND(x, i)
        z = Gather(x, j)
        w = Div(a, b) }"""
    inputs = sample_inputs(text_model(text))
    assert inputs["i"].max() < 3 and inputs["j"].max() < 4 and inputs["b"].min() > 0
    assert set(inputs["n"]) == {0, 1, 2}


GATHER = any_function((64, 80, 1), "float32", others=[((64, 80, 1), "int64")])


class TestGatherAsKernel(Rewrite):
    """Places that the import counts from the end: the kernel does it itself."""

    rule = GatherAsKernel(lambda *of: GATHER)
    inputs = {"x": (64, 80), "places": ("int64", 64, 80)}

    def before(self, x, places):
        behind = op.add(places, relax.const(80, "int64"))
        return op.gather_elements(x, op.where(op.less(places, relax.const(0, "int64")), behind, places), 1)

    def expected(self, x, places):
        data, flat = bind(op.reshape(x, (64, 80, 1))), bind(op.reshape(places, (64, 80, 1)))
        function = relax.BlockBuilder.current().add_func(GATHER, "gather")
        out = relax.TensorType((64, 80, 1), "float32")
        return op.reshape(relax.call_tir(function, [data, flat], out_ty=out), (64, 80))
