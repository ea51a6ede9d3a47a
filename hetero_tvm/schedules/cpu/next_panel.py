"""Cache lines of the next panel of weights, asked for while tiles multiply this one."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.schedules.emit import int32


def following(panel: Expr, count: int) -> Expr:
    """Number of the panel behind ``panel``; of the last one itself."""
    return tirx.min(panel + 1, int32(count - 1))


def first_line(product: Expr, share: int, lines: int) -> Expr:
    """First of the ``share`` lines that a panel's ``product``-th product asks for, of ``lines`` of a panel.

    The share of the last products ends with the panel: what lies behind the last one may be no memory, which
    takes long to find out.
    """
    return tirx.min(product * share, int32(max(0, lines - share)))
