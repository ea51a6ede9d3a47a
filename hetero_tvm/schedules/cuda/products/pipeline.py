"""The main loop of a product: copies to the stages of shared memory, beside the arithmetic.

The work that may overlap depends on what multiplies, so there is one order of work for each (S stages):

* :func:`tensor_cores` keeps fragments one step of 32 bytes ahead in registers.  The barrier of a step of
  the reduction stands before its last products, whose fragments are in registers already: the tensor
  cores work while the warps meet, and while the first fragments of the next step are on their way.
* :func:`warp_groups` leaves one group of ``wgmma`` running: a step's products are started before those of
  the step before are waited for.  The stage that is filled meanwhile is the one of two steps ago, so
  copies run S - 2 steps ahead.
* :func:`multiply_adds` multiplies a step after its barrier and after its copies were started.

Copies beyond the end of the reduction are switched off by a predicate, not a branch, and offsets of
stages are counted up, not divided: the loop is one straight block that ptxas can reorder.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.products.fragments import FmaWarp, TensorCoreWarp, Warp, WarpGroup
from hetero_tvm.schedules.cuda.products.operands import Source
from hetero_tvm.schedules.cuda.threads import barrier
from hetero_tvm.schedules.emit import Kernel, int32

StepRange = tuple[Expr | int, Expr | int]
"""First step of a reduction, and number of steps."""


class Stages:
    """The tiles of both operands in shared memory, as a ring of ``count`` stages of ``nbytes``.

    Parameters
    ----------
    w_at : bytes from X's tile to W's in a stage.
    """

    def __init__(
        self,
        k: Kernel,
        shared: Expr,
        sources: tuple[Source, Source],
        steps: StepRange,
        count: int,
        nbytes: int,
        w_at: int,
    ):
        self.k, self.shared, self.sources = k, shared, sources
        self.first, self.steps = steps
        self.count, self.nbytes, self.w_at = count, nbytes, w_at

    def ring(self, stage: int = 0) -> Buffer:
        """A register with the offset of a stage; see :meth:`turn`."""
        register = self.k.scratch((1,), "int32")
        self.k.store(register, int32(stage % self.count * self.nbytes), [0])
        return register

    def turn(self, ring: Buffer) -> None:
        """Advance a ring to the next stage."""
        k, at = self.k, self.k.load(ring, [0])
        last = (self.count - 1) * self.nbytes
        k.store(ring, tirx.Select(at == last, int32(0), at + self.nbytes), [0])

    def begin(self, ahead: int) -> None:
        """Start the copies of the first ``ahead`` steps, one group each."""
        for step in range(ahead):
            if not isinstance(self.steps, int):
                self._copy(int32(step * self.nbytes), int32(step), int32(step) < self.steps)
            elif step < self.steps:
                self._copy(int32(step * self.nbytes), int32(step), None)
            device.call("htvm_commit")

    def fill(self, at: Expr, step: Expr) -> None:
        """Start the copies of a step, if there is one, to offset ``at``; they are one group."""
        self._copy(at, step, step < self.steps)
        device.call("htvm_commit")

    def _copy(self, at: Expr, step: Expr, when: Expr) -> None:
        at = device.fixed(self.k, at)
        for source, begin in zip(self.sources, (0, self.w_at), strict=True):
            source.copy(self.shared, at + begin, self.first + step, when)


def run(k: Kernel, stages: Stages, engine: Warp) -> None:
    """Multiply all steps; shared memory is free afterwards."""
    if isinstance(engine, WarpGroup):
        warp_groups(k, stages, engine)
    elif isinstance(engine, TensorCoreWarp):
        tensor_cores(k, stages, engine)
    elif isinstance(engine, FmaWarp):
        multiply_adds(k, stages, engine)
    device.call("htvm_wait", template="0")
    barrier()


def tensor_cores(k: Kernel, stages: Stages, engine: TensorCoreWarp) -> None:
    """Multiply with ``mma.sync``, fragments one step ahead."""
    ahead = stages.count - 1
    stages.begin(ahead)
    _arrived(ahead - 1)
    reading, filling = stages.ring(), stages.ring(ahead)
    engine.load(stages.shared, int32(0), int32(stages.w_at), 0)
    with k.serial(stages.steps) as step:
        for part in range(engine.steps):
            if part == engine.steps - 1:  # of the next stage, behind its copies
                _arrived(ahead - 1)
                stages.turn(reading)
            at = device.fixed(k, k.load(reading, [0]))
            engine.load(stages.shared, at, at + stages.w_at, (part + 1) % engine.steps)
            if part == 0:  # to the stage that everyone left before the last barrier
                stages.fill(k.load(filling, [0]), step + ahead)
                stages.turn(filling)
            engine.products(part)


def warp_groups(k: Kernel, stages: Stages, engine: WarpGroup) -> None:
    """Multiply with ``wgmma``, one group ahead."""
    ahead = stages.count - 2
    stages.begin(ahead)
    reading, filling = stages.ring(), stages.ring(ahead)
    with k.serial(stages.steps) as step:
        _arrived(ahead - 1, fence=True)
        engine.start(device.fixed(k, k.load(reading, [0])), stages.w_at)
        stages.fill(k.load(filling, [0]), step + ahead)
        stages.turn(reading)
        stages.turn(filling)
        engine.wait(1)
    engine.wait(0)


def multiply_adds(k: Kernel, stages: Stages, engine: FmaWarp) -> None:
    """Multiply with float32 multiply-adds."""
    ahead = stages.count - 1
    stages.begin(ahead)
    reading, filling = stages.ring(), stages.ring(ahead)
    with k.serial(stages.steps) as step:
        _arrived(ahead - 1)
        stages.fill(k.load(filling, [0]), step + ahead)
        at = device.fixed(k, k.load(reading, [0]))
        engine.multiply(stages.shared, at, at + stages.w_at)
        stages.turn(reading)
        stages.turn(filling)


def _arrived(groups: int, fence: bool = False) -> None:
    """Wait until all but the last ``groups`` groups of copies of every thread are there, and seen by all."""
    device.call("htvm_wait", template=str(groups))
    if fence:
        device.call("htvm_fence_async")
    barrier()
