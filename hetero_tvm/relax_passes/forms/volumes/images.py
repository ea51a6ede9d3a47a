"""Volumes as the images of their slices, which operators between convolutions work on as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hetero_tvm.host.tvm import Expr, Var, relax, tvm
from hetero_tvm.relax_passes.forms.conv1d import integers
from hetero_tvm.relax_passes.forms.pool import VOLUME_POOLS, PoolForm
from hetero_tvm.relax_passes.forms.volumes.resize import resized, separable
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


class _Found(NamedTuple):
    """An operator's form for images: ``emit`` binds it before ``top``, and gives the value that this gets."""

    top: Var
    emit: Callable[[Bind], Expr]


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
        return lambda bind: x if not array.ndim else relax.const(array.reshape(1, own[1], *own[3:]))
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


def _operands(
    graph: Graph, parts: Sequence[Expr], shapes: Sequence[tuple[int, ...]]
) -> list[Callable[[Bind], Expr]] | None:
    """Functions that give operands of volumes of ``shapes`` for their images; None where one has no such
    form, or none is made of images."""
    if not any(images_behind(graph, part) is not None for part in parts):
        return None
    found = [_operand(graph, part, shape) for part, shape in zip(parts, shapes, strict=True)]
    return None if any(give is None for give in found) else found


def _stepped(graph: Graph, var: Var) -> _Found | None:
    """An elementwise step."""
    call, shape = graph.value(var), shape_of(var)
    operands = _operands(graph, call.args, [shape] * len(call.args)) if len(shape) == 5 else None
    if operands is None:
        return None

    def emit(bind: Bind) -> Expr:
        step = tvm.ir.Call(call.op, [give(bind) for give in operands], call.attrs)
        return volume_of(bind, bind(step, "step"), shape[0])

    return _Found(var, emit)


def _joined(graph: Graph, var: Var) -> _Found | None:
    """A concatenation of channels."""
    call, shape = graph.value(var), shape_of(var)
    parts = graph.fields(call.args[0])
    if len(shape) != 5 or int(call.attrs.axis) not in (1, -4):
        return None
    operands = _operands(graph, parts, [shape_of(part) for part in parts])
    if operands is None:
        return None

    def emit(bind: Bind) -> Expr:
        joined = relax.op.concat([give(bind) for give in operands], 1)
        return volume_of(bind, bind(joined, "joined"), shape[0])

    return _Found(var, emit)


def _pooled(graph: Graph, var: Var) -> _Found | None:
    """A pooling: of the planes, then of images whose columns are whole slices."""
    images, form = images_behind(graph, graph.value(var).args[0]), PoolForm.of(graph, var)
    if images is None or form is None:
        return None
    batch, channels, depth, *_ = shape_of(var)

    def emit(bind: Bind) -> Expr:
        y = bind(form.planes(images), "planes")
        number, _, *plane = shape_of(y)
        if not form.keeps_depth:
            values = channels * plane[0] * plane[1]
            y = bind(relax.op.reshape(y, (batch, 1, number // batch, values)), "depths")
            y = bind(form.depth(y), "depth")
        y = bind(relax.op.reshape(y, (batch * depth, channels, *plane)), "pooled")
        return volume_of(bind, y, batch)

    return _Found(var, emit)


def _resized(graph: Graph, var: Var) -> _Found | None:
    """Another size: of the planes, then of images whose columns are whole slices."""
    call, (batch, channels, *size) = graph.value(var), shape_of(var)
    images = images_behind(graph, call.args[0])
    if images is None or not separable(graph, var):
        return None
    depth = shape_of(call.args[0])[2]

    def emit(bind: Bind) -> Expr:
        y = resized(bind, images, (batch, depth), tuple(size), call.attrs)
        return volume_of(
            bind, bind(relax.op.reshape(y, (batch * size[0], channels, *size[1:])), "slices"), batch
        )

    return _Found(var, emit)


def _mean(graph: Graph, var: Var) -> _Found | None:
    """The mean of all values of a channel: of each slice, which counts as many, then of the slices."""
    call = graph.value(var)
    images = images_behind(graph, call.args[0])
    if images is None or sorted(int(axis) % 5 for axis in call.attrs.axis or ()) != [2, 3, 4]:
        return None
    batch, channels, depth, *_ = shape_of(call.args[0])

    def emit(bind: Bind) -> Expr:
        y = bind(relax.op.mean(images, [2, 3], keepdims=True), "planes")
        y = bind(relax.op.reshape(y, (batch, depth, channels)), "means")
        return relax.op.reshape(bind(relax.op.mean(y, [1]), "mean"), shape_of(var))

    return _Found(var, emit)


def _normalized(graph: Graph, var: Var) -> _Found | None:
    """A batch normalisation of which nothing but the result is used."""
    call, user = graph.value(var), graph.only_result(var)
    images = images_behind(graph, call.args[0])
    if images is None or int(call.attrs.axis) != 1 or user is None:
        return None

    def emit(bind: Bind) -> Expr:
        whole = bind(tvm.ir.Call(call.op, [images, *call.args[1:]], call.attrs), "norm")
        return volume_of(bind, bind(relax.TupleGetItem(whole, 0), "normalized"), shape_of(user)[0])

    return _Found(user, emit)


def _padded(graph: Graph, var: Var) -> _Found | None:
    """Padding around the planes alone."""
    call = graph.value(var)
    images, widths = images_behind(graph, call.args[0]), integers(call.attrs.pad_width)
    if images is None or any(widths[:6]):
        return None

    def emit(bind: Bind) -> Expr:
        around = [0, 0, 0, 0, *widths[6:]]
        padded = relax.op.nn.pad(images, around, str(call.attrs.pad_mode), call.attrs.pad_value)
        return volume_of(bind, bind(padded, "padded"), shape_of(var)[0])

    return _Found(var, emit)


_FORMS: dict[str, Callable[[Graph, Var], _Found | None]] = {
    **dict.fromkeys(_ELEMENTWISE, _stepped),
    **dict.fromkeys(VOLUME_POOLS, _pooled),
    "relax.concat": _joined,
    "relax.image.resize3d": _resized,
    "relax.mean": _mean,
    "relax.nn.batch_norm": _normalized,
    "relax.nn.pad": _padded,
}
"""Operator -> its form for images; None for another use of it."""


class VolumesAsImages(Rule):
    """Operators whose operand is a volume made of images work on the images.

    Convolutions of volumes give and take images.  What stands between them (activations, sums, gates,
    concatenations of channels, pooling, resizes, batch normalisation) works on them just as well, and joins
    their epilogues and layouts; volumes are transposed where something else reads them.
    """

    name = "volumes"
    counted = False

    anchors = tuple(_FORMS)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        return _FORMS[graph.op_name(var)](graph, var)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        bind = graph.binder(found.top, [var])
        graph.replace(found.top, found.emit(bind), [var])
