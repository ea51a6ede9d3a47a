"""Products with constant weights on the matrix unit.

Loops: one operand is *stationary*, a panel of it over the whole reduction lies in L1; tiles of the
other one stream through a ring in L1.  For every block of the stream the accumulators of ``sub``
tiles stay in L0C over the whole reduction, so a streamed tile is read from DRAM once per panel and
moved to its L0 once::

    for panel:                       L1 <- panel, tile by tile of the reduction
      for block of the stream:       (accumulators of sub tiles in L0C, in turns)
        for k:                       L1 <- streamed tile            (ring)
          for k0:                    L0 <- streamed part            (two versions)
            for s in sub:            L0 <- stationary part          (two versions); mmad
        for s in sub, rows of the tile: UB <- L0C + bias; epilogue; DRAM <- UB

Why it is fast: with few rows (a transformer's tokens) the activations are stationary, every weight
passes once, and DMA, moves, products and epilogues of different tiles run at the same time in
their queues; with many rows the weights are stationary.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, At
from hetero_tvm.schedules.npu.matmul.finish import ProductFinish
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at


class ProductEmitter(ProductFinish):
    """Writes the loops."""

    def run(self) -> PrimFunc:
        """The finished kernel."""
        op, k = self.op, self.k
        with k:
            self.x = k.argument("X", (op.m, op.k), self.dtype, self._scope("x"))
            self._constants_and_result((op.m, op.n))
            self._panels()
        return k.function

    def _panels(self) -> None:
        op, t, k = self.op, self.t, self.k
        tk = t.tk
        steps = ceil_div(op.k, tk)
        by_weights = t.stationary == "w"
        inner = ceil_div(op.n, t.tn) if by_weights else ceil_div(op.m, t.tm)
        outer = ceil_div(op.m, t.tm) if by_weights else ceil_div(op.n, t.tn)
        panels = ceil_div(inner, t.sub)
        self._load_biases()
        with k.loop(panels, buffers=self.panels) as p:
            count = extent_at(inner, t.sub, p)
            panel = None
            if t.stationary != "none" and t.stationary not in self.held:
                held = (t.sub, steps, tk, t.tn) if by_weights else (t.sub, steps, t.tm, tk)
                panel = k.alloc(L1, held, self.dtype)
            with k.loop(outer, buffers=self.versions) as o:
                c = k.alloc(L0C, (t.sub, self.tile_rows, t.tn), self.accumulator)
                with k.loop(ceil_div(steps, t.slices), buffers=t.ring) as k1:
                    self._reduce(p, o, k1, count, panel, c)
                with k.loop(count) as s:
                    i, j = (o, p * t.sub + s) if by_weights else (p * t.sub + s, o)
                    self._finish(i, j, s, c)

    def _reduce(self, p: Index, o: Index, k1: Index, count: Index, panel: Buffer | None, c: Buffer) -> None:
        """Add slice ``k1`` of the reduction to the accumulators ``c`` of the ``count`` tiles of panel ``p``,
        for block ``o`` of the stream."""
        op, t, k = self.op, self.t, self.k
        steps = ceil_div(op.k, t.tk)
        by_weights = t.stationary == "w"
        deep = t.slices * t.tk
        depth = extent_at(op.k, deep, k1)
        rows, width = extent_at(op.m, t.tm, o), extent_at(op.n, t.tn, o)
        x_held, w_held = "x" in self.held, "w" in self.held
        stream = None
        if by_weights:
            if not x_held:
                stream = k.alloc(L1, (t.slices, t.tm, t.tk), self.dtype)
            if not (x_held and w_held):
                with k.loop(extent_at(steps, t.slices, k1)) as k0:
                    r = k1 * t.slices + k0
                    if not w_held:
                        # The panel arrives step by step with the first block that needs it.
                        with k.when(o == 0), k.loop(count) as s:
                            into = At(panel, lambda a, b: (s, r, a, b))
                            self._load_weights(into, p * t.sub + s, r, extent_at(op.k, t.tk, r))
                    if not x_held:
                        self._load_x(At(stream, lambda a, b: (k0, a, b)), o, r)
        else:
            if not w_held:
                stream = k.alloc(L1, (deep, t.tn), self.dtype)
                self._load_weights(At(stream, lambda a, b: (a, b)), o, k1 * t.slices, depth)
            streamed = t.stationary == "none"
            if not x_held:
                if streamed:
                    panel = k.alloc(L1, (t.sub, t.slices, t.tm, t.tk), self.dtype)
                with (
                    k.when(streamed or o == 0),
                    k.loop(extent_at(steps, t.slices, k1)) as k0,
                    k.loop(count) as s,
                ):
                    r = k1 * t.slices + k0
                    at = k0 if streamed else r
                    self._load_x(At(panel, lambda a, b: (s, at, a, b)), p * t.sub + s, r)
        with k.loop(extent_at(steps, t.slices, k1), buffers=2) as k0:
            r = k1 * t.slices + k0
            d = extent_at(op.k, t.tk, r)
            if by_weights:
                a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                self._move_x(a0, (rows, d), o, r, None if x_held else At(stream, lambda a, b: (k0, a, b)))
            else:
                b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                source = None if w_held else At(stream, lambda a, b: (k0 * t.tk + a, b))
                self._move_weights(b0, (d, width), o, r, source)
            with k.loop(count, buffers=2) as s:
                if by_weights:
                    j = p * t.sub + s
                    wide = extent_at(op.n, t.tn, j)
                    b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                    source = None if w_held else At(panel, lambda a, b: (s, r, a, b))
                    self._move_weights(b0, (d, wide), j, r, source)
                    extents = (rows, wide, d)
                else:
                    i = p * t.sub + s
                    high = extent_at(op.m, t.tm, i)
                    a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                    at = k0 if t.stationary == "none" else r
                    source = None if x_held else At(panel, lambda a, b: (s, at, a, b))
                    self._move_x(a0, (high, d), i, r, source)
                    extents = (high, width, d)
                self._multiply(extents, a0, b0, c, s, r == 0)

    def _multiply(
        self,
        extents: tuple[Index, Index, Index],
        a0: Buffer,
        b0: Buffer,
        c: Buffer,
        s: Index,
        first: Expr,
    ) -> None:
        """Multiply what lies in L0 onto the accumulators of tile ``s``, from zero when ``first``."""
        sums = At(c, lambda i, j, q: (s, i, j))
        a, b = At(a0, lambda i, j, q: (i, q)), At(b0, lambda i, j, q: (q, j))
        self.k.mmad(extents, sums, a, b, first)
