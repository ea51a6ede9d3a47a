"""Attention forward in one kernel, with online softmax, on tensor cores.

Dao et al., "FlashAttention-2" (2023); online softmax by Milakov and Gimelshein (2018).
"""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import tirx  # noqa: E402
from tvm.backend.cuda import op as ptx  # noqa: E402
from tvm.tirx.script.builder import ir as T  # noqa: E402

from hetero_tvm.ops.attention import Attention  # noqa: E402
from hetero_tvm.ops.base import FusedOp  # noqa: E402
from hetero_tvm.schedules.base import DesignSpace, Knob, Point  # noqa: E402
from hetero_tvm.schedules.cpu.emit import Kernel, int32  # noqa: E402
from hetero_tvm.targets.cuda.model import SHARED_STATIC, GpuModel  # noqa: E402

_LOWEST = -1e30
"""Below every score (in powers of two) that is not masked, and finite: differences stay defined."""
_PAD = 8
"""float16 values between rows in shared memory: rows start in different banks, 16-byte aligned."""


class CudaAttentionSpace(DesignSpace):
    """float16 attention with float32 scores, sums and accumulators.

    Loop structure: one block of ``warps`` warps per 16 * ``warps`` queries of one head; each warp keeps
    its 16 queries and their accumulators in registers, and the block steps over ``keys`` keys at a
    time in shared memory::

        blockIdx.z over batch, blockIdx.y over heads, blockIdx.x over blocks of queries
          threadIdx.y over warps, threadIdx.x over lanes
            query fragments from global memory to registers
            key blocks that any of the queries may see
              K and V rows to shared memory, 16 bytes a thread, rows padded
              S = Q K^T: ldmatrix, mma.sync m16n8k16
              mask, running maximum and sum of each row (two shuffles)
              P, in the accumulators' registers, is the next product's fragment as it is
              O = O * correction + P V: ldmatrix.trans, mma.sync

    It is fast because scores never leave registers, K and V are read once per block of queries, and
    blocks of keys beyond the diagonal are skipped.
    """

    name = "cuda.attention"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Attention):
            return f"it serves attention, not {op.kind}"
        if op.dtype != "float16":
            return f"tensor cores take float16 here, not {op.dtype}"
        if op.head_dim % 16 or op.values % 16 or max(op.head_dim, op.values) > 128:
            return f"the head dimensions {op.head_dim} and {op.values} are not multiples of 16 up to 128"
        if any(step % 8 for place in op.heads_at for step in place[1:]):
            return "rows of heads do not start at multiples of 16 bytes"
        return None

    def knobs(self, op: Attention, machine: GpuModel) -> tuple[Knob, ...]:
        keys = tuple(n for n in (64, 32, 128, 16) if _shared(op, n) <= SHARED_STATIC)
        return (Knob("warps", (4, 2, 8, 1)), Knob("keys", keys))

    def default(self, op: Attention, machine: GpuModel) -> Point:
        blocks = op.batch * op.heads
        warps = next((w for w in (8, 4) if blocks * -(-op.q_len // (16 * w)) >= 2 * machine.sms), 2)
        if op.head_dim > 64 and warps == 8:
            warps = 4
        known = self.knobs(op, machine)[1].choices
        wanted = 64 if op.kv_len > 32 else 32 if op.kv_len > 16 else 16
        return {"warps": warps, "keys": wanted if wanted in known else known[0]}

    def emit(self, op: Attention, point: Point, machine: GpuModel) -> Any:
        return _Emitter(op, point["warps"], point["keys"]).function()

    def features(self, op: Attention, point: Point, machine: GpuModel) -> list[float]:
        queries = 16 * point["warps"]
        blocks = op.batch * op.heads * -(-op.q_len // queries)
        return [
            math.log2(point["warps"]), math.log2(point["keys"]), math.log2(op.head_dim), float(op.causal),
            blocks / machine.sms, math.log2(max(1, op.kv_len)), _shared(op, point["keys"]) / 1024,
        ]  # fmt: skip


def _shared(op: Attention, keys: int) -> int:
    return keys * (op.head_dim + op.values + 2 * _PAD) * 2


def _f(value: float) -> Any:
    return tirx.const(value, "float32")


class _Emitter:
    """Writes the kernel of one point, as what one thread does."""

    def __init__(self, op: Attention, warps: int, keys: int):
        self.op, self.warps, self.keys = op, warps, keys
        self.dim, self.values = op.head_dim, op.values
        self.group = op.heads // op.kv_heads

    def function(self) -> Any:
        op, k = self.op, Kernel("attention")
        with k:
            self.k = k
            tensors = {x.name: k.argument(x.name, x.shape, x.dtype) for x in op.inputs}
            self.mask = tensors.get("mask")
            self.out = k.argument("O", op.output.shape, op.dtype)
            # Memory is what the places of heads are told in: every operand as one row of elements.
            flat = [k.view(tensors[x.name], (math.prod(x.shape),)) for x in op.inputs]
            self.q, self.key, self.value = ((flat[place.operand], place) for place in op.heads_at)
            queries = 16 * self.warps
            with (
                T.launch_thread("blockIdx.z", op.batch) as self.b,
                T.launch_thread("blockIdx.y", op.heads) as self.h,
                T.launch_thread("blockIdx.x", -(-op.q_len // queries)) as self.bx,
                T.launch_thread("threadIdx.y", self.warps) as self.warp,
                T.launch_thread("threadIdx.x", 32) as self.lane,
            ):
                self._body(queries)
        return k.function

    def _body(self, queries: int) -> None:
        k, dim, values = self.k, self.dim, self.values
        self.shared_k = T.alloc_buffer((self.keys * (dim + _PAD),), "float16", scope="shared")
        self.shared_v = T.alloc_buffer((self.keys * (values + _PAD),), "float16", scope="shared")
        self.q_reg = k.scratch((dim // 16 * 8,), "float16")
        self.b_reg = k.scratch((8,), "float16")
        self.s_reg = k.scratch((self.keys // 8 * 4,))
        self.p_reg = k.scratch((self.keys // 8 * 4,), "float16")
        self.o_reg = k.scratch((values // 8 * 4,))
        self.peak, self.total = k.scratch((2,)), k.scratch((2,))
        self.fresh, self.scale = k.scratch((2,)), k.scratch((2,))
        self.row = k.let(self.bx * queries + self.warp * 16 + self.lane // 4)
        self._load_queries()
        for r in range(2):
            k.store(self.peak, _f(_LOWEST), [int32(r)])
            k.store(self.total, _f(0), [int32(r)])
        with k.unroll(values // 8 * 4) as i:
            k.store(self.o_reg, _f(0), [i])
        with k.serial(self._key_blocks(queries)) as n:
            first = k.let(n * self.keys)
            T.evaluate(tirx.op.tvm_storage_sync("shared"))
            self._to_shared(self.key, dim, self.shared_k, first)
            self._to_shared(self.value, values, self.shared_v, first)
            T.evaluate(tirx.op.tvm_storage_sync("shared"))
            self._scores()
            self._mask(first)
            self._online_softmax()
            self._accumulate()
        self._store()

    def _key_blocks(self, queries: int) -> Any:
        every = -(-self.op.kv_len // self.keys)
        if not self.op.causal:
            return every
        last = self.bx * queries + (queries - 1 + self.op.kv_len - self.op.q_len)
        return tirx.min(int32(every), tirx.max(last + self.keys, int32(0)) // self.keys)

    def _load_queries(self) -> None:
        """A fragments of m16n8k16: pairs of row g and g + 8, columns 2t and 2t + 8 of each 16."""
        k, (source, place) = self.k, self.q
        # One by one: were all accesses pairs, TVM would make this an array of pairs, and the offsets
        # that mma is given, in elements, would be wrong.
        with k.unroll(self.dim // 2) as i:
            k.store(self.q_reg, tirx.const(0, "float16"), [i])
        for r in range(2):
            row = self.row + 8 * r
            with k.when(row < self.op.q_len), k.unroll(self.dim // 8) as half:
                at = self._at(place, self.h, row, half * 8 + self.lane % 4 * 2)
                value = k.load(source, [k.ramp(at, 2)])
                k.store(self.q_reg, value, [k.ramp(half * 4 + 2 * r, 2)])

    def _at(self, place: Any, head: Any, row: Any, column: Any) -> Any:
        return place.offset + self.b * place.batch + head * place.head + row * place.row + column

    def _to_shared(self, tensor: tuple[Any, Any], dim: int, shared: Any, first: Any) -> None:
        k, (source, place) = self.k, tensor
        vectors = self.keys * dim // 8
        threads = 32 * self.warps
        head = self.h // self.group
        with k.unroll(-(-vectors // threads)) as step:
            index = k.let((step * self.warps + self.warp) * 32 + self.lane)
            row, column = index // (dim // 8), index % (dim // 8) * 8
            to = [k.ramp(row * (dim + _PAD) + column, 8)]

            def copy() -> None:
                at = self._at(place, head, first + row, column)
                k.store(shared, k.load(source, [k.ramp(at, 8)]), to)

            def zero() -> None:  # what no key stands for must not be NaN: zero times NaN is NaN
                k.store(shared, k.splat(tirx.const(0, "float16"), 8), to)

            def guarded() -> None:
                k.branch(first + row < self.op.kv_len, copy, zero)

            if vectors % threads:
                with k.when(index < vectors):
                    guarded()
            else:
                guarded()

    def _ldmatrix(self, transposed: bool, shared: Any, offset: Any) -> None:
        call = ptx.ptx_legacy_ldmatrix(
            "float16", transposed, 4, ".b16", self.b_reg.data, int32(0), shared.access_ptr("r"), offset
        )
        T.evaluate(call)

    def _mma(self, a: Any, a_at: Any, b_at: int, c: Any, c_at: Any) -> None:
        call = ptx.ptx_legacy_mma(
            "float32", "m16n8k16", "row", "col", "fp16", "fp16", "fp32",
            a.data, a_at, self.b_reg.data, int32(b_at), c.data, c_at, False,
        )  # fmt: skip
        T.evaluate(call)

    def _scores(self) -> None:
        """Keys lie as columns of the second operand already; one ldmatrix serves 16 keys."""
        k, lane = self.k, self.lane
        with k.unroll(self.keys // 8 * 4) as i:
            k.store(self.s_reg, _f(0), [i])
        with k.unroll(self.keys // 16) as pair, k.unroll(self.dim // 16) as step:
            row = pair * 16 + lane // 16 * 8 + lane % 8
            column = step * 16 + lane // 8 % 2 * 8
            self._ldmatrix(False, self.shared_k, row * (self.dim + _PAD) + column)
            for half in range(2):
                self._mma(self.q_reg, step * 8, 4 * half, self.s_reg, (pair * 2 + half) * 4)

    def _mask(self, first: Any) -> None:
        op, k = self.op, self.k
        factor = math.log2(math.e)
        with k.unroll(self.keys // 8) as tile:
            for r in range(2):
                for e in range(2):
                    at = [tile * 4 + 2 * r + e]
                    key = first + tile * 8 + self.lane % 4 * 2 + e
                    row = self.row + 8 * r
                    value = k.load(self.s_reg, at) * _f(op.scale if op.softcap else op.scale * factor)
                    if op.softcap:
                        value = tirx.tanh(value * _f(1 / op.softcap)) * _f(op.softcap * factor)
                    inside = key < op.kv_len
                    if self.mask is not None:
                        batch = self.b if op.mask[0] in (1, op.batch) else self.b % op.mask[0]
                        place = (batch, self.h, tirx.min(row, op.q_len - 1), tirx.min(key, op.kv_len - 1))
                        index = [0 if extent == 1 else i for extent, i in zip(op.mask, place, strict=True)]
                        value = value + k.load(self.mask, index) * _f(factor)
                        if not op.zero_masked:  # a row that is masked all over is a plain mean
                            value = tirx.max(value, _f(_LOWEST))
                    if op.causal:
                        last = row + (op.kv_len - op.q_len)
                        inside = tirx.all(inside, key <= last)
                        if op.window:
                            inside = tirx.all(inside, key > last - op.window)
                    if op.causal or op.kv_len % self.keys:
                        value = tirx.Select(inside, value, tirx.const(-math.inf, "float32"))
                    k.store(self.s_reg, value, at)

    def _quad(self, value: Any, lanes: int) -> Any:
        every = tirx.const(0xFFFFFFFF, "uint32")
        return tirx.op.tvm_warp_shuffle_xor(every, value, int32(lanes), int32(32), int32(32))

    def _online_softmax(self) -> None:
        k = self.k
        for r in range(2):
            at = [int32(r)]
            k.store(self.fresh, k.load(self.peak, at), at)
        with k.unroll(self.keys // 8) as tile:
            for r in range(2):
                for e in range(2):
                    score = k.load(self.s_reg, [tile * 4 + 2 * r + e])
                    k.store(self.fresh, tirx.max(k.load(self.fresh, [int32(r)]), score), [int32(r)])
        for r in range(2):
            at = [int32(r)]
            for lanes in (1, 2):  # the four lanes that share a row
                other = k.let(self._quad(k.load(self.fresh, at), lanes))
                k.store(self.fresh, tirx.max(k.load(self.fresh, at), other), at)
            correction = tirx.exp2(k.load(self.peak, at) - k.load(self.fresh, at))
            k.store(self.scale, correction, at)
            k.store(self.peak, k.load(self.fresh, at), at)
            k.store(self.total, k.load(self.total, at) * k.load(self.scale, at), at)
        with k.unroll(self.keys // 8) as tile:
            for r in range(2):
                for e in range(2):
                    at = [tile * 4 + 2 * r + e]
                    weight = k.let(tirx.exp2(k.load(self.s_reg, at) - k.load(self.peak, [int32(r)])))
                    k.store(self.total, k.load(self.total, [int32(r)]) + weight, [int32(r)])
                    k.store(self.p_reg, tirx.Cast("float16", weight), at)
        with k.unroll(self.values // 8) as tile:
            for r in range(2):
                for e in range(2):
                    at = [tile * 4 + 2 * r + e]
                    k.store(self.o_reg, k.load(self.o_reg, at) * k.load(self.scale, [int32(r)]), at)

    def _accumulate(self) -> None:
        """V lies in rows of keys: ldmatrix transposes it on the way; one serves 16 columns."""
        k, lane = self.k, self.lane
        with k.unroll(self.keys // 16) as step, k.unroll(self.values // 16) as pair:
            row, column = step * 16 + lane % 16, pair * 16 + lane // 16 * 8
            self._ldmatrix(True, self.shared_v, row * (self.values + _PAD) + column)
            for half in range(2):
                self._mma(self.p_reg, step * 8, 4 * half, self.o_reg, (pair * 2 + half) * 4)

    def _store(self) -> None:
        k, op = self.k, self.op
        for r in range(2):
            at = [int32(r)]
            for lanes in (1, 2):
                other = k.let(self._quad(k.load(self.total, at), lanes))
                k.store(self.total, k.load(self.total, at) + other, at)
            row = self.row + 8 * r
            with k.when(row < op.q_len), k.unroll(self.values // 8) as tile:
                total = k.load(self.total, at)
                value = k.load(self.o_reg, [k.ramp(tile * 4 + 2 * r, 2)])
                # Nothing visible at all: zero, as the operator says where it says anything.
                factor = tirx.Select(total > _f(0), _f(1) / tirx.max(total, _f(1e-37)), _f(0))
                column = self.h * self.values + tile * 8 + self.lane % 4 * 2
                result = tirx.Cast("float16x2", value * k.splat(factor, 2))
                k.store(self.out, result, [self.b, row, k.ramp(column, 2)])
