"""Every operator of Relax that makes a kernel, at a realistic size, with the same in PyTorch or NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from hetero_tvm.host.tvm import relax

op, nn, image, vision, grad = relax.op, relax.op.nn, relax.op.image, relax.op.vision, relax.op.grad
RANDOM = np.random.default_rng(0)


class Inputs:
    """Makes run-time inputs of a function, with their values."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.arrays: list[np.ndarray] = []

    def given(self, array: np.ndarray) -> Any:
        """An input that holds ``array``."""
        kind = relax.TensorType(array.shape, str(array.dtype))
        self.variables.append(relax.Var(f"x{len(self.variables)}", kind))
        self.arrays.append(array)
        return self.variables[-1]

    def __call__(self, *shape: int) -> Any:
        return self.given(RANDOM.standard_normal(shape).astype("float32"))

    def positive(self, *shape: int) -> Any:
        """Numbers between 0.05 and 0.95."""
        return self.given(RANDOM.uniform(0.05, 0.95, shape).astype("float32"))

    def integers(self, most: int, *shape: int, dtype: str = "int64") -> Any:
        """Whole numbers from 1 to ``most`` - 1."""
        return self.given(RANDOM.integers(1, most, shape).astype(dtype))


@dataclass(frozen=True)
class Case:
    """An operator: its Relax expression of inputs, and the same function of tensors or arrays."""

    make: Callable[[Inputs], Any]
    peer: Callable[..., Any]


CASES: dict[str, Case] = {}


def _case(name: str, make: Callable[[Inputs], Any], peer: Callable[..., Any]) -> None:
    CASES[name] = Case(make, peer)


def _w(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * 0.1).astype("float32")


def _const(array: np.ndarray) -> Any:
    return relax.const(array)


_BIG = (512, 2048)
for _name, _peer in {
    "abs": torch.abs, "acosh": lambda x: torch.acosh(x), "asinh": torch.asinh, "atan": torch.atan,
    "ceil": torch.ceil, "cos": torch.cos, "cosh": torch.cosh, "erf": torch.erf, "exp": torch.exp,
    "floor": torch.floor, "isfinite": torch.isfinite, "isinf": torch.isinf, "isnan": torch.isnan,
    "negative": torch.neg, "round": torch.round, "sigmoid": torch.sigmoid, "sign": torch.sign,
    "sin": torch.sin, "sinh": torch.sinh, "square": torch.square, "tan": torch.tan, "tanh": torch.tanh,
    "trunc": torch.trunc,
}.items():  # fmt: skip
    _case(_name, lambda x, n=_name: getattr(op, n)(x(*_BIG)), _peer)
for _name, _peer in {
    "acos": torch.acos, "asin": torch.asin, "atanh": torch.atanh, "log": torch.log, "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
}.items():  # fmt: skip
    _case(_name, lambda x, n=_name: getattr(op, n)(x.positive(*_BIG)), _peer)
for _name, _peer in {
    "add": torch.add, "atan2": torch.atan2, "divide": torch.div, "equal": torch.eq, "greater": torch.gt,
    "greater_equal": torch.ge, "less": torch.lt, "less_equal": torch.le, "log_add_exp": torch.logaddexp,
    "maximum": torch.maximum, "minimum": torch.minimum, "multiply": torch.mul, "not_equal": torch.ne,
    "subtract": torch.sub,
}.items():  # fmt: skip
    _case(_name, lambda x, n=_name: getattr(op, n)(x(*_BIG), x(*_BIG)), _peer)
for _name, _peer in {
    "floor_divide": torch.floor_divide, "floor_mod": torch.remainder, "mod": torch.fmod, "power": torch.pow,
}.items():  # fmt: skip
    _case(_name, lambda x, n=_name: getattr(op, n)(x.positive(*_BIG), x.positive(*_BIG)), _peer)
for _name, _peer in {
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor,
    "left_shift": torch.bitwise_left_shift, "right_shift": torch.bitwise_right_shift,
}.items():  # fmt: skip
    _case(
        _name,
        lambda x, n=_name: getattr(op, n)(
            x.integers(9, *_BIG, dtype="int32"), x.integers(9, *_BIG, dtype="int32")
        ),
        _peer,
    )


def _truth(x: Inputs) -> Any:
    return x.given(RANDOM.random(_BIG) > 0.5)


for _name in ("logical_and", "logical_or", "logical_xor"):
    _case(_name, lambda x, n=_name: getattr(op, n)(_truth(x), _truth(x)), getattr(torch, _name))
