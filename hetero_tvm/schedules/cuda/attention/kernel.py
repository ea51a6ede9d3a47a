"""Attention forward in one kernel: the part that the kernels for tensor cores and for float32 share.

Loop structure, for ``rows`` rows (queries of one head; for few queries, of all heads that share keys)::

    blockIdx.x over batch, heads, blocks of rows, splits of the keys
      rows of Q to registers or shared memory
      blocks of ``keys`` keys that any of the rows may see
        next K and V block on their way (cp.async)
        S = Q K^T; mask, running maximum and sum; O = O * correction + P V
      O / sum; or, of one of several splits, O, maximum and sum to a workspace
    blockIdx.x over results                # several splits only: flash-decoding
      the splits' results, weighted by their maxima

Scores never leave the block, K and V are read once per block of rows, copies run beside the arithmetic,
and blocks of keys that a causal mask or a window hides are skipped: Dao et al., "FlashAttention-2"
(2023); online softmax by Milakov and Gimelshein (2018).
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Expr, PrimFunc, T
from hetero_tvm.schedules.cuda.async_copy import commit, wait
from hetero_tvm.schedules.cuda.attention.results import Results
from hetero_tvm.schedules.cuda.attention.softmax import LOWEST
from hetero_tvm.schedules.cuda.buffers import flat
from hetero_tvm.schedules.cuda.threads import barrier
from hetero_tvm.schedules.cuda.values import const
from hetero_tvm.schedules.emit import Kernel, int32


class AttentionKernel(Results):
    """The order of the steps; a subclass lays the tile out over threads and writes the two products."""

    def function(self) -> PrimFunc:
        """The finished PrimFunc."""
        op, k = self.op, Kernel("attention")
        with k:
            self.k = k
            tensors = {x.name: k.argument(x.name, x.shape, x.dtype) for x in op.inputs}
            self.mask = tensors.get("mask")
            self.out = k.argument("O", op.output.shape, op.dtype)
            # Places of heads are offsets in memory: every operand as one row of elements.
            rows = [flat(k, tensors[x.name]) for x in op.inputs]
            self.query, self.key, self.value = ((rows[place.operand], place) for place in op.heads_at)
            if self.splits > 1:
                self.allocate_workspace()
            with (
                T.launch_thread("blockIdx.x", op.batch * self.heads * self.blocks * self.splits) as block,
                T.launch_thread("threadIdx.x", self.threads) as self.thread,
            ):
                self._places(block)
                self._body()
            if self.splits > 1:
                self.merge()
        return k.function

    def _places(self, block: Expr) -> None:
        k = self.k
        self.split = k.let(block % self.splits)
        block = block // self.splits
        # The last rows first: under a causal mask they take longest.
        self.first_row = k.let((self.blocks - 1 - block % self.blocks) * self.rows)
        block = block // self.blocks
        self.h, self.b = k.let(block % self.heads), k.let(block // self.heads)
        self.kv_head = self.h if self.grouped else self.h // self.group

    def _body(self) -> None:
        k = self.k
        self.shared_q, self.shared_k, self.shared_v = self.buffers()
        self.allocate()
        held = self.held_rows
        self.peak, self.total = k.scratch((held,)), k.scratch((held,))
        self.fresh, self.scale = k.scratch((held,)), k.scratch((held,))
        for r in range(held):
            k.store(self.peak, const(LOWEST), [int32(r)])
            k.store(self.total, const(0), [int32(r)])
            self.outputs(r, lambda at, column, width: self.each(at, width, self._zero))
        start, end = self.key_blocks()
        (self._in_turn if self.stages == 1 else self._ahead)(start, end)
        self.store()

    def _start(self, some: Expr, copy: Callable[[], None]) -> None:
        """Fetch the queries and, where there are ``some``, the first keys; wait for them."""
        self.copy_queries()
        with self.k.when(some):
            copy()
        commit()
        wait(0)
        barrier()
        self.queries_ready()

    def _ahead(self, start: Expr, end: Expr) -> None:
        """Walk blocks of keys with two stages: the next K and V arrive during a whole step."""
        k = self.k

        def fill(block: Expr, stage: Expr) -> None:
            for tensor, to in zip((self.key, self.value), self.stage(stage), strict=True):
                self.to_shared(tensor, to, block * self.keys)

        self._start(start < end, lambda: fill(start, int32(0)))
        with k.serial(end - start) as step:
            block = start + step
            with k.when(block + 1 < end):
                fill(block + 1, (step + 1) % 2)
            commit()
            first = k.let(block * self.keys)
            self.shared_k, self.shared_v = self.stage(step % 2)
            self.scores()
            self._weigh(first)
            self.accumulate()
            wait(0)
            barrier()

    def _in_turn(self, start: Expr, end: Expr) -> None:
        """Walk blocks of keys with one stage: V arrives during the scores, the next K during the rest."""
        k = self.k
        self._start(start < end, lambda: self.copy_keys(start * self.keys))
        with k.serial(end - start) as step:
            block = start + step
            first = k.let(block * self.keys)
            self.copy_values(first)
            commit()
            wait(1)
            barrier()
            self.scores()
            barrier()
            with k.when(block + 1 < end):
                self.copy_keys(first + self.keys)
            commit()
            self._weigh(first)
            wait(1)
            barrier()
            self.accumulate()
            barrier()

    def _weigh(self, first: Expr) -> None:
        """Turn the scores of the keys from ``first`` on into weights."""
        self.scale_scores(first)
        self.hide(first)
        self.update()

    def _zero(self, at: Expr) -> None:
        self.k.store(self.o_reg, const(0), at)
