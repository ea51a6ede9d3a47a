"""Pooling of rows and of volumes as pooling of images, for targets that have a kernel for those."""

from __future__ import annotations

from hetero_tvm.host.tvm import Call, Var, relax
from hetero_tvm.relax_passes.forms.conv1d import integers
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_LAYOUTS = {
    "relax.nn.max_pool1d": "NCW",
    "relax.nn.avg_pool1d": "NCW",
    "relax.nn.max_pool3d": "NCDHW",
    "relax.nn.avg_pool3d": "NCDHW",
}


class PoolAsPool2d(Rule):
    """Pooling of rows [N, C, W] -> that of images with one row; pooling of volumes -> that of the planes,
    then that over depth of images whose columns are whole planes.

    A mean over a window is the mean over depth of means over planes, as every plane of the window counts
    the same pixels.
    """

    name = "pool_forms"
    counted = False
    anchors = tuple(_LAYOUTS)

    def match(self, graph: Graph, var: Var) -> Call | None:
        call = graph.value(var)
        attrs = call.attrs
        if dtype_of(var) != "float32" or 0 in shape_of(var):
            return None
        if {str(attrs.layout), str(attrs.out_layout)} != {_LAYOUTS[graph.op_name(var)]}:
            return None
        return call if set(integers(attrs.dilation)) == {1} else None

    def rewrite(self, graph: Graph, var: Var, call: Call) -> None:
        attrs = call.attrs
        kernel, strides = integers(attrs.pool_size), integers(attrs.strides)
        padding = integers(attrs.padding)
        padding = padding * (2 * len(kernel) // len(padding))
        before, after = padding[: len(kernel)], padding[len(kernel) :]
        pool = relax.op.nn.max_pool2d if "max" in graph.op_name(var) else relax.op.nn.avg_pool2d
        counted = {} if "max" in graph.op_name(var) else {"count_include_pad": bool(attrs.count_include_pad)}
        rounds_up = bool(attrs.ceil_mode)
        bind = graph.binder(var, [var])
        batch, channels, *extents = shape_of(call.args[0])

        image = extents[-2:] if len(extents) == 3 else [1, *extents]
        ones, none = [1] * (2 - len(kernel[-2:])), [0] * (2 - len(kernel[-2:]))
        planes = channels * (extents[0] if len(extents) == 3 else 1)
        y = bind(relax.op.reshape(call.args[0], (batch, planes, *image)), "image")
        y = bind(
            pool(
                y,
                (*ones, *kernel[-2:]),
                (*ones, *strides[-2:]),
                (*none, *before[-2:], *none, *after[-2:]),
                ceil_mode=rounds_up,
                **counted,
            ),
            "planes",
        )
        if len(extents) == 3:
            rows, columns = shape_of(y)[2:]
            y = bind(relax.op.reshape(y, (batch, channels, extents[0], rows * columns)), "depths")
            y = bind(
                pool(
                    y,
                    (kernel[0], 1),
                    (strides[0], 1),
                    (before[0], 0, after[0], 0),
                    ceil_mode=rounds_up,
                    **counted,
                ),
                "depth",
            )
        graph.replace(var, relax.op.reshape(y, shape_of(var)))
