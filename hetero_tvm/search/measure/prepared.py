"""Data that all candidates of one task share: inputs and the result that they must reproduce.

Made once per task in the fork server, before candidates are forked, so that they inherit it through
copy-on-write memory instead of computing it again.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm import host
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.records import candidates
from hetero_tvm.runtime.arrays import numpy_dtype

TOLERANCE = 1e-4
"""Largest error of a float32 kernel against the float64 reference, relative to its largest value."""
_TOLERANCES = {"float16": 3 * 2.0**-11, "bfloat16": 3 * 2.0**-8, "tf32": 3 * 2.0**-11}
"""Largest error for other dtypes: rounding of factors, of the result, and of what two products share."""
_LARGE = 1 << 24
"""Values of a result that are compared by several threads."""
_HEAVY = 2e10
"""Operations from which the reference of a kernel in half precision is computed in float32: its error
is then some hundred times smaller than the tolerance, and it takes half the time."""


def _sample(rng: np.random.Generator, shape: tuple[int, ...], name: str, positive: bool) -> np.ndarray:
    dtype = numpy_dtype(name)
    if _real(dtype):
        if positive:  # generic kernels take logarithms, roots and quotients of who knows what
            return rng.uniform(0.1, 1.0, shape).astype(dtype)
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _real(dtype: np.dtype) -> bool:
    return dtype.kind not in "biu"  # bfloat16 is of a kind of its own


def blank(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Memory for a result.  NaN shows the elements that a kernel never writes."""
    made = np.empty(shape, numpy_dtype(dtype))
    made.fill(np.nan if _real(made.dtype) else 77)
    return made


def joined(results: Sequence[np.ndarray]) -> np.ndarray:
    """Values of a kernel's results as one array: the result, or several behind one another."""
    if len(results) == 1:
        return np.asarray(results[0])
    return np.concatenate([np.asarray(result).reshape(-1) for result in results])


def fault_of(
    result: np.ndarray, reference: np.ndarray, largest: float | None, tolerance: float
) -> str | None:
    """Fault of a kernel's result in words; None when it is within the tolerance."""
    scale = float(np.abs(reference).max(initial=0.0)) if largest is None else largest
    error = _largest_difference(result, reference)
    if error <= tolerance * max(scale, 1e-30):  # false too when the error is NaN
        return None
    return f"largest error {error:.3g} where values reach {scale:.3g}"


