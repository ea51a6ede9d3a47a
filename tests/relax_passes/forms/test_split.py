"""Parts of a split as slices."""

import numpy as np

from hetero_tvm.relax_passes.forms.split import SplitAsSlices
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Report, run_rules
from tests.relax_passes.forms.models import floats, result
from tests.relax_passes.graphs import op, relax
from tests.relax_passes.rewrite import Rewrite


def test_parts_are_slices():
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((3, 7), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = builder.emit(op.split(x, [2, 5], 1))
            a, b = (builder.emit(relax.TupleGetItem(parts, n)) for n in (2, 0))
            y = builder.emit_output(op.concat([a, b], 1))
        builder.emit_func_output(y)
    graph = Graph(relax.transform.CanonicalizeBindings()(builder.get()))
    run_rules(graph, [SplitAsSlices()], Report())
    after = graph.rebuild()[0]
    assert "R.split" not in after.script(show_meta=False)
    array = floats(3, 7)
    np.testing.assert_array_equal(result(after, [array]), np.concatenate([array[:, 5:], array[:, :2]], 1))


class TestSplitAsSlices(Rewrite):
    rule = SplitAsSlices()
    inputs = {"x": (3, 7)}

    def before(self, x):
        parts = op.split(x, [2, 5], 1)
        return relax.TupleGetItem(parts, 2), relax.TupleGetItem(parts, 0)

    def expected(self, x):
        return op.strided_slice(x, [1], [5], [7]), op.strided_slice(x, [1], [0], [2])
