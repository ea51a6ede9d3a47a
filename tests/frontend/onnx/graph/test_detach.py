"""Models taken apart: weights in graphs, subgraphs and functions."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.frontend import import_model
from hetero_tvm.frontend.onnx.graph.detach import detached
from hetero_tvm.frontend.onnx.load import load_stored
from hetero_tvm.frontend.stored import is_stub
from hetero_tvm.host import mapped
from hetero_tvm.reference import run_reference

WIDTH = 520  # 1.1 MB of float32


def weight(seed, name):
    values = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH), dtype=np.float32)
    return numpy_helper.from_array(values / np.float32(WIDTH**0.5), name)


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], **attributes)


def constant(seed, name):
    return helper.make_node("Constant", [], [name], value=weight(seed, name))


def value(name, shape=(2, WIDTH), element=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, element, shape)


def graph(name, nodes, output, tensors=(), inputs=()):
    return helper.make_graph(nodes, name, list(inputs), [value(output)], list(tensors))


def model(nodes, functions=(), tensors=(), inputs=()):
    main = helper.make_graph(nodes, "g", [value("x"), *inputs], [value("y")], list(tensors))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(main, opset_imports=opsets, ir_version=9, functions=list(functions))


def function(name, nodes, inputs, outputs):
    return helper.make_function("own", name, inputs, outputs, nodes, [helper.make_opsetid("", 17), OWN])


ROWS = np.ones((3, 2, WIDTH), np.float32)
OWN = helper.make_opsetid("own", 1)
FLAG = value("flag", (), TensorProto.BOOL)


def branches():
    """Both branches call their weight ``w``; one is an initializer, the other a node."""
    then = graph("t", [node("MatMul", ["x", "w"], "a")], "a", [weight(0, "w")])
    other = graph("e", [constant(1, "w"), node("MatMul", ["x", "w"], "b")], "b")
    return model([node("If", ["flag"], "y", then_branch=then, else_branch=other)], inputs=[FLAG])


def nested():
    """A branch inside a branch, which reads the outer one's weight and has one of the same name as main's."""
    inner = graph(
        "i", [node("MatMul", ["x", "w"], "c"), node("MatMul", ["c", "v"], "d")], "d", [weight(3, "v")]
    )
    plain = graph("p", [node("MatMul", ["x", "w"], "f")], "f")
    then = graph(
        "t", [node("If", ["flag"], "a", then_branch=inner, else_branch=plain)], "a", [weight(0, "w")]
    )
    other = graph("e", [node("MatMul", ["x", "w/1"], "b")], "b")
    nodes = [node("If", ["flag"], "y", then_branch=then, else_branch=other)]
    return model(nodes, tensors=[weight(2, "w/1")], inputs=[FLAG])


def returned():
    """A branch gives its weight itself, which stays there."""
    square = (WIDTH, WIDTH)
    then = helper.make_graph([], "t", [], [value("w", square)], [weight(0, "w")])
    other = helper.make_graph([constant(1, "w2")], "e", [], [value("w2", square)])
    nodes = [node("If", ["flag"], "m", then_branch=then, else_branch=other), node("MatMul", ["x", "m"], "y")]
    return model(nodes, inputs=[FLAG])


def loop():
    body = helper.make_graph(
        [node("MatMul", ["s", "w"], "a"), node("Identity", ["go"], "go2")],
        "body",
        [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("s")],
        [value("go2", (), TensorProto.BOOL), value("a")],
        [weight(0, "w")],
    )
    count = helper.make_node("Constant", [], ["n"], value_int=3)
    goes = helper.make_node("Constant", [], ["true"], value=numpy_helper.from_array(np.array(True)))
    return model([count, goes, node("Loop", ["n", "true", "x"], "y", body=body)])


def scan():
    nodes = [node("Add", ["s", "e"], "t"), node("MatMul", ["t", "w"], "a")]
    body = helper.make_graph(nodes, "body", [value("s"), value("e")], [value("a")], [weight(0, "w")])
    rows = helper.make_node("Constant", [], ["rows"], value=numpy_helper.from_array(ROWS))
    return model([rows, node("Scan", ["x", "rows"], "y", body=body, num_scan_inputs=1)])


def functions():
    """A function that is called twice, by one that leaves an input out and has a weight of its own."""
    inner = function("In", [constant(0, "w"), node("MatMul", ["x", "w"], "y")], ["x", "unused"], ["y"])
    nodes = [
        constant(1, "w"),
        node("In", ["x"], "a", domain="own"),
        node("In", ["a"], "b", domain="own"),
        node("MatMul", ["b", "w"], "y"),
    ]
    outer = function("Out", nodes, ["x"], ["y"])
    calls = [node("Out", ["x"], "h", domain="own"), node("In", ["h", "x"], "y", domain="own")]
    return model(calls, [inner, outer])


def branch_in_function():
    """The weight of a branch inside a function that a branch calls."""
    then = graph("t", [node("MatMul", ["x", "w"], "a")], "a", [weight(0, "w")])
    other = graph("e", [node("Neg", ["x"], "b")], "b")
    inner = function("In", [node("If", ["f"], "y", then_branch=then, else_branch=other)], ["x", "f"], ["y"])
    call = graph("t", [node("In", ["x", "flag"], "a", domain="own")], "a")
    plain = graph("e", [node("Neg", ["x"], "b")], "b")
    return model([node("If", ["flag"], "y", then_branch=call, else_branch=plain)], [inner], inputs=[FLAG])


CASES = {
    branches: 2,
    nested: 3,
    returned: 0,
    loop: 1,
    scan: 1,
    functions: 2,
    branch_in_function: 1,
}


def inputs_of(source, flag):
    x = np.random.default_rng(9).standard_normal((2, WIDTH), dtype=np.float32)
    return {"x": x} | ({"flag": np.array(flag)} if len(source.graph.input) > 1 else {})


def judged(source, fed):
    """The result; the evaluator's own functions take no fewer inputs than they have."""
    (result,) = ReferenceEvaluator(inliner.inline_local_functions(source)).run(None, fed)
    return result


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("flag", [True, False])
def test_the_same_numbers(make, flag):
    source = make()
    before = source.SerializeToString()
    stored = detached(source)
    assert source.SerializeToString() == before
    assert len(stored.arrays) == CASES[make] == sum(map(is_stub, stored.proto.graph.initializer))
    assert stored.proto.ByteSize() < 20_000 or make is returned
    whole = stored.whole()
    onnx.checker.check_model(whole)
    fed = inputs_of(source, flag)
    wanted = judged(source, fed)
    (found,) = ReferenceEvaluator(whole).run(None, fed)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("way", ["memory", "external"])
def test_imports_give_the_same_numbers(make, way, tmp_path):
    source = make()
    given = source
    if way == "external":
        given = tmp_path / "m.onnx"
        onnx.save(
            onnx.ModelProto.FromString(source.SerializeToString()),
            str(given),
            save_as_external_data=True,
            convert_attribute=True,
        )
        assert len(load_stored(given).arrays) == CASES[make]
    fed = inputs_of(source, True)
    wanted = judged(source, fed)
    found = run_reference(import_model(given), fed)
    np.testing.assert_allclose(found.float64[0], wanted, rtol=1e-3, atol=1e-4)


def test_recursion_ends():
    """Functions that call each other are left for the check to refuse."""
    one = function("A", [constant(0, "w"), node("B", ["x"], "y", domain="own")], ["x"], ["y"])
    two = function("B", [node("A", ["x"], "y", domain="own")], ["x"], ["y"])
    assert len(detached(model([node("A", ["x"], "y", domain="own")], [one, two])).arrays) == 1


def test_weights_are_in_files():
    assert all(mapped.is_mapped(array) for array in detached(branches()).arrays.values())