def _largest_difference(result: np.ndarray, reference: np.ndarray) -> float:
    """NaN where anything is NaN.  Large arrays, slower to compare than to compute, on all cores."""

    # NumPy does not subtract truth values, and differences of numbers without a sign wrap.
    narrow = all(array.dtype.kind in "bu" for array in (result, reference))

    def of(pair: tuple[np.ndarray, ...]) -> float:
        if narrow:
            pair = tuple(array.astype(np.int64) for array in pair)
        difference = np.subtract(*pair)
        return float(np.abs(difference, out=difference).max(initial=0.0))

    if result.size < _LARGE:
        return of((result, reference))
    count = -(-result.size // _LARGE) * 4
    pieces = zip(*(np.array_split(array.reshape(-1), count) for array in (result, reference)), strict=True)
    with ThreadPoolExecutor(len(host.available_cores())) as pool:
        return float(np.max(list(pool.map(of, pieces))))


def tolerance_of(op: FusedOp, machine: Machine) -> float:
    """Largest error of a kernel of ``op``, relative to the largest value of the reference."""
    rounded = "tf32" if "tf32" in machine.features else op.rounds_between or op.output.dtype
    return _TOLERANCES.get(rounded, TOLERANCE)


def _import_contract(kind: str) -> None:
    """Contracts register themselves when imported; the space's module usually has done it."""
    import importlib
    import pkgutil

    from hetero_tvm import ops
    from hetero_tvm.ops import base

    if kind not in base._KINDS:
        for module in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
            importlib.import_module(module.name)


class Described:
    """Task rebuilt from its wire description: enough to make candidates' kernels.

    ``spec`` keys: ``op`` (contract as JSON, or None), ``space`` (``module:Class``, or None),
    ``workload`` and ``generic`` (TVM JSON, and ``module:function`` of its untuned schedule; only for
    tasks without a contract), ``machine`` and ``machine_type``,
    ``target`` (a TVM target as a dictionary), ``seed``.
    """

    def __init__(self, spec: dict[str, Any]):
        self.machine = candidates.find_object(spec["machine_type"]).from_json(spec["machine"])
        self.target = tvm.target.Target(spec["target"])
        self.op = self.space = self.workload = None
        if spec["op"] is None:
            self.workload = tvm.ir.load_json(spec["workload"])
            self.generic = spec["generic"]
            return
        from hetero_tvm.ops.base import from_json

        self.space = candidates.find_space(spec["space"])
        if self.space.driver is not None:
            self.space.driver.attach()
        _import_contract(json.loads(spec["op"])["kind"])
        self.op = from_json(spec["op"])

    def kernel(self, candidate: candidates.Candidate) -> Any:
        """TensorIR of a candidate (a PrimFunc or a module with one)."""
        if "point" in candidate:
            return candidates.emit(self.space, self.op, candidate["point"], self.machine)
        if "trace" in candidate:
            return candidates.apply_trace(self.workload, candidate["trace"])
        if "generic" in candidate:
            return candidates.find_object(self.generic)(self.workload, self.machine)
        return self.workload


class Prepared(Described):
    """A task with inputs and the reference: enough to check candidates.

    Parameters
    ----------
    scratch : folder where a reference that has been computed is kept for the next process.
    """

    def __init__(self, spec: dict[str, Any], scratch: Path | None = None):
        super().__init__(spec)
        self.reference = self.shared = None
        self.largest: float | None = None
        """Largest magnitude in the reference, once that is known."""
        rng = np.random.default_rng(spec["seed"])
        if spec["op"] is not None:
            digest = hashlib.sha256(f"{spec['op']} {spec['seed']}".encode()).hexdigest()[:24]
            self._prepare_contract(rng, scratch and scratch / f"{digest}.npy")
        else:
            self._prepare_generic(rng)
        self.nbytes = sum(array.nbytes for array in self.arrays)
        # Tensors for operands that every candidate takes as they are; the others are packed by each.
        pairs = zip(self.arrays, self.constant, strict=True)
        self.tensors = [None if constant else tvm.runtime.tensor(array) for array, constant in pairs]

    def _prepare_contract(self, rng: np.random.Generator, kept: Path | None) -> None:
        arrays = [_sample(rng, x.shape, x.dtype, positive=False) for x in self.op.inputs]
        self.arrays = self.op.admissible(arrays)
        self.constant = [x.constant for x in self.op.inputs]
        self.outputs = [(output.shape, output.dtype) for output in self.op.outputs]
        if kept is not None and kept.is_file():
            self.reference = np.load(kept)
        else:
            self.reference = self._reference()
            if kept is not None:
                np.save(kept, self.reference)
        self.largest = float(np.abs(self.reference).max(initial=0.0))
        self.tolerance = tolerance_of(self.op, self.machine)

    def _reference(self) -> np.ndarray:
        half = self.op.output.dtype in _TOLERANCES
        wide = np.float32 if half and self.op.flops > _HEAVY else np.float64
        arrays = [a.astype(wide) if _real(a.dtype) else a for a in self.arrays]
        # Rounded to float32: 6e-8 relative, far below the tolerance, and half the time to compare.
        results = self.op.reference(*arrays)
        return joined(results if len(self.outputs) > 1 else [results]).astype(np.float32)

    def _prepare_generic(self, rng: np.random.Generator) -> None:
        parameters = self.workload.params
        types = [(tuple(int(extent) for extent in p.shape), str(p.dtype)) for p in parameters]
        self.arrays = [_sample(rng, shape, dtype, positive=True) for shape, dtype in types[:-1]]
        self.constant = [False] * len(self.arrays)
        self.outputs = types[-1:]
        self.tolerance = TOLERANCE
        # Filled by the child that runs the unscheduled workload; the children after it read it.
        shape, dtype = types[-1]
        count = int(np.prod(shape, dtype=np.int64))
        self.shared = mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize))
        self.reference = np.frombuffer(self.shared, dtype, count=count).reshape(shape)

    def packed(self, candidate: candidates.Candidate) -> dict[int, np.ndarray]:
        """Constant operands in the layout that a candidate wants: operand index -> array."""
        from hetero_tvm.schedules.base import thaw

        packers = {}
        if "point" in candidate:
            packers = self.space.pack(self.op, thaw(candidate["point"]), self.machine)
        return {
            index: np.ascontiguousarray(packers[index](array) if index in packers else array)
            for index, (array, constant) in enumerate(zip(self.arrays, self.constant, strict=True))
            if constant
        }
