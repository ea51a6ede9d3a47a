"""Checks that every design space of the GPU passes: numbers by emulation, facts of the machine code."""

from __future__ import annotations

import itertools

import numpy as np

from hetero_tvm._bootstrap import import_tvm
from hetero_tvm.targets.base import parse_target
from hetero_tvm.targets.cuda import codegen, facts
from tests.schedules.cuda.running import MACHINE, compiled

tvm = import_tvm()

HALF = 2.0**-10
"""Two roundings of float16 (to nearest), relative."""


def random_arrays(op, seed=0):
    generator = np.random.default_rng(seed)
    return [
        generator.integers(-3, 2**31, x.shape).astype(x.dtype)
        if np.dtype(x.dtype).kind == "i"
        else generator.standard_normal(x.shape).astype(x.dtype)
        for x in op.inputs
    ]


def points(space, op, machine=MACHINE):
    """Every point of a space."""
    knobs = space.knobs(op, machine)
    return [
        dict(zip((knob.name for knob in knobs), values, strict=True))
        for values in itertools.product(*(knob.choices for knob in knobs))
    ]


def sample(space, op, count=3, machine=MACHINE):
    """The default point and some others."""
    every = points(space, op, machine)
    generator = np.random.default_rng(len(every))
    picked = generator.choice(len(every), min(count, len(every)), replace=False)
    return [space.default(op, machine), *(every[i] for i in picked)]


def check_numbers(space, cases, tolerance):
    """``(op, point or None, arrays or None)`` in one module, emulated, against NumPy in float64.

    ``tolerance`` is relative to the largest result.
    """
    cases = [
        (op, point or space.default(op, MACHINE), arrays or random_arrays(op)) for op, point, arrays in cases
    ]
    for op, point, _ in cases:
        assert space.refuses(op, MACHINE) is None
        space.check(op, point, MACHINE)
    functions = [space.emit(op, point, MACHINE) for op, point, _ in cases]
    for (op, point, arrays), call in zip(cases, compiled(functions), strict=True):
        (result,) = call(arrays, [np.full(op.output.shape, 7, op.output.dtype)])
        with np.errstate(invalid="ignore"):
            wide = [a.astype("float64") if a.dtype.kind in "fV" else a for a in arrays]
            truth = op.reference(*wide)
        assert np.array_equal(np.isnan(result), np.isnan(truth)), f"{op} at {point}"
        error = np.nanmax(np.abs(result.astype("float64") - truth), initial=0)
        bound = tolerance * max(np.nanmax(np.abs(truth), initial=0), 1e-30)
        assert error <= bound, f"{op} at {point}: {error:.3g} > {bound:.3g}"


def check_machine_code(space, cases, arch="sm_80"):
    """``(op, point)`` compiled: no spills, launches within the limits.  The module and its facts."""
    target = parse_target(f"cuda:{arch}")
    functions = [
        space.emit(op, point or space.default(op, target.machine), target.machine) for op, point in cases
    ]
    with codegen.collect() as made:
        compiled(functions, target)
    (module,) = made
    found = facts.of_module(module)
    assert found
    for name, kernel in found.items():
        assert kernel["stack"] == 0, f"registers of {name} spill: {cases}"
        assert kernel["threads"] <= 1024 and kernel["registers"] * kernel["threads"] <= 65536, name
        assert kernel["occupancy"] > 0, name
    return module, found


def body_of(ptx, kernel):
    """The PTX of one kernel."""
    start = ptx.index(f".entry {kernel}(")
    end = ptx.find(".entry ", start + 7)
    return ptx[start : end if end > 0 else len(ptx)]
