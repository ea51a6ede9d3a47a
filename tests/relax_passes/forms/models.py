"""Small models of tensors of any dtype, run through TVM before and after a rule."""

import numpy as np

from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Report, run_rules

RNG = np.random.default_rng(0)


def module_of(build, *arrays):
    variables = [relax.Var(f"x{n}", relax.TensorType(a.shape, str(a.dtype))) for n, a in enumerate(arrays)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            y = builder.emit_output(build(*variables))
        builder.emit_func_output(y)
    return relax.transform.CanonicalizeBindings()(builder.get())  # no alias for the output, as imported


def result(module, arrays):
    with tvm.target.Target("llvm"):
        module = relax.backend.DispatchSortScan()(module)
    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def rewritten(build, arrays, rules):
    graph, report = Graph(module_of(build, *arrays)), Report()
    run_rules(graph, rules, report)
    return graph.rebuild()[0], report


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def places(high, *shape):
    return RNG.integers(0, high, shape)


def check_results(build, arrays, rule, gone):
    """The rule replaces the operators ``gone`` and misses nothing; TVM computes the same as before."""
    after, report = rewritten(build, arrays, [rule])
    assert report.misses == []
    text = after.script(show_meta=False)
    assert not any(f"R.{name}(" in text for name in gone.split())
    expected, actual = result(module_of(build, *arrays), arrays), result(after, arrays)
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def weights(*shape):
    return relax.const(floats(*shape))


def operators(module):
    values = [b.value for block in module["main"].body.blocks for b in block.bindings]
    return [str(value.op.name) for value in values if hasattr(value, "op")]


def check_convolution(shape, build, rules):
    """The convolution is a plain one behind the rules, and computes the same; the operators."""
    x = floats(*shape)
    before = module_of(build, x)
    graph, report = Graph(before), Report()
    run_rules(graph, rules, report)
    after = graph.rebuild()[0]
    assert report.misses == []
    assert "relax.nn.conv2d" in operators(after)
    gone = {"relax.nn.conv1d", "relax.nn.conv2d_transpose", "relax.nn.conv1d_transpose"}
    assert not gone & set(operators(after))
    np.testing.assert_allclose(result(after, [x]), result(before, [x]), rtol=1e-5, atol=1e-5)
    return operators(after)
