"""A kernel for all sizes of one call, from the call at several sizes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

from hetero_tvm.codegen.pipeline import EXACT_BUFFERS
from hetero_tvm.compile.dynamic.scatters import is_scatter, scatter_loops
from hetero_tvm.compile.dynamic.tables import Operands
from hetero_tvm.compile.dynamic.tensor_ir import fitted, form_of, lift, lift_function, with_operands
from hetero_tvm.host.tvm import Expr, PrimFunc, tirx, tvm_ffi
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.relax_passes.rewriting.fused import contract_of, is_ready
from hetero_tvm.runtime.signature import quotient_parts
from hetero_tvm.schedules.base import DesignSpace, Packer, Point
from hetero_tvm.schedules.emit import LAUNCH_FLOPS, launches_alike
from hetero_tvm.schedules.extents import Sizes, Unfit, completed
from hetero_tvm.schedules.fitting import telling
from hetero_tvm.schedules.symbolic import Witnesses
from hetero_tvm.targets.base import Target

_LEAST = 13
_SHARES = (1.0, 0.83, 0.64, 0.92, 0.74, 0.87, 0.69, 0.97, 0.79, 0.6)
_CONFIRMING = (7, 31, 67)
"""Sizes of all symbols at which a lifted kernel must have the loops that its space emits."""


def written_kernel(
    functions: Sequence[PrimFunc],
    sizes: Sequence[Sizes],
    bounded: frozenset[int],
    space: DesignSpace | None,
    point: Point | None,
    target: Target,
    told: Sequence[Operands] = (),
) -> tuple[PrimFunc, Mapping[int, Packer]] | None:
    """A kernel that is written for sizes known at run time, or that the space emits, lifted; and how its
    constant operands are packed.  None where there is neither.

    Parameters
    ----------
    functions : unscheduled, at the ``sizes``.
    bounded : numbers of operands that are constants of the largest size.
    space, point : of the call at the largest sizes; None without a space.
    told : at each size, operands that ``functions`` have behind the call's own and that only tell sizes.
    """
    ops = tuple(contract_of(function) for function in functions)
    if any(type(op) is not type(ops[0]) for op in ops):
        return None
    alone = space is None and ops[0] is not None
    if alone and (space := target.space_for_run_time(ops[0])) is not None:
        point = space.default(ops[0], target.machine)
    if space is None or point is None:
        return None
    witnesses = Witnesses(ops, tuple(sizes), bounded, tuple(told))
    point = target.kept_decisions(space, point)
    kernel = None
    with contextlib.suppress(Unfit):
        kernel = target.run_time_kernel(witnesses, space, point)
    if kernel is None and not alone:
        with contextlib.suppress(Unfit):
            kernel = _alike(witnesses, space, point, target)
    return None if kernel is None else (kernel, space.pack(ops[0], point, target.machine))


def stated_kernel(
    functions: Sequence[PrimFunc], sizes: Sequence[Sizes], bounded: frozenset[int], target: Target
) -> PrimFunc:
    """The operator as its contract states it, lifted and scheduled plainly (a scatter as plain loops).

    Raises
    ------
    Unfit : the loops depend on the sizes, or no operand tells one.
    """
    shapes = {n: tuple(map(int, functions[0].params[n].shape)) for n in bounded}
    if is_ready(functions[0]):
        return lift_function(functions, sizes, shapes)
    work = max(math.prod(map(int, p.shape)) for p in functions[0].params)
    try:
        lifted = lift_function(functions, sizes, shapes)
    except Unfit:
        if not all(map(is_scatter, functions)):
            raise
        lifted = lift_function([scatter_loops(function) for function in functions], sizes, shapes)
    return target.schedule_run_time(lifted, work)


def _alike(witnesses: Witnesses, space: DesignSpace, point: Point, target: Target) -> PrimFunc:
    """Kernel of the space, lifted; where small sizes would leave on one thread what large ones share, as the
    largest has it.

    Raises
    ------
    Unfit : the loops depend on the sizes in other ways.
    """
    with contextlib.suppress(Unfit):
        return _lifted_emission(witnesses, space, point, target)
    with launches_alike(witnesses.largest.flops >= LAUNCH_FLOPS):
        return _lifted_emission(witnesses, space, point, target)


def _lifted_emission(witnesses: Witnesses, space: DesignSpace, point: Point, target: Target) -> PrimFunc:
    """Kernel of the space at sizes where nothing is a special case, lifted and confirmed at small ones."""
    names = [name for name in witnesses.sizes[0] if quotient_parts(name) is None]
    quotients = [name for name in witnesses.sizes[0] if name not in names]
    tops = {name: max(witnesses.sizes[0][name], _LEAST) for name in names}
    several = {name: [_prime_from(math.ceil(share * top)) for share in _SHARES] for name, top in tops.items()}
    # Every symbol's own primes: a product of two tells both.
    for n, name in enumerate(names):
        for _ in range(n):
            several[name] = [_prime_from(size + 1) for size in several[name]]
    firsts = {name: primes[0] for name, primes in several.items()}
    # Primes are odd: halves of them are told from the sizes themselves by even ones.
    others = {name: [*primes, *(p + 1 for p in primes)] for name, primes in several.items()}
    sizes = telling(firsts, quotients, others)

    def emitted(at: Sizes) -> PrimFunc:
        op: FusedOp = witnesses.at(at)
        if reason := space.refuses(op, target.machine):
            raise Unfit(reason)
        return with_operands(space.emit(op, point, target.machine), len(op.inputs), witnesses.told_at(at))

    forms = [form_of(emitted(at)) for at in sizes]
    shapes = {n: witnesses.largest.inputs[n].shape for n in witnesses.bounded}
    for small in _CONFIRMING:
        at = completed(dict.fromkeys(names, small), quotients)
        if min(n for o in (*witnesses.at(at).inputs, *witnesses.at(at).outputs) for n in (1, *o.shape)) < 1:
            continue  # shorter than what the model can be
        fitted([*forms[:-1], form_of(emitted(at))], [*sizes[:-1], at], shapes)
    lifted = lift(forms, sizes, shapes)
    _refuse_open_unrolling(lifted)
    # Bounds of its buffers would be looked for with divisors that may be zero for all that TVM knows.
    return lifted.with_attr(EXACT_BUFFERS, True) if _divides_by_sizes(lifted) else lifted


def _divides_by_sizes(function: PrimFunc) -> bool:
    """Whether a divisor is known at run time only."""
    found = []

    def note(division: tirx.FloorDiv | tirx.FloorMod) -> Expr:
        found.append(not isinstance(division.b, tirx.IntImm))
        return division

    notes = [(tirx.FloorDiv, note), (tirx.FloorMod, note)]
    tvm_ffi.structural_map(function.body, notes, order="post")
    return any(found)


def _refuse_open_unrolling(function: PrimFunc) -> None:
    """Refuse a kernel that writes out a loop whose rounds are known at run time.

    Raises
    ------
    Unfit : it does.
    """
    found = []

    def note(loop: tirx.For) -> tirx.For:
        if loop.kind == tirx.ForKind.UNROLLED and not isinstance(loop.extent, tirx.IntImm):
            found.append(loop)
        return loop

    tvm_ffi.structural_map(function.body, (tirx.For, note), order="post")
    if found:
        raise Unfit("a loop that is written out depends on the sizes")


def _prime_from(least: int) -> int:
    return next(
        n for n in range(max(2, least), 4 * least + 4) if all(n % d for d in range(2, math.isqrt(n) + 1))
    )
