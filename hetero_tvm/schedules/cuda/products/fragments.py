"""Arithmetic of one warp on two tiles in shared memory: tensor cores, or float32 multiply-adds.

Both engines read tiles of rows along the reduction, in chunks of 16 bytes that :func:`swizzled`
permutes within lines of 128 bytes, so that 8 consecutive rows lie in 8 different groups of banks.
In bytes the fragments of all tensor-core types are the same: 16 rows (or 8 columns) of 32 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.products.tiles import CHUNK, Tile
from hetero_tvm.schedules.cuda.values import bytes_of
from hetero_tvm.schedules.emit import Kernel

SLAB = 16
"""Rows of accumulators that pass through shared memory at once."""


@dataclass(frozen=True)
class Element:
    """A type of values and the instruction that multiplies them.

    Parameters
    ----------
    dtype : in memory.
    accumulator : dtype of the sums.
    mma : the device function of the tensor-core instruction; "" for multiply-adds.
    """

    dtype: str
    accumulator: str = "float32"
    mma: str = ""

    @property
    def size(self) -> int:
        """Bytes of a value in memory."""
        return bytes_of(self.dtype)

    @property
    def rounds(self) -> bool:
        """Whether registers must be rounded before they are multiplied."""
        return self.mma == "htvm_mma_tf32"


ELEMENTS = {
    "f16": Element("float16", mma="htvm_mma_f16"),
    "bf16": Element("bfloat16", mma="htvm_mma_bf16"),
    "tf32": Element("float32", mma="htvm_mma_tf32"),
    "int8": Element("int8", "int32", mma="htvm_mma_s8"),
    "f32": Element("float32"),
}


def element_for(dtype: str, features: tuple[str, ...]) -> Element | None:
    """The way a GPU multiplies values of ``dtype``, tf32 only where it was asked for; None when it cannot."""
    name = {"float16": "f16", "bfloat16": "bf16", "int8": "int8"}.get(dtype)
    if dtype == "float32":
        name = "tf32" if "tf32" in features else "f32"
    return ELEMENTS[name] if name else None


def element_of(dtype: str, machine: GpuModel) -> Element:
    """The way ``machine`` multiplies values of a dtype that a space has not refused."""
    element = element_for(dtype, machine.features)
    assert element is not None  # refused otherwise
    return element


def swizzled(row: Expr, chunk: Expr, pitch: int) -> Expr:
    """Chunk of a row of ``pitch`` bytes at which 16-byte chunk ``chunk`` of row ``row`` lies."""
    return chunk ^ row_key(row, pitch)


def row_key(row: Expr, pitch: int) -> Expr:
    """The permutation of the chunks of a row (see :func:`swizzled`), as a number to combine by xor."""
    chunks = pitch // CHUNK
    return row // max(1, 128 // pitch) % min(chunks, 8)


def depth_key(row: Expr, size: int) -> Expr:
    """The permutation of rows along the columns of W: rows of one fragment in different banks.

    Tiles of 16-bit values are read 8 rows at a time, of 32-bit values 4.
    """
    return row % 8 if size == 2 else row % 4 * 2


class Warp:
    """The arithmetic of one warp on its part of a tile; ``across`` says that W's tile is [depth, columns]."""

    def __init__(self, k: Kernel, tile: Tile, element: Element, across: bool, rounded: bool):
        self.k, self.tile, self.element, self.across = k, tile, element, across
        self.rounded = rounded  # W's values need no rounding
        self.rows, self.columns = tile.warp_rows, tile.warp_columns
        self.pitch = tile.depth * element.size

    def begin(self, warp: Expr, lane: Expr, shared: Expr) -> None:
        """Allocate registers and compute what does not change from step to step."""
        self.down, self.right = warp // self.tile.warps[1], warp % self.tile.warps[1]
        self.lane = lane
        count = self.rows * self.columns // 32
        self.sums = self.k.scratch((count,), self.element.accumulator)
        with self.k.unroll(count) as i:
            self.k.store(self.sums, tirx.const(0, self.element.accumulator), [i])
        self._begin(shared)

    def _begin(self, shared: Expr) -> None: ...

    def put(self, slab: int, shared: Expr, at: Expr, pitch: int) -> None:
        """Move the sums of 16 rows from ``slab * 16`` on to shared memory, ``pitch`` bytes a row."""
        raise NotImplementedError


