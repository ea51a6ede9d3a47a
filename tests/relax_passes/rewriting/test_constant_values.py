"""Values of folded operators are what TVM computes."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.relax_passes.canonical.constants import FoldConstants
from hetero_tvm.relax_passes.rewriting.constant_values import VALUES
from hetero_tvm.relax_passes.rewriting.graph import array_of
from tests.plain import PLAIN
from tests.relax_passes.graphs import bindings, constant, fuse, module, op

RNG = np.random.default_rng(0)
ARRAYS = {
    "a": RNG.uniform(0.5, 2.0, (2, 3, 4)).astype("float32"),
    "b": RNG.uniform(-2.0, -0.5, (3, 1)).astype("float32"),
    "i": RNG.integers(-3, 3, (2, 3)),
    "n": np.array([[-128, 0, 5], [127, -3, 100]], np.int8),
    "p": RNG.integers(-3, 3, (5,)),
    "e": RNG.integers(0, 3, (1, 2, 3)),  # from 0: importers wrap negative ones, TVM reads before the tensor
    "t": RNG.integers(0, 2, (2, 3, 4)).astype(bool),
    "u": RNG.integers(0, 2, (2, 3, 4)).astype(bool),
}
UNARY = "negative abs sqrt rsqrt exp log sin cos tanh floor ceil isnan square sigmoid".split()
BINARY = "add subtract multiply divide power maximum minimum less less_equal greater greater_equal".split()
CASES = {
    **{name: lambda v, name=name: getattr(op, name)(v.a) for name in UNARY},
    **{name: lambda v, name=name: getattr(op, name)(v.a, v.b) for name in BINARY},
    "equal": lambda v: op.equal(v.i, op.abs(v.i)),
    "not_equal": lambda v: op.not_equal(v.i, op.abs(v.i)),
    "logical_and": lambda v: op.logical_and(v.t, v.u),
    "logical_or": lambda v: op.logical_or(v.t, v.u),
    "logical_not": lambda v: op.logical_not(v.t),
    "where": lambda v: op.where(v.t, v.a, v.b),
    "erf": lambda v: op.erf(v.b),
    "clip": lambda v: op.clip(v.b, -1.5, -0.75),
    "nn.relu": lambda v: op.nn.relu(op.negative(v.b)),
    "nn.leakyrelu": lambda v: op.nn.leakyrelu(v.b, 0.2),
    "nn.softplus": lambda v: op.nn.softplus(v.b),
    "nn.gelu": lambda v: op.nn.gelu(v.b),
    "nn.gelu_tanh": lambda v: op.nn.gelu_tanh(v.b),
    "nn.silu": lambda v: op.nn.silu(v.b),
    "dequantize": lambda v: op.dequantize(v.n, constant([0.5, 2.0]), constant([1, -3], "int8"), axis=0),
    "astype": lambda v: op.astype(v.i, "float32"),
    "reshape": lambda v: op.reshape(v.a, (4, 6)),
    "expand_dims": lambda v: op.expand_dims(v.a, [0, 2]),
    "squeeze": lambda v: op.squeeze(v.b, [1]),
    "flatten": lambda v: op.flatten(v.a),
    "permute_dims": lambda v: op.permute_dims(v.a, [2, 0, 1]),
    "broadcast_to": lambda v: op.broadcast_to(v.b, (2, 3, 4)),
    "concat": lambda v: op.concat([v.a, v.a], -1),
    "zeros_like": lambda v: op.zeros_like(v.a),
    "ones_like": lambda v: op.ones_like(v.a),
    "take": lambda v: op.take(v.a, v.p, 1, mode="wrap"),
    "gather_elements": lambda v: op.gather_elements(v.a, v.e, 1),
    "strided_slice": lambda v: op.strided_slice(v.a, [2, 1], [-3, 0], [4, 2], [2, 1]),
    "cumsum": lambda v: op.cumsum(v.a, 1),
    "sum": lambda v: op.sum(v.a, [0, 2]),
    "mean": lambda v: op.mean(v.a, [1], keepdims=True),
    "max": lambda v: op.max(v.a, [-1]),
    "min": lambda v: op.min(v.a),
}
WITHOUT_OPERANDS = {"zeros", "ones", "full", "shape_to_tensor"}
"""Operators of shapes alone: nothing that TVM could compute from inputs."""
NOT_FOLDED = {"quantize"}
"""Operators whose results stay no constants: tables of bytes are made of them, which have tests of theirs."""


class Operands:
    def __init__(self, values):
        vars(self).update(zip(ARRAYS, values, strict=True))


@pytest.fixture(scope="module")
def computed():
    """Results by TVM at run time, one for each case."""
    inputs = {name: (str(array.dtype), *array.shape) for name, array in ARRAYS.items()}
    mod = module(inputs, lambda emit, *v: tuple(build(Operands(v)) for build in CASES.values()))
    with PLAIN:
        mod = relax.backend.DispatchSortScan()(mod)
    machine = relax.VirtualMachine(tvm.compile(mod, PLAIN), tvm.cpu())
    results = machine["main"](*map(tvm.runtime.tensor, ARRAYS.values()))
    return {name: result.numpy() for name, result in zip(CASES, results, strict=True)}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_folded_is_computed(name, computed):
    values = Operands([constant(array, str(array.dtype)) for array in ARRAYS.values()])
    before = module({"x": (1,)}, lambda emit, x: (op.exp(x), emit(CASES[name](values))))
    after, _, report = fuse(before, FoldConstants())
    assert report.misses == []
    folded = array_of(bindings(after)[-1].value.fields[1])
    assert folded.dtype == computed[name].dtype
    np.testing.assert_allclose(folded, computed[name], rtol=1e-6, atol=1e-6)


def test_every_value_is_compared():
    assert set(CASES) | WITHOUT_OPERANDS | NOT_FOLDED == set(VALUES)


def test_steps_without_elements():
    """A channel axis of no extent has no scales."""
    empty = op.dequantize(constant(np.zeros((0, 3)), "int8"), constant([]), constant([], "int8"), axis=0)
    before = module({"x": (1,)}, lambda emit, x: (op.exp(x), emit(empty)))
    after, _, _ = fuse(before, FoldConstants())
    assert array_of(bindings(after)[-1].value.fields[1]).shape == (0, 3)
