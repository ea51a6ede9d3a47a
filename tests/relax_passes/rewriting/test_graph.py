"""The graph view: users, liveness, replacing and inserting, sources, and the module left alone."""

import numpy as np

from hetero_tvm.frontend import import_onnx
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.rewriting.fused import contract, contract_of, is_call_tir
from hetero_tvm.relax_passes.rewriting.graph import (
    Graph,
    array_of,
    dtype_of,
    is_tensor,
    scalar_of,
    shape_of,
    variables_in,
)
from tests.frontend.onnx.helpers import text_model
from tests.relax_passes.graphs import (
    bindings,
    calls,
    constant,
    evaluate,
    fuse,
    module,
    names_of,
    op,
    relax,
    same_numbers,
)

X = {"x": (2, 3)}


def chain():
    """a = tanh x; b = a + a; c = exp a; dead = sqrt b; results c * b and a."""

    def body(emit, x):
        a = emit(op.tanh(x), "a")
        b = emit(op.add(a, a), "b")
        c = emit(op.exp(a), "c")
        emit(op.sqrt(b), "dead")
        return emit(op.multiply(c, b), "d"), a

    mod = module(X, body)
    graph = Graph(mod)
    return mod, graph, {var.name: var for var in graph.bindings()}


def test_dead_bindings_are_not_seen():
    _, graph, v = chain()
    assert "dead" not in v and len(graph.bindings()) == 5
    assert all(graph.is_live(var) for var in v.values())
    assert [user.name for user in graph.users(v["b"])] == ["d"]  # not the dead one


def test_users():
    _, graph, v = chain()
    assert graph.only_user(v["b"]) is graph.only_user(v["c"]) is v["d"]
    assert graph.only_user(v["a"]) is None
    assert len(graph.users(v["a"])) == 4  # twice by b, by c, by the results
    output = graph.only_user(v["d"])
    assert output is not None and graph.op_name(output) is None
    assert graph.users(output) == [None] and graph.only_user(output) is None


def test_reading():
    mod, graph, v = chain()
    assert graph.op_name(v["a"]) == "relax.tanh" and graph.op_name(mod["main"].params[0]) is None
    assert graph.call(v["a"], "relax.tanh", "relax.exp") is graph.value(v["a"])
    assert graph.call(v["a"], "relax.exp") is None
    parameter = mod["main"].params[0]
    assert graph.value(parameter).same_as(parameter)
    assert shape_of(parameter) == (2, 3) and dtype_of(parameter) == "float32" and is_tensor(parameter)


def test_constants():
    np.testing.assert_array_equal(array_of(constant([[1, 2]])), [[1, 2]])
    assert scalar_of(constant([[3.5]])) == 3.5 and scalar_of(constant([1, 2])) is None
    assert scalar_of(relax.const(4, "int64")) == 4.0
    variable = relax.Var("x", relax.TensorType((1,), "float32"))
    assert array_of(variable) is None and scalar_of(variable) is None


def test_replace_keeps_users_and_collects_sources():
    mod, graph, v = chain()
    x = mod["main"].params[0]
    graph.replace(v["b"], op.multiply(x, constant(2.0)), absorbs=[v["c"]])
    assert graph.sources(v["b"]) == ("c", "b") and graph.node(v["b"]) == "b"
    assert [user.name for user in graph.users(v["b"])] == ["d"] and len(graph.users(v["a"])) == 2
    after, names = graph.rebuild()
    assert names["b"] == ("c", "b") and set(names) == names_of(after)
    array = np.ones((2, 3))
    np.testing.assert_allclose(evaluate(after, [array])[0], np.exp(np.tanh(array)) * 2, rtol=1e-6)


def test_what_dies_counts_to_what_replaced_it():
    def body(emit, x):
        first = emit(op.tanh(x), "first")
        second = emit(op.exp(first), "second")
        return emit(op.sqrt(second), "third")

    graph = Graph(module(X, body))
    *_, third = graph.bindings()
    graph.replace(third, op.sigmoid(graph._function.params[0]))
    _, names = graph.rebuild()
    assert list(names.values()) == [("first", "second", third.name)]


