"""Checks that every design space of the GPU passes: numbers by emulation, facts of the machine code."""

from __future__ import annotations

import itertools

import numpy as np

from hetero_tvm.targets.cuda import codegen, kernel_facts
from hetero_tvm.targets.registry import parse_target
from tests.schedules.cuda.running import MACHINE, compiled

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


def representative(choices, most):
    """A few tiles with every number of rows and columns, every division among warps, every depth and number
    of stages that there is; small ones, which are faster to emulate.

    ``most`` : rows x columns of the largest tile to take.
    """

    def parts(tile):
        return set(zip(("rows", "columns", "depth", "down", "across", "stages"), tile, strict=True))

    shapes = {}
    for tile in sorted(choices, key=lambda tile: tile[0] * tile[1]):
        if len(tile) == 6 and tile[0] * tile[1] <= most:
            shapes.setdefault((*tile[:2], *tile[3:5]), []).append(tile)
    seen, chosen = set(), []
    for tiles in shapes.values():
        tile = max(tiles, key=lambda tile: len(parts(tile) - seen))
        if not parts(tile) <= seen:
            chosen.append(tile)
            seen |= parts(tile)
    wanted = set().union(*map(parts, itertools.chain(*shapes.values())))
    assert seen == wanted, wanted - seen
    return chosen


def check_numbers(space, cases, tolerance):
    """``(op, point or None, arrays or None)`` in one module, emulated, against NumPy in float64.

    ``tolerance`` is relative to the largest result.
    """
    check_all([(space, *case, tolerance) for case in cases])


def check_all(cases):
    """``(space, op, point or None, arrays or None, tolerance)``, as :func:`check_numbers` checks them: one
    module for all of them costs less than several."""
    cases = [
        (space, op, point or space.default(op, MACHINE), arrays or random_arrays(op), tolerance)
        for space, op, point, arrays, tolerance in cases
    ]
    for space, op, point, *_ in cases:
        assert space.refuses(op, MACHINE) is None
        space.check(op, point, MACHINE)
    functions = [space.emit(op, point, MACHINE) for space, op, point, *_ in cases]
    for (_, op, point, arrays, tolerance), call in zip(cases, compiled(functions), strict=True):
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
    return check_all_machine_code([(space, *case) for case in cases], arch)


def check_all_machine_code(cases, arch="sm_80"):
    """``(space, op, point or None)``, as :func:`check_machine_code` checks them."""
    target = parse_target(f"cuda:{arch}")
    functions = [
        space.emit(op, point or space.default(op, target.machine), target.machine)
        for space, op, point in cases
    ]
    with codegen.collect() as made:
        compiled(functions, target)
    (module,) = made
    found = kernel_facts.of_module(module)
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
