"""Dot products of a few 8-bit integers per 32-bit lane: what one step of an integer register tile is made of.

A step takes one word of X, in every lane, and one word of W per lane, and adds to an int32 accumulator the
sum of the products of their ``group`` values.  X is unsigned (0 to 255), W signed (-128 to 127); how it is
done depends on what the machine has:

==========  ================================  ==========================  ========================
name        instructions                      needs                       exact
==========  ================================  ==========================  ========================
``dot4``    vpdpbusd                          AVX-512 VNNI or AVX-VNNI    always
``pairs8``  2 vpmaddubsw, vpaddw, vpmaddwd,   AVX2 or AVX-512 BW          two pairs of weights are safe
            vpaddd: two words at once
``pairs4``  vpmaddubsw, vpmaddwd, vpaddd      AVX2 or AVX-512 BW          a pair of weights is safe
``pairs2``  widened to int16; vpmaddwd        AVX2 or AVX-512 BW          always
``single``  widened to int32; multiply, add   nothing                     always
``halves``  vdpbf16ps                         AVX-512 BF16                sums in float32
==========  ================================  ==========================  ========================

The last one multiplies pairs of bfloat16 on both sides.

vpmaddubsw adds two products in 16 bits and saturates: 255 * 127 * 2 does not fit.  A *pair is safe* where no
two weights that meet in one word can do so: the positive ones of a pair sum up to at most 128, and so do the
negative ones (255 * 128 < 2**15).  Two pairs are safe where the same holds for pairs at the same place of
words 2i and 2i + 1, four weights in all: their products are added up in 16 bits before they are widened,
which spares one multiplication of four.  Whoever chooses the scale of the weights can see to that
(:func:`hetero_tvm.ops.integers.dynamic_matmul.quantized_weights`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.integers.dynamic_matmul import MOST_PAIRS, sums_of_pairs

_ONE_INTEGER_MULTIPLIER = ("znver1",)
"""CPUs that multiply integers in one of the two ports that multiply floats."""


_FAST_HALVES = "znver"
"""CPUs that multiply pairs of bfloat16 as fast as float32; on Xeons an instruction takes 3.4 times as long,
so that vectors are better off with float32 (measured on one with tiles)."""


@dataclass(frozen=True)
class Dot:
    """One way to add up products.

    Attributes
    ----------
    group : values of X, and of one column of W, in one word.
    x_dtype : type that X's values are kept in.
    cycles : instructions that a word issues to the multipliers' ports.
    temporaries : registers that a step needs beside accumulators, weights and words of X.
    source : LLVM IR of the function called; empty for plain arithmetic.
    words : words that one step takes; a last one that is left is :attr:`single`'s.
    sums : type of the accumulators.
    """

    name: str
    group: int
    x_dtype: str
    cycles: float
    temporaries: int
    source: str = ""
    words: int = 1
    single: Dot | None = None
    sums: str = "int32"

    @property
    def imports(self) -> tuple[str, ...]:
        """LLVM IR for a kernel to import (:meth:`Kernel.imported`)."""
        others = () if self.single is None else self.single.imports
        return (self.source, *others) if self.source else ()

    def steps(self, first: int, count: int) -> list[tuple[Dot, int]]:
        """(way, first word) of the steps that take ``count`` words from ``first`` on."""
        full = count // self.words
        steps = [(self, first + step * self.words) for step in range(full)]
        rest = range(first + full * self.words, first + count)
        return steps + [(self.single or self, word) for word in rest]

    def x_word(self, values: Expr) -> Expr:
        """The word that ``group`` values of X make."""
        return values.astype("int32") if self.group == 1 else tirx.reinterpret("int32", values)

    def w_words(self, values: Expr, lanes: int) -> Expr:
        """The word of each lane that ``group * lanes`` weights make."""
        if self.group == 1:
            return values.astype(_wide("int32", lanes))
        if self.x_dtype == "int16":
            values = values.astype(f"int16x{self.group * lanes}")
        return tirx.reinterpret(_wide("int32", lanes), values)

    def add(self, acc: Expr, lanes: int, *words: Expr) -> Expr:
        """``acc`` with the products of one step: X's word and W's, of each of :attr:`words`."""
        if not self.source:
            x_words, w_words = words
            return acc + x_words * w_words
        return tirx.call_extern(_wide(self.sums, lanes), f"hetero_tvm_{self.name}", acc, *words)


def dot_for(machine: CpuModel, pairs_safe: int = 0) -> Dot:
    """The fastest exact way on ``machine`` for weights of which so many pairs are safe."""
    features, lanes = set(machine.features), machine.lanes
    if lanes == 16 and "avx512_vnni" in features:
        return Dot("dot4", 4, "uint8", 1.0, 0, _dot4("avx512.vpdpbusd.512", lanes))
    if lanes == 8 and ("avx_vnni" in features or {"avx512_vnni", "avx512vl"} <= features):
        return Dot("dot4", 4, "uint8", 1.0, 0, _dot4("avx512.vpdpbusd.256", lanes))
    if (lanes == 16 and "avx512bw" in features) or (lanes == 8 and "avx2" in features):
        slow = 2.0 if machine.mcpu in _ONE_INTEGER_MULTIPLIER else 1.0
        if pairs_safe:
            one = Dot("pairs4", 4, "uint8", 2.1 * slow, 2, _pairs4(lanes))
            if pairs_safe == 1:
                return one
            return Dot("pairs8", 4, "uint8", 1.6 * slow, 3, _pairs8(lanes), 2, one)
        return Dot("pairs2", 2, "int16", 1.3 * slow, 1, _pairs2(lanes))
    return Dot("single", 1, "uint8", 2.0, 2)


def halves_for(machine: CpuModel) -> Dot | None:
    """Products of pairs of bfloat16; None where the machine has none."""
    if machine.lanes == 16 and "avx512_bf16" in machine.features:
        cycles = 1.0 if machine.mcpu.startswith(_FAST_HALVES) else 3.4
        return Dot("halves", 2, "uint16", cycles, 0, _halves(machine.lanes), sums="float32")
    return None


def wanted_pairs(machine: CpuModel) -> int:
    """Number of pairs of weights that make the fastest product on ``machine`` where they are safe."""
    ways = [dot_for(machine, pairs) for pairs in range(MOST_PAIRS + 1)]
    return ways.index(ways[-1])


def safe_pairs(w: np.ndarray) -> int:
    """Number of pairs of weights that cannot saturate 16 bits where they meet: int8 [..., K, N]."""
    for pairs in range(MOST_PAIRS, 0, -1):
        if all(part.max(initial=0) <= 128 for part in sums_of_pairs(w.astype(np.int16), pairs)):
            return pairs
    return 0


def _wide(dtype: str, lanes: int) -> str:
    return f"{dtype}x{lanes}" if lanes > 1 else dtype


def _define(name: str, lanes: int, body: list[str], declares: list[str], names: str = "cab") -> str:
    vector = f"<{lanes} x i32>"
    operands = ", ".join(f"{vector} %{operand}" for operand in names)
    head = f"define linkonce_odr {vector} @hetero_tvm_{name}({operands}) alwaysinline {{"
    return "\n".join([*declares, head, *body, "}"]) + "\n"


def _dot4(intrinsic: str, lanes: int) -> str:
    acc, bytes_ = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    return _define(
        "dot4",
        lanes,
        [
            f"  %x = bitcast {acc} %a to {bytes_}",
            f"  %y = bitcast {acc} %b to {bytes_}",
            f"  %r = call {acc} @llvm.x86.{intrinsic}({acc} %c, {bytes_} %x, {bytes_} %y)",
            f"  ret {acc} %r",
        ],
        [f"declare {acc} @llvm.x86.{intrinsic}({acc}, {bytes_}, {bytes_})"],
    )


def _halves(lanes: int) -> str:
    """vdpbf16ps; the operands come as words, as those of integers do."""
    sums, words, pairs = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    lines = [
        f"declare {sums} @{name}({sums}, {pairs}, {pairs})",
        f"define linkonce_odr {sums} @hetero_tvm_halves({sums} %c, {words} %a, {words} %b) alwaysinline {{",
        f"  %x = bitcast {words} %a to {pairs}",
        f"  %y = bitcast {words} %b to {pairs}",
        f"  %r = call {sums} @{name}({sums} %c, {pairs} %x, {pairs} %y)",
        f"  ret {sums} %r",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _names(lanes: int) -> tuple[str, str]:
    """LLVM's names of vpmaddubsw and vpmaddwd at this width."""
    if lanes == 16:
        return "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"
    return "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"


