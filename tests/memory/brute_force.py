"""The lowest peak by trying every order: a solution that cannot be lowered is first fit in some order."""

from __future__ import annotations

from hetero_tvm.memory import Buffer


def lowest_peak(buffers: list[Buffer], alignment: int = 1) -> int:
    live = [b for b in buffers if b.size and b.upper > b.lower]
    best = sum(b.size + (b.alignment or alignment) for b in live)

    def extend(placed: list[tuple[Buffer, int]], rest: list[Buffer], peak: int) -> None:
        nonlocal best
        if peak >= best:
            return
        if not rest:
            best = peak
            return
        for index, b in enumerate(rest):
            # Above everything placed that lives at the same time: holes belong to another order.
            others = [(o, at) for o, at in placed if o.lower < b.upper and b.lower < o.upper]
            top = max((at + o.size for o, at in others), default=0)
            step = b.alignment or alignment
            at = -(-top // step) * step
            extend([*placed, (b, at)], rest[:index] + rest[index + 1 :], max(peak, at + b.size))

    extend([], live, 0)
    return best if live else 0