_case("bitwise_not", lambda x: op.bitwise_not(x.integers(9, *_BIG, dtype="int32")), torch.bitwise_not)
_case("logical_not", lambda x: op.logical_not(_truth(x)), torch.logical_not)
for _name, _peer in {
    "relu": F.relu, "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "selu": F.selu, "softplus": F.softplus, "leakyrelu": lambda x: F.leaky_relu(x, 0.01),
}.items():  # fmt: skip
    _case(f"nn.{_name}", lambda x, n=_name: getattr(nn, n)(x(*_BIG)), _peer)
for _name, _peer in {
    "sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "prod": torch.prod,
    "variance": lambda x, dim: torch.var(x, dim, correction=0),
    "std": lambda x, dim: torch.std(x, dim, correction=0),
}.items():  # fmt: skip
    _case(_name, lambda x, n=_name: getattr(op, n)(x(64, 128, 256), axis=[1]), lambda x, p=_peer: p(x, 1))
for _name, _peer in {
    "zeros_like": torch.zeros_like, "ones_like": torch.ones_like, "tril": torch.tril, "triu": torch.triu,
    "eye_like": lambda x: torch.eye(*x.shape),
}.items():  # fmt: skip
    _case(_name, lambda x, n=_name: getattr(op, n)(x(*_BIG)), _peer)
_case("argmax", lambda x: op.argmax(x(256, 4096), axis=1), lambda x: torch.argmax(x, 1))
_case("argmin", lambda x: op.argmin(x(256, 4096), axis=0), lambda x: torch.argmin(x, 0))
_case("median", lambda x: op.median(x(64, 1001), axis=[1]), lambda x: torch.median(x, 1).values)
_case("where", lambda x: op.where(_truth(x), x(*_BIG), x(*_BIG)), torch.where)
_case("clip", lambda x: op.clip(x(*_BIG), -0.5, 0.5), lambda x: torch.clip(x, -0.5, 0.5))
_case("astype", lambda x: op.astype(x(*_BIG), "int64"), lambda x: x.to(torch.int64))
_case(
    "quantize",
    lambda x: op.quantize(x(*_BIG), relax.const(0.05, "float32"), relax.const(1, "int8"), out_dtype="int8"),
    lambda x: torch.quantize_per_tensor(x, 0.05, 1, torch.qint8),
)
_case(
    "dequantize",
    lambda x: op.dequantize(
        x.integers(99, *_BIG, dtype="int8"), relax.const(0.5, "float32"), relax.const(1, "int8")
    ),
    lambda x: (x.to(torch.float32) - 1.0) * 0.5,
)
_case("matmul", lambda x: op.matmul(x(12, 256, 64), x(12, 64, 256)), torch.matmul)
_case("outer", lambda x: op.outer(x(1024), x(1024)), torch.outer)
_case(
    "einsum",
    lambda x: op.einsum((x(8, 12, 64, 64), x(8, 12, 96, 64)), "abcd,abed->abce"),
    lambda a, b: torch.einsum("abcd,abed->abce", a, b),
)
_case("full", lambda x: op.add(x(*_BIG), op.full(_BIG, x(), "float32")), lambda x, v: x + v)
_case(
    "full_like",
    lambda x: op.full_like(x(*_BIG), relax.const(2.0, "float32")),
    lambda x: torch.full_like(x, 2.0),
)
_case("ones", lambda x: op.add(x(*_BIG), op.ones(_BIG, "float32")), lambda x: x + 1.0)
_case(
    "zeros",
    lambda x: op.concat([x(*_BIG), op.zeros(_BIG, "float32")], axis=1),
    lambda x: torch.cat([x, torch.zeros(_BIG)], 1),
)
_case("eye", lambda x: op.eye(1024, 1024, 1), lambda: np.eye(1024, 1024, 1, dtype="float32"))
_case(
    "arange",
    lambda x: op.add(x.integers(9, 100000), op.arange(0, 100000, 1, "int64")),
    lambda x: x + torch.arange(100000),
)
_case(
    "hamming_window",
    lambda x: op.hamming_window(65536, True, 0.54, 0.46, "float32"),
    lambda: torch.hamming_window(65536),
)
_case(
    "broadcast_to",
    lambda x: op.broadcast_to(x(256, 1), (8, 256, 1024)),
    lambda x: x.expand(8, 256, 1024).clone(),
)
_case("concat", lambda x: op.concat([x(512, 300), x(512, 700)], axis=1), lambda a, b: torch.cat([a, b], 1))
_case("stack", lambda x: op.stack([x(*_BIG), x(*_BIG)], axis=1), lambda a, b: torch.stack([a, b], 1))
_case(
    "split",
    lambda x: op.split(x(512, 1536), 3, axis=1),
    lambda x: [part.contiguous() for part in torch.split(x, 512, 1)],
)
_case(
    "permute_dims",
    lambda x: op.permute_dims(x(64, 128, 96), [2, 0, 1]),
    lambda x: x.permute(2, 0, 1).contiguous(),
)
_case("flip", lambda x: op.flip(x(*_BIG), axis=1), lambda x: torch.flip(x, [1]))
_case("tile", lambda x: op.tile(x(256, 256), (2, 8)), lambda x: torch.tile(x, (2, 8)))
_case("repeat", lambda x: op.repeat(x(256, 1024), 4, axis=1), lambda x: torch.repeat_interleave(x, 4, 1))


