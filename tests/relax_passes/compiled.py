"""Small models of tensors of any dtype, run through TVM before and after a rule."""

import numpy as np

from hetero_tvm.host.tvm import relax, tvm
from tests.plain import PLAIN
from tests.relax_passes.graphs import bindings, fuse, module

RNG = np.random.default_rng(0)


def module_of(build, *arrays):
    inputs = {f"x{n}": (str(a.dtype), *a.shape) for n, a in enumerate(arrays)}
    return module(inputs, lambda emit, *variables: build(*variables))


def result(mod, arrays):
    with PLAIN:
        mod = relax.backend.DispatchSortScan()(mod)
    machine = relax.VirtualMachine(tvm.compile(mod, PLAIN), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def rewritten(build, arrays, rules):
    after, _, report = fuse(module_of(build, *arrays), *rules)
    return after, report


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


def operators(mod):
    return [str(b.value.op.name) for b in bindings(mod) if hasattr(b.value, "op")]


def check_convolution(shape, build, rules):
    """The convolution is a plain one behind the rules, and computes the same; the operators."""
    arrays = [floats(*shape)]
    after, report = rewritten(build, arrays, rules)
    assert report.misses == []
    assert "relax.nn.conv2d" in operators(after)
    gone = {"relax.nn.conv1d", "relax.nn.conv2d_transpose", "relax.nn.conv1d_transpose"}
    assert not gone & set(operators(after))
    before = result(module_of(build, *arrays), arrays)
    np.testing.assert_allclose(result(after, arrays), before, rtol=1e-5, atol=1e-5)
    return operators(after)
