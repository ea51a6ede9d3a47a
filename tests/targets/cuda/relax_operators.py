"""Every operator of Relax as a small function, and those that are no work for a GPU, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hetero_tvm.host.tvm import relax

op, nn, image, vision, grad = relax.op, relax.op.nn, relax.op.image, relax.op.vision, relax.op.grad


class Net:
    """Makes the inputs of a function."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []

    def __call__(self, *shape: int, dtype: str = "float32") -> Any:
        self.inputs.append(relax.Var(f"x{len(self.inputs)}", relax.TensorType(shape, dtype)))
        return self.inputs[-1]

    def integers(self, *shape: int, dtype: str = "int64") -> Any:
        return self(*shape, dtype=dtype)


Make = Callable[[Net], Any]


def _unary(name: str, space: Any = op, dtype: str = "float32") -> Make:
    return lambda x: getattr(space, name)(x(3, 37, dtype=dtype))


def _binary(name: str, dtype: str = "float32") -> Make:
    return lambda x: getattr(op, name)(x(3, 1, 8, dtype=dtype), x(5, 8, dtype=dtype))


def _reduction(name: str) -> Make:
    return lambda x: getattr(op, name)(x(3, 8, 5), axis=[1])


def _number(value: float, dtype: str = "float32") -> Any:
    return relax.const(value, dtype)


def _backward(name: str) -> Make:
    return lambda x: getattr(grad, name)(x(1, 2, 4, 4), x(1, 2, 8, 8), (2, 2), (2, 2))


def _cube(x: Net) -> Any:
    return x(1, 2, 4, 5, 6)


def _prefixed(names: str, make: Callable[[str], Make], prefix: str = "") -> dict[str, Make]:
    return {prefix + name: make(name) for name in names.split()}


_UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor isfinite isinf isnan log negative "
    "round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc"
)
_BINARY = (
    "add atan2 divide equal floor_divide floor_mod greater greater_equal less less_equal log_add_exp maximum "
    "minimum mod multiply not_equal power subtract"
)
_BITS = "bitwise_and bitwise_or bitwise_xor left_shift right_shift"
_TRUTH = "logical_and logical_or logical_xor"
_ACTIVATIONS = "relu silu gelu gelu_tanh selu softplus leakyrelu"

POINTWISE: dict[str, Make] = {
    **_prefixed(_UNARY, _unary),
    **_prefixed(_BINARY, _binary),
    **_prefixed(_BITS, lambda name: _binary(name, "int32")),
    **_prefixed(_TRUTH, lambda name: _binary(name, "bool")),
    "bitwise_not": _unary("bitwise_not", dtype="int32"),
    "logical_not": _unary("logical_not", dtype="bool"),
    **_prefixed(_ACTIVATIONS, lambda name: _unary(name, nn), "nn."),
}
"""Functions of single elements, which differ in one expression; :func:`together` has all of them."""


def together(x: Net) -> Any:
    """The sum of all of :data:`POINTWISE`."""
    a, b, i, j, p, q = (x(3, 37, dtype=kind) for kind in ("float32", "int32", "bool") for _ in range(2))
    terms = [getattr(op, name)(a) for name in _UNARY.split()]
    terms += [getattr(nn, name)(a) for name in _ACTIVATIONS.split()]
    terms += [getattr(op, name)(a, b) for name in _BINARY.split()]
    terms += [getattr(op, name)(i, j) for name in _BITS.split()]
    terms += [getattr(op, name)(p, q) for name in _TRUTH.split()]
    result = a
    for term in (*terms, op.bitwise_not(i), op.logical_not(p)):
        result = op.add(result, op.astype(term, "float32"))
    return result


