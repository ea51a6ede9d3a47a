"""Paddings as TensorIR whose borders begin where a comparison says so."""

from __future__ import annotations

from hetero_tvm.host.tvm import Call, Expr, relax, te, tirx, tvm
from hetero_tvm.relax_passes.forms.conv1d import integers


def _pad(builder: relax.BlockBuilder, call: Call) -> Expr:
    """Padding by a constant, or by what the borders mirror, repeat or meet.

    Schedules cut loops where a comparison changes, so that what lies between the borders is copied; TVM's own
    forms clamp positions or take absolute values of them, and read each element from a place of its own.
    """
    widths = integers(call.attrs.pad_width)
    before, after = widths[::2], widths[1::2]
    x, mode = call.args[0], str(call.attrs.pad_mode)
    if mode == "constant":
        value = call.attrs.pad_value
        return builder.call_te(tvm.topi.nn.pad, x, before, after, value, primfunc_name_hint="pad")

    def padded(data: te.Tensor) -> te.Tensor:
        def element(*places: Expr) -> Expr:
            read = []
            for place, first, last, extent in zip(places, before, after, data.shape, strict=True):
                at = place - first
                below, above = {
                    "reflect": (first - place, 2 * extent - 2 + first - place),
                    "replicate": (tirx.const(0, "int64"), extent - 1),
                    "circular": (place - first + extent, place - first - extent),
                }[mode]
                if last:
                    at = tirx.if_then_else(place >= extent + first, above, at)
                read.append(tirx.if_then_else(place < first, below, at) if first else at)
            return data(*read)

        shape = [x + low + high for x, low, high in zip(data.shape, before, after, strict=True)]
        return te.compute(shape, element, name=f"{mode}_pad")

    return builder.call_te(padded, x, primfunc_name_hint=f"{mode}_pad")


LEGALIZERS = {"relax.nn.pad": _pad}
"""Operator -> our TensorIR, in place of TVM's."""
