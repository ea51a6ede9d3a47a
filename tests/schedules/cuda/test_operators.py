"""Operators of Relax, legalised one by one: each gets a schedule, and code generation takes it."""

import pytest

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402

from hetero_tvm.targets.cuda import codegen  # noqa: E402
from tests.schedules.cuda.running import TARGET, compiler  # noqa: E402, F401

op = relax.op
OPERATORS = {
    **{
        name: lambda x, name=name: getattr(op, name)(x)
        for name in (
            "exp",
            "log",
            "sqrt",
            "tanh",
            "sigmoid",
            "negative",
            "abs",
            "floor",
            "erf",
            "sin",
            "isnan",
        )
    },
    **{
        name: lambda x, name=name: getattr(op, name)(x, x)
        for name in ("add", "multiply", "divide", "power", "maximum", "equal", "less")
    },
    **{
        name: lambda x, name=name: getattr(op, name)(x, axis=[-1])
        for name in ("sum", "mean", "max", "min", "prod", "variance")
    },
    "mean of all": lambda x: op.mean(x),
    "argmax": lambda x: op.argmax(x, axis=1),
    "softmax": lambda x: op.nn.softmax(x),
    "log_softmax": lambda x: op.nn.log_softmax(x),
    "gelu": lambda x: op.nn.gelu(x),
    "silu": lambda x: op.nn.silu(x),
    "batched matmul": lambda x: op.matmul(x, op.permute_dims(x, [0, 1, 3, 2])),
    "conv2d": lambda x: op.nn.conv2d(x, op.strided_slice(x, [2, 3], [0, 0], [3, 3])),
    "max_pool2d": lambda x: op.nn.max_pool2d(x, (2, 2)),
    "avg_pool2d": lambda x: op.nn.avg_pool2d(x, (2, 2)),
    "permute_dims": lambda x: op.permute_dims(x, [0, 2, 3, 1]),
    "concat": lambda x: op.concat([x, x], axis=1),
    "split": lambda x: op.split(x, 2, axis=2)[0],
    "strided_slice": lambda x: op.strided_slice(x, [2], [1], [5]),
    "take": lambda x: op.take(x, relax.const([0, 1], "int64"), axis=1),
    "gather_elements": lambda x: op.gather_elements(x, op.astype(op.full_like(x, relax.const(0.0)), "int64")),
    "broadcast_to": lambda x: op.broadcast_to(x, (2, 3, 8, 8)),
    "where": lambda x: op.where(op.less(x, x), x, x),
    "clip": lambda x: op.clip(x, 0, 1),
    "tril": lambda x: op.tril(x),
    "cumsum": lambda x: op.cumsum(x, axis=1),
    "topk": lambda x: op.topk(x, 2)[0],
    "sort": lambda x: op.sort(x),
    "tile": lambda x: op.tile(x, (1, 2, 1, 1)),
    "pad": lambda x: op.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1)),
    "resize2d": lambda x: op.image.resize2d(x, (16, 16)),
    # integers and truth values
    "argsort": lambda x: op.argsort(x),
    "cumprod": lambda x: op.cumprod(x, axis=2),
    "integers": lambda x: op.floor_divide(op.astype(x, "int64"), relax.const(3, "int64")),
    "sum of integers": lambda x: op.sum(op.astype(x, "int64"), axis=[1, 3]),
    "truth": lambda x: op.logical_and(op.less(x, x), op.greater(x, x)),
    "as truth": lambda x: op.astype(x, "bool"),
    "one_hot": lambda x: op.one_hot(
        op.astype(x, "int64"), relax.prim_value(1.0), relax.prim_value(0.0), 5, axis=-1
    ),
    # places known at run time only
    "scatter_elements": lambda x: op.scatter_elements(x, op.astype(x, "int64"), x, axis=1),
    "scatter_nd": lambda x: op.scatter_nd(x, relax.const([[0], [0]], "int64"), op.concat([x, x], axis=0)),
    "gather_nd": lambda x: op.gather_nd(x, relax.const([[0, 1], [0, 2]], "int64")),
    # one element, and none
    "one element": lambda x: op.exp(op.strided_slice(x, [0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 1, 1])),
    "sum of one element": lambda x: op.sum(op.strided_slice(x, [1, 2, 3], [0, 0, 0], [1, 1, 1])),
    "no element": lambda x: op.exp(op.full((0, 4), relax.const(0.0), "float32")),
    "sum of no element": lambda x: op.sum(op.full((5, 0), relax.const(0.0), "float32"), axis=1),
    # more of everyday nets
    "stack": lambda x: op.stack([x, x], axis=1),
    "flip": lambda x: op.flip(x, axis=2),
    "repeat": lambda x: op.repeat(x, 2, axis=3),
    "einsum": lambda x: op.einsum((x, x), "abcd,abed->abce"),
    "leakyrelu": lambda x: op.nn.leakyrelu(x, 0.1),
    "layer_norm": lambda x: op.nn.layer_norm(
        x, op.full((8,), relax.const(1.0), "float32"), op.full((8,), relax.const(0.0), "float32"), axes=[-1]
    ),
    "conv2d_transpose": lambda x: op.nn.conv2d_transpose(
        x, op.full((3, 2, 3, 3), relax.const(1.0), "float32")
    ),
    "conv1d": lambda x: op.nn.conv1d(
        op.reshape(x, (1, 3, 64)), op.full((2, 3, 3), relax.const(1.0), "float32")
    ),
    "adaptive_avg_pool2d": lambda x: op.nn.adaptive_avg_pool2d(x, (2, 2)),
}


def schedule(function, name):
    """As a build does: the default of a space, or what there is for any kernel."""
    contract = TARGET.contract_of(function, name, 1)
    space = TARGET.space_for(contract)[0] if contract is not None else None
    if space is None:
        return TARGET.schedule_generic(function)
    return space.emit(contract, space.default(contract, TARGET.machine), TARGET.machine)


def kernels():
    """All operators in one module, a function each; the scheduled kernels by name."""
    module = tvm.IRModule()
    with TARGET.tvm_target:
        for number, (_, make) in enumerate(OPERATORS.items()):
            builder = relax.BlockBuilder()
            x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
            with builder.function("main", [x]):
                with builder.dataflow():
                    result = builder.emit_output(make(x))
                builder.emit_func_output(result)
            one = relax.backend.DispatchSortScan()(builder.get())
            one = relax.transform.LegalizeOps()(one)
            for variable, function in one.functions.items():
                if isinstance(function, tvm.tirx.PrimFunc):
                    name = f"op{number}_{variable.name_hint}"
                    kernel = TARGET.stamp(schedule(function, name))
                    module[name] = kernel.with_attr("global_symbol", name)
    return module


@pytest.fixture(scope="module")
def scheduled():
    return kernels()


def test_every_operator_is_scheduled(scheduled):
    names = [variable.name_hint for variable in scheduled.functions]
    for number, operator in enumerate(OPERATORS):
        assert any(name.startswith(f"op{number}_") for name in names), f"{operator} made no kernel"
    codegen.check_bound(scheduled)


def test_all_of_them_compile(scheduled, compiler):  # noqa: F811
    with codegen.collect() as made:
        codegen.compile_kernels(scheduled, TARGET.tvm_target)
    assert len(made[0].launches) >= len(OPERATORS) and made[0].binary[:4] == b"\x7fELF"
