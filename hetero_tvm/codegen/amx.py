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

LINE, WORD = 64, 4
"""Bytes of a cache line, and of a word."""
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
STRIDE = (
    "  %x_at = ptrtoint ptr %x to i64",
    "  %next_at = ptrtoint ptr %next_x to i64",
    "  %x_stride = sub i64 %next_at, %x_at",
)
"""Distance ``%x_stride`` from the addresses of two rows."""
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
        tiles = Tiles((self.instruction,) * self.rows, self.columns)
        body = [
            *STRIDE,
            f"  %x_tile = mul i64 %x_stride, {TILE_ROWS}",
            f"  %w_step = mul i64 %w_stride, {TILE_WORDS}",
            *tiles.zero(),
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            "  %xa = phi ptr [ %x, %entry ], [ %xn, %loop ]",
            "  %wa = phi ptr [ %w, %entry ], [ %wn, %loop ]",
            "  %fa = phi ptr [ %ahead, %entry ], [ %fn, %loop ]",
            *tiles.multiply("%xa", "%x_tile", "%x_stride", "%wa", str(TILE_WORDS * WORD), "%w_stride"),
        ]
        body += [
            *fetched(self.fetches),
            f"  %xn = getelementptr i8, ptr %xa, i64 {TILE_WORDS * WORD}",
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
        return function(self.name, head, body) + tiles.declared + around(TILE_WORDS)


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
        tiles = Tiles(self.planes, 2)
        row, line = str(2 * TILE_ROWS * WORD), str(self.words * WORD)
        body = tiles.zero()
        for step in range(self.steps):
            x, w = f"%x.{step}", f"%w.{step}"
            body += [
                f"  {x} = getelementptr i8, ptr %x, i64 {step * TILE_ROWS * self.words * WORD}",
                f"  {w} = getelementptr i8, ptr %w, i64 {step * self.words * int(row)}",
            ]
            place = str(TILE_ROWS * WORD)
            body += tiles.multiply(x, str(self.distance), line, w, place, row, f".{step}")
        head = "ptr %x, ptr %w, ptr %last_sum, ptr %last_x"
        return function(self.name, head, [*body, *tiles.store()]) + tiles.declared + around(self.words)


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
        tiles, tile = Tiles((BF16,) * self.rows, 2), TILE_ROWS * TILE_WORDS * WORD
        line, row = str(TILE_WORDS * WORD), 2 * TILE_WORDS * WORD
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
            *fetched(self.fetches),
            f"  %xn = getelementptr i8, ptr %xa, i64 {self.parts * 2 * tile}",
            f"  %wn = getelementptr i8, ptr %wa, i64 {TILE_WORDS * row}",
            "  %next = add i64 %i, 1",
            "  %more = icmp slt i64 %next, %steps",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *tiles.store(),
        ]
        head = "ptr %x, ptr %w, i64 %steps, ptr %ahead, ptr %last_sum, ptr %last_x"
        return function(self.name, head, body) + tiles.declared + around(TILE_WORDS)


@dataclass(frozen=True)
class Tiles:
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
        """One step: all loads, then all products; ``step`` ends the names of its own.

        A load behind a product leaves the processor after it, and keeps the place of one of the next step's
        (measured: .89 to .98 of a convolution's time with products between loads).
        """
        loads = self._left_loads(left, left_tile, left_stride, step)
        return loads + self.right(right, right_tile, right_stride, step) + self._products()

    def right(self, right: str, right_tile: str, right_stride: str, step: str = "") -> list[str]:
        """Loads of the right tiles."""
        first = REGISTERS - self.columns
        return _loads("r", right, right_tile, self.columns, first, right_stride, step)

    def left(self, left: str, left_tile: str, left_stride: str, step: str = "") -> list[str]:
        """The left tiles and their products with the right ones, which are loaded."""
        return self._left_loads(left, left_tile, left_stride, step) + self._products()

    def _left_loads(self, left: str, left_tile: str, left_stride: str, step: str) -> list[str]:
        return _loads("l", left, left_tile, self.rows, _LEFT, left_stride, step)

    def _products(self) -> list[str]:
        first = REGISTERS - self.columns
        return [
            f"  call void @llvm.x86.{instruction}"
            f"(i8 {row * self.columns + column}, i8 {_LEFT + row}, i8 {first + column})"
            for row, instruction in enumerate(self.instructions)
            for column in range(self.columns)
        ]

    def store(self) -> list[str]:
        lines = [f"  %s_tile = mul i64 %sums_stride, {TILE_ROWS}"]
        for row in range(self.rows):
            above = f"%s{row - 1}" if row else "%sums"
            lines.append(f"  %s{row} = getelementptr i8, ptr {above}, i64 {'%s_tile' if row else '0'}")
            for column in range(self.columns):
                place = f"%s{row}_{column}"
                lines += [
                    f"  {place} = getelementptr i8, ptr %s{row}, i64 {column * TILE_WORDS * WORD}",
                    f"  call void @llvm.x86.tilestored64"
                    f"(i8 {row * self.columns + column}, ptr {place}, i64 %sums_stride)",
                ]
        return lines


def _loads(side: str, first: str, tile: str, count: int, register: int, stride: str, step: str) -> list[str]:
    """Loads of ``count`` tiles from ``first`` on, ``tile`` bytes from each to the next."""
    lines, source = [], first
    for index in range(count):
        if index:
            before, source = source, f"%{side}{index}{step}"
            lines.append(f"  {source} = getelementptr i8, ptr {before}, i64 {tile}")
        lines.append(f"  call void @llvm.x86.tileloadd64(i8 {register + index}, ptr {source}, i64 {stride})")
    return lines


def fetched(lines: int) -> list[str]:
    """Requests for so many cache lines from ``%fa`` on; ``%fn`` is the place behind them."""
    found = []
    for line in range(lines):
        found += [
            f"  %f{line} = getelementptr i8, ptr %fa, i64 {line * LINE}",
            f"  call void @llvm.prefetch.p0(ptr %f{line}, i32 0, i32 2, i32 1)",
        ]
    return [*found, f"  %fn = getelementptr i8, ptr %fa, i64 {lines * LINE}"]


def function(name: str, arguments: str, body: list[str], stride: str = " i64 %sums_stride,") -> str:
    head = f"define linkonce_odr i32 @{name}(ptr %sums,{stride} {arguments}) noinline {{"
    return "\n".join([head, "entry:", *body, "  ret i32 0", "}"]) + "\n"


def around(words: int) -> str:
    """The functions around products: permission, once per process; the shapes of tiles; their release."""
    config = bytearray(64)
    config[0] = 1
    for register in range(REGISTERS):
        left = _LEFT <= register < _LEFT + 2
        right = register >= _LEFT + 2
        config[16 + 2 * register] = words * WORD if left else TILE_WORDS * WORD
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
