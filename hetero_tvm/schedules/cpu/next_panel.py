"""Cache lines of the next panel of weights, asked for while tiles multiply this one."""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.schedules.emit import Index, Kernel, int32


def following(panel: Expr, count: int) -> Expr:
    """Number of the panel behind ``panel``; of the last one itself."""
    return tirx.min(panel + 1, int32(count - 1))


def first_line(product: Index, share: int, lines: int) -> Expr:
    """First of the ``share`` lines that a panel's ``product``-th product asks for, of ``lines`` of a panel.

    The share of the last products ends with the panel: what lies behind the last one may be no memory, which
    takes long to find out.
    """
    return tirx.min(product * share, int32(max(0, lines - share)))


def lines_ahead(
    k: Kernel, w: Buffer, panel: Expr, tile: Index, tiles: int, steps: int, lines: int, line: int
) -> Callable[[Expr], None]:
    """Emitter of what each of ``steps`` steps of a tile asks for: tile ``tile`` of ``tiles`` shares the lines
    of the panel behind ``panel``, which has ``lines`` of ``line`` elements.

    Places follow one another through a tile: an instruction more is one less for the products.
    """
    count, *inner = (int(extent) for extent in w.shape)
    panels, per_step = k.view(w, (count, math.prod(inner))), -(-lines // (tiles * steps))
    after, first = following(panel, count), first_line(tile, per_step * steps, lines)

    def ask(step: Expr) -> None:
        with k.unroll(per_step) as p:
            at = first + step * per_step + p
            if per_step * steps > lines:  # a tile alone has steps left
                at = tirx.min(at, int32(lines - 1))
            k.prefetch(panels, [after, at * line])

    return ask
