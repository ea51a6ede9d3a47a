"""Volumes as the images of their slices, which operators between convolutions work on as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.host.tvm import Expr, Var, relax, tvm
from hetero_tvm.relax_passes.forms.conv1d import integers
from hetero_tvm.relax_passes.forms.pool import VOLUME_POOLS, PoolForm
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import order_of

Bind = Callable[[Expr, str], Var]

_SLICES_FIRST = [0, 2, 1, 3, 4]

# fmt: off
_ELEMENTWISE = tuple(
    f"relax.{name}"
    for name in (
        "abs", "add", "clip", "divide", "erf", "exp", "maximum", "minimum", "multiply", "negative", "nn.gelu",
        "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.silu", "sigmoid", "sqrt", "square", "subtract", "tanh",
    )
)
# fmt: on


def images_of(bind: Bind, x: Expr) -> Var:
    """A volume [N, C, D, H, W] as images [N * D, C, H, W]."""
    batch, channels, depth, *plane = shape_of(x)
    x = bind(relax.op.permute_dims(x, _SLICES_FIRST), "slices")
    return bind(relax.op.reshape(x, (batch * depth, channels, *plane)), "images")


def volume_of(bind: Bind, images: Expr, batch: int) -> Expr:
    """Images [N * D, C, H, W] as a volume [N, C, D, H, W]; ``batch`` is N."""
    number, *image = shape_of(images)
    y = bind(relax.op.reshape(images, (batch, number // batch, *image)), "volume")
    return relax.op.permute_dims(y, _SLICES_FIRST)


def images_behind(graph: Graph, volume: Expr) -> Expr | None:
    """The images that :func:`volume_of` made a volume of; None for any other value."""
    call = graph.call(volume, "relax.permute_dims")
    if call is None or order_of(call) != _SLICES_FIRST:
        return None
    inner = graph.call(call.args[0], "relax.reshape")
    if inner is None:
        return None
    batch, depth, *image = shape_of(call.args[0])
    return inner.args[0] if shape_of(inner.args[0]) == (batch * depth, *image) else None


class VolumesAsImages(Rule):
    """Operators whose operand is a volume made of images work on the images.

    Convolutions of volumes give and take images.  What stands between them (activations, sums, gates,
    concatenations of channels, pooling, batch normalisation) works on them just as well, and joins their
    epilogues and layouts; volumes are transposed where something else reads them.
    """

    name = "volumes"
    counted = False
    anchors = (
        *_ELEMENTWISE,
        *VOLUME_POOLS,
        "relax.concat",
        "relax.mean",
        "relax.nn.batch_norm",
        "relax.nn.pad",
    )

    def match(self, graph: Graph, var: Var) -> Any | None:
        call, name = graph.value(var), graph.op_name(var)
        first = call.args[0]
        if name == "relax.concat":
            return _joined(graph, var)
        if name in _ELEMENTWISE:
            return _stepped(graph, var)
        images = images_behind(graph, first)
        if images is None:
            return None
        if name == "relax.nn.batch_norm":
            user = graph.only_user(var)
            fits = user is not None and isinstance(graph.value(user), relax.TupleGetItem)
            return (images, user) if fits and int(call.attrs.axis) == 1 else None
        if name in VOLUME_POOLS:
            return (images,) if PoolForm.of(graph, var) is not None else None
        if name == "relax.mean":
            axes = sorted(int(axis) % 5 for axis in call.attrs.axis or ())
            return (images,) if axes == [2, 3, 4] else None
        widths = integers(call.attrs.pad_width)
        return (images,) if not any(widths[:6]) else None

    def rewrite(self, graph: Graph, var: Var, found: Any) -> None:
        call, name = graph.value(var), graph.op_name(var)
        bind = graph.binder(var, [var])
        if name in _ELEMENTWISE:
            arguments = [give(bind) for give in found]
            images = bind(tvm.ir.Call(call.op, arguments, call.attrs), "step")
        elif name == "relax.concat":
            images = bind(relax.op.concat([give(bind) for give in found], 1), "joined")
        elif name == "relax.nn.batch_norm":
            self._normalize(graph, var, *found)
            return
        elif name in VOLUME_POOLS:
            images = _pooled(bind, PoolForm.of(graph, var), found[0], shape_of(var))
        elif name == "relax.mean":
            graph.replace(var, _mean(bind, found[0], shape_of(call.args[0]), shape_of(var)))
            return
        else:
            widths = integers(call.attrs.pad_width)
            padded = relax.op.nn.pad(
                found[0], [0, 0, 0, 0, *widths[6:]], str(call.attrs.pad_mode), call.attrs.pad_value
            )
            images = bind(padded, "padded")
        graph.replace(var, volume_of(bind, images, shape_of(var)[0]))

    def _normalize(self, graph: Graph, var: Var, images: Expr, result: Var) -> None:
        call = graph.value(var)
        batch, bind = shape_of(result)[0], graph.binder(result, [var, result])
        whole = bind(tvm.ir.Call(call.op, [images, *call.args[1:]], call.attrs), "norm")
        normalized = bind(relax.TupleGetItem(whole, 0), "normalized")
        graph.replace(result, volume_of(bind, normalized, batch), [var])


def _operand(graph: Graph, x: Expr, shape: tuple[int, ...]) -> Callable[[Bind], Expr] | None:
    """A function that gives an operand of an elementwise step of volumes of ``shape`` for their images; None
    where there is no such form."""
    if isinstance(getattr(x, "value", None), int | float):
        return lambda bind: x  # a bound of a clip
    images = images_behind(graph, x)
    if images is not None:
        return (lambda bind: images) if shape_of(x) == shape else None
    own = (1,) * (5 - len(shape_of(x))) + shape_of(x)
    if len(own) != 5 or dtype_of(x) != "float32":
        return None
    array = array_of(graph.value(x))
    if array is not None and own[0] == own[2] == 1:
        return lambda bind: x if array.size == 1 else relax.const(array.reshape(own[1], *own[3:])[None])
    if own == shape:
        return lambda bind: images_of(bind, x)
    if own == (*shape[:2], 1, 1, 1):
        return lambda bind: _by_slice(bind, x, shape)
    return None


def _by_slice(bind: Bind, x: Expr, shape: tuple[int, ...]) -> Expr:
    """A number per channel of each volume as one per channel of each of its slices."""
    batch, channels, depth = shape[:3]
    if batch > 1:
        x = bind(relax.op.reshape(x, (batch, 1, channels, 1, 1)), "own")
        x = bind(relax.op.broadcast_to(x, (batch, depth, channels, 1, 1)), "all")
        batch *= depth
    return bind(relax.op.reshape(x, (batch, channels, 1, 1)), "channels")


def _stepped(graph: Graph, var: Var) -> list[Callable[[Bind], Expr]] | None:
    shape = shape_of(var)
    arguments = graph.value(var).args
    if len(shape) != 5 or not any(images_behind(graph, x) is not None for x in arguments):
        return None
    operands = [_operand(graph, x, shape) for x in arguments]
    return operands if all(give is not None for give in operands) else None


def _joined(graph: Graph, var: Var) -> list[Callable[[Bind], Expr]] | None:
    parts = getattr(graph.value(graph.value(var).args[0]), "fields", ())
    if len(shape_of(var)) != 5 or int(graph.value(var).attrs.axis) not in (1, -4):
        return None
    if not any(images_behind(graph, part) is not None for part in parts):
        return None
    operands = [_operand(graph, part, shape_of(part)) for part in parts]
    return operands if all(give is not None for give in operands) else None


def _pooled(bind: Bind, form: PoolForm, images: Expr, shape: tuple[int, ...]) -> Var:
    """Images of a pooled volume of ``shape``."""
    batch, channels, depth, *_ = shape
    y = bind(form.planes(images), "planes")
    number, _, *plane = shape_of(y)
    if not form.keeps_depth:
        values = channels * plane[0] * plane[1]
        y = bind(relax.op.reshape(y, (batch, 1, number // batch, values)), "depths")
        y = bind(form.depth(y), "depth")
    return bind(relax.op.reshape(y, (batch * depth, channels, *plane)), "pooled")


def _mean(bind: Bind, images: Expr, volume: tuple[int, ...], shape: tuple[int, ...]) -> Expr:
    """Mean of all values of a channel: of each slice, which counts as many, then of the slices."""
    batch, channels, depth, *_ = volume
    y = bind(relax.op.mean(images, [2, 3], keepdims=True), "planes")
    y = bind(relax.op.reshape(y, (batch, depth, channels)), "means")
    return relax.op.reshape(bind(relax.op.mean(y, [1]), "mean"), shape)