def _reversed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    for row, length in enumerate(lengths.tolist()):
        result[row, :length] = torch.flip(x[row, :length], [0])
    return result


_case(
    "reverse_sequence",
    lambda x: op.reverse_sequence(x(64, 512, 32), x.integers(512, 64, dtype="int32"), 1, 0),
    _reversed,
)
_case(
    "strided_slice",
    lambda x: op.strided_slice(x(512, 4096), [1], [1], [4095], [2]),
    lambda x: x[:, 1:4095:2].contiguous(),
)
_case(
    "slice_scatter",
    lambda x: op.slice_scatter(x(1024, 1024), x(256, 1024), 0, 512, 2, 0),
    lambda x, y: torch.slice_scatter(x, y, 0, 0, 512, 2),
)
_case("take", lambda x: op.take(x(8192, 256), x.integers(8192, 2048), axis=0), lambda x, i: x[i])
_case(
    "gather_elements",
    lambda x: op.gather_elements(x(512, 2048), x.integers(2048, 512, 512), axis=1),
    lambda x, i: torch.gather(x, 1, i),
)
_case(
    "gather_nd",
    lambda x: op.gather_nd(x(64, 256, 64), x.integers(64, 4096, 2)),
    lambda x, i: x[i[:, 0], i[:, 1]],
)
_case(
    "index_tensor",
    lambda x: op.index_tensor(x(64, 256, 64), [x.integers(64, 4096), x.integers(64, 4096)]),
    lambda x, i, j: x[i, j],
)
_case(
    "index_put",
    lambda x: op.index_put(x(1024, 512), (x.integers(1024, 2048), x.integers(512, 2048)), x(2048)),
    lambda x, i, j, v: torch.index_put(x, (i, j), v),
)


def _places(x: Inputs, rows: int, most: int, count: int) -> Any:
    return x.given(np.stack([RANDOM.permutation(most)[:count] for _ in range(rows)]).astype("int64"))


