"""The tensor-core product that matmul and convolution share: a pipeline from global memory to ``mma``.

Loop structure, for a tile of BM x BN of the product and BK of its reduction::

    blockIdx.y, blockIdx.x over tiles                 # one block of warps each
      threadIdx.y over WM x WN warps
        k0 over K / BK, software pipeline of S stages
          stage 0: X and W tiles to shared memory     # cp.async, 16 bytes a thread, swizzled rows
          stage S-1: k1 over BK / 16
            ldmatrix fragments of X and W             # conflict-free because of the swizzle
            mma.sync m16n8k16, float32 accumulators in registers
        accumulators to shared memory, then the epilogue on vectors of 4 in row order

It is fast because copies run S - 1 steps ahead of the arithmetic and never pass through registers,
because every operand is read from shared memory once per warp and reused from registers, and because
the epilogue leaves the block only once, in whole rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import s_tir  # noqa: E402

from hetero_tvm.targets.cuda.model import SHARED_STATIC  # noqa: E402

FRAGMENT = 16
"""Rows, columns and depth of one tensorized block."""
VECTOR = 8
"""float16 values of one 16-byte copy."""
EPILOGUE_VECTOR = 4


@dataclass(frozen=True)
class Tile:
    """One choice: BM x BN of the product, BK of the reduction, WM x WN warps, S stages."""

    rows: int
    columns: int
    depth: int
    warps: tuple[int, int]
    stages: int

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]

    @property
    def result_scope(self) -> str:
        """Where the accumulators pass through shared memory.

        They take the place of the pipeline's buffers (``shared.dyn``), except where one of these is
        large enough to hold all of them: TVM would then make the two one buffer, of one dtype.
        """
        largest = self.stages * max(self.rows, self.columns) * self.depth * 2
        return "shared" if self.rows * self.columns * 4 <= largest else "shared.dyn"

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the pipeline's buffers and the accumulators."""
        buffers = self.stages * (self.rows + self.columns) * self.depth * 2
        result = self.rows * (self.columns + 8) * 4
        return buffers + result if self.result_scope == "shared" else max(buffers, result)

    @property
    def valid(self) -> bool:
        """Whether warps, fragments and copies divide the tile evenly, within the registers of a thread."""
        rows, columns = self.rows // self.warps[0], self.columns // self.warps[1]
        lanes = columns // EPILOGUE_VECTOR
        portion = self.threads * VECTOR
        return (
            rows % FRAGMENT == columns % FRAGMENT == 0
            and lanes <= 32
            and rows % (32 // lanes) == 0
            and self.rows * self.depth % portion == self.columns * self.depth % portion == 0
            and rows * columns // 32 <= 128
            and (self.result_scope == "shared.dyn" or self.rows * (self.columns + 8) * 4 <= SHARED_STATIC)
        )


def schedule(function: Any, tile: Tile, inline: tuple[str, ...] = ()) -> Any:
    """The scheduled kernel.

    Parameters
    ----------
    function : a PrimFunc with blocks ``product`` (C[i, j] += float32(A[i, k]) * float32(B[j, k]), extents
        multiples of the tile) and ``Y`` (the epilogue, over the rows and columns that are wanted).
    inline : blocks that only rearrange A on the way, and disappear into its copy.
    """
    from tvm.s_tir.tensor_intrin import cuda as layouts

    plan = s_tir.Schedule(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    product, epilogue = plan.get_sblock("product"), plan.get_sblock("Y")
    (wm, wn), depth = tile.warps, tile.depth // FRAGMENT
    i, j, k = plan.get_loops(product)
    (i, ii), (j, jj), (k, kk) = (plan.split(loop, [None, FRAGMENT]) for loop in (i, j, k))
    plan.reorder(i, j, k, ii, jj, kk)
    outer = plan.blockize(ii)
    i0, iw, it = plan.split(i, [None, wm, tile.rows // FRAGMENT // wm])
    j0, jw, jt = plan.split(j, [None, wn, tile.columns // FRAGMENT // wn])
    k0, k1 = plan.split(k, [None, depth])
    plan.reorder(i0, j0, iw, jw, k0, k1, it, jt)
    # Rows of tiles vary fastest: the blocks that run together read the same columns of B.
    plan.bind(i0, "blockIdx.x")
    plan.bind(j0, "blockIdx.y")
    warp = plan.fuse(iw, jw)
    plan.bind(warp, "threadIdx.y")

    for operand in range(2):
        _copy_to_shared(plan, outer, operand, k0, wm * wn)
    for name in inline:
        plan.compute_inline(plan.get_sblock(name))
    fragments = [plan.cache_read(outer, operand, "warp") for operand in range(2)]
    for block in fragments:
        plan.compute_at(block, k1)
    result = plan.cache_write(outer, 0, "warp")
    plan.set_scope(result, 0, tile.result_scope)
    plan.reverse_compute_at(result, warp)
    _fragment_loops(plan, result)
    _epilogue(plan, epilogue, warp, tile)
    plan.storage_align(result, 0, axis=-2, factor=32, offset=8)

    start = plan.decompose_reduction(outer, k0)
    zero = plan.get_child_blocks(start)[0]
    loads = [_fragment_loops(plan, block) for block in fragments]

    def in_lanes(i: Any, j: Any) -> Any:
        within = layouts.shared_16x16_to_ldmatrix_32x8_layout(i % FRAGMENT, j % FRAGMENT)
        return (i // FRAGMENT, j // FRAGMENT, *within)

    for block, access in ((fragments[0], "write"), (fragments[1], "write"), (result, "read")):
        plan.transform_layout(block, (access, 0), in_lanes)
    names = [plan.get(block).name_hint for block in fragments]
    for loop, intrinsic in zip(
        loads, ("mma_ldmatrix_f16_a_dyn", "mma_ldmatrix_f16_b_trans_dyn"), strict=True
    ):
        plan.tensorize(loop, intrinsic)
    for name in names:
        # On the block that tensorizing made: an annotation of the old one is lost without a word.
        plan.annotate(plan.get_sblock(f"{name}_o"), "permuted_layout", 1)
    plan.tensorize(plan.get_loops(product)[-3], "mma_f16f16f32_trans_b")
    plan.tensorize(plan.get_loops(zero)[-2], "mma_fill_16x16_f32")
    plan.tensorize(plan.get_loops(result)[-2], _store_intrinsic(tile.result_scope))
    if tile.stages > 1:
        plan.annotate(k0, "software_pipeline_stage", [0, 0, tile.stages - 1])
        plan.annotate(k0, "software_pipeline_order", [0, 1, 2])
        plan.annotate(k0, "software_pipeline_async_stages", [0])
    return plan.mod["main"].without_attr("global_symbol")


@functools.lru_cache
def _store_intrinsic(scope: str) -> str:
    """The intrinsic that writes accumulators to shared memory of either kind."""
    from tvm.s_tir.tensor_intrin import cuda as intrinsics

    if scope == "shared.dyn":
        return intrinsics.MMA_store_16x16_f32_shared_dyn_INTRIN
    name = "hetero_tvm.mma_store_16x16_f32_shared"
    s_tir.TensorIntrin.register(
        name, *intrinsics.get_mma_store_intrin("float32", 8, scope, True), override=True
    )
    return name


def _copy_to_shared(plan: Any, outer: Any, operand: int, at: Any, warps: int) -> None:
    block = plan.cache_read(outer, operand, "shared.dyn")
    plan.compute_at(block, at)
    fused = plan.fuse(*plan.get_loops(block)[-2:])
    _, warp, lane, vector = plan.split(fused, [None, warps, 32, VECTOR])
    plan.bind(warp, "threadIdx.y")
    plan.bind(lane, "threadIdx.x")
    plan.vectorize(vector)
    plan.annotate(block, "permuted_layout", 1)


def _fragment_loops(plan: Any, block: Any) -> Any:
    """Split a copy of fragments into whole ones; the loop at which one fragment begins."""
    x, y = plan.get_loops(block)[-2:]
    x0, x1 = plan.split(x, [None, FRAGMENT])
    y0, y1 = plan.split(y, [None, FRAGMENT])
    plan.reorder(x0, y0, x1, y1)
    return x1


def _epilogue(plan: Any, block: Any, warp: Any, tile: Tile) -> None:
    """Each warp applies the epilogue to its part, 32 lanes over whole rows of vectors."""
    columns = int(plan.get(block).iter_vars[-1].dom.extent)
    plan.reverse_compute_at(block, warp, preserve_unit_loops=True)
    x, y = plan.get_loops(block)[-2:]
    lanes = tile.columns // tile.warps[1] // EPILOGUE_VECTOR
    x0, x1 = plan.split(x, [None, 32 // lanes])
    y0, vector = plan.split(y, [lanes, EPILOGUE_VECTOR])
    plan.reorder(x0, x1, y0, vector)
    plan.bind(plan.fuse(x1, y0), "threadIdx.x")
    if columns % EPILOGUE_VECTOR == 0:
        plan.vectorize(vector)
