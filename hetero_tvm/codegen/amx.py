"""Products of AMX tiles, as LLVM IR that a kernel imports.

A tile register holds up to 16 rows of 64 bytes.  One instruction adds to 16 x 16 sums of 32 bits the products
of the 16 rows of a left tile with the 16 columns of a right one: up to 64 bytes of K, as 16 words of four
8-bit integers or of two bfloat16, 16 times what a vector instruction does.  A left tile has its words one
after the other; a right tile has word g of each of its columns in row g.  Sums leave the registers through
memory only.

Registers: 0 to 3 are sums, left tiles follow from 4 on, right tiles end at 7.

Intel, *Architecture Instruction Set Extensions Programming Reference*, chapter 3.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

TILE_ROWS = 16
"""Rows of a left tile, and columns of a right one."""
TILE_WORDS = 16
"""Most words along K that one instruction takes."""
REGISTERS, _LEFT = 8, 4

U8S8, S8U8, S8S8, U8U8, BF16 = "tdpbusd", "tdpbsud", "tdpbssd", "tdpbuud", "tdpbf16ps"
"""Instructions, by left and right operand: 8-bit integers with sums in int32; bfloat16, sums in float32."""

END = "hetero_tvm_tiles_end"
"""Function that a thread calls after its last product."""

_LINE, _WORD = 64, 4
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
_STRIDE = (
    "  %x_at = ptrtoint ptr %x to i64",
    "  %next_at = ptrtoint ptr %next_x to i64",
    "  %x_stride = sub i64 %next_at, %x_at",
)
_DECLARED = """\
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tilestored64(i8, ptr, i64)
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
"""


def begin(words: int = TILE_WORDS) -> str:
    """Name of the function that a thread calls before its first product of so many words."""
    return f"hetero_tvm_tiles_begin_{words}"


@dataclass(frozen=True)
class RowsProduct:
    """``sums[16 * rows, 16 * columns] = X @ W``, rows of X to the left and packed columns of W to the right.

    ``int32 name(sums, sums_stride, x, next_x, w, w_stride, steps, ahead, last_sum, last_x)``: strides in
    bytes from one row to the next; ``steps`` of 64 bytes of X's rows, 16 rows of W; from ``ahead`` on,
    ``fetches`` cache lines are asked for in every step.  TVM makes a buffer as small as what it sees used of
    it, and may make its rows longer: so there is the address of X's next row, and the last two are those of
    the last elements.

    Attributes
    ----------
    instruction : :data:`U8S8` or :data:`BF16`.
    rows, columns : left and right tiles: 2 and up to 2, or 1 and up to 3.
    fetches : cache lines asked for per step.
    """

    instruction: str
    rows: int
    columns: int
    fetches: int = 0

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"hetero_tvm_{self.instruction}_{self.rows}x{self.columns}_{self.fetches}"

    @property
    def ir(self) -> str:
        """Definition of the function and of those around it."""
        tiles = _Tiles((self.instruction,) * self.rows, self.columns)
        body = [
            *_STRIDE,
            f"  %x_tile = mul i64 %x_stride, {TILE_ROWS}",
            f"  %w_step = mul i64 %w_stride, {TILE_WORDS}",
            *tiles.zero(),
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            "  %xa = phi ptr [ %x, %entry ], [ %xn, %loop ]",
            "  %wa = phi ptr [ %w, %entry ], [ %wn, %loop ]",
            "  %fa = phi ptr [ %ahead, %entry ], [ %fn, %loop ]",
            *tiles.multiply("%xa", "%x_tile", "%x_stride", "%wa", str(TILE_WORDS * _WORD), "%w_stride"),
        ]
        body += [
            *_fetched(self.fetches),
            f"  %xn = getelementptr i8, ptr %xa, i64 {TILE_WORDS * _WORD}",
            "  %wn = getelementptr i8, ptr %wa, i64 %w_step",
            "  %next = add i64 %i, 1",
            "  %more = icmp slt i64 %next, %steps",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *tiles.store(),
        ]
        head = (
            "ptr %x, ptr %next_x, ptr %w, i64 %w_stride, i64 %steps, ptr %ahead, ptr %last_sum, ptr %last_x"
        )
        return _function(self.name, head, body) + tiles.declared + _around(TILE_WORDS)


@dataclass(frozen=True)
class WindowProduct:
    """``sums[16 * filters, 16 * tiles]``: filters to the left, words of an image at the places of a window to
    the right.

    ``int32 name(sums, sums_stride, w, w_tile, x, next_x, x_tile, ahead, last_sum, last_x)``: in bytes the
    stride of the sums' rows; from one tile of filters to the next; from one tile of pixels to the next.  Each
    step reads a left tile, which lie one behind the other, and the right one at the place of its tap, or
    behind the words of the step before.  The others are those of :class:`RowsProduct`.

    Attributes
    ----------
    filters, tiles : left and right tiles, 1 or 2 of each.
    words : words of one step.
    steps : steps of one tap.
    places : of each tap, bytes from ``x`` on.
    fetches : cache lines asked for per step.
    """

    filters: int
    tiles: int
    words: int
    steps: int
    places: tuple[int, ...]
    fetches: int = 0

    @property
    def name(self) -> str:
        """Name of the function."""
        places = hashlib.sha256(repr(self.places).encode()).hexdigest()[:12]
        form = f"{self.filters}x{self.tiles}x{self.words}x{self.steps}"
        return f"hetero_tvm_window_{form}_{places}_{self.fetches}"

    @property
    def ir(self) -> str:
        """Definition of the function and of those around it."""
        tiles, taps = _Tiles((S8U8,) * self.filters, self.tiles), len(self.places)
        stride = self.words * _WORD
        table = ", ".join(f"i64 {place}" for place in self.places)
        body = [
            *_STRIDE,
            f"  %x_step = mul i64 %x_stride, {self.words}",
            *tiles.zero(),
            "  br label %tap",
            "tap:",
            "  %t = phi i64 [ 0, %entry ], [ %next_tap, %tap_done ]",
            "  %wt = phi ptr [ %w, %entry ], [ %wn, %tap_done ]",
            "  %ft = phi ptr [ %ahead, %entry ], [ %fn, %tap_done ]",
            f"  %place_at = getelementptr [{taps} x i64], ptr @{self.name}_places, i64 0, i64 %t",
            "  %place = load i64, ptr %place_at, align 8",
            "  %xt = getelementptr i8, ptr %x, i64 %place",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %tap ], [ %next, %loop ]",
            "  %wa = phi ptr [ %wt, %tap ], [ %wn, %loop ]",
            "  %fa = phi ptr [ %ft, %tap ], [ %fn, %loop ]",
            "  %xa = phi ptr [ %xt, %tap ], [ %xn, %loop ]",
            *tiles.multiply("%wa", "%w_tile", str(stride), "%xa", "%x_tile", "%x_stride"),
            *_fetched(self.fetches),
            f"  %wn = getelementptr i8, ptr %wa, i64 {TILE_ROWS * stride}",
            "  %xn = getelementptr i8, ptr %xa, i64 %x_step",
            "  %next = add i64 %i, 1",
            f"  %more = icmp slt i64 %next, {self.steps}",
            "  br i1 %more, label %loop, label %tap_done",
            "tap_done:",
            "  %next_tap = add i64 %t, 1",
            f"  %more_taps = icmp slt i64 %next_tap, {taps}",
            "  br i1 %more_taps, label %tap, label %done",
            "done:",
            *tiles.store(),
        ]
        head = "ptr %w, i64 %w_tile, ptr %x, ptr %next_x, i64 %x_tile, ptr %ahead, ptr %last_sum, ptr %last_x"
        places = f"@{self.name}_places = linkonce_odr constant [{taps} x i64] [{table}], align 64\n"
        return places + _function(self.name, head, body) + tiles.declared + _around(self.words)


@dataclass(frozen=True)
class PixelProduct:
    """``sums[16 * rows, 16 * columns]``: pixels of an image to the left, packed filters to the right.

    ``int32 name(sums, x, w, ahead, last_sum, last_x)``.  A pixel holds 64 bytes of one plane, and each step
    takes those of a tap: all taps of a plane, then the next plane.  Right tiles lie one behind the other in
    this order.  All distances are in bytes; the arguments are those of :class:`RowsProduct`.

    Attributes
    ----------
    instruction : :data:`BF16`, or another one.
    rows, columns : left and right tiles: 2 and up to 2, or 1 and up to 3.
    across, down : from one pixel of a tile to the next; from one tile to the next.
    places : of each tap, from ``x`` on.
    planes, plane : how many, and from one to the next.
    fetches : cache lines asked for per step.
    """

    instruction: str
    rows: int
    columns: int
    across: int
    down: int
    places: tuple[int, ...]
    planes: int
    plane: int
    fetches: int = 0

    @property
    def name(self) -> str:
        """Name of the function."""
        form = hashlib.sha256(repr(self).encode()).hexdigest()[:16]
        return f"hetero_tvm_pixels_{self.instruction}_{self.rows}x{self.columns}_{form}"

    @property
    def ir(self) -> str:
        """Definition of the function and of those around it."""
        tiles, taps = _Tiles((self.instruction,) * self.rows, self.columns), len(self.places)
        line = self.columns * TILE_WORDS * _WORD
        table = ", ".join(f"i64 {place}" for place in self.places)
        body = [
            f"  %sums_stride = add i64 0, {line}",
            *tiles.zero(),
            "  br label %plane",
            "plane:",
            "  %p = phi i64 [ 0, %entry ], [ %next_plane, %plane_done ]",
            "  %xp = phi ptr [ %x, %entry ], [ %xn, %plane_done ]",
            "  %wp = phi ptr [ %w, %entry ], [ %wn, %plane_done ]",
            "  %fp = phi ptr [ %ahead, %entry ], [ %fn, %plane_done ]",
            "  br label %loop",
            "loop:",
            "  %t = phi i64 [ 0, %plane ], [ %next, %loop ]",
            "  %wa = phi ptr [ %wp, %plane ], [ %wn, %loop ]",
            "  %fa = phi ptr [ %fp, %plane ], [ %fn, %loop ]",
            f"  %place_at = getelementptr [{taps} x i64], ptr @{self.name}_places, i64 0, i64 %t",
            "  %place = load i64, ptr %place_at, align 8",
            "  %xa = getelementptr i8, ptr %xp, i64 %place",
            *tiles.multiply("%xa", str(self.down), str(self.across), "%wa", str(_LINE), str(line)),
            *_fetched(self.fetches),
            f"  %wn = getelementptr i8, ptr %wa, i64 {TILE_WORDS * line}",
            "  %next = add i64 %t, 1",
            f"  %more = icmp slt i64 %next, {taps}",
            "  br i1 %more, label %loop, label %plane_done",
            "plane_done:",
            f"  %xn = getelementptr i8, ptr %xp, i64 {self.plane}",
            "  %next_plane = add i64 %p, 1",
            f"  %more_planes = icmp slt i64 %next_plane, {self.planes}",
            "  br i1 %more_planes, label %plane, label %done",
            "done:",
            *tiles.store(),
        ]
        head = "ptr %x, ptr %w, ptr %ahead, ptr %last_sum, ptr %last_x"
        places = f"@{self.name}_places = linkonce_odr constant [{taps} x i64] [{table}], align 64\n"
        return places + _function(self.name, head, body, "") + tiles.declared + _around(TILE_WORDS)


@dataclass(frozen=True)
class GroupProduct:
    """``sums[16 * planes, 32] = X @ W`` over a few words along K: one or two left tiles, two right ones.

    ``int32 name(sums, sums_stride, x, w, last_sum, last_x)``: X's tiles lie one behind the other, those of a
    plane first, ``distance`` bytes from one plane to the next; rows of W have 32 words.

    Attributes
    ----------
    planes : instruction by left tile.
    words : words of one step.
    steps : steps along K.
    distance : bytes from the tiles of the first plane to those of the second.
    """

    planes: tuple[str, ...]
    words: int
    steps: int
    distance: int

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"hetero_tvm_group_{'_'.join(self.planes)}_{self.words}x{self.steps}_{self.distance}"

    @property
    def ir(self) -> str:
        """Definition of the function and of those around it."""
        tiles = _Tiles(self.planes, 2)
        row, line = str(2 * TILE_ROWS * _WORD), str(self.words * _WORD)
        body = tiles.zero()
        for step in range(self.steps):
            x, w = f"%x.{step}", f"%w.{step}"
            body += [
                f"  {x} = getelementptr i8, ptr %x, i64 {step * TILE_ROWS * self.words * _WORD}",
                f"  {w} = getelementptr i8, ptr %w, i64 {step * self.words * int(row)}",
            ]
            place = str(TILE_ROWS * _WORD)
            body += tiles.multiply(x, str(self.distance), line, w, place, row, f".{step}")
        head = "ptr %x, ptr %w, ptr %last_sum, ptr %last_x"
        return _function(self.name, head, [*body, *tiles.store()]) + tiles.declared + _around(self.words)


@dataclass(frozen=True)
class PartsProduct:
    """``sums[16 * rows, 32] = (X1 + X2 + ...) @ W`` of bfloat16: parts of X to the left, two right tiles.

    ``int32 name(sums, sums_stride, x, w, steps, ahead, last_sum, last_x)``: X is [steps, parts, 2 tiles, 16
    rows, 64 bytes], of which the first tile may do; rows of W have 32 words.  From ``ahead`` on, ``fetches``
    cache lines are asked for in every step.

    Attributes
    ----------
    rows : left tiles, 1 or 2.
    parts : numbers that an element of X is the sum of.
    fetches : cache lines asked for per step.
    """

    rows: int
    parts: int
    fetches: int = 0

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"hetero_tvm_parts_{self.rows}x{self.parts}_{self.fetches}"

    @property
    def ir(self) -> str:
        """Definition of the function and of those around it."""
        tiles, tile = _Tiles((BF16,) * self.rows, 2), TILE_ROWS * TILE_WORDS * _WORD
        line, row = str(TILE_WORDS * _WORD), 2 * TILE_WORDS * _WORD
        body = [
            *tiles.zero(),
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            "  %xa = phi ptr [ %x, %entry ], [ %xn, %loop ]",
            "  %wa = phi ptr [ %w, %entry ], [ %wn, %loop ]",
            "  %fa = phi ptr [ %ahead, %entry ], [ %fn, %loop ]",
            *tiles.right("%wa", line, str(row)),
        ]
        for part in range(self.parts):
            body.append(f"  %xp{part} = getelementptr i8, ptr %xa, i64 {part * 2 * tile}")
            body += tiles.left(f"%xp{part}", str(tile), line, f".{part}")
        body += [
            *_fetched(self.fetches),
            f"  %xn = getelementptr i8, ptr %xa, i64 {self.parts * 2 * tile}",
            f"  %wn = getelementptr i8, ptr %wa, i64 {TILE_WORDS * row}",
            "  %next = add i64 %i, 1",
            "  %more = icmp slt i64 %next, %steps",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *tiles.store(),
        ]
        head = "ptr %x, ptr %w, i64 %steps, ptr %ahead, ptr %last_sum, ptr %last_x"
        return _function(self.name, head, body) + tiles.declared + _around(TILE_WORDS)


@dataclass(frozen=True)
class _Tiles:
    """Instructions on a rectangle of sums, by row of tiles."""

    instructions: tuple[str, ...]
    columns: int

    @property
    def rows(self) -> int:
        return len(self.instructions)

    @property
    def declared(self) -> str:
        names = dict.fromkeys(self.instructions)
        return "".join(f"declare void @llvm.x86.{name}(i8, i8, i8)\n" for name in names)

    def zero(self) -> list[str]:
        return [f"  call void @llvm.x86.tilezero(i8 {n})" for n in range(self.rows * self.columns)]

    def multiply(
        self,
        left: str,
        left_tile: str,
        left_stride: str,
        right: str,
        right_tile: str,
        right_stride: str,
        step: str = "",
    ) -> list[str]:
        """One step: right tiles, then each left tile and its products; ``step`` ends the names of its own."""
        lines = self.right(right, right_tile, right_stride, step)
        return lines + self.left(left, left_tile, left_stride, step)

    def right(self, right: str, right_tile: str, right_stride: str, step: str = "") -> list[str]:
        """Loads of the right tiles."""
        lines = []
        for column in range(self.columns):
            name, register = f"%r{column}{step}", REGISTERS - self.columns + column
            lines += _loaded(right, name, right_tile, column, register, right_stride)
            right = name if column else right
        return lines

    def left(self, left: str, left_tile: str, left_stride: str, step: str = "") -> list[str]:
        """Each left tile and its products with the right ones."""
        first, lines = REGISTERS - self.columns, []
        for row in range(self.rows):
            name = f"%l{row}{step}"
            lines += _loaded(left, name, left_tile, row, _LEFT + row, left_stride)
            left = name if row else left
            lines += [
                f"  call void @llvm.x86.{self.instructions[row]}"
                f"(i8 {row * self.columns + column}, i8 {_LEFT + row}, i8 {first + column})"
                for column in range(self.columns)
            ]
        return lines

    def store(self) -> list[str]:
        lines = [f"  %s_tile = mul i64 %sums_stride, {TILE_ROWS}"]
        for row in range(self.rows):
            above = f"%s{row - 1}" if row else "%sums"
            lines.append(f"  %s{row} = getelementptr i8, ptr {above}, i64 {'%s_tile' if row else '0'}")
            for column in range(self.columns):
                place = f"%s{row}_{column}"
                lines += [
                    f"  {place} = getelementptr i8, ptr %s{row}, i64 {column * TILE_WORDS * _WORD}",
                    f"  call void @llvm.x86.tilestored64"
                    f"(i8 {row * self.columns + column}, ptr {place}, i64 %sums_stride)",
                ]
        return lines


def _loaded(before: str, name: str, tile: str, index: int, register: int, stride: str) -> list[str]:
    """Load of tile ``index``, ``tile`` bytes behind the one at ``before``."""
    lines = [f"  {name} = getelementptr i8, ptr {before}, i64 {tile}"] if index else []
    source = name if index else before
    return [*lines, f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr {source}, i64 {stride})"]


def _fetched(lines: int) -> list[str]:
    """Requests for so many cache lines from ``%fa`` on; ``%fn`` is the place behind them."""
    found = []
    for line in range(lines):
        found += [
            f"  %f{line} = getelementptr i8, ptr %fa, i64 {line * _LINE}",
            f"  call void @llvm.prefetch.p0(ptr %f{line}, i32 0, i32 2, i32 1)",
        ]
    return [*found, f"  %fn = getelementptr i8, ptr %fa, i64 {lines * _LINE}"]


def _function(name: str, arguments: str, body: list[str], stride: str = " i64 %sums_stride,") -> str:
    head = f"define linkonce_odr i32 @{name}(ptr %sums,{stride} {arguments}) noinline {{"
    return "\n".join([head, "entry:", *body, "  ret i32 0", "}"]) + "\n"


def _around(words: int) -> str:
    """The functions around products: permission, once per process; the shapes of tiles; their release."""
    config = bytearray(64)
    config[0] = 1
    for register in range(REGISTERS):
        left = _LEFT <= register < _LEFT + 2
        right = register >= _LEFT + 2
        config[16 + 2 * register] = words * _WORD if left else TILE_WORDS * _WORD
        config[48 + register] = words if right else TILE_ROWS
    shapes = ", ".join(f"i8 {byte}" for byte in config)
    clobbered = "~{rcx},~{r11},~{memory}"
    return f"""\
@hetero_tvm_tiles_{words} = linkonce_odr constant [64 x i8] [{shapes}], align 64
@hetero_tvm_tiles_asked = linkonce_odr global i32 0, align 4
define linkonce_odr i32 @{begin(words)}() noinline {{
entry:
  %asked = load atomic i32, ptr @hetero_tvm_tiles_asked monotonic, align 4
  %first = icmp eq i32 %asked, 0
  br i1 %first, label %ask, label %shape
ask:
  %r = call i64 asm sideeffect "syscall", "={{rax}},{{rax}},{{rdi}},{{rsi}},{clobbered}"\
(i64 {_ARCH_PRCTL}, i64 {_REQUEST_PERMISSION}, i64 {_TILE_DATA})
  store atomic i32 1, ptr @hetero_tvm_tiles_asked monotonic, align 4
  br label %shape
shape:
  call void @llvm.x86.ldtilecfg(ptr @hetero_tvm_tiles_{words})
  ret i32 0
}}
define linkonce_odr i32 @{END}() noinline {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
{_DECLARED}"""
