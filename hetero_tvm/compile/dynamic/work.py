"""Names and work of kernels of any size: in terms of the model's open dimensions, for who profiles a library.

A task has the name and the work of one call at the largest sizes, which are not those of other calls.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence

from hetero_tvm.runtime.signature import quotient_parts
from hetero_tvm.schedules.extents import Sizes, Unfit
from hetero_tvm.schedules.fitting import fit
from hetero_tvm.schedules.task import Task


def open_work(kernels: Sequence[Sequence[Task]], sizes: Sequence[Sizes]) -> dict[str, dict[str, str]]:
    """Entries for the manifest's rows, by key of the first task; what is no polynomial of the sizes has none.

    ``kernel`` is the name; ``flops_at``, ``bytes_at`` and ``weight_bytes_at`` are polynomials of the symbols,
    as signatures write dimensions.

    Parameters
    ----------
    kernels : each at all of the ``sizes``.
    """
    found: dict[str, dict[str, str]] = {}
    taken: set[str] = set()
    for tasks in kernels:
        name = _name([task.name for task in tasks], sizes)
        while name in taken:
            name += "_b"
        taken.add(name)
        found[tasks[0].key] = {"kernel": name, **_work(tasks, sizes)}
    return found


def _work(tasks: Sequence[Task], sizes: Sequence[Sizes]) -> dict[str, str]:
    """Polynomials of a kernel's work, as far as there are any."""
    found = {}
    for name, rows in (
        ("flops_at", [[task.flops] for task in tasks]),
        ("bytes_at", [_operands(task) for task in tasks]),
        ("weight_bytes_at", [[task.weight_bytes] for task in tasks]),
    ):
        with contextlib.suppress(Unfit):
            found[name] = _sum(rows, sizes)
    return found


def _operands(task: Task) -> list[int]:
    """Bytes of each operand; of all together where no contract, or not their sum, says what is moved."""
    op = task.op
    each = [] if op is None else [operand.nbytes for operand in (*op.inputs, *op.outputs)]
    return each if sum(each) == task.nbytes else [task.nbytes]


def _sum(rows: Sequence[Sequence[int]], sizes: Sequence[Sizes]) -> str:
    """Sum of numbers, each of which is a polynomial (all of them together need not be of a form that is
    looked for)."""
    if len({len(row) for row in rows}) > 1:
        rows = [[sum(row)] for row in rows]
    return " + ".join(str(fit(column, sizes)) for column in zip(*rows, strict=True)) or "0"


def _name(names: Sequence[str], sizes: Sequence[Mapping[str, int]]) -> str:
    """The name with expressions of the symbols in the place of numbers that differ with the sizes."""
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(part[::2]) for part in parts}) > 1:
        return names[0]
    found = []
    for n, several in enumerate(zip(*parts, strict=True)):
        value = several[0]
        if n % 2 and len(set(several)) > 1:
            try:
                form = str(fit(list(map(int, several)), sizes))
                value = (form if quotient_parts(form) is not None else f"({form})").replace(" ", "")
            except Unfit:
                value = "?"
        found.append(value)
    return "".join(found)
