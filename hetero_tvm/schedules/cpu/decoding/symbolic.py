"""Kernels whose rows are counted at run time; index arithmetic stays in 32 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, T, Var, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, int32

_ROWS_WORTH_A_LAUNCH = 8
_ROWS_SHARED = 96
"""Rows from which threads share rows and not panels."""
BLOCK_ROWS = 128
"""Most rows of a block: what stays in L2 beside a panel."""


class SymbolicKernel(Kernel):
    """Kernel with arguments whose first extent is a variable."""

    @staticmethod
    def symbol(name: str) -> Var:
        """A variable for the extent of arguments, bound by the first that has it."""
        return tirx.Var(name, "int64")

    def count(self, symbol: Var) -> Expr:
        """The value of a symbol as int32, read once."""
        return self.let(tirx.Cast("int32", symbol))

    @contextmanager
    def shared_out(self, extent: Index) -> Iterator[Expr]:
        """Iterations shared among the threads in contiguous pieces; the extent may come at run time."""
        with T.parallel(0, extent) as i:
            yield i


def quotient(a: Expr, b: int) -> Expr:
    """``a / b`` for numbers that are not negative: no fix-up of signs."""
    return tirx.truncdiv(a, int32(b))


def remainder(a: Expr, b: int) -> Expr:
    """``a mod b`` for numbers that are not negative."""
    return tirx.truncmod(a, int32(b))


def fetch_ahead(
    k: SymbolicKernel, weight: Buffer, panel: Expr, row: Expr, distance: int, abreast: int, column: int = 0
) -> None:
    """Ask for the line of a packed weight [panels, rows, columns] that is read ``distance`` rows later.

    ``abreast`` panels are read at once: behind the end of one, its stream goes on as many panels later.
    """
    panels, rows = (int(extent) for extent in weight.shape[:2])
    ahead = k.let(row + distance)
    ahead = tirx.Select(ahead < rows, ahead, ahead + (abreast - 1) * rows)
    line = tirx.min(panel * rows + ahead, int32(panels * rows - 1))
    k.prefetch(weight, [0, line, column])


def each_row(k: SymbolicKernel, rows: Expr, machine: CpuModel, body: Callable[[Expr], None]) -> None:
    """``body(row)`` over all rows: by all threads when there are some, by the caller when there are few."""

    def alone() -> None:
        with k.serial(rows) as i:
            body(i)

    def shared() -> None:
        with k.shared_out(machine.threads) as chunk:
            first = k.let(quotient(chunk * rows, machine.threads))
            end = k.let(quotient((chunk + 1) * rows, machine.threads))
            with k.serial(end - first) as i:
                body(first + i)

    if machine.threads == 1:
        alone()
    else:
        k.branch(rows < _ROWS_WORTH_A_LAUNCH, alone, shared)


@dataclass(frozen=True)
class Block:
    """Tiles of rows that a thread multiplies with one panel of columns.

    Attributes
    ----------
    panel : number of the panel.
    first, end : tiles of rows.
    is_last : whether the last rows are among them.
    """

    panel: Expr
    first: Expr
    end: Expr
    is_last: Expr


@contextmanager
def shared_blocks(
    k: SymbolicKernel, rows: Expr, tiles: Expr, panels: int, machine: CpuModel, most: int = BLOCK_ROWS
) -> Iterator[Block]:
    """Blocks of at most ``most`` rows, in ``tiles`` of them, and panels, shared among the threads.

    Threads share panels, and blocks of rows as well once each has enough of them.
    """
    block = most * machine.threads
    wanted = quotient(rows + (block - 1), block) * machine.threads
    blocks = k.named(tirx.Select(rows >= _ROWS_SHARED, wanted, int32(1)))
    with k.shared_out(blocks * panels) as piece:
        number, panel = k.let(quotient(piece, panels)), k.let(remainder(piece, panels))
        first = k.let(tirx.truncdiv(number * tiles, blocks))
        end = k.let(tirx.truncdiv((number + 1) * tiles, blocks))
        yield Block(panel, first, end, tirx.EQ(number, blocks - 1))


Tile = Callable[[Expr, int, Expr], None]
"""(first row, rows, number of the tile in its block) -> its code."""


def each_tile(
    k: SymbolicKernel,
    rows: Expr,
    height: int,
    panels: int,
    machine: CpuModel,
    panel_code: Callable[[Block], Tile],
    halve: bool = False,
    most: int = BLOCK_ROWS,
) -> None:
    """Code of register tiles over blocks of rows and panels of columns.

    The rows that are left make one tile of their height; with ``halve`` several, each of a power of two,
    which is less code.  ``panel_code(block)`` begins a panel in one block, of at most ``most`` rows.
    """
    full = k.let(quotient(rows, height))
    rest = k.let(rows - full * height)
    tiles = k.let(full + tirx.Cast("int32", rest > 0))
    with shared_blocks(k, rows, tiles, panels, machine, most) as block:
        tile_code = panel_code(block)
        last = full - block.first
        with k.serial(tirx.min(block.end, full) - block.first) as tile:
            tile_code((block.first + tile) * height, height, tile)

        def tail(low: int, high: int) -> None:
            if low == high:
                tile_code(full * height, low, last)
                return
            middle = (low + high) // 2
            k.branch(rest <= middle, lambda: tail(low, middle), lambda: tail(middle + 1, high))

        def tails() -> None:
            power = 1 << (height - 1).bit_length() - 1
            while power:
                with k.when(tirx.bitwise_and(rest, int32(power)) > 0):
                    tile_code(full * height + tirx.bitwise_and(rest, int32(-2 * power)), power, last)
                power //= 2

        with k.when(tirx.all(block.is_last, rest > 0)):
            if halve:
                tails()
            else:
                tail(1, height - 1)
