"""Pooling of rows and of volumes as pooling of images, for targets that have a kernel for those."""

from __future__ import annotations

from typing import Any, NamedTuple

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.forms.conv1d import integers, paddings
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_TYPES = {True: ("float32", "int8", "uint8"), False: ("float32",)}
"""Types of what is pooled: the largest of bytes is taken as well."""

VOLUME_POOLS = ("relax.nn.max_pool3d", "relax.nn.avg_pool3d")

_LAYOUTS = {
    "relax.nn.max_pool1d": "NCW",
    "relax.nn.avg_pool1d": "NCW",
    **dict.fromkeys(VOLUME_POOLS, "NCDHW"),
}


class PoolForm(NamedTuple):
    """A pooling of rows or volumes as poolings of images.

    A mean over a window is the mean over depth of means over planes, as every plane of the window counts
    the same pixels.
    """

    call: Call
    takes_largest: bool

    @classmethod
    def of(cls, graph: Graph, var: Var) -> PoolForm | None:
        """The form of a pooling; None where it has none."""
        call, name = graph.value(var), graph.op_name(var)
        largest = "max" in name
        if dtype_of(var) not in _TYPES[largest] or 0 in shape_of(var):
            return None
        if {str(call.attrs.layout), str(call.attrs.out_layout)} != {_LAYOUTS[name]}:
            return None
        return cls(call, largest) if set(integers(call.attrs.dilation)) == {1} else None

    @property
    def _axes(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Window, step, and what is added before and after, along each axis."""
        attrs = self.call.attrs
        kernel = integers(attrs.pool_size)
        padding = paddings(attrs.padding, len(kernel))
        return kernel, integers(attrs.strides), padding[: len(kernel)], padding[len(kernel) :]

    @property
    def keeps_depth(self) -> bool:
        """Whether a volume is pooled slice by slice."""
        kernel, strides, before, after = self._axes
        return kernel[0] == strides[0] == 1 and not before[0] and not after[0]

    def planes(self, images: Expr) -> Expr:
        """The pooling of images [.., .., H, W] that are planes, or rows."""
        kernel, strides, before, after = self._axes
        ones, none = [1] * (2 - len(kernel[-2:])), [0] * (2 - len(kernel[-2:]))
        padding = (*none, *before[-2:], *none, *after[-2:])
        return self._pool(images, (*ones, *kernel[-2:]), (*ones, *strides[-2:]), padding)

    def depth(self, images: Expr) -> Expr:
        """The pooling over depth of images [.., .., D, ..]."""
        kernel, strides, before, after = self._axes
        return self._pool(images, (kernel[0], 1), (strides[0], 1), (before[0], 0, after[0], 0))

    def _pool(self, images: Expr, *window: tuple[int, ...]) -> Expr:
        attrs = self.call.attrs
        options: dict[str, Any] = {"ceil_mode": bool(attrs.ceil_mode)}
        if self.takes_largest:
            return relax.op.nn.max_pool2d(images, *window, **options)
        options["count_include_pad"] = bool(attrs.count_include_pad)
        return relax.op.nn.avg_pool2d(images, *window, **options)


class PoolAsPool2d(Rule):
    """Pooling of rows [N, C, W] -> that of images with one row; pooling of volumes -> that of the planes,
    then that over depth of images whose columns are whole planes.
    """

    name = "pool_forms"
    counted = False
    anchors = tuple(_LAYOUTS)

    def match(self, graph: Graph, var: Var) -> PoolForm | None:
        return PoolForm.of(graph, var)

    def rewrite(self, graph: Graph, var: Var, form: PoolForm) -> None:
        bind = graph.binder(var, [var])
        x = form.call.args[0]
        batch, channels, *extents = shape_of(x)
        image = extents[-2:] if len(extents) == 3 else [1, *extents]
        planes = channels * (extents[0] if len(extents) == 3 else 1)
        y = bind(form.planes(bind(relax.op.reshape(x, (batch, planes, *image)), "image")), "planes")
        if len(extents) == 3:
            rows, columns = shape_of(y)[2:]
            y = bind(relax.op.reshape(y, (batch, channels, extents[0], rows * columns)), "depths")
            y = bind(form.depth(y), "depth")
        graph.replace(var, relax.op.reshape(y, shape_of(var)))
