"""One point of a space as a kernel: compiled as the search compiles it, checked, timed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.gpu import tensors, timing
from benchmarks.gpu.case import Case
from hetero_tvm.host.tvm import DeviceTensor, tvm
from hetero_tvm.schedules.base import thaw
from hetero_tvm.search.measure.compile_process import FUNCTION
from hetero_tvm.search.measure.prepared import tolerance_of
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.cuda import codegen, cuda_module, kernel_facts

_RUNS = 3


class Kernel:
    """A compiled point.

    Parameters
    ----------
    case, target : what it computes, and what it is compiled for (:meth:`Case.target` of it).
    point : a point of the space that serves it.
    library : file that it has been compiled to already, which tells no ``facts``; None compiles it.
    """

    def __init__(self, case: Case, target: Target, point: Mapping[str, Any], library: str | None = None):
        self.case, self._machine = case, target.machine
        space, why = target.space_for(case.op)
        if space is None:
            raise ValueError(f"no design space serves {case.label}: {why}")
        self._space, self._point = space, thaw(point)
        space.check(case.op, self._point, self._machine)
        if library is not None:
            cuda_module.enable_module()
            self.function, self.facts = tvm.runtime.load_module(library)[FUNCTION], {}
            return
        # The very module that the search compiles: its machine code is in the cache by now.
        function = space.emit(case.op, self._point, self._machine).with_attr("global_symbol", FUNCTION)
        with codegen.collect() as made:
            module = tvm.IRModule({FUNCTION: target.stamp(function)})
            self.function = codegen.compile_kernels(module, target.tvm_target)[FUNCTION]
        self.facts = kernel_facts.of_module(made[0])

    def packed(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """A set of operands, constant ones packed as the point wants them."""
        packers = self._space.pack(self.case.op, self._point, self._machine)
        return [
            tensors.from_numpy(packers[i](tensors.to_numpy(x))) if i in packers else x
            for i, x in enumerate(given)
        ]

    def operands(self, given: list[torch.Tensor]) -> list[DeviceTensor]:
        """:meth:`packed` operands as TVM tensors."""
        return [tensors.to_tvm(x) for x in self.packed(given)]

    def blanks(self) -> list[torch.Tensor]:
        """Memory for the results, full of NaN (see :func:`.tensors.blank`)."""
        return [tensors.blank(output.shape, output.dtype) for output in self.case.op.outputs]

    def run(self, operands: list[DeviceTensor]) -> list[torch.Tensor]:
        """Results of one launch into memory that held other values before."""
        results = [tensors.to_tvm(blank) for blank in self.blanks()]
        if not tensors.EMULATED:
            torch.cuda.synchronize()  # operands and blanks were made on PyTorch's stream
        self.function(*operands, *results)
        if not tensors.EMULATED:
            torch.cuda.synchronize()
        return [tensors.to_torch(result) for result in results]

    def check(self, seeds: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
        """Compare with PyTorch in float64 on fresh operands, and one run with the next.

        Returns
        -------
        ``status`` (``ok``, ``wrong``, ``unstable``), the largest ``error`` relative to the largest value,
        and the ``tolerance``.
        """
        case, worst, stable = self.case, 0.0, True
        tolerance = tolerance_of(case.op, self._machine)
        for seed in seeds:
            given = tensors.random_inputs(case, seed)
            operands = self.operands(given)
            first = self.run(operands)
            truth = tensors.as_tuple(case.compute(case.op, *tensors.exact(given)))
            worst = max([worst, *map(tensors.largest_error, first, truth)])
            for _ in range(0 if tensors.EMULATED else _RUNS - 1):  # a race shows in results that move
                again = self.run(operands)
                stable &= all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        status = "wrong" if not worst <= tolerance else "ok" if stable else "unstable"
        return {"status": status, "error": worst, "tolerance": tolerance}

    def time(
        self, sets: list[list[torch.Tensor]], clock: timing.Clock, busy: Callable[[], None]
    ) -> timing.Timing:
        """Seconds of a launch, over sets of operands that do not fit the cache; all write the same results.

        ``busy`` is called once while the GPU works.
        """
        results = [tensors.to_tvm(blank) for blank in self.blanks()]
        calls = [functools.partial(self.function, *self.operands(given), *results) for given in sets]
        torch.cuda.synchronize()
        return timing.measure(calls, clock, busy=busy)
