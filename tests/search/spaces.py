"""A tiny operator and design spaces for testing the search, misbehaving ones included.

The measuring process finds these classes as ``tests.search.spaces:Class``, the door for spaces that
are not in the registry.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import ClassVar

from hetero_tvm import host
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp, Operand
from hetero_tvm.schedules.base import DesignSpace, Knob
from hetero_tvm.schedules.cpu.rows.add_norm import AddNormSpace
from hetero_tvm.schedules.cpu.rows.normalization import normalize_row
from hetero_tvm.schedules.cpu.rows.row_chunks import each_row
from hetero_tvm.schedules.emit import Kernel
from hetero_tvm.schedules.task import Task

MACHINE = CpuModel(host.detect().microarchitecture, features=("test",), lanes=8, registers=16, threads=2)


@dataclass(frozen=True)
class Scale(FusedOp):
    """``y = x * w`` over [rows, n], w [n] constant."""

    kind: ClassVar[str] = "test_scale"

    rows: int
    n: int

    @property
    def inputs(self):
        return (Operand("x", (self.rows, self.n)), Operand("w", (self.n,), constant=True))

    @property
    def output(self):
        return Operand("y", (self.rows, self.n))

    @property
    def flops(self):
        return self.rows * self.n

    @property
    def label(self):
        return f"scale_{self.rows}x{self.n}"

    def reference(self, *arrays):
        x, w = arrays
        return x * w

    def workload(self):
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import prim_func

        shape = (self.rows, self.n)
        return prim_func(self, lambda x, w: te.compute(shape, lambda i, j: x[i, j] * w[j], name="y"))


class ScaleSpace(DesignSpace):
    """Two knobs, all points good; by the estimate, little repetition of the work is best."""

    name = "test.scale"

    def refuses(self, op, machine):
        return None if isinstance(op, Scale) else "not a scale"

    def knobs(self, op, machine):
        return (Knob("repeat", (4, 1, 2, 8)), Knob("pieces", (1, 2, 4)))

    def default(self, op, machine):
        return {"repeat": 8, "pieces": 1}

    def features(self, op, point, machine):
        return [float(point["repeat"]), float(point["pieces"]), 1.0 / point["repeat"]]

    def estimate(self, op, point, machine):
        return float(point["repeat"])

    def emit(self, op, point, machine):
        from hetero_tvm.schedules.emit import Kernel

        k = Kernel()
        with k:
            x, w = k.argument("x", (op.rows, op.n)), k.argument("w", (op.n,))
            y = k.argument("y", (op.rows, op.n))
            self.before(k, point)
            with k.parallel(point["pieces"]) as piece, k.serial(op.rows // point["pieces"]) as i:
                row = piece * (op.rows // point["pieces"]) + i
                for _ in range(point["repeat"]):
                    with k.serial(op.n) as j:
                        k.store(y, self.value(k.load(x, [row, j]), k.load(w, [j]), point), [row, j])
        return k.function

    def before(self, k, point):
        pass

    def value(self, x, w, point):
        return x * w


class TupleSpace(ScaleSpace):
    """Twelve points of pairs, as tiles are: JSON gives them back as lists."""

    name = "test.tuple"

    def knobs(self, op, machine):
        pairs = tuple((repeat, pieces) for repeat in (4, 1, 2, 8) for pieces in (1, 2, 4))
        return (Knob("tile", pairs),)

    def default(self, op, machine):
        return {"tile": (8, 1)}

    def features(self, op, point, machine):
        return [float(point["tile"][0]), float(point["tile"][1]), 1.0 / point["tile"][0]]

    def estimate(self, op, point, machine):
        return float(point["tile"][0])

    def emit(self, op, point, machine):
        repeat, pieces = point["tile"]
        return super().emit(op, {"repeat": repeat, "pieces": pieces}, machine)


class WideSpace(TupleSpace):
    """More points than any test measures."""

    name = "test.wide"

    def knobs(self, op, machine):
        return (*super().knobs(op, machine), Knob("unused", tuple(range(20))))

    def default(self, op, machine):
        return {"tile": (8, 1), "unused": 7}


class TinySpace(ScaleSpace):
    """Three points."""

    name = "test.tiny"

    def knobs(self, op, machine):
        return (Knob("repeat", (8, 1, 2)), Knob("pieces", (1,)))


class IdleKnob(ScaleSpace):
    """Ten kernels under twelve points: ``pieces`` means nothing when the work is done once."""

    name = "test.idle"

    def canonical(self, op, point, machine):
        return {**point, "pieces": 1} if point["repeat"] == 1 else point


class SinglePoint(ScaleSpace):
    name = "test.single"

    def knobs(self, op, machine):
        return (Knob("repeat", (8,)), Knob("pieces", (1,)))


class NeverWorks(ScaleSpace):
    """Emitting any point fails."""

    name = "test.never"

    def knobs(self, op, machine):
        return (Knob("repeat", tuple(range(1, 9))), Knob("pieces", (1, 2, 4, 8)))

    def emit(self, op, point, machine):
        raise RuntimeError("never")


class BadSpace(ScaleSpace):
    """``mode`` says how a candidate fails; ``good`` works."""

    name = "test.bad"
    modes = (
        "good",
        "crash",
        "crash_run",
        "hang",
        "hang_run",
        "wrong",
        "memory",
        "raise",
        "unwritten",
        "exit",
    )

    def knobs(self, op, machine):
        return (Knob("mode", self.modes), Knob("repeat", (1, 2)), Knob("pieces", (1, 2)))

    def default(self, op, machine):
        return {"mode": "good", "repeat": 2, "pieces": 1}

    def emit(self, op, point, machine):
        mode = point["mode"]
        if mode == "crash":
            print("last words", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        elif mode == "hang":
            time.sleep(1000)
        elif mode == "memory":
            bytearray(64 << 30)
        elif mode == "raise":
            raise RuntimeError("cannot emit this")
        elif mode == "exit":
            os._exit(7)
        return super().emit(op, point, machine)

    def before(self, k, point):
        from hetero_tvm.host.tvm import T, tirx

        if point["mode"] == "crash_run":
            T.evaluate(tirx.call_extern("int32", "abort"))
        elif point["mode"] == "hang_run":
            T.evaluate(tirx.call_extern("int32", "sleep", tirx.const(1000, "int32")))

    def value(self, x, w, point):
        if point["mode"] == "wrong":
            return x + w
        return x * w * float("nan") if point["mode"] == "unwritten" else x * w


class FailingSpace(BadSpace):
    """Its candidates fail in every way but by hanging."""

    name = "test.failing"
    modes = tuple(mode for mode in BadSpace.modes if not mode.startswith("hang"))


class RightOnce(ScaleSpace):
    """Right on fresh memory (NaN), and adds to what it finds there in every later call."""

    name = "test.right_once"

    def emit(self, op, point, machine):
        from hetero_tvm.host.tvm import tirx

        k = Kernel()
        with k:
            x, w = k.argument("x", (op.rows, op.n)), k.argument("w", (op.n,))
            y = k.argument("y", (op.rows, op.n))
            with k.serial(op.rows) as i, k.serial(op.n) as j:
                before, value = k.load(y, [i, j]), k.load(x, [i, j]) * k.load(w, [j])
                k.store(y, tirx.if_then_else(before > -1e30, before + value, value), [i, j])
        return k.function


class RightEveryOther(ScaleSpace):
    """Right in its first call, and in every other one after it."""

    name = "test.right_every_other"

    def emit(self, op, point, machine):
        from hetero_tvm.host.tvm import tirx

        k = Kernel()
        with k:
            x, w = k.argument("x", (op.rows, op.n)), k.argument("w", (op.n,))
            y = k.argument("y", (op.rows, op.n))
            with k.serial(op.rows) as i, k.serial(op.n) as j:
                before, value = k.load(y, [i, j]), k.load(x, [i, j]) * k.load(w, [j])
                k.store(y, tirx.if_then_else(before == value, value + 1.0, value), [i, j])
        return k.function


class ForgetsTheSum(AddNormSpace):
    """Its second result is right, its first is the operand."""

    name = "test.forgets_the_sum"

    def emit(self, op, point, machine):
        k = Kernel()
        with k:
            x, r, scale, shift, total, y = (k.argument(o.name, o.shape) for o in (*op.inputs, *op.outputs))

            def one(i):
                def first(c, width):
                    at = [i, k.ramp(c, width)]
                    k.store(total, k.load(x, at), at)
                    return k.load(x, at) + k.load(r, at)

                def again(c, width):
                    return k.load(x, [i, k.ramp(c, width)]) + k.load(r, [i, k.ramp(c, width)])

                def put(c, width, value):
                    k.store(y, value, [i, k.ramp(c, width)])

                normalize_row(k, op.norm, machine.lanes, first, again, put, [scale, shift])

            each_row(k, op.rows, 1, one)
        return k.function


def task(space: DesignSpace | None = None, rows: int = 64, n: int = 256, calls: int = 1) -> Task:
    op = Scale(rows, n)
    space = space or ScaleSpace()
    key = f"{space.name}-{op.label}"
    return Task(key, key, op, op.workload(), space, (("node",),) * calls, op.flops, op.nbytes)


def generic_task(rows: int = 64, n: int = 256, calls: int = 1) -> Task:
    """A kernel without a contract, as Relax leaves it."""
    function = Scale(rows, n).workload().without_attr("hetero.op")
    name = f"generic_{rows}x{n}"
    return Task(name, name, None, function, None, (("g",),) * calls, rows * n, 8 * rows * n)


def generic_matmul(size: int = 32) -> Task:
    """A kernel for which the stock rules have many candidates."""
    from hetero_tvm.ops.matmul import Matmul

    op = Matmul((size,), size, size)
    function = op.workload().without_attr("hetero.op")
    return Task("generic-matmul", "generic_matmul", None, function, None, (("g",),), op.flops, op.nbytes)
