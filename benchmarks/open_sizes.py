"""Cases of single operators with one axis open: the same file at a range of sizes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from benchmarks.operator_cases import Net

_NAME = "n"


def opened(net: Net, last: bool) -> Iterator[tuple[onnx.ModelProto, dict[str, tuple]]]:
    """The file with an axis of its first input open, and the shapes of its inputs: from a quarter of it on.

    Axes come in the order in which they are tried: the first and the last one, or the ``last`` first.  Where
    other inputs have the same extent at the same place, from either end, it is open there as well.
    """
    from hetero_tvm import Span

    shape = next(iter(net.values.values())).shape
    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    order = axes[::-1] if last else [*axes[:1], *axes[:0:-1]]
    for axis in order:
        model, shapes = net.model(), {}
        span = Span(max(1, shape[axis] // 4), shape[axis])
        for one in model.graph.input:
            given = list(net.values[one.name].shape)
            for place, extent in enumerate(given):
                same = place == axis or place - len(given) == axis - len(shape)
                if extent == shape[axis] and same:
                    one.type.tensor_type.shape.dim[place].dim_param = _NAME
                    given[place] = span
            shapes[one.name] = tuple(given)
        for result in model.graph.output:
            result.type.tensor_type.ClearField("shape")
        del model.graph.value_info[:]
        yield model, shapes
