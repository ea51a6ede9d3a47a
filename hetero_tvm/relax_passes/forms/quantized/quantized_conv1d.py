"""Convolutions of rows of 8-bit numbers as those of images with one row, for ``fusions/integers/``."""

from __future__ import annotations

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.forms.conv1d import paddings
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, is_tensor, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_FOLLOWING = ("relax.add", "relax.nn.relu", "relax.quantize")
"""Operators that may follow, in this order, before the result gets its own shape back."""


class QuantConv1dAsConv2d(Rule):
    """``conv1d`` of dequantised or integer tensors, with bias, relu and quantiser -> ``conv2d``."""

    name = "quantized_conv1d"
    counted = False
    anchors = ("relax.nn.conv1d",)

    def match(self, graph: Graph, var: Var) -> tuple[Call, list[Var]] | None:
        call = graph.value(var)
        attrs = call.attrs
        if str(attrs.data_layout) != "NCW" or str(attrs.kernel_layout) != "OIW":
            return None
        if dtype_of(var) != "int32" and graph.call(call.args[0], "relax.dequantize") is None:
            return None
        chain, left = [var], list(_FOLLOWING)
        while (user := graph.only_user(chain[-1])) is not None and (name := graph.op_name(user)) in left:
            if name == "relax.add" and self._other(graph, user, chain[-1]) is None:
                break
            if name == "relax.quantize" and any(shape_of(a) for a in graph.value(user).args[1:]):
                break  # by channel
            left = left[left.index(name) + 1 :]
            chain.append(user)
        return call, chain

    @staticmethod
    def _other(graph: Graph, total: Var, term: Var) -> Expr | None:
        """The bias that is added: [1, channels, 1], constant once it is folded."""
        args = list(graph.value(total).args)
        others = [a for a in args if not (isinstance(a, relax.Var) and a.same_as(term))]
        return others[0] if len(others) == 1 and len(shape_of(others[0])) == 3 else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[Call, list[Var]]) -> None:
        call, chain = found
        attrs, top = call.attrs, chain[-1]
        padding = paddings(attrs.padding, 1)

        def bind(value: Expr) -> Var:
            return graph.insert_before(top, value, f"{top.name}#row", [var])

        def row(x: Expr) -> Expr:
            """[A, B, W] -> [A, B, 1, W]; of a dequantised or padded tensor before it is."""
            a, b, width = shape_of(x)
            inner = graph.call(x, "relax.dequantize", "relax.subtract", "relax.astype", "relax.nn.pad")
            if inner is None or not is_tensor(inner.args[0]) or len(shape_of(inner.args[0])) != 3:
                return bind(relax.op.reshape(x, (a, b, 1, width)))
            first = row(inner.args[0])
            if inner.op.name == "relax.nn.pad":
                widths = [int(width) for width in inner.attrs.pad_width]
                widths = [*widths[:4], 0, 0, *widths[4:]]
                return bind(relax.op.nn.pad(first, widths, str(inner.attrs.pad_mode), inner.attrs.pad_value))
            if inner.op.name == "relax.astype":
                return bind(relax.op.astype(first, str(inner.attrs.dtype)))
            if inner.op.name == "relax.dequantize":
                axis, dtype = int(inner.attrs.axis) % 3, str(inner.attrs.out_dtype)
                axis = axis + 1 if axis == 2 else axis
                return bind(relax.op.dequantize(first, *inner.args[1:], axis=axis, out_dtype=dtype))
            other = inner.args[1]
            return bind(relax.op.subtract(first, row(other) if len(shape_of(other)) == 3 else other))

        y = bind(
            relax.op.nn.conv2d(
                row(call.args[0]),
                row(call.args[1]),
                strides=(1, *(int(s) for s in attrs.strides)),
                padding=(0, padding[0], 0, padding[1]),
                dilation=(1, *(int(d) for d in attrs.dilation)),
                groups=int(attrs.groups),
                out_dtype=attrs.out_dtype,
            )
        )
        for last, step in zip(chain, chain[1:], strict=False):
            value = graph.value(step)
            if value.op.name == "relax.add":
                other = self._other(graph, step, last)
                array = array_of(graph.value(other))
                other = constant(array[:, :, None, :]) if array is not None else row(other)
                y = bind(relax.op.add(y, other))
            elif value.op.name == "relax.nn.relu":
                y = bind(relax.op.nn.relu(y))
            else:
                y = bind(relax.op.quantize(y, *value.args[1:], axis=1, out_dtype=dtype_of(step)))
        graph.replace(top, relax.op.reshape(y, shape_of(top)), chain)