def test_an_alias_is_no_operator():
    """``y = add(...); z = y``: z must not pass for a second addition."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(op.matmul(x, constant(np.ones((6, 4)))))
            output = builder.emit_output(builder.emit(op.add(product, constant(np.ones(4)))))
        builder.emit_func_output(output)
    before = builder.get()
    after, _, report = fuse(before)
    assert report.fusions == {"matmul_epilogue": 1}
    same_numbers(before, after)


def test_branches_read_what_a_value_is_forwarded_to():
    """A branch that went on reading a factor that is in the weights already got it twice."""
    source = text_model("""
        g (bool c, float[2, 3] x, float[2, 3] z) => (float[2, 3] y)
        { h = Tanh(x)
          m = Neg(h)
          y = If(c) <then_branch = t () => (float[2, 3] a) { n = Relu(m)
                                                             a = If(c) <then_branch = i () => (float[2, 3] d)
                                                                        { d = Mul(n, m) },
                                                                        else_branch = j () => (float[2, 3] e)
                                                                        { e = Exp(m) }> },
                     else_branch = e () => (float[2, 3] b) { b = Sigmoid(z) }> }""")
    graph = Graph(import_onnx(source).module)
    named = {graph.op_name(var): var for var in graph.bindings()}
    tanh, negative = named["relax.tanh"], named["relax.negative"]
    graph.forward(negative, tanh)
    assert not graph.is_live(negative) and graph.is_live(tanh)
    after, _ = graph.rebuild()
    branches = [b.value for b in bindings(after) if isinstance(b.value, relax.If)]
    assert branches and negative.name not in {var.name for branch in branches for var in variables_in(branch)}


def test_insert_before():
    mod, graph, v = chain()
    fresh = graph.insert_before(v["d"], op.negative(v["c"]), "fresh", absorbs=[v["c"]])
    unnamed = graph.insert_before(v["d"], op.negative(fresh), "unnamed")
    assert graph.sources(fresh) == ("c",) and graph.sources(unnamed) == ("unnamed",)
    graph.replace(v["d"], op.multiply(unnamed, v["b"]))
    order = [var.name for var in graph.bindings()]
    assert order.index("c") < order.index("fresh") < order.index("unnamed") < order.index("d")
    after, _ = graph.rebuild()
    relax.analysis.well_formed(after)
    assert calls(after)["negative"] == 2


def test_the_module_is_left_alone():
    mod, graph, v = chain()
    text = str(mod)
    graph.replace(v["d"], op.add(v["c"], v["b"]))
    graph.rebuild()
    assert str(mod) == text


def test_functions_are_added_under_fresh_names():
    def body(emit, x):
        return emit(op.nn.softmax(x)), emit(op.nn.softmax(emit(op.tanh(x))))

    mod = module(X, body)
    graph = Graph(mod)
    for var in graph.bindings():
        if graph.op_name(var) == "relax.nn.softmax":
            fused = Softmax((2,), 3)
            graph.replace(
                var, graph.call_function(fused.workload(), fused.label, [graph.value(var).args[0]], var)
            )
            assert contract(graph.functions(), graph.value(var)) == fused
    after, _ = graph.rebuild()
    found = [b.value for b in bindings(after) if is_call_tir(b.value)]
    assert [contract(after, call) for call in found] == [fused, fused]
    assert contract_of(after[found[0].args[0]]) == fused
    same_numbers(mod, after)


def test_sources_given_from_outside():
    mod, _, _ = chain()
    graph = Graph(mod, sources={"a": ("/net/Tanh", "/net/Id")})
    by_name = {var.name: var for var in graph.bindings()}
    assert graph.sources(by_name["a"]) == ("/net/Tanh", "/net/Id") and graph.node(by_name["a"]) == "/net/Id"
    assert graph.sources(by_name["b"]) == ("b",)
