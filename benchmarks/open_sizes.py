"""Cases of single operators with one axis open, or all of an image: the same file at a range of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from benchmarks.operator_cases import Net

WHICH = ("first", "last", "image")


def opened(net: Net, which: str) -> Iterator[tuple[onnx.ModelProto, dict[str, tuple]]]:
    """The file with axes of its first input open, and the shapes of its inputs: from a quarter of them on.

    ``which`` : the ``first`` axis or the ``last`` one, and then the others in turn; of an ``image`` all axes
    behind the channels at once, and the last one of what has none.
    """
    shape = next(iter(net.values.values())).shape
    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    if which == "image" and len(shape) > 3:
        yield _opened(net, shape, [axis for axis in axes if axis > 1])
        return
    for axis in [*axes[:1], *axes[:0:-1]] if which == "first" else axes[::-1]:
        yield _opened(net, shape, [axis])


def _opened(net: Net, shape: Sequence[int], axes: Sequence[int]) -> tuple[onnx.ModelProto, dict[str, tuple]]:
    """One form.  Where other inputs have an extent at the same place, from either end, it is open there."""
    from hetero_tvm import Span

    model, shapes = net.model(), {}
    for one in model.graph.input:
        given = list(net.values[one.name].shape)
        extents = tuple(given)
        for axis in axes:
            for place, extent in enumerate(extents):
                same = place == axis or place - len(given) == axis - len(shape)
                if extent == shape[axis] and same:
                    one.type.tensor_type.shape.dim[place].dim_param = f"n{axis}"
                    given[place] = Span(max(1, extent // 4), extent)
        shapes[one.name] = tuple(given)
    for result in model.graph.output:
        result.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model, shapes
