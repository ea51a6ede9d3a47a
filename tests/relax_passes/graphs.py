"""Small Relax modules, and what they compute in float64 without compiling anything."""

from __future__ import annotations

from collections import Counter

import numpy as np
from scipy import special

from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.ops import activations
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.pool2d import AVERAGE, MAX, Pool2d
from hetero_tvm.relax_passes.pipeline import FUSIONS
from hetero_tvm.relax_passes.rewriting.fused import contract, is_call_tir
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of
from hetero_tvm.relax_passes.rewriting.rule import Report, run_rules

op = relax.op


def constant(value, dtype="float32"):
    return relax.const(np.asarray(value, dtype))


def weights(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")


def module(inputs, body, dtype="float32"):
    """``body(emit, *variables)`` returns one result or a tuple.

    ``inputs`` maps names to shapes, each behind its dtype where that is another: ``("int64", 2, 3)``.
    """
    builder = relax.BlockBuilder()
    variables = []
    for name, shape in inputs.items():
        named = bool(shape) and isinstance(shape[0], str)
        variables.append(relax.Var(name, relax.TensorType(shape[named:], shape[0] if named else dtype)))
    names = Counter()

    def emit(value, name=None):
        name = name or (value.op.name.split(".")[-1] if isinstance(value, tvm.ir.Call) else "item")
        names[name] += 1
        return builder.emit(value, name + (f"_{names[name]}" if names[name] > 1 else ""))

    with builder.function("main", variables):
        with builder.dataflow():
            result = body(emit, *variables)
            result = relax.Tuple(result) if isinstance(result, tuple) else result
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    return relax.transform.CanonicalizeBindings()(builder.get())  # no alias for the output, as imported


def bindings(mod):
    return [b for block in mod["main"].body.blocks for b in block.bindings]


def names_of(mod) -> set:
    return {binding.var.name for binding in bindings(mod)}


def fuse(mod, *rules, disabled=()):
    """Run rules (all by default); returns the module, source names by variable, and the report."""
    report = Report()
    graph = Graph(mod)
    run_rules(graph, rules or FUSIONS, report, frozenset(disabled))
    fused, names = graph.rebuild()
    relax.analysis.well_formed(fused)
    return fused, names, report


def calls(mod) -> Counter:
    """Operators of ``main``: Relax's without prefix, fused ones by kind."""
    found = Counter()
    for value in (b.value for b in bindings(mod)):
        if (fused := contract(mod, value)) is not None:
            found[fused.kind] += 1
        elif isinstance(value, tvm.ir.Call):
            found[value.op.name.removeprefix("relax.").removeprefix("nn.")] += 1
    return found


def contracts(mod, kind):
    found = (contract(mod, b.value) for b in bindings(mod))
    return [fused for fused in found if fused is not None and fused.kind == kind]


def same_numbers(before, after, seed=1):
    """Both modules compute the same in float64."""
    generator = np.random.default_rng(seed)
    arrays = [generator.standard_normal([int(e) for e in p.ty.shape]) for p in before["main"].params]
    for one, two in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        assert one.shape == two.shape
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(one).max(initial=0)))