_case(
    "scatter_elements",
    lambda x: op.scatter_elements(x(512, 1024), _places(x, 512, 1024, 256), x(512, 256), axis=1),
    lambda x, i, v: torch.scatter(x, 1, i, v),
)
_case(
    "scatter_nd",
    lambda x: op.scatter_nd(
        x(2048, 512), x.given(RANDOM.permutation(2048)[:256].reshape(-1, 1)), x(256, 512)
    ),
    lambda x, i, v: torch.index_copy(x, 0, i[:, 0], v),
)
_case(
    "one_hot",
    lambda x: op.one_hot(x.integers(1000, 1024), relax.prim_value(1.0), relax.prim_value(0.0), 1000),
    lambda i: F.one_hot(i, 1000).to(torch.float32),
)
_case(
    "meshgrid",
    lambda x: op.meshgrid([x(1024), x(1024)]),
    lambda a, b: [part.contiguous() for part in torch.meshgrid(a, b, indexing="ij")],
)
_case(
    "layout_transform",
    lambda x: op.layout_transform(x(1024, 1024), lambda i, j: (i // 16, j, i % 16)),
    lambda x: x.reshape(64, 16, 1024).permute(0, 2, 1).contiguous(),
)
_case(
    "collapse_sum_like",
    lambda x: op.collapse_sum_like(x(*_BIG), x(1, 2048)),
    lambda x, y: x.sum(0, keepdim=True),
)
_case("collapse_sum_to", lambda x: op.collapse_sum_to(x(*_BIG), (512, 1)), lambda x: x.sum(1, keepdim=True))
_case("sort", lambda x: op.sort(x(256, 1000)), lambda x: torch.sort(x, 1).values)
_case("argsort", lambda x: op.argsort(x(256, 1000)), lambda x: torch.argsort(x, stable=True, dim=1))
_case("topk", lambda x: op.topk(x(64, 5000), 20), lambda x: torch.topk(x, 20))
_case("cumsum", lambda x: op.cumsum(x(512, 2048), axis=1), lambda x: torch.cumsum(x, 1))
_case("cumprod", lambda x: op.cumprod(x(512, 2048), axis=0), lambda x: torch.cumprod(x, 0))
_case(
    "bucketize",
    lambda x: op.bucketize(x(512, 512), x.given(np.sort(RANDOM.standard_normal(256)).astype("float32"))),
    torch.bucketize,
)
_case("nn.softmax", lambda x: nn.softmax(x(12, 256, 256)), lambda x: F.softmax(x, -1))
_case("nn.log_softmax", lambda x: nn.log_softmax(x(128, 8000)), lambda x: F.log_softmax(x, -1))
_case("nn.prelu", lambda x: nn.prelu(x(4, 64, 4096), x(64), axis=1), F.prelu)
_case("nn.dropout", lambda x: relax.TupleGetItem(nn.dropout(op.exp(x(*_BIG))), 0), torch.exp)
_case(
    "nn.pad", lambda x: nn.pad(x(1, 64, 112, 112), (0, 0, 0, 0, 1, 1, 1, 1)), lambda x: F.pad(x, (1, 1, 1, 1))
)
_ONES = np.ones(1024, "float32")
_case(
    "nn.layer_norm",
    lambda x: nn.layer_norm(x(512, 1024), _const(_ONES), _const(_ONES), axes=[-1]),
    lambda x: F.layer_norm(x, (1024,), torch.ones(1024), torch.ones(1024)),
)
_case(
    "nn.rms_norm",
    lambda x: nn.rms_norm(x(512, 1024), _const(_ONES), axes=[-1]),
    lambda x: F.rms_norm(x, (1024,), torch.ones(1024)),
)
_case(
    "nn.group_norm",
    lambda x: nn.group_norm(x(1, 320, 32, 32), _const(_ONES[:320]), _const(_ONES[:320]), 32, 1, [2, 3]),
    lambda x: F.group_norm(x, 32, torch.ones(320), torch.ones(320)),
)
_case(
    "nn.instance_norm",
    lambda x: nn.instance_norm(x(1, 64, 96, 96), _const(_ONES[:64]), _const(_ONES[:64]), 1, [2, 3]),
    lambda x: F.instance_norm(x, weight=torch.ones(64), bias=torch.ones(64)),
)
_case(
    "nn.batch_norm",
    lambda x: relax.TupleGetItem(
        nn.batch_norm(x(1, 128, 56, 56), *(_const(_ONES[:128]) for _ in range(4)), axis=1, training=False), 0
    ),
    lambda x: F.batch_norm(x, *(torch.ones(128) for _ in range(4))),
)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).contiguous()


_case(
    "nn.attention", lambda x: nn.attention(x(1, 256, 8, 64), x(1, 256, 8, 64), x(1, 256, 8, 64)), _attention
)
_case(
    "nn.attention_bias",
    lambda x: nn.attention(x(1, 256, 8, 64), x(1, 256, 8, 64), x(1, 256, 8, 64), x(1, 1, 256, 256)),
    _attention,
)


def _conv(
    name: str, x: tuple[int, ...], w: tuple[int, ...], peer: Callable[..., Any], **attributes: Any
) -> None:
    weight = _w(*w)
    call = {"nn.conv1d": nn.conv1d, "nn.conv2d": nn.conv2d, "nn.conv3d": nn.conv3d}
    call |= {f"nn.conv{d}d_transpose": getattr(nn, f"conv{d}d_transpose") for d in (1, 2, 3)}
    theirs = {"stride" if key == "strides" else key: value for key, value in attributes.items()}
    _case(
        name,
        lambda i: call[name](i(*x), _const(weight), **attributes),
        lambda a: peer(a, torch.from_numpy(weight), **theirs),
    )


_conv("nn.conv1d", (1, 128, 1000), (128, 128, 3), F.conv1d, padding=1)
_conv("nn.conv2d", (1, 64, 56, 56), (64, 64, 3, 3), F.conv2d, padding=1)
_conv("nn.conv3d", (1, 16, 16, 28, 28), (32, 16, 3, 3, 3), F.conv3d, padding=1)
_conv("nn.conv1d_transpose", (1, 64, 500), (64, 32, 4), F.conv_transpose1d, strides=2)
_conv("nn.conv2d_transpose", (1, 64, 32, 32), (64, 32, 4, 4), F.conv_transpose2d, strides=(2, 2))
_conv("nn.conv3d_transpose", (1, 32, 8, 14, 14), (32, 16, 2, 2, 2), F.conv_transpose3d, strides=(2, 2, 2))
_case("nn.max_pool1d", lambda x: nn.max_pool1d(x(1, 128, 4000), (2,), (2,)), lambda x: F.max_pool1d(x, 2))
_case(
    "nn.max_pool2d",
    lambda x: nn.max_pool2d(x(1, 64, 112, 112), (3, 3), (2, 2), (1, 1, 1, 1)),
    lambda x: F.max_pool2d(x, 3, 2, 1),
)
_case(
    "nn.max_pool3d",
    lambda x: nn.max_pool3d(x(1, 32, 16, 56, 56), (2,) * 3, (2,) * 3),
    lambda x: F.max_pool3d(x, 2),
)
_case("nn.avg_pool1d", lambda x: nn.avg_pool1d(x(1, 128, 4000), (2,), (2,)), lambda x: F.avg_pool1d(x, 2))
_case(
    "nn.avg_pool2d", lambda x: nn.avg_pool2d(x(1, 128, 56, 56), (2, 2), (2, 2)), lambda x: F.avg_pool2d(x, 2)
)
_case(
    "nn.avg_pool3d",
    lambda x: nn.avg_pool3d(x(1, 32, 16, 56, 56), (2,) * 3, (2,) * 3),
    lambda x: F.avg_pool3d(x, 2),
)
_case(
    "nn.adaptive_avg_pool1d",
    lambda x: nn.adaptive_avg_pool1d(x(4, 128, 1000), 100),
    lambda x: F.adaptive_avg_pool1d(x, 100),
)
_case(
    "nn.adaptive_avg_pool2d",
    lambda x: nn.adaptive_avg_pool2d(x(1, 512, 28, 28), (7, 7)),
    lambda x: F.adaptive_avg_pool2d(x, 7),
)
_case(
    "nn.adaptive_avg_pool3d",
    lambda x: nn.adaptive_avg_pool3d(x(1, 32, 16, 28, 28), (4, 7, 7)),
    lambda x: F.adaptive_avg_pool3d(x, (4, 7, 7)),
)
_case(
    "nn.cross_entropy_with_logits",
    lambda x: nn.cross_entropy_with_logits(x(256, 1000), x(256, 1000)),
    lambda x, y: -(x * y).sum() / 256,
)
_case(
    "nn.nll_loss",
    lambda x: nn.nll_loss(x(1024, 1000), x.integers(1000, 1024), x(1000)),
    lambda x, i, w: F.nll_loss(x, i, w),
)
_case(
    "image.resize2d",
    lambda x: image.resize2d(x(1, 32, 64, 64), (128, 128), layout="NCHW", method="linear"),
    lambda x: F.interpolate(x, (128, 128), mode="bilinear"),
)
_case(
    "image.resize3d",
    lambda x: image.resize3d(x(1, 8, 16, 32, 32), (32, 64, 64), layout="NCDHW", method="linear"),
    lambda x: F.interpolate(x, (32, 64, 64), mode="trilinear"),
)
_case(
    "image.affine_grid",
    lambda x: image.affine_grid(x(8, 2, 3), (128, 128)),
    lambda x: F.affine_grid(x, (8, 1, 128, 128), align_corners=True),
)
_case(
    "image.grid_sample",
    lambda x: image.grid_sample(x(1, 32, 64, 64), x.positive(1, 2, 64, 64)),
    lambda x, g: F.grid_sample(x, g.permute(0, 2, 3, 1), align_corners=True),
)
_case(
    "grad.take_backward",
    lambda x: grad.take_backward(x(1024, 256), x(2048, 256), x.integers(2048, 1024), axis=0),
    lambda g, x, i: torch.zeros_like(x).index_add_(0, i, g),
)

NO_CASE: dict[str, str] = {
    name: reason
    for reason, names in {
        "no counterpart in NumPy, PyTorch or ONNX Runtime": "vision.roi_align vision.roi_pool "
        "vision.get_valid_counts vision.multibox_transform_loc vision.non_max_suppression",
        "for training, which is not imported": "grad.max_pool2d_backward grad.avg_pool2d_backward "
        "grad.nll_loss_backward",
    }.items()
    for name in names.split()
}
"""Operators that make a kernel and have no case, and why."""
