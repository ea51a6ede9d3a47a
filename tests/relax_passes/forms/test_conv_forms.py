"""Convolutions in other forms compute the same as plain ones."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.relax_passes.forms.conv_forms import FORMS
from hetero_tvm.relax_passes.forms.conv_transpose import ConvTransposeAsPhases
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Report, run_rules

RNG = np.random.default_rng(0)


def module_of(shape, build):
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(build(x))
        builder.emit_func_output(y)
    return builder.get()


def operators(module):
    return [str(b.value.op.name) for block in module["main"].body.blocks for b in block.bindings
            if hasattr(b.value, "op")]  # fmt: skip


def result(module, x):
    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def weights(*shape):
    return relax.const(RNG.standard_normal(shape).astype(np.float32))


CASES = {
    "conv1d": ((2, 6, 11), lambda x: relax.op.nn.conv1d(x, weights(8, 6, 3), strides=2, padding=1)),
    "conv1d dilated, grouped": (
        (1, 6, 11), lambda x: relax.op.nn.conv1d(x, weights(4, 3, 3), padding=(2, 1), dilation=2, groups=2)
    ),
    "transposed": (
        (1, 5, 4, 6),
        lambda x: relax.op.nn.conv2d_transpose(x, weights(5, 3, 4, 4), strides=(2, 2), padding=(1, 1)),
    ),
    "transposed, more rows behind": (
        (2, 3, 4, 5),
        lambda x: relax.op.nn.conv2d_transpose(
            x, weights(3, 2, 3, 3), strides=(2, 3), padding=(1, 0), output_padding=(1, 2)
        ),
    ),
    "transposed, one tap a result": (
        (2, 4, 3, 5), lambda x: relax.op.nn.conv2d_transpose(x, weights(4, 3, 2, 2), strides=(2, 2))
    ),
    "transposed, groups": (
        (1, 6, 3, 5),
        lambda x: relax.op.nn.conv2d_transpose(
            x, weights(6, 2, 3, 4), strides=(2, 2), padding=(1, 1), groups=3
        ),
    ),
    "transposed, each channel alone, cut": (
        (1, 3, 4, 4),
        lambda x: relax.op.nn.conv2d_transpose(
            x, weights(3, 1, 2, 2), strides=(3, 3), padding=(2, 0), groups=3
        ),
    ),
    "transposed without strides": (
        (1, 3, 4, 5), lambda x: relax.op.nn.conv2d_transpose(x, weights(3, 2, 3, 1), padding=(1, 0))
    ),
}  # fmt: skip


def check(shape, build, rules):
    """The convolution is a plain one behind the rules, and computes the same; the operators."""
    before = module_of(shape, build)
    graph, report = Graph(before), Report()
    run_rules(graph, rules, report)
    after = graph.rebuild()[0]
    assert report.misses == []
    assert "relax.nn.conv2d" in operators(after)
    gone = {"relax.nn.conv1d", "relax.nn.conv2d_transpose", "relax.nn.conv1d_transpose"}
    assert not gone & set(operators(after))
    x = RNG.standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(result(after, x), result(before, x), rtol=1e-5, atol=1e-5)
    return operators(after)


@pytest.mark.parametrize("shape, build", CASES.values(), ids=CASES.keys())
def test_the_numbers_stay(shape, build):
    check(shape, build, FORMS)


PHASES = {
    **{name: case for name, case in CASES.items() if name.startswith("transposed")},
    "one tap a phase": (
        (2, 4, 3, 5), lambda x: relax.op.nn.conv2d_transpose(x, weights(4, 3, 2, 2), strides=(2, 2))
    ),
    "gaps, and cut beyond the filter": (
        (1, 2, 5, 4),
        lambda x: relax.op.nn.conv2d_transpose(
            x, weights(2, 3, 2, 5), strides=(3, 2), padding=(4, 3, 1, 5)
        ),
    ),
    "groups, dilated": (
        (1, 4, 4, 3),
        lambda x: relax.op.nn.conv2d_transpose(
            x, weights(4, 3, 3, 2), strides=(2, 1), dilation=(2, 3), groups=2, padding=(1, 1)
        ),
    ),
    "one dimension": (
        (2, 3, 7),
        lambda x: relax.op.nn.conv1d_transpose(x, weights(3, 2, 5), strides=3, padding=2, output_padding=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape, build", PHASES.values(), ids=PHASES.keys())
def test_transposed_convolutions_as_phases(shape, build):
    assert "relax.nn.pad" not in check(shape, build, [ConvTransposeAsPhases()])


def test_a_bias_behind_a_transposed_convolution_is_of_the_convolution():
    bias = weights(1, 4, 1, 1)

    def build(x):
        return relax.op.add(
            relax.op.nn.conv2d_transpose(x, weights(6, 2, 4, 4), strides=(2, 2), groups=2), bias
        )

    found = check((1, 6, 3, 4), build, [ConvTransposeAsPhases()])
    assert found.index("relax.add") == found.index("relax.nn.conv2d") + 1


def test_a_bias_behind_a_conv1d_stays_behind_the_convolution():
    bias = weights(1, 8, 1)
    before = module_of((1, 6, 11), lambda x: relax.op.add(relax.op.nn.conv1d(x, weights(8, 6, 3)), bias))
    graph = Graph(before)
    run_rules(graph, FORMS, Report())
    after = graph.rebuild()[0]
    names = operators(after)
    assert names[names.index("relax.nn.conv2d") + 1] == "relax.add"
    x = RNG.standard_normal((1, 6, 11)).astype(np.float32)
    np.testing.assert_allclose(result(after, x), result(before, x), rtol=1e-5, atol=1e-5)