def _types(lanes: int) -> tuple[str, str, str]:
    """LLVM's types of sums, of pairs of products and of bytes at this width."""
    return f"<{lanes} x i32>", f"<{2 * lanes} x i16>", f"<{4 * lanes} x i8>"


def _declared(lanes: int) -> list[str]:
    """Declarations of what sums of pairs call."""
    (acc, words, bytes_), (of_bytes, of_words) = _types(lanes), _names(lanes)
    return [
        f"declare {words} @{of_bytes}({bytes_}, {bytes_})",
        f"declare {acc} @{of_words}({words}, {words})",
    ]


def _pairs4(lanes: int) -> str:
    (acc, words, bytes_), (of_bytes, of_words) = _types(lanes), _names(lanes)
    return _define(
        "pairs4",
        lanes,
        [
            f"  %x = bitcast {acc} %a to {bytes_}",
            f"  %y = bitcast {acc} %b to {bytes_}",
            f"  %p = call {words} @{of_bytes}({bytes_} %x, {bytes_} %y)",
            f"  %q = call {acc} @{of_words}({words} %p, {words} splat (i16 1))",
            f"  %r = add {acc} %c, %q",
            f"  ret {acc} %r",
        ],
        _declared(lanes),
    )


def _pairs8(lanes: int) -> str:
    (acc, words, bytes_), (of_bytes, of_words) = _types(lanes), _names(lanes)
    return _define(
        "pairs8",
        lanes,
        [
            *(f"  %{one}b = bitcast {acc} %{one} to {bytes_}" for one in "xwyv"),
            f"  %p = call {words} @{of_bytes}({bytes_} %xb, {bytes_} %wb)",
            f"  %q = call {words} @{of_bytes}({bytes_} %yb, {bytes_} %vb)",
            f"  %s = add {words} %p, %q",
            f"  %t = call {acc} @{of_words}({words} %s, {words} splat (i16 1))",
            f"  %r = add {acc} %c, %t",
            f"  ret {acc} %r",
        ],
        _declared(lanes),
        "cxwyv",
    )


def _pairs2(lanes: int) -> str:
    acc, words = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    of_words = _names(lanes)[1]
    return _define(
        "pairs2",
        lanes,
        [
            f"  %x = bitcast {acc} %a to {words}",
            f"  %y = bitcast {acc} %b to {words}",
            f"  %q = call {acc} @{of_words}({words} %x, {words} %y)",
            f"  %r = add {acc} %c, %q",
            f"  ret {acc} %r",
        ],
        [f"declare {acc} @{of_words}({words}, {words})"],
    )
