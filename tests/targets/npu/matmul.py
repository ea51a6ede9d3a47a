"""A hand-written, double-buffered matrix product: what a compiler emits, small enough to read."""

from hetero_tvm.machines.npu.numbers import WIDTH
from hetero_tvm.targets.npu.isa.stream import Builder, Stream


class Flags:
    """Ring of buffers between a producer and a consumer queue: "full" and "free" flags."""

    def __init__(self, builder, producer, consumer, event, depth=2):
        self.builder, self.producer, self.consumer = builder, producer, consumer
        self.event, self.depth, self.produced = event, depth, 0

    def acquire(self):
        """The producer takes a slot; returns its index."""
        if self.produced >= self.depth:
            self._emit("wait_flag", self.consumer, self.producer)
        self.produced += 1
        return (self.produced - 1) % self.depth

    def full(self):
        """The producer has filled it."""
        self._emit("set_flag", self.producer, self.consumer)

    def wait(self):
        """The consumer waits for it."""
        self._emit("wait_flag", self.producer, self.consumer)

    def free(self):
        """The consumer no longer needs it."""
        self._emit("set_flag", self.consumer, self.producer)

    def _emit(self, name, source, target):
        self.builder.emit(name, source=source, target=target, event=self.event)


def matmul(m, n, k, tile, dtype="f16", l1_depth=2, repeat=1) -> Stream:
    """C (m, n) f32 (i32) = A (m, k) B (n, k) transposed; slots a, b, c; tile = (tm, tn, tk), dividing.

    A and B tiles come to L1 whole rows of tiles at a time; one accumulator tile per (i, j), two in turn.
    """
    tm, tn, tk = tile
    w = WIDTH[dtype]
    out = "i32" if dtype == "i8" else "f32"
    builder = Builder()
    a = builder.slot("a", m * k * w, "input")
    b = builder.slot("b", n * k * w, "constant")
    c = builder.slot("c", m * n * 4, "output")
    builder.tag = builder.add_tag("matmul")
    l1 = Flags(builder, "dma_in", "move", 0, l1_depth)
    l0 = Flags(builder, "move", "matrix", 0)
    l0c = Flags(builder, "matrix", "vector", 0)
    ub = Flags(builder, "vector", "dma_out", 0)
    a_tile, b_tile, c_tile = tm * tk * w, tn * tk * w, tm * tn * 4

    def load(slot, row, rows, step, dst):
        builder.emit(
            "load",
            elem=w,
            dst_mem="l1",
            src_slot=slot,
            src=(row * k + step) * w,
            dst=dst,
            extents=(rows, tk),
            src_strides=(k * w, w),
            dst_strides=(tk * w, w),
        )

    def move(memory, src, rows, dst):
        builder.emit(
            "move",
            elem=w,
            dst_mem=memory,
            src=src,
            dst=dst,
            extents=(rows * tk,),
            src_strides=(w,),
            dst_strides=(w,),
        )

    for _ in range(repeat):
        for i in range(0, m, tm):
            for j in range(0, n, tn):
                acc = l0c.acquire() * c_tile
                for step in range(0, k, tk):
                    at = l1.acquire() * (a_tile + b_tile)
                    load(a, i, tm, step, at)
                    load(b, j, tn, step, at + a_tile)
                    l1.full()
                    l1.wait()
                    slot = l0.acquire()
                    move("l0a", at, tm, slot * a_tile)
                    move("l0b", at + a_tile, tn, slot * b_tile)
                    l1.free()
                    l0.full()
                    l0.wait()
                    builder.emit(
                        "mmad",
                        dtype=dtype,
                        accumulate="yes" if step else "no",
                        b_transposed="yes",
                        m=tm,
                        n=tn,
                        k=tk,
                        a=slot * a_tile,
                        a_pitch=tk * w,
                        b=slot * b_tile,
                        b_pitch=tk * w,
                        c=acc,
                        c_pitch=tn * 4,
                    )
                    l0.free()
                l0c.full()
                l0c.wait()
                buffer = ub.acquire() * c_tile
                builder.emit(
                    "move_out",
                    src_dtype=out,
                    dst_dtype=out,
                    m=tm,
                    n=tn,
                    c=acc,
                    c_pitch=tn * 4,
                    dst=buffer,
                    row_stride=tn * 4,
                    column_stride=4,
                )
                l0c.free()
                ub.full()
                ub.wait()
                builder.emit(
                    "store",
                    elem=4,
                    dst_mem="dram",
                    dst_slot=c,
                    src=buffer,
                    dst=(i * n + j) * 4,
                    extents=(tm, tn),
                    src_strides=(tn * 4, 4),
                    dst_strides=(n * 4, 4),
                )
                ub.free()
    return builder.finish()