def evaluate(mod, arrays):
    """Results of ``main`` in float64."""
    function = mod["main"]
    known = dict(zip(function.params, arrays, strict=True))

    def value_of(expr):
        if (array := array_of(expr)) is not None:
            return array.astype("float64")
        if isinstance(expr, relax.Tuple):
            return tuple(value_of(item) for item in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return value_of(expr.tuple_value)[expr.index]
        if isinstance(expr, tvm.ir.Call):
            return _call(mod, expr, value_of)
        return known[expr]

    for binding in bindings(mod):
        result = known[binding.var] = value_of(binding.value)
        if isinstance(binding.var.ty, relax.TensorType):
            assert result.shape == tuple(int(e) for e in binding.var.ty.shape), binding.var
    result = value_of(function.body.body)
    return result if isinstance(result, tuple) else (result,)


def _call(mod, call, value_of):
    name, attrs = call.op.name.removeprefix("relax."), call.attrs
    if is_call_tir(call):
        fused = contract(mod, call)
        arrays = value_of(call.args[1])
        assert [a.shape for a in arrays] == [x.shape for x in fused.inputs], fused
        return fused.reference(*arrays)
    if name in ("reshape", "clip", "broadcast_to", "strided_slice"):
        first = value_of(call.args[0])
        if name == "clip":
            return np.clip(first, *(float(a.value) for a in call.args[1:]))
        if name == "strided_slice":
            axes, begin, end, step = ([int(v) for v in numbers.fields] for numbers in call.args[1:])
            cut = {a % first.ndim: slice(*limits) for a, *limits in zip(axes, begin, end, step, strict=True)}
            return first[tuple(cut.get(axis, slice(None)) for axis in range(first.ndim))]
        extents = [int(e) for e in call.args[1].values]
        return first.reshape(extents) if name == "reshape" else np.broadcast_to(first, extents)
    arguments = [value_of(a) for a in call.args]
    axes = getattr(attrs, "axes", None)
    axes = None if axes is None else [int(a) for a in axes]
    if name in _SIMPLE:
        return _SIMPLE[name](*arguments)
    x = arguments[0]
    if name == "permute_dims":
        return x.transpose(axes)
    if name in ("expand_dims", "squeeze", "flatten"):
        return x.reshape([int(e) for e in call.ty.shape])
    if name == "gather_nd":
        return x[tuple(np.moveaxis(arguments[1].astype("int64"), -1, 0))]
    if name == "einsum":
        return np.einsum(str(attrs.subscripts), *x)
    if name == "concat":
        return np.concatenate(x, int(attrs.axis))
    if name == "astype":
        return x.astype(str(attrs.dtype)).astype("float64")
    if name == "take":
        return np.take(x, arguments[1].astype("int64"), int(attrs.axis), mode=str(attrs.mode))
    if name in ("mean", "sum", "variance"):
        reduce = {"mean": np.mean, "sum": np.sum, "variance": np.var}[name]
        return reduce(x, axis=tuple(int(a) for a in attrs.axis), keepdims=bool(attrs.keepdims))
    if name == "nn.pad":
        width = [int(v) for v in attrs.pad_width]
        return np.pad(x, list(zip(width[::2], width[1::2], strict=True)))
    if name.endswith("_pool2d"):
        kernel, strides, padding = (
            tuple(int(v) for v in getattr(attrs, n)) for n in ("pool_size", "strides", "padding")
        )
        out = [int(e) for e in call.ty.shape][2:]
        counted = "avg" in name and bool(attrs.count_include_pad)
        mode = MAX if "max" in name else AVERAGE
        return Pool2d(*x.shape, kernel, strides, padding, tuple(out), mode, counted).reference(x)
    if name == "split":
        return tuple(np.split(x, int(attrs.indices_or_sections), int(attrs.axis)))
    if name == "nn.softmax":
        return special.softmax(x, int(attrs.axis))
    if name in ("nn.layer_norm", "nn.rms_norm"):
        over = tuple(axes)
        if name == "nn.layer_norm":
            x = x - x.mean(over, keepdims=True)
        y = x / np.sqrt((x * x).mean(over, keepdims=True) + float(attrs.epsilon)) * arguments[1]
        return y + arguments[2] if len(arguments) > 2 else y
    if name == "nn.batch_norm":
        gamma, beta, mean, variance = (a[:, None, None] for a in arguments[1:])
        y = (x - mean) / np.sqrt(variance + float(attrs.epsilon)) * gamma + beta
        return y, arguments[3], arguments[4]
    if name == "nn.group_norm":
        x, gamma, beta = arguments
        rows = x.reshape(x.shape[0], int(attrs.num_groups), -1)
        apart = rows - rows.mean(-1, keepdims=True)
        y = apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + float(attrs.epsilon))
        return y.reshape(x.shape) * gamma[:, None, None] + beta[:, None, None]
    assert name == "nn.conv2d", name
    w = arguments[1]
    numbers = {n: tuple(int(v) for v in getattr(attrs, n)) for n in ("strides", "padding", "dilation")}
    return Conv2d(*x.shape, w.shape[0], w.shape[2:], groups=int(attrs.groups), **numbers).reference(x, w)


# fmt: off
_SIMPLE = {
    "matmul": np.matmul, "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
    "divide": np.divide, "power": np.power, "square": np.square, "sqrt": np.sqrt, "erf": special.erf,
    "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "sigmoid": special.expit, "exp": np.exp,
    "isnan": np.isnan, "negative": np.negative, "maximum": np.maximum, "minimum": np.minimum, "abs": np.abs,
    "nn.relu": activations.relu,
    "nn.gelu": activations.gelu_erf, "nn.gelu_tanh": activations.gelu_tanh, "nn.silu": activations.silu,
    "greater": np.greater, "less": np.less, "sin": np.sin, "cos": np.cos, "cosh": np.cosh, "sinh": np.sinh,
    "equal": np.equal, "not_equal": np.not_equal,
    "logical_xor": np.logical_xor, "logical_not": np.logical_not,
    "where": lambda c, a, b: np.where(c != 0, a, b),
}
# fmt: on
