"""Products of AMX tiles, as LLVM IR that a kernel imports.

A tile register holds 16 rows of 64 bytes.  One instruction adds to 16 x 16 sums of 32 bits the products of 16
rows of X with 16 columns of W: 64 bytes of K, four 8-bit integers or two bfloat16 to a word, 16 times what a
vector instruction does.  W lies as words: row g of a tile has word g of each of its 16 columns.  Sums leave
the registers through memory only.

Intel, *Architecture Instruction Set Extensions Programming Reference*, chapter 3.
"""

from __future__ import annotations

from dataclasses import dataclass

TILE_ROWS = 16
"""Rows of a tile of X, and columns of one of W."""
TILE_BYTES = 64
"""Bytes of a row of a tile."""
TILE_WORDS = 16
"""Words along K that one instruction takes: rows of a tile of W."""
REGISTERS = 8

BEGIN, END = "hetero_tvm_tiles_begin", "hetero_tvm_tiles_end"
"""Functions that a thread calls before its first product and after its last."""

U8S8, BF16 = "tdpbusd", "tdpbf16ps"
"""Instructions: unsigned by signed 8-bit integers with sums in int32; bfloat16 with sums in float32."""

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@dataclass(frozen=True)
class TileProduct:
    """``acc[16 * rows, 16 * columns] = X @ W`` in tile registers.

    ``int32 name(acc, acc_stride, x, x_stride, w, w_stride, steps, ahead, acc_last, x_last)``: strides in bytes
    from one row to the next; ``steps`` of 64 bytes of X's rows, 16 rows of W; from ``ahead`` on, ``fetches``
    cache lines are asked for in every step.  The last two are addresses of the last elements: TVM makes a
    buffer as small as what it sees used of it.

    Attributes
    ----------
    instruction : :data:`U8S8` or :data:`BF16`.
    rows, columns : tiles of X's rows and of W's columns: registers are sums, then rows, then columns.
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
        """Definition of the function, :data:`BEGIN` and :data:`END`."""
        sums = self.rows * self.columns
        x = [sums + row for row in range(self.rows)]
        w = [sums + self.rows + column for column in range(self.columns)]
        lines = [
            f"define linkonce_odr i32 @{self.name}(ptr %acc, i64 %as, ptr %x, i64 %xs, ptr %w, i64 %ws, "
            "i64 %steps, ptr %ahead, ptr %acc_last, ptr %x_last) noinline {",
            "entry:",
            *(f"  call void @llvm.x86.tilezero(i8 {register})" for register in range(sums)),
            f"  %xr = mul i64 %xs, {TILE_ROWS}",
            f"  %wr = mul i64 %ws, {TILE_WORDS}",
            "  %any = icmp sgt i64 %steps, 0",
            "  br i1 %any, label %loop, label %done",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            "  %xa = phi ptr [ %x, %entry ], [ %xn, %loop ]",
            "  %wa = phi ptr [ %w, %entry ], [ %wn, %loop ]",
            "  %fa = phi ptr [ %ahead, %entry ], [ %fn, %loop ]",
        ]
        for column, register in enumerate(w):
            lines += [
                f"  %w{column} = getelementptr i8, ptr %wa, i64 {column * TILE_BYTES}",
                f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr %w{column}, i64 %ws)",
            ]
        source = "%xa"
        for row, register in enumerate(x):
            if row:
                lines.append(f"  %x{row} = getelementptr i8, ptr {source}, i64 %xr")
                source = f"%x{row}"
            lines.append(f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr {source}, i64 %xs)")
            lines += [
                f"  call void @llvm.x86.{self.instruction}(i8 {row * self.columns + column}, "
                f"i8 {register}, i8 {w[column]})"
                for column in range(self.columns)
            ]
        for line in range(self.fetches):
            lines += [
                f"  %f{line} = getelementptr i8, ptr %fa, i64 {line * 64}",
                f"  call void @llvm.prefetch.p0(ptr %f{line}, i32 0, i32 2, i32 1)",
            ]
        lines += [
            f"  %xn = getelementptr i8, ptr %xa, i64 {TILE_BYTES}",
            "  %wn = getelementptr i8, ptr %wa, i64 %wr",
            f"  %fn = getelementptr i8, ptr %fa, i64 {self.fetches * 64}",
            "  %next = add i64 %i, 1",
            "  %more = icmp slt i64 %next, %steps",
            "  br i1 %more, label %loop, label %done",
            "done:",
            f"  %ar = mul i64 %as, {TILE_ROWS}",
        ]
        for row in range(self.rows):
            lines.append(f"  %ao{row} = mul i64 %ar, {row}")
            lines.append(f"  %ap{row} = getelementptr i8, ptr %acc, i64 %ao{row}")
            for column in range(self.columns):
                register = row * self.columns + column
                lines += [
                    f"  %a{register} = getelementptr i8, ptr %ap{row}, i64 {column * TILE_BYTES}",
                    f"  call void @llvm.x86.tilestored64(i8 {register}, ptr %a{register}, i64 %as)",
                ]
        lines += [
            "  ret i32 0",
            "}",
            "declare void @llvm.x86.tilezero(i8)",
            "declare void @llvm.x86.tileloadd64(i8, ptr, i64)",
            "declare void @llvm.x86.tilestored64(i8, ptr, i64)",
            f"declare void @llvm.x86.{self.instruction}(i8, i8, i8)",
            "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        ]
        return "\n".join(lines) + "\n" + _begin_and_end()


def _begin_and_end() -> str:
    """The functions around products: permission, once per process; the shape of all tiles; their release."""
    config = bytearray(64)
    config[0] = 1
    for register in range(REGISTERS):
        config[16 + 2 * register] = TILE_BYTES
        config[48 + register] = TILE_ROWS
    shown = ", ".join(f"i8 {byte}" for byte in config)
    return f"""@hetero_tvm_tiles_shape = linkonce_odr constant [64 x i8] [{shown}], align 64
@hetero_tvm_tiles_asked = linkonce_odr global i32 0, align 4
define linkonce_odr i32 @{BEGIN}() noinline {{
entry:
  %asked = load atomic i32, ptr @hetero_tvm_tiles_asked monotonic, align 4
  %first = icmp eq i32 %asked, 0
  br i1 %first, label %ask, label %shape
ask:
  %r = call i64 asm sideeffect "syscall", "={{rax}},{{rax}},{{rdi}},{{rsi}},~{{rcx}},~{{r11}},~{{memory}}"(i64 {_ARCH_PRCTL}, i64 {_REQUEST_PERMISSION}, i64 {_TILE_DATA})
  store atomic i32 1, ptr @hetero_tvm_tiles_asked monotonic, align 4
  br label %shape
shape:
  call void @llvm.x86.ldtilecfg(ptr @hetero_tvm_tiles_shape)
  ret i32 0
}}
define linkonce_odr i32 @{END}() noinline {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
"""