OPERATORS: dict[str, Make] = {
    **POINTWISE,
    **_prefixed("zeros_like ones_like tril triu eye_like", _unary),
    **_prefixed("sum mean max min prod variance std", _reduction),
    "argmax": lambda x: op.argmax(x(3, 37), axis=1),
    "argmin": lambda x: op.argmin(x(3, 37), axis=0),
    "where": lambda x: op.where(x(3, 5, dtype="bool"), x(3, 5), x(3, 5)),
    "clip": lambda x: op.clip(x(3, 37), 0, 1),
    "astype": lambda x: op.astype(x(3, 37), "int64"),
    "quantize": lambda x: op.quantize(x(3, 8), _number(0.5), _number(1, "int8")),
    "dequantize": lambda x: op.dequantize(x(3, 8, dtype="int8"), _number(0.5), _number(1, "int8")),
    # products
    "matmul": lambda x: op.matmul(x(2, 5, 24), x(2, 24, 9)),
    "outer": lambda x: op.outer(x(5), x(7)),
    "einsum": lambda x: op.einsum((x(2, 3, 4, 5), x(2, 3, 6, 5)), "abcd,abed->abce"),
    # new tensors
    "full": lambda x: op.add(x(3, 5), op.full((3, 5), x(), "float32")),
    "full_like": lambda x: op.full_like(x(3, 5), _number(2.0)),
    "ones": lambda x: op.add(x(3, 5), op.ones((3, 5), "float32")),
    "zeros": lambda x: op.concat([x(3, 5), op.zeros((3, 5), "float32")], axis=1),
    "eye": lambda x: op.eye(4, 5, 1),
    "arange": lambda x: op.add(x.integers(10), op.arange(2, 30, 3, "int64")),
    "hamming_window": lambda x: op.hamming_window(16, True, 0.54, 0.46, "float32"),
    # the same elements elsewhere
    "broadcast_to": lambda x: op.broadcast_to(x(3, 1), (2, 3, 5)),
    "concat": lambda x: op.concat([x(3, 5), x(4, 5)], axis=0),
    "stack": lambda x: op.stack([x(3, 5), x(3, 5)], axis=1),
    "split": lambda x: op.split(x(4, 6), 2, axis=1),
    "permute_dims": lambda x: op.permute_dims(x(3, 4, 5), [2, 0, 1]),
    "flip": lambda x: op.flip(x(3, 5), axis=1),
    "tile": lambda x: op.tile(x(3, 5), (2, 3)),
    "repeat": lambda x: op.repeat(x(3, 5), 2, axis=1),
    "reverse_sequence": lambda x: op.reverse_sequence(x(3, 5), x.integers(3, dtype="int32"), 1, 0),
    "strided_slice": lambda x: op.strided_slice(x(3, 9), [1], [1], [8], [2]),
    "slice_scatter": lambda x: op.slice_scatter(x(8, 5), x(3, 5), 1, 7, 2, 0),
    "take": lambda x: op.take(x(6, 5), x.integers(4), axis=0),
    "gather_elements": lambda x: op.gather_elements(x(3, 5), x.integers(3, 2), axis=1),
    "gather_nd": lambda x: op.gather_nd(x(3, 5), x.integers(4, 2)),
    "index_tensor": lambda x: op.index_tensor(x(3, 5), [x.integers(4), x.integers(4)]),
    "index_put": lambda x: op.index_put(x(8, 5), (x.integers(3), x.integers(3)), x(3)),
    "scatter_elements": lambda x: op.scatter_elements(x(3, 5), x.integers(3, 2), x(3, 2), axis=1),
    "scatter_nd": lambda x: op.scatter_nd(x(8, 5), x.integers(2, 1), x(2, 5)),
    "one_hot": lambda x: op.one_hot(x.integers(4), relax.prim_value(1.0), relax.prim_value(0.0), 5),
    "meshgrid": lambda x: op.meshgrid([x(3), x(4)]),
    "layout_transform": lambda x: op.layout_transform(x(8, 6), lambda i, j: (i // 4, j, i % 4)),
    "collapse_sum_like": lambda x: op.collapse_sum_like(x(3, 5), x(1, 5)),
    "collapse_sum_to": lambda x: op.collapse_sum_to(x(3, 5), (3, 1)),
    # order
    "sort": lambda x: op.sort(x(3, 9)),
    "argsort": lambda x: op.argsort(x(3, 9)),
    "topk": lambda x: op.topk(x(3, 9), 2),
    "cumsum": lambda x: op.cumsum(x(3, 9), axis=1),
    "cumprod": lambda x: op.cumprod(x(3, 9), axis=0),
    "bucketize": lambda x: op.bucketize(x(3, 5), x(7)),
    # neural networks
    **_prefixed("softmax log_softmax", lambda n: _unary(n, nn), "nn."),
    "nn.prelu": lambda x: nn.prelu(x(2, 3, 5), x(3), axis=1),
    "nn.dropout": lambda x: relax.TupleGetItem(nn.dropout(op.exp(x(3, 5))), 0),
    "nn.pad": lambda x: nn.pad(x(3, 5), (1, 0, 2, 1)),
    "nn.layer_norm": lambda x: nn.layer_norm(x(3, 40), x(40), x(40), axes=[-1]),
    "nn.rms_norm": lambda x: nn.rms_norm(x(3, 40), x(40), axes=[-1]),
    "nn.group_norm": lambda x: nn.group_norm(x(2, 6, 4, 4), x(6), x(6), 3, 1, [2, 3]),
    "nn.instance_norm": lambda x: nn.instance_norm(x(2, 6, 4, 4), x(6), x(6), 1, [2, 3]),
    "nn.batch_norm": lambda x: relax.TupleGetItem(
        nn.batch_norm(x(2, 6, 4, 4), x(6), x(6), x(6), x(6), axis=1, training=False), 0
    ),
    "nn.attention": lambda x: nn.attention(x(1, 9, 2, 16), x(1, 11, 2, 16), x(1, 11, 2, 16)),
    "nn.attention_bias": lambda x: nn.attention(
        x(1, 9, 2, 16), x(1, 11, 2, 16), x(1, 11, 2, 16), x(1, 1, 9, 11)
    ),
    "nn.conv1d": lambda x: nn.conv1d(x(1, 3, 16), x(4, 3, 3)),
    "nn.conv2d": lambda x: nn.conv2d(x(1, 3, 8, 8), x(4, 3, 3, 3), padding=1),
    "nn.conv3d": lambda x: nn.conv3d(_cube(x), x(3, 2, 2, 2, 2)),
    "nn.conv1d_transpose": lambda x: nn.conv1d_transpose(x(1, 3, 8), x(3, 4, 3)),
    "nn.conv2d_transpose": lambda x: nn.conv2d_transpose(x(1, 3, 5, 5), x(3, 2, 3, 3), strides=(2, 2)),
    "nn.conv3d_transpose": lambda x: nn.conv3d_transpose(_cube(x), x(2, 3, 2, 2, 2)),
    "nn.max_pool1d": lambda x: nn.max_pool1d(x(1, 3, 9), (2,), (2,)),
    "nn.max_pool2d": lambda x: nn.max_pool2d(x(1, 3, 9, 9), (3, 3), (2, 2), (1, 1, 1, 1)),
    "nn.max_pool3d": lambda x: nn.max_pool3d(_cube(x), (2, 2, 2)),
    "nn.avg_pool1d": lambda x: nn.avg_pool1d(x(1, 3, 9), (2,), (2,)),
    "nn.avg_pool2d": lambda x: nn.avg_pool2d(x(1, 3, 8, 8), (2, 2), (2, 2)),
    "nn.avg_pool3d": lambda x: nn.avg_pool3d(_cube(x), (2, 2, 2)),
    "nn.adaptive_avg_pool1d": lambda x: nn.adaptive_avg_pool1d(x(1, 3, 9), 4),
    "nn.adaptive_avg_pool2d": lambda x: nn.adaptive_avg_pool2d(x(1, 3, 7, 7), (2, 3)),
    "nn.adaptive_avg_pool3d": lambda x: nn.adaptive_avg_pool3d(_cube(x), (2, 2, 2)),
    "nn.cross_entropy_with_logits": lambda x: nn.cross_entropy_with_logits(x(3, 5), x(3, 5)),
    "nn.nll_loss": lambda x: nn.nll_loss(x(3, 5), x.integers(3), x(5)),
    # images and boxes
    "image.resize2d": lambda x: image.resize2d(x(1, 3, 5, 5), (9, 8)),
    "image.resize3d": lambda x: image.resize3d(_cube(x), (3, 4, 5)),
    "image.affine_grid": lambda x: image.affine_grid(x(2, 2, 3), (4, 5)),
    "image.grid_sample": lambda x: image.grid_sample(x(1, 3, 5, 5), x(1, 2, 4, 4)),
    "vision.roi_align": lambda x: vision.roi_align(x(1, 3, 8, 8), x(2, 5), (2, 2), 1.0, 2),
    "vision.roi_pool": lambda x: vision.roi_pool(x(1, 3, 8, 8), x(2, 5), (2, 2), 1.0),
    "vision.get_valid_counts": lambda x: vision.get_valid_counts(x(1, 6, 6), 0.5),
    "vision.multibox_transform_loc": lambda x: vision.multibox_transform_loc(
        x(1, 3, 4), x(1, 16), x(1, 4, 4)
    ),
    # gradients
    "grad.max_pool2d_backward": _backward("max_pool2d_backward"),
    "grad.avg_pool2d_backward": _backward("avg_pool2d_backward"),
    "grad.take_backward": lambda x: grad.take_backward(x(4, 5), x(6, 5), x.integers(4), axis=0),
    "grad.nll_loss_backward": lambda x: grad.nll_loss_backward(x(), x(3, 5), x.integers(3), x(5)),
}
"""By the name of the operator, without ``relax.``."""

REFUSED: dict[str, Make] = {
    "median": lambda x: op.median(x(3, 9), axis=[1]),
    "vision.non_max_suppression": lambda x: vision.non_max_suppression(
        x(1, 6, 6), x.integers(1, dtype="int32"), x.integers(1, 6, dtype="int32"), return_indices=False
    ),
}
"""Operators that TVM computes by functions of the host's library."""

FORMS: dict[str, Make] = {
    "all functions of elements": together,
    "mean of all": lambda x: op.mean(x(3, 37)),
    "mean of a long row": lambda x: op.mean(x(2, 3, 4000), axis=[0, 2]),
    "sum of integers": lambda x: op.sum(x.integers(3, 5, 6), axis=[0, 2]),
    "one element": lambda x: op.exp(x(1, 1)),
    "sum of one element": lambda x: op.sum(x(1)),
    "no axis": lambda x: op.exp(x()),
    "no element": lambda x: op.exp(x(0, 4)),
    "sum of no element": lambda x: op.sum(x(5, 0), axis=1),
    "half precision": lambda x: nn.gelu(op.add(x(3, 37, dtype="float16"), x(37, dtype="float16"))),
    "bfloat16": lambda x: op.sum(op.exp(x(3, 37, dtype="bfloat16")), axis=1),
    "double precision": lambda x: op.matmul(x(5, 7, dtype="float64"), x(7, 9, dtype="float64")),
    "product of integers": lambda x: op.matmul(x(5, 7, dtype="int32"), x(7, 9, dtype="int32")),
    "product of bytes": lambda x: op.matmul(x(9, 32, dtype="int8"), x(32, 16, dtype="int8"), "int32"),
    "grouped conv2d": lambda x: nn.conv2d(x(1, 4, 8, 8), x(6, 2, 3, 3), groups=2),
    "dilated conv2d": lambda x: nn.conv2d(x(1, 4, 9, 9), x(4, 4, 3, 3), dilation=2),
    "reflected pad": lambda x: nn.pad(x(3, 5), (0, 0, 2, 1), "reflect"),
    "scatter that adds": lambda x: op.scatter_elements(x(3, 5), x.integers(3, 2), x(3, 2), 1, "add"),
    "attention with a causal mask": lambda x: nn.attention(
        x(1, 9, 2, 16), x(1, 9, 2, 16), x(1, 9, 2, 16), causal_mask="TopLeft"
    ),
}
"""Forms of operators that schedules have stumbled over, or might."""

_VIEW = "a view of the same memory"
_CALL = "how kernels and functions are called: no arithmetic of its own"
_LOWERED = "made by lowering, after kernels are scheduled"
_SHAPE = "shapes are numbers of the host"
_HOST = "reads the header of a tensor, on the host"
_MANY = "several devices or machines: models are imported for one"
_TRAINING = "marks a region for training, and vanishes"
_MISSING = "TVM has no TensorIR for it on any target; no importer makes it"
_RUNTIME = "the size of the result depends on values: refused at import"

NO_KERNEL: dict[str, str] = {
    name: reason
    for reason, names in {
        _VIEW: "reshape expand_dims flatten squeeze nn.batch_flatten memory.view memory.ensure_zero_offset",
        _CALL: "call_tir call_tir_inplace call_tir_with_grad call_dps_packed call_pure_packed call_py_func "
        "call_inplace_packed call_builtin_with_ctx invoke_closure invoke_pure_closure make_closure "
        "wrap_param null_value print assert_op",
        _LOWERED: "builtin.alloc_tensor builtin.stop_lift_params memory.alloc_storage memory.alloc_tensor "
        "memory.kill_storage memory.kill_tensor vm.alloc_storage vm.alloc_tensor vm.call_tir_dyn "
        "vm.kill_object",
        _SHAPE: "shape_of shape_to_tensor tensor_to_shape size",
        _HOST: "inspect.tensor_byte_offset inspect.tensor_dtype_bits inspect.tensor_dtype_code "
        "inspect.tensor_dtype_lanes inspect.tensor_elem_offset inspect.tensor_ndim "
        "inspect.tensor_shape_i inspect.tensor_stride_i",
        _MANY: "ccl.allgather ccl.allreduce ccl.broadcast_from_worker0 ccl.scatter_from_worker0 "
        "dist.annotate_sharding dist.call_tir_local_view dist.redistribute "
        "dist.redistribute_replica_to_shard to_vdevice hint_on_device",
        _TRAINING: "grad.no_grad grad.start_checkpoint grad.end_checkpoint",
        _RUNTIME: "nonzero unique dynamic_strided_slice vision.all_class_non_max_suppression",
        _MISSING: "ewise_fma multinomial_from_uniform nn.pixel_shuffle nn.attention_var_len",
    }.items()
    for name in names.split()
}
"""Operators that make no kernel, and why."""


def module_of(makes: Mapping[str, Make]) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """One ``main`` whose results are those of all operators; by variable, the operator of each binding."""
    net, builder = Net(), relax.BlockBuilder()
    results = [make(net) for make in makes.values()]
    with builder.function("main", net.inputs):
        with builder.dataflow():
            bound = [builder.emit(result, f"result{i}") for i, result in enumerate(results)]
            output = builder.emit_output(relax.Tuple(bound))
        builder.emit_func_output(output)
    module = builder.get()
    names, left = {}, iter([*makes, ""])
    operator = next(left)
    for binding in module["main"].body.blocks[0].bindings:
        names[binding.var.name] = (operator,)
        if binding.var.name.startswith("result"):
            operator = next(left)
    return module, names
