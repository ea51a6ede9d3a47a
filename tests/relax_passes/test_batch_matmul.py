"""Products of two computed tensors."""

import numpy as np
import pytest

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402

from hetero_tvm.ops.batch_matmul import BatchMatmul  # noqa: E402
from hetero_tvm.relax_passes.batch_matmul import ClaimBatchMatmul  # noqa: E402
from hetero_tvm.relax_passes.fused import contract_of  # noqa: E402
from hetero_tvm.relax_passes.graph import Graph  # noqa: E402
from hetero_tvm.relax_passes.rule import Report, run_rules  # noqa: E402


def claimed(shapes, make, dtype="float32"):
    """The contracts that the rule makes of ``make(*inputs)``."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(make(builder, *inputs)))
        builder.emit_func_output(result)
    graph = Graph(builder.get())
    run_rules(graph, [ClaimBatchMatmul()], Report())
    module = graph.rebuild()[0]
    functions = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    relax.analysis.well_formed(module)  # raises what is wrong
    return [contract_of(function) for function in functions]


def plain(builder, x, w):
    return relax.op.matmul(x, w)


def scaled(builder, x, w, factor=0.5):
    return relax.op.multiply(builder.emit(relax.op.matmul(x, w)), relax.const(factor, "float32"))


def transposed(builder, x, w):
    return relax.op.matmul(x, builder.emit(relax.op.permute_dims(w, [0, 2, 1])))


@pytest.mark.parametrize(
    ("shapes", "make", "dtype", "wanted"),
    [
        ([(2, 3, 5), (2, 5, 4)], plain, "float32", BatchMatmul((2,), 3, 4, 5)),
        ([(2, 3, 5), (2, 4, 5)], transposed, "float32", BatchMatmul((2,), 3, 4, 5, True)),
        ([(2, 3, 5), (5, 4)], scaled, "float32", BatchMatmul((2,), 3, 4, 5, shared=True, scale=0.5)),
        ([(3, 5), (5, 4)], plain, "float32", BatchMatmul((), 3, 4, 5)),
        (
            [(2, 3, 5), (2, 5, 4)], lambda b, x, w: relax.op.matmul(x, w, out_dtype="int32"), "int8",
            BatchMatmul((2,), 3, 4, 5, dtype="int8"),
        ),
    ],
)  # fmt: skip
def test_forms(shapes, make, dtype, wanted):
    assert claimed(shapes, make, dtype) == [wanted]


def test_what_broadcasts_is_left_alone():
    assert not claimed([(2, 3, 4, 5), (1, 3, 5, 6)], plain)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_workload_computes_what_the_contract_says(transposed):
    op = BatchMatmul((2,), 3, 4, 5, transposed, scale=0.25)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(x.shape).astype("float32") for x in op.inputs]
    result = tvm.runtime.tensor(np.zeros(op.output.shape, "float32"))
    function = op.workload().with_attr("global_symbol", "main")
    library = tvm.tirx.build(tvm.IRModule({"main": function}), target="llvm")
    library["main"](*map(tvm.runtime.tensor, arrays), result)
    np.testing.assert_allclose(result.numpy(), op.reference(*arrays), rtol=1e-5, atol=1e-6)