class TensorCoreWarp(Warp):
    """``ldmatrix`` and ``mma.sync``: fragments of 32 bytes along the reduction."""

    def _begin(self, shared: Expr) -> None:
        k, lane = self.k, self.lane
        self.steps = self.pitch // 32
        row = device.fixed(k, self.down * self.rows + lane % 16)
        self.x_at = self._places(row, lane // 16)
        if self.across:
            row = lane % 16 if self.element.size == 2 else lane % 4
            self.w_row, self.w_key = device.fixed(k, row), device.fixed(k, depth_key(row, self.element.size))
        else:
            row = device.fixed(k, self.right * self.columns + lane // 16 * 8 + lane % 8)
            self.w_at = self._places(row, lane // 8 % 2)
        self.x_regs = [k.scratch((self.rows // 16 * 4,), "uint32") for _ in range(2)]
        self.w_regs = [k.scratch((self.columns // 16 * 4,), "uint32") for _ in range(2)]

    def _places(self, row: Expr, half: Expr) -> list[Expr]:
        """Offset in the tile of the 16 bytes of each fragment of ``row`` along the reduction."""
        first = device.fixed(self.k, row * self.pitch + (half ^ row_key(row, self.pitch)) * CHUNK)
        return [first, *(device.fixed(self.k, first ^ (32 * step)) for step in range(1, self.steps))]

    def load(self, shared: Expr, x_at: Expr, w_at: Expr, step: int) -> None:
        """Load the fragments of one step along the reduction, from the tiles at these offsets."""
        k, bank = self.k, step % 2
        at = device.fixed(k, x_at + self.x_at[step])
        for i in range(self.rows // 16):
            x = device.pointer(self.x_regs[bank], 4 * i)
            device.call("htvm_ldmatrix", x, shared, at + i * 16 * self.pitch, template="false")
        if not self.across:
            at = device.fixed(k, w_at + self.w_at[step])
        for j in range(self.columns // 16):
            if self.across:
                self._across(shared, w_at, step, j)
            else:
                w = device.pointer(self.w_regs[bank], 4 * j)
                device.call("htvm_ldmatrix", w, shared, at + j * 16 * self.pitch, template="false")

    def products(self, step: int) -> None:
        """Multiply the fragments that :meth:`load` fetched for this step."""
        bank = step % 2
        if self.element.rounds:
            regs = [self.x_regs[bank]] if self.rounded else [self.x_regs[bank], self.w_regs[bank]]
            for buffer in regs:
                count = str(int(buffer.shape[0]))
                device.call("htvm_round_tf32", device.pointer(buffer), template=count)
        for i in range(self.rows // 16):
            for j in range(self.columns // 8):
                sums = device.pointer(self.sums, (i * (self.columns // 8) + j) * 4)
                x, w = device.pointer(self.x_regs[bank], 4 * i), device.pointer(self.w_regs[bank], 2 * j)
                device.call(self.element.mma, sums, x, w)

    def _across(self, shared: Expr, w_at: Expr, step: int, j: int) -> None:
        """Load 16 columns of W from a tile [depth, columns]."""
        k, lane, pitch = self.k, self.lane, self.tile.columns * self.element.size
        regs = self.w_regs[step % 2]
        if self.element.size == 2:
            first = self.right * (self.columns // 8) + 2 * j + lane // 16
            at = w_at + (self.w_row + 16 * step) * pitch + (first ^ self.w_key) * CHUNK
            device.call("htvm_ldmatrix", device.pointer(regs, 4 * j), shared, at, template="true")
            return
        for half in range(2):  # 32-bit values: ldmatrix cannot transpose them
            column = self.right * self.columns + (2 * j + half) * 8 + lane // 4
            at = device.fixed(k, (column // 4 ^ self.w_key) * CHUNK + column % 4 * 4)
            for part in range(2):
                row = self.w_row + step * 8 + part * 4
                to = device.pointer(regs, 4 * j + 2 * half + part)
                device.call("htvm_take", shared, w_at + row * pitch + at, to, template="1")

    def put(self, slab: int, shared: Expr, at: Expr, pitch: int) -> None:
        lane = self.lane
        for j in range(self.columns // 8):
            for half in range(2):
                place = at + (lane // 4 + 8 * half) * pitch + (j * 8 + lane % 4 * 2) * 4
                sums = device.pointer(self.sums, (slab * (self.columns // 8) + j) * 4 + 2 * half)
                device.call("htvm_put", shared, place, sums, template="2")


class WarpGroup(TensorCoreWarp):
    """``wgmma`` of sm_90a: four warps multiply 64 rows by all columns straight from shared memory.

    The tile has 16 rows a warp, and 128 bytes of the reduction a step; sums lie as those of ``mma`` do.
    """

    def _begin(self, shared: Expr) -> None:
        # Descriptors of the tiles: address in units of 16 bytes, and form.
        self.form = device.fixed(self.k, device.value("htvm_wgmma_form", shared, dtype="int32"))
        self.x_form = device.fixed(self.k, self.form + self.down // 4 * (64 * self.pitch // CHUNK))

    def start(self, at: Expr, w_at: int) -> None:
        """Start the products of the tiles at these offsets; :meth:`wait` waits for them."""
        name = f"htvm_wgmma_{self.element.mma.removeprefix('htvm_mma_')}_{self.tile.columns}"
        at = device.fixed(self.k, at // CHUNK)
        device.call("htvm_wgmma_begin")
        for step in range(self.pitch // 32):
            more = at + 32 * step // CHUNK
            x, w = self.x_form + more, self.form + more + w_at // CHUNK
            device.call(name, device.pointer(self.sums), x, w)
        device.call("htvm_wgmma_end")

    def wait(self, groups: int) -> None:
        """Wait until all but the last ``groups`` calls of :meth:`start` are complete."""
        device.call("htvm_wgmma_wait", template=str(groups))


class FmaWarp(Warp):
    """float32 multiply-adds: lanes 8 x 4, each with every 8th row and every 4th column (or 4 of every 16).

    Of each tile a lane reads 16 bytes along the reduction at a time: 16 loads serve 256 multiply-adds.
    """

    def _begin(self, shared: Expr) -> None:
        k = self.k
        self.high, self.wide = self.rows // 8, self.columns // 4
        self.x_row = device.fixed(k, self.down * self.rows + self.lane // 4)
        self.x_key = device.fixed(k, row_key(self.x_row, self.pitch))
        if not self.across:
            self.w_row = device.fixed(k, self.right * self.columns + self.lane % 4)
            # Rows 8 apart have the same key.
            self.w_keys = [device.fixed(k, row_key(self.w_row + 4 * j, self.pitch)) for j in range(2)]
        self.x_regs = k.scratch((self.high * 4,))
        self.w_regs = k.scratch((self.wide * 4,))

    def multiply(self, shared: Expr, x_at: Expr, w_at: Expr) -> None:
        """Add the product of the tiles at these offsets of shared memory."""
        k, x, w = self.k, self.x_regs, self.w_regs
        # A loop, not unrolled: registers for more than one step's values would cost resident warps.
        with k.serial(self.pitch // CHUNK) as step:
            at = device.fixed(k, x_at + self.x_row * self.pitch + (step ^ self.x_key) * CHUNK)
            for i in range(self.high):
                device.call(
                    "htvm_take", shared, at + 8 * i * self.pitch, device.pointer(x, 4 * i), template="4"
                )
            for j in range(self.wide):
                self._take_w(shared, w_at, step, j)
            operands = (device.pointer(buffer) for buffer in (self.sums, x, w))
            shape = f"{self.high}, {self.wide}, {str(self.across).lower()}"
            device.call("htvm_fma", *operands, template=shape)

    def _take_w(self, shared: Expr, w_at: Expr, step: Expr, j: int) -> None:
        """Load 16 bytes of W: column j of this lane along the reduction, or (``across``) 4 columns of row
        j // (wide / 4) of 4."""
        to = device.pointer(self.w_regs, 4 * j)
        if not self.across:
            at = w_at + (self.w_row + 4 * j) * self.pitch + (step ^ self.w_keys[j % 2]) * CHUNK
        else:
            quads = self.wide // 4
            row, quad = step * 4 + j // quads, j % quads
            column = self.right * (self.columns // 4) + quad * 4 + self.lane % 4
            at = w_at + row * (self.tile.columns * 4) + (column ^ (row % 4 * 2)) * CHUNK
        device.call("htvm_take", shared, at, to, template="4")

    def put(self, slab: int, shared: Expr, at: Expr, pitch: int) -> None:
        for i in range(2):
            for j in range(self.wide):
                column = self.lane % 4 + 4 * j
                if self.across:
                    column = j // 4 * 16 + self.lane % 4 * 4 + j % 4
                sums = device.pointer(self.sums, (2 * slab + i) * self.wide + j)
                place = at + (self.lane // 4 + 8 * i) * pitch + column * 4
                device.call("htvm_put", shared, place, sums, template="1")


def warp_of(k: Kernel, tile: Tile, element: Element, across: bool, rounded: bool) -> Warp:
    """The warp arithmetic that multiplies ``element``."""
    engine = WarpGroup if tile.group else TensorCoreWarp if element.mma else FmaWarp
    return engine(k, tile, element, across, rounded)
