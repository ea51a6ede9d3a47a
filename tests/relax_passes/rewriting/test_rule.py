"""Rules are run in order, counted, and report what they miss."""

import pytest

from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Miss, Report, Rule, run_rules
from tests.relax_passes.graphs import module, op

X = {"x": (2, 3)}


class _Double(Rule):
    """exp(x) -> tanh(x), unless its user is a multiplication."""

    name = "toy"
    anchors = ("relax.exp",)

    def match(self, graph, var):
        if graph.op_name(graph.value(var).args[0]) == "relax.sqrt":
            return None
        user = graph.only_user(var)
        if user is not None and graph.op_name(user) == "relax.multiply":
            raise Miss("it is multiplied")
        return graph.value(var).args[0]

    def rewrite(self, graph, var, found):
        graph.replace(var, op.tanh(found))


@pytest.mark.parametrize("disabled", [False, True])
def test_rules_count_and_report(disabled):
    def body(emit, x):
        plain = emit(op.exp(x), "plain")
        near = emit(op.exp(plain), "near")
        product = emit(op.multiply(near, x))
        return product, emit(op.exp(emit(op.sqrt(x))), "other")

    graph, report = Graph(module(X, body)), Report()
    run_rules(graph, [_Double()], report, frozenset(["toy"] if disabled else []))
    assert report.fusions == ({} if disabled else {"toy": 1})
    miss = {"rule": "toy", "node": "near", "reason": "it is multiplied"}
    assert report.misses == ([] if disabled else [miss])
    assert report.to_json() | {"fusions": report.fusions, "misses": report.misses} == report.to_json()
