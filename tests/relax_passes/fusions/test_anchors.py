"""The account of anchors closes: whatever the rules overlook is listed, with what it really is."""

import numpy as np
import pytest

from hetero_tvm import zoo
from hetero_tvm.api import import_model, optimize_model
from hetero_tvm.relax_passes.fusions.anchors import FAMILIES, anchors_of
from hetero_tvm.relax_passes.rewriting.graph import Graph
from tests.relax_passes.graphs import constant, module, op, relax
from tests.selection import named, thorough

TINY = [name for name in zoo.names() if name.endswith("-tiny")]


def settled(plan):
    """Every anchor of the imported graph, and whether it is fused, told by a miss, or neither."""
    inside = {node for fused in plan.report.fused for node in fused.nodes}
    missed = {miss["node"] for miss in plan.report.misses}
    graph = Graph(plan.model.module)
    for anchor in anchors_of(graph):
        yield anchor, any(n in inside for n in [anchor.node]), bool(anchor.near & missed)


@pytest.mark.parametrize("name", named(TINY, {"minilm-l6-tiny", "llama-160m-tiny", "resnet50-tiny"}))
def test_the_account_of_the_zoo_closes(name):
    plan = optimize_model(import_model(f"zoo:{name}"))
    assert all(fused or missed for _, fused, missed in settled(plan))
    for kind, (fused, count) in plan.report.anchors.items():
        assert kind in FAMILIES and 0 <= fused <= count


@pytest.mark.parametrize(
    ("rule", "kind"), [*thorough([("attention", "softmax")]), ("gelu", "gelu")], ids=["attention", "gelu"]
)
def test_what_a_switched_off_fusion_leaves_is_a_miss(rule, kind):
    model = import_model("zoo:minilm-l6-tiny")
    fused, count = optimize_model(model).report.anchors[kind]
    assert fused == count == 2
    report = optimize_model(model, disable=[rule]).report
    assert report.anchors[kind] == (0, 2)
    assert len([miss for miss in report.misses if miss["rule"] == rule]) == 2


def kinds(body, **inputs):
    return [(anchor.kind, anchor.reason) for anchor in anchors_of(Graph(module(inputs, body)))]


def test_a_softmax_of_its_own_is_told_as_such():
    ((kind, reason),) = kinds(lambda e, x: e(op.nn.softmax(x)), x=(2, 8))
    assert kind == "softmax" and "a softmax of its own" in reason and "neither side" in reason

    def classifier(e, x):
        return e(op.nn.softmax(e(op.matmul(x, constant(np.ones((8, 3)))))))

    ((_, reason),) = kinds(classifier, x=(2, 8))
    assert "the input side only" in reason


def test_anchors_by_kind():
    def body(e, x):
        tanh = e(op.tanh(e(op.multiply(x, e(op.add(constant(0.5), e(op.multiply(x, constant(0.044715)))))))))
        erf = e(op.erf(x))
        square = e(op.mean(e(op.power(x, constant(2.0))), axis=[-1], keepdims=True))
        parts = e(op.split(x, 2, axis=-1))
        low, high = e(relax.TupleGetItem(parts, 0)), e(relax.TupleGetItem(parts, 1))
        turned = e(op.concat([e(op.negative(high)), low], axis=-1))
        return tanh, erf, square, turned

    assert [kind for kind, _ in kinds(body, x=(2, 8))] == ["gelu", "gelu", "norm", "rotate_half"]


def test_lookalikes_are_no_anchors():
    def body(e, x):
        plain = e(op.tanh(x))
        mean = e(op.mean(e(op.power(x, constant(3.0))), axis=[-1]))
        joined = e(op.concat([x, x], axis=-1))
        return plain, mean, joined, e(op.concat([e(op.negative(x)), e(op.negative(x))], axis=-1))

    assert kinds(body, x=(2, 8)) == []
